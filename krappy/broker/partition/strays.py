"""Strays: keys that stand in another partition than the one that murmur2 gives them now.

They come from producers with another partitioner (librdkafka's default is CRC32), from producers that choose partitions
themselves, and from partitions that were added. Such a key may stand in several partitions. Its newest entry is the one
with the highest timestamp. Of entries with the same timestamp it is the one in the key's own partition (murmur2's),
else the one in the highest partition.

While a topic is known to have no strays, a key is looked up in its own partition only. Otherwise all partitions are
asked. So strays may be assumed where there are none, but never the reverse:

- A view stores, in the same write as its applied offset, for how many partitions its keys were checked, and whether one
  of them is a stray. A view without this, and every view of a topic that got partitions, is read through again.
- Keys are checked when their events become readable, before anybody can ask for them. If the keys are not in memory
  then, as for transactions, they are checked when the events are applied; until then the partition may have strays.
- If a partition is out of service, its view tells whether it has strays. Without a view it may have some, so lookups in
  the topic are refused: a key that no other partition has may stand there.
- In a cluster, a partition that this broker follows is assumed to have no strays as long as it is not known: a
  follower's view is always a little behind, and its leader checks the keys. What is known counts.
- In a cluster no broker knows all partitions. There the topic is marked before its first stray is written, even while
  it has no view, and the mark stays (scattered.py). So without a mark, the events that a new leader's view has not
  applied yet have no strays. A stray that is only expected, by a condition that looks at all partitions, sets no mark.
- Once a view has strays, no more keys are checked. The view is read through again, up to the first stray, after
  compaction or a sweep has removed keys from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import trio

from krappy.broker.partition.hashing import look_for_strays
from krappy.core.cluster.roles import Role
from krappy.errors import KrappyError, ShuttingDown
from krappy.partitioner import any_elsewhere
from krappy.records.batch import TRANSACTIONAL
from krappy.store.keys import PREFIX_SIZE, view_end, view_prefix
from krappy.waiting import Waits

if TYPE_CHECKING:
    from krappy.broker.partition.doubles import Doubles
    from krappy.broker.partition.pending import Pending
    from krappy.broker.partition.replica import Replica

P = TypeVar("P", bound="Replica")

AT_ONCE = 1000  # the most keys that are checked in one go
NOTHING = -1, 0, False
MOST_KNOWN = 1000  # ranges of events whose keys are known to be no strays, beyond those that are checked in order
LEAST, BYTES = 16, 256 << 10  # with large keys fewer: about BYTES bytes of keys, but at least LEAST keys


class StraysMark(Protocol):
    """See `krappy.broker.topics.scattered`."""

    @property
    def is_set(self) -> bool: ...
    @property
    def is_known(self) -> bool: ...
    @property
    def is_new(self) -> bool: ...
    @property
    def is_there(self) -> bool | None: ...
    @property
    def is_split(self) -> bool: ...
    def fits(self, count: int) -> bool: ...
    def look(self) -> None: ...
    async def make_known(self) -> None: ...
    def want(self) -> None: ...


class Strays(Generic[P]):
    """Which partitions of a topic may have strays. True if any may."""

    def __init__(self, partitions: Mapping[int, P]) -> None:
        """`partitions`: those of the topic that this broker has, by index; its owner adds to it."""
        self.partitions = partitions
        self.views: dict[int, ViewStrays] = {}  # by partition
        self.count = 0  # the number of partitions for which keys are checked; 0: not begun
        self.unsure: set[int] = set()  # partitions that may have strays
        self.switching = False  # views are turned on or off, one after the other: some partitions have one, some not
        self.conditions = trio.Lock()  # held while conditions that need several partitions are decided
        self.doubles: Doubles | None = None  # as they were found last
        self.finding = trio.Lock()  # held while doubles are found
        self.mark: StraysMark | None = None  # what all brokers of a cluster agree on; None: this broker is alone

    def __bool__(self) -> bool:
        """Whether a key may stand in another partition than its own."""
        if self.count <= 1:
            return False
        return bool(self.unsure) or self.switching or (self.mark is not None and self.mark.is_set)

    @property
    def are_known(self) -> bool:
        """Whether there may be strays, and not only because this broker does not know better yet."""
        return bool(self) and (self.mark is None or self.mark.is_set)

    @property
    def all_here(self) -> bool:
        """Whether this broker leads all partitions, so that their views tell all."""
        led = sum(each.role is Role.LEADER for each in self.partitions.values())
        return self.mark is None or led == self.count

    def tell(self, partition: Replica) -> None:
        """To be called when the partition's role has changed."""
        view = self.views.get(partition.index)
        if view is not None:
            view.tell()

    def others(self, partition: Replica) -> list[P]:
        return [each for each in self.partitions.values() if each is not partition]

    def begin(self, count: int) -> None:
        """Checks keys for this number of partitions, which the topic has in the cluster, from now on."""
        self.count = count
        for view in self.views.values():
            view.judge()


class ViewStrays:
    """Whether the view of one partition has strays."""

    def __init__(self, replica: Replica, topic: Strays[Any], applied: int) -> None:
        """`applied`: the offset from which the view is folded on."""
        self._replica = replica
        self._topic = topic
        topic.views[replica.index] = self
        topic.doubles = None  # the log may have lost events since these were found, if the view is folded anew
        self._looks = Waits()  # ends when the broker stops: then nobody waits to hash keys, and errors are not reported
        self._kept = replica.views.strays(replica.number) if replica.config.view else None
        self._some: bool | None = None  # whether there are strays; None: not known
        self._judged = applied  # the keys of events before this offset are checked, unless `_some`
        self._known = deque[
            tuple[int, int]
        ]()  # offsets of later events that were checked and are no strays: [start, end)
        self._applied = applied
        self._count = 0
        self._ahead = NOTHING  # what `look_ahead` has found: up to which offset, for how many partitions
        self._counting = self._met = False
        self._stale = False  # keys were removed from the view since it was read through
        if self._topic.count:
            self.judge()

    def judge(self) -> None:
        """From now on checks keys for the number of partitions that the topic has now. Checks earlier keys, too, unless
        the view told of them when it was opened."""
        replica, count = self._replica, self._topic.count
        self._count = count
        self._known.clear()
        kept, self._kept = self._kept, None
        if not replica.config.view or count == 1:
            self._some = False
        elif kept is not None and kept[0] == count:
            self._some = kept[1]
        elif not replica.views.applied(replica.number) and replica.offline:
            self._some = None  # neither a log nor a view tells
        elif not replica.views.applied(replica.number) and not self._topic.conditions.locked() and not replica.busy:
            self._some, self._judged = False, self._applied
        else:
            self._some = None
            self.tend()
        self.tell()

    def tell(self) -> None:
        """Tells the topic whether this partition may have strays."""
        if self._count <= 1:
            return  # with one partition there are no strays
        replica, unsure, mark = self._replica, self._topic.unsure, self._topic.mark
        known = self._some is not None
        if mark is None:
            known = known and (not replica.config.view or self._judged >= replica.last_stable_offset)
        elif self._some and self._seen:
            mark.want()
        if self._some or (not known and replica.role is not Role.FOLLOWER):
            unsure.add(replica.index)
        else:
            unsure.discard(replica.index)

    @property
    def _seen(self) -> bool:
        """Whether `_some` tells of keys that are there: not of expected ones, or of some that may be gone."""
        return not self._some or not (self._stale or self._counting)

    def committed(self, accepted: Sequence[Pending]) -> None:
        """Checks the keys of these batches, which have just become readable."""
        if self._some and not self._counting:
            return
        for item in accepted:
            if item.header.attributes & TRANSACTIONAL:
                continue  # it may be aborted
            count, found = item.elsewhere or (-1, False)
            known = count == self._count
            found &= known
            if found and self.checks:
                self._some = self._met = True
            if item.offset != self._judged:
                if known and not found:
                    self._remember(item)
                continue
            if not known:
                if item.columns is None or self._looks.ended:
                    continue
                self._look(item.columns.keys)
            self._judged = item.end
        self.tell()

    def _remember(self, item: Pending) -> None:
        """Notes that its keys need not be checked again when it is applied, though keys of earlier events must be."""
        if self._known and self._known[-1][1] == item.offset:
            self._known[-1] = self._known[-1][0], item.end
        elif len(self._known) < MOST_KNOWN:
            self._known.append((item.offset, item.end))

    def close(self) -> None:
        """The broker stops. Nobody waits until keys are hashed: the next start checks them, from the log."""
        self._looks.end()

    @contextmanager
    def until_closing(self) -> Iterator[None]:
        """For a body that hashes keys. If the broker stops while the body waits, ends the body and raises
        ShuttingDown."""
        with self._looks.until_end() as scope:
            yield
        if scope.cancelled_caught:
            raise ShuttingDown("the broker stops before the keys are checked")

    @property
    def checks(self) -> bool:
        """Whether keys are checked."""
        return self._count > 1 and (not self._some or self._counting)

    async def look_ahead(self, keys: Collection[bytes], applied: int) -> None:
        """Looks at keys that will be checked as they are applied up to this offset. Raises ShuttingDown."""
        if applied > self._judged and self.checks:
            count = self._count
            with self.until_closing():
                self._ahead = applied, count, await look_for_strays(list(keys), count, self._replica.index)

    def applying(self, keys: Collection[bytes], applied: int) -> tuple[int, bool] | None:
        """Checks these keys, which are about to be applied up to this offset. Gives what the view is to store: (number
        of partitions, whether there are strays); None: nothing, so that the next start reads the view through."""
        if applied > self._judged:
            (upto, count, found), self._ahead = self._ahead, NOTHING
            if (upto, count) != (applied, self._count):
                self._look(list(keys))
            elif found and self.checks:
                self._some = self._met = True
        return None if self._count <= 1 or self._some is None or not self._seen else (self._count, self._some)

    def applied(self, upto: int) -> None:
        """Everything before this offset has been applied."""
        self._applied = upto
        self._judged = max(self._judged, upto)
        while self._known and self._known[0][0] <= self._judged:
            self._judged = max(self._judged, self._known.popleft()[1])
        self.tell()

    def _look(self, keys: Sequence[bytes | None]) -> None:
        if not self.checks:
            return
        for start in range(0, len(keys), AT_ONCE):
            some = keys[start : start + AT_ONCE]
            try:
                found = any_elsewhere(cast("Sequence[bytes]", some), self._count, self._replica.index)
            except TypeError:  # events without a key; looking for them first would take a tenth of the whole time
                found = any_elsewhere([key for key in some if key is not None], self._count, self._replica.index)
            if found:
                self._some = self._met = True
                break

    def expect(self) -> None:
        """A stray may be written soon."""
        self._some = self._stale = True
        self.tell()

    def taken_out(self) -> None:
        """Keys were removed from the view."""
        self._stale = True
        self.tend()

    def tend(self) -> None:
        """Begins to read through the view, if that may tell more."""
        if not self._counting and self._count > 1 and (self._some is None or (self._some and self._stale)):
            self._counting = True
            self._replica.spawn(self._look_through)

    async def _look_through(self) -> None:
        replica = self._replica
        try:
            while self._counting:
                count = self._count
                async with replica.counting:
                    found = await self._any()
                await replica.written()  # waits for conditional writes that were decided for fewer partitions
                async with self._topic.conditions:  # then an expected stray is there, and was seen, or it never comes
                    if count == self._count:
                        self._counting = False
                        self._some = found or self._met
        except KrappyError as error:  # nothing new is known; `tend` tries again
            if replica.gone is None and not self._looks.ended:
                replica.report("strays_unknown", error)
        finally:
            self._counting = False
        self.tell()

    async def _any(self) -> bool:
        """Whether any key of the view is a stray."""
        replica, count = self._replica, self._count
        number = replica.number
        self._met = self._stale = False
        self._judged = self._applied  # keys that are applied from now on are checked too
        self.tell()
        at, end, step = view_prefix(number), view_end(number), LEAST
        while not self._met and count == self._count:
            keys, following = replica.views.keys(at, end, step)
            if any_elsewhere([key[PREFIX_SIZE:] for key in keys], count, replica.index):
                return True
            if following is None:
                break
            at = following
            step = max(LEAST, min(AT_ONCE, 2 * step, BYTES * step // (1 + sum(map(len, keys)))))
            await trio.lowlevel.checkpoint()
        return self._met
