"""The scan of a table, a page at a time.

Of several brokers each scans the partitions that it leads, one broker after the other: a scan that waits for the others
to end could be dropped by its broker meanwhile. So each partition's snapshot is taken when the scan comes to its
leader, and includes all that was committed before the scan began, and maybe more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from krappy.clients.backoff import Backoff
from krappy.clients.link import Link
from krappy.clients.replies import ReplySlot
from krappy.clients.router import OthersNeeded, Router
from krappy.clients.scattering import check_in_place, partitions
from krappy.clients.session_reads import PATIENCE, look_again, replicas
from krappy.clients.tables import PAGE_BYTES, PAGE_ENTRIES, KeyRangeChoice, entries
from krappy.errors import (
    ConnectionLost,
    InvalidRequest,
    KrappyError,
    NotLeader,
    RequestTimeout,
    ShuttingDown,
    UnknownPartition,
    UnknownTopic,
)
from krappy.types import Entry
from krappy.wire import messages


class Scanning:
    """The pages of a scan. It asks for the next page before the caller has gone through the last one.

    The broker drops the scan with the connection; after that, `page` raises ConnectionLost.
    """

    def __init__(
        self,
        router: Router,
        topic: str,
        chosen: KeyRangeChoice,
        chosen_partitions: Sequence[int] | None,
        tombstones: bool,
        page_entries: int = PAGE_ENTRIES,
        *,
        page_bytes: int = PAGE_BYTES,
        session: bool = False,
        among: int | None = None,
    ) -> None:
        """`session`: any replica may give its table, if that has what this client has written, and read in this way.
        `among`: the scan is one of all partitions, which are so many; `page` raises OthersNeeded if they are not."""
        self._router, self._topic = router, topic
        self._runtime = router.runtime
        self._session = self._replicas = session  # `_replicas`: they are asked; else the leaders
        self._link = router.home  # to the broker that has the scan now
        self._chosen = chosen_partitions
        self._left: list[int] | None = None  # partitions that are still to be scanned, once there are several leaders
        self._first = messages.Scan(
            topic,
            chosen.prefix,
            chosen.start,
            chosen.end,
            None if chosen_partitions is None else list(chosen_partitions),
            tombstones,
            page_entries,
            page_bytes,
        )
        self._part = among is not None  # whether it is a part of a scan of all partitions
        self._first.among = among
        self._begun = self._ended = False
        self._generation = 0
        self._cursor: int | None = None
        self._ahead: ReplySlot | None = None
        # By partition: the scan includes exactly the events before this offset. Of several leaders, only for those that
        # it has begun with.
        self.offsets: dict[int, int] = {}

    async def page(self) -> list[Entry] | None:
        """The next entries, of one partition, in the order of keys. None: there are no more."""
        while not self._ended:
            scanned = await (self._next() if self._begun else self._open())
            self._cursor = scanned.cursor
            if scanned.cursor is not None:
                self._ask()
            elif self._left:
                self._begun = False  # the next leader's
            else:
                self._ended = True
            found = entries(scanned.partition, scanned.entries)
            if found:
                return found
        return None

    async def _open(self) -> messages.Scanned:
        """The first page of a broker's scan."""
        deadline = self._runtime.now() + self._router.timeout
        backoff = Backoff()
        while True:
            request = self._first
            if self._router.known.several:
                self._link, request.partitions = await self._broker(deadline)
            of_replica = self._router.known.several and self._replicas
            request.min_offsets = sorted(self._router.session.seen(self._topic).items()) if of_replica else None
            until = min(deadline, self._runtime.now() + PATIENCE) if of_replica else deadline
            try:
                self._generation = await self._link.ready(until)
                scanned = await self._link.ask(
                    request,
                    messages.Scanned,
                    generation=self._generation,
                    timeout=max(0.0, until - self._runtime.now()),
                    abandoned=partial(_drop, self._link, self._generation),
                )
            except KrappyError as error:
                if of_replica and not self._router.closed:
                    self._replicas = False  # the leaders are asked from now on
                    await look_again(self._router, self._topic, deadline)
                    continue
                if isinstance(error, InvalidRequest) and self._router.note_older(error):
                    request.among = None
                    continue
                new = isinstance(error, UnknownTopic | UnknownPartition) and self._router.known.several
                if not new and not isinstance(error, ConnectionLost | NotLeader):
                    raise
                if self._part and "partitions" in error.details:
                    raise OthersNeeded(error.text, **error.details) from None
                if self._link.closed or self._runtime.now() >= deadline:
                    raise
                if not self.offsets:
                    self._left = None  # there may be another number of partitions
                self._router.note(error)
                if self._router.known.several:
                    await self._router.look_again(self._topic, error, backoff, deadline)
                continue
            self._begun = True
            request.among = None  # one answer is enough
            self.offsets |= dict(scanned.offsets)
            if self._session:
                self._router.session.saw(self._topic, [(index, end - 1) for index, end in scanned.offsets])
            if self._left is not None:
                self._left = [each for each in self._left if each not in self.offsets]
            return scanned

    async def _broker(self, deadline: float) -> tuple[Link, list[int]]:
        """The leader of the next partition, or a replica, and all partitions that it can scan."""
        if self._left is None:
            await check_in_place(self._router, self._topic, deadline)
            if self._chosen is None:
                count = await partitions(self._router, self._topic, deadline)
                self._left = list(range(count))
                self._first.among = None if self._router.is_older else count
            else:
                self._left = sorted(set(self._chosen))
        if not self._left:
            return self._router.home, []
        if self._replicas:
            found = replicas(self._router, self._topic, self._left)
            if found is not None:
                return found[0]
            self._replicas = False
        link = await self._router.leader(self._topic, self._left[0], deadline)
        return link, [each for each in self._left if self._router.leader_now(self._topic, each) is link]

    def _ask(self) -> None:
        slot = ReplySlot(self._runtime.signal())
        request = messages.Scan(
            max_entries=self._first.max_entries, max_bytes=self._first.max_bytes, cursor=self._cursor
        )
        try:
            self._link.post(request, messages.Scanned, slot, self._generation, self._link.timeout)
        except (ConnectionLost, RequestTimeout) as error:
            slot(error)
        self._ahead = slot

    async def _next(self) -> messages.Scanned:
        ahead = self._ahead
        if ahead is None:
            raise ConnectionLost("this scan is closed")
        if self._link.closed and not ahead.is_set():
            raise ConnectionLost(self._link.trouble)
        if not await ahead.wait(self._link.timeout):
            raise RequestTimeout(f"no answer to Scan in {self._link.timeout:g} s")
        result = ahead.result
        if isinstance(result, messages.Scanned):
            return result
        self.close()
        if isinstance(result, ConnectionLost | ShuttingDown):
            raise ConnectionLost(
                "the connection was lost, and the scan's snapshot with it: scan again", **result.details
            )
        raise result

    def abandon(self) -> None:
        """As `close`, for a finalizer: if the lock is taken, the broker drops the scan after a while."""
        self._runtime.if_free(self.close)

    def close(self) -> None:
        """Lets the broker drop the scan."""
        if self._begun and not self._ended:
            self._ended = True
            if self._cursor is not None:
                self._link.tell(messages.Unregister(self._cursor), messages.Unregistered, self._generation)


def _drop(link: Link, generation: int, scanned: messages.Scanned) -> None:
    """Lets the broker drop a scan whose first page nobody waits for any more."""
    if scanned.cursor is not None:
        link.tell(messages.Unregister(scanned.cursor), messages.Unregistered, generation)
