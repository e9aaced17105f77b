"""Which broker a client asks: any one of the cluster (`home`), or the one that leads a partition.

While the cluster has one broker, or `home` does not tell how many there are, everything goes over the link to `home`.
Once there are several, each request about a partition goes to its leader, over a link of its own that is opened when it
is needed. The first broker that answers Metadata says who the leader is. The client asks again when a broker says that
it does not lead the partition, when the connection to it is lost, and when a partition is not known; then it waits a
little, longer each time, until the operation's time is over.

A link to a leader that is lost is made again in the background, as every link. But nobody waits for that for long:
another broker may lead the partition by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from krappy.clients.backoff import Backoff
from krappy.clients.cluster import KnownCluster
from krappy.clients.learning import Learning
from krappy.clients.link import Link
from krappy.clients.links import Links
from krappy.clients.refusals import is_cut_off
from krappy.clients.replies import ReplySlot
from krappy.clients.session_offsets import SessionOffsets
from krappy.clients.values import Address
from krappy.clients.watchdog import Watchdog
from krappy.errors import (
    ConnectionLost,
    CoordinatorNotAvailable,
    InvalidRequest,
    KrappyError,
    NotCoordinator,
    NotLeader,
    RequestTimeout,
    UnknownPartition,
    UnknownTopic,
)
from krappy.partitioner import partition_for
from krappy.wire import messages
from krappy.wire.messages import Answer, Request

A = TypeVar("A", bound=Answer)
PATIENCE = 1.0  # seconds that a request waits for the connection to a leader before the client asks who leads now
SURPRISES = 3  # how often a leader may say that it does not know the topic, or the partition


class OthersNeeded(NotLeader):
    """The broker leads the partition that was asked for, but to answer it would need others, which it does not lead."""


class Router:
    """`open_link` makes a link to one broker, which ends with the client."""

    def __init__(self, home: Link, open_link: Callable[[Address], Link]) -> None:
        self.home = home
        self.runtime = home.runtime
        self.timeout = home.timeout
        self.known = KnownCluster()
        self.links = Links(home, self.known, open_link, self.watch)
        self.learning = Learning(self.links)
        self._watchdog = Watchdog(self.links, self.learning)
        self.writers: dict[str, Any] = {}  # by topic: the producer of its tables, or a signal while it is being opened
        self.scattered: dict[str, tuple[bool, float]] = {}  # by topic: whether it may have strays, and until when
        self.is_older = False  # whether a broker does not read the number of partitions that a client knows
        self.session = SessionOffsets(self.known)  # what this client has written and read

    async def open(self) -> None:
        """Connects. Raises ConnectionLost when no broker answers."""
        await self.home.open()
        pong = self.home.pong
        self.known.several = pong is not None and pong.brokers > 1
        if self.known.several:
            self._watchdog.begin()

    def watch(self, link: Link, broker: int) -> None:
        """Has a link given up, as if its connection were lost, when its broker hangs and has been replaced."""
        self._watchdog.watch(link, broker)

    @property
    def closed(self) -> bool:
        return self.home.closed

    @property
    def trouble(self) -> str:
        return self.home.trouble

    # --- requests

    async def ask(
        self,
        request: Request,
        answer: type[A],
        topic: str,
        partition: int | None = None,
        key: bytes = b"",
        deadline: float | None = None,
    ) -> A:
        """The answer of the leader of a partition (None: the one that murmur2 gives the key), by the deadline (None:
        that of the timeout). For requests that may be sent twice. Raises what `Link.ask` raises; NotLeader when the
        partition had no leader all the time; OthersNeeded."""
        if not self.known.several:
            try:
                return await self.home.ask(request, answer)
            except NotLeader as error:
                self.note(error)
                if not self.known.several:
                    raise
        deadline = self.runtime.now() + self.timeout if deadline is None else deadline
        backoff = Backoff()
        while True:
            count, at = 0, partition
            if at is None:
                count = len((await self.learning.topic(topic, deadline)).partitions)
                at = partition_for(key, count)
            link = await self.leader(topic, at, deadline)
            left = max(0.0, deadline - self.runtime.now())
            try:
                return await link.ask(request, answer, generation=link.generation, timeout=left)
            except (NotLeader, ConnectionLost) as error:
                others = isinstance(error, NotLeader) and error.details.get("partition", at) != at
                if others and not (count and await self.recounted(topic, count, deadline)):
                    raise OthersNeeded(error.text, **error.details) from None
                await self.look_again(topic, error, backoff, deadline)
            except (UnknownTopic, UnknownPartition) as error:
                await self.look_again(topic, error, backoff, deadline)
                self._check_id(topic, request, error)

    async def change(self, request: Request, answer: type[A], *, again: bool = True) -> A:
        """The answer of the first broker that is not cut off from ZooKeeper; `home` is asked first. For changes of what
        the cluster has. `again` and what it raises: as for `Link.ask`."""
        deadline = self.runtime.now() + self.timeout
        backoff = Backoff()
        while True:
            try:
                left = max(0.0, deadline - self.runtime.now())
                return await self.home.ask(request, answer, again=again, timeout=left, others=self.known.several)
            except ConnectionLost as error:
                if not is_cut_off(error):
                    raise
                said = error
            for link in await self.each(deadline):
                left = max(0.0, deadline - self.runtime.now())
                on = link.generation if again else None  # once that is lost, the next one is asked
                try:
                    return await link.ask(request, answer, again=again, generation=on, timeout=left, others=True)
                except ConnectionLost as error:
                    if not (again or is_cut_off(error)):
                        raise
            pause = backoff.pause()
            if self.closed or self.runtime.now() + pause >= deadline:
                raise said
            await self.runtime.sleep(pause)

    async def groups(self, deadline: float, only: str | None = None) -> list[tuple[Link, list[dict[str, Any]]]]:
        """The groups that each broker has (or `only` that one), so that none is left out, and none is there twice.
        Raises ConnectionLost if a broker can't be reached: it may coordinate some; CoordinatorNotAvailable while some
        are coordinated by no broker."""
        backoff = Backoff()
        said: KrappyError | None = None
        while True:
            try:
                links = await self.every(deadline)
            except (ConnectionLost, RequestTimeout) as error:
                raise said or error from None
            asked = [(link, messages.Groups(None, only)) for link in links]
            told = await self.ask_each(asked, messages.GroupsFound, deadline)
            refusals = [each for each in told if isinstance(each, KrappyError)]
            answers = [each for each in told if isinstance(each, messages.GroupsFound)]
            if not refusals and len({each.epoch for each in answers} - {None}) <= 1:  # None: an older broker's
                return [(link, each.groups) for link, each in zip(links, answers, strict=True)]
            unsure = CoordinatorNotAvailable("the brokers do not agree now which of them coordinates which groups")
            said = next(iter(refusals), unsure)
            pause = backoff.pause()
            if self.closed or not said.retriable or self.runtime.now() + pause >= deadline:
                raise said
            await self.runtime.sleep(pause)

    async def coordinator(self, error: NotCoordinator, deadline: float) -> Link:
        """A link to the broker that a refusal names as the coordinator. Raises the refusal if nobody knows it,
        ConnectionLost at the deadline."""
        link = await self._find(error.details.get("coordinator", -1), deadline)
        if link is None:
            raise error
        await link.ready(deadline)
        return link

    async def broker(self, id: int, deadline: float) -> Link:
        """A link to a broker, which is connected. Raises ConnectionLost: at the deadline, or if the cluster does not
        have that broker now."""
        link = await self._find(id, deadline)
        if link is None:
            raise ConnectionLost(f"broker {id} of the cluster is away")
        await link.ready(deadline)
        return link

    async def _find(self, id: int, deadline: float) -> Link | None:
        if id not in self.known.brokers:
            await self.learning.refresh((), deadline)
        return self.links.find(id)

    def broker_now(self, id: int) -> Link | None:
        """The link to a broker, if that is known and connected; else it begins to connect."""
        link = self.links.find(id)
        return None if link is None or link.broken else link

    async def ask_each(
        self, asked: Sequence[tuple[Link, Request]], answer: type[A], deadline: float
    ) -> list[A | KrappyError]:
        """What each link answers to its request. All are asked at the same time."""
        sent: list[tuple[Link, ReplySlot, int | None]] = []
        try:
            for link, request in asked:
                slot, id = ReplySlot(self.runtime.signal()), None
                try:
                    id = link.post(request, answer, slot, None, max(0.0, deadline - self.runtime.now()))
                except (ConnectionLost, RequestTimeout) as error:
                    slot(error)
                sent.append((link, slot, id))
            for (link, slot, _), (_, request) in zip(sent, asked, strict=True):
                if not await slot.wait(max(0.0, deadline - self.runtime.now())):
                    slot(RequestTimeout(f"no answer to {type(request).__name__} in time", address=str(link.address)))
        finally:
            for link, slot, id in sent:
                if id is not None and not slot.is_set():
                    link.forget(id)
        return [slot.result for _, slot, _ in sent]

    async def leader(self, topic: str, partition: int, deadline: float, patience: float = PATIENCE) -> Link:
        """A link to the partition's leader, which is connected. Raises at the deadline: NotLeader, ConnectionLost; and
        UnknownTopic, UnknownPartition, when a broker says so."""
        backoff = Backoff()
        asked = False
        while True:
            if not self.known.several:
                await self.home.ready(deadline)
                return self.home
            try:
                await self.learning.topic(topic, deadline)
                broker = self.known.leader(topic, partition)
            except UnknownPartition:
                if asked:
                    raise
                broker = None
            error: KrappyError = NotLeader(
                f"{topic}-{partition}: no broker leads it now", topic=topic, partition=partition
            )
            link = None if broker is None else self.links.to(broker)
            if link is not None:
                try:
                    await link.ready(min(deadline, self.runtime.now() + patience))
                    return link
                except ConnectionLost as lost:
                    error = lost
            await self.look_again(topic, error, backoff, deadline)
            asked = True

    def leader_now(self, topic: str, partition: int) -> Link | None:
        """The link to the partition's leader, if that is known and connected; else it begins to connect."""
        if not self.known.several:
            return None if self.home.broken else self.home
        try:
            broker = self.known.leader(topic, partition)
        except (UnknownTopic, UnknownPartition):
            return None
        link = None if broker is None else self.links.to(broker)
        return None if link is None or link.broken else link

    def unreachable(self, topic: str, partition: int) -> KrappyError:
        """Why `leader_now` gives None: its leader does not let this client in, or no broker does that could tell who it
        is; or it is not known."""
        asked = [] if self.links.working() else self.links.all
        with suppress(UnknownTopic, UnknownPartition):
            leader = self.known.leader(topic, partition)
            asked += [link] if leader is not None and (link := self.links.to(leader)) is not None else []
        text = f"{topic}-{partition}: its leader is not known, or can't be reached"
        return next((each.refusal for each in asked if each.refusal is not None), NotLeader(text, topic=topic))

    def any_now(self) -> Link:
        """A link to some broker, which is connected and answers if one is."""
        return next(iter(self.links.working()), self.home)

    async def split(self, topic: str, partitions: Iterable[int], deadline: float) -> dict[Link, list[int]]:
        """The partitions by their leaders. Raises as `leader`."""
        found: dict[Link, list[int]] = {}
        for each in partitions:
            found.setdefault(await self.leader(topic, each, deadline), []).append(each)
        return found

    async def of_leaders(
        self,
        topic: str,
        partitions: Iterable[int],
        request: Callable[[list[int]], Request],
        answer: type[A],
        taken: list[tuple[Link, list[int], A]] | None = None,
        deadline: float | None = None,
    ) -> list[tuple[Link, list[int], A]]:
        """The answer of each leader about its own of these partitions; all are asked at the same time. For requests
        that may be sent twice. Raises as `ask`. `taken`: answers are put there as they come, also if it raises."""
        deadline = self.runtime.now() + self.timeout if deadline is None else deadline
        backoff = Backoff()
        found = [] if taken is None else taken
        left = list(partitions)
        while left:
            leaders = await self.split(topic, left, deadline)
            asked = [(link, request(some)) for link, some in leaders.items()]
            left = []
            error: KrappyError | None = None
            for (link, some), got in zip(leaders.items(), await self.ask_each(asked, answer, deadline), strict=True):
                if isinstance(got, answer):
                    found.append((link, some, got))
                    continue
                assert isinstance(got, KrappyError)
                if isinstance(got, NotLeader) and got.details.get("partition", some[0]) not in some:
                    raise OthersNeeded(got.text, **got.details)
                if not got.retriable and not isinstance(got, UnknownTopic | UnknownPartition):
                    raise got
                error = got
                left += some
            if error is not None:
                await self.look_again(topic, error, backoff, deadline)
                self._check_id(topic, asked[0][1], error)
        return found

    def _check_id(self, topic: str, request: Request, error: KrappyError) -> None:
        """Raises the error if the request is about a topic in whose place there is another one."""
        known, id = self.known.topics.get(topic), getattr(request, "topic_id", None)
        if known is not None and id not in (None, known.id):
            raise error

    async def recounted(self, topic: str, count: int, deadline: float) -> bool:
        """Asks how many partitions a topic has by now. Returns whether that is another number than `count`."""
        with suppress(ConnectionLost, RequestTimeout):
            await self.learning.refresh([topic], deadline)
        return len((await self.learning.topic(topic, deadline)).partitions) != count

    def note_older(self, error: InvalidRequest) -> bool:
        """Whether a broker has refused a request only because it is older, and does not know the field `among`."""
        if error.details.get("field") != "among":
            return False
        self.is_older = True
        return True

    async def each(self, deadline: float) -> list[Link]:
        """A link to each broker that can be reached. Only the one to `home` while no other broker is known."""
        if not self.known.several:
            await self.home.ready(deadline)
            return [self.home]
        await self.learning.refresh((), deadline)
        reached = []
        for link in [link for broker in self.known.brokers.values() if (link := self.links.to(broker)) is not None]:
            with suppress(ConnectionLost):
                await link.ready(min(deadline, self.runtime.now() + PATIENCE))
                reached.append(link)
        return reached

    async def every(self, deadline: float) -> list[Link]:
        """As `each`, but waits for those that can't be reached, until the cluster does not count them any more. Raises
        ConnectionLost at the deadline."""
        backoff = Backoff()
        while True:
            links = await self.each(deadline)
            lost = sorted(self.known.brokers.keys() - set(map(self.links.id_of, links))) if self.known.several else []
            if not lost:
                return links
            if self.runtime.now() >= deadline:
                raise ConnectionLost(f"these brokers can't be reached: {', '.join(map(str, lost))}")
            await self.runtime.sleep(backoff.pause())

    def note(self, error: KrappyError) -> bool:
        """Takes over what a refusal tells of leaders. Returns whether it names a new one, who can be asked at once."""
        if not isinstance(error, NotLeader):
            return False
        with self.runtime.lock:
            if error.details.get("leader", -1) >= 0:
                self.known.several = True
            return self.known.note(error)

    async def look_again(self, topic: str, error: KrappyError, backoff: Backoff, deadline: float) -> None:
        """Learns who leads now, after an error whose reason may be another leader, or that says that a leader does not
        know the topic or the partition. Raises the error when the time is over, or when the leader will not hear of it
        any more."""
        now = self.runtime.now()
        if self.closed or now >= deadline:
            raise error
        if self.note(error):
            return
        await self.runtime.sleep(max(0.0, min(backoff.pause(), deadline - now)))
        unknown = isinstance(error, UnknownTopic | UnknownPartition)
        with suppress(ConnectionLost, RequestTimeout):
            await self.learning.refresh([topic], deadline, doubt=not unknown)
        if unknown and not self.may_hear(topic, error):
            raise error

    def may_hear(self, topic: str, error: KrappyError) -> bool:
        """Whether the error is only that a leader has not heard yet of a topic, or a partition."""
        return isinstance(error, UnknownTopic | UnknownPartition) and self.known.may_hear(topic, self.runtime.now())
