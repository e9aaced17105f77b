"""Partitions of which this broker has no replica in sync, for the groups that it coordinates. It asks their leaders.

For each leader there is one task. It asks for what is new in all of the leader's partitions at once, and the leader
holds the request until there is something. These news are kept, since groups will want them next. Earlier events that a
group wants are asked for separately.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import trio

from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import NOBODY
from krappy.core.lineage import Lineage
from krappy.errors import ConnectionLost, KrappyError, NotLeader, OffsetOutOfRange, RequestTimeout, UnknownTopic
from krappy.ports.audit import asked_for
from krappy.types import Span, TopicPartition
from krappy.waiting import Signal

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime
    from krappy.broker.topics.topic import Topic
    from krappy.ports.cluster import LogPeersPort, PeerRead, Place
    from krappy.settings.topic import TopicConfig

T = TypeVar("T")
LATEST = -1  # as the time in a question for an offset: the end of the log
WAIT_S = 0.5  # how long a leader holds a request
PAUSE_S = 0.5  # the pause after a failure
SHORT_S = 0.05  # the pause after an answer without events, which a leader short of memory gives
ANSWERS = 6  # questions about leader epochs for one `lineage`, at most
NEWS = 128 << 10  # bytes that are asked for of each partition
MOST_NEWS = 4 << 20  # bytes of all partitions that are kept; the oldest give way


class _Heard(Signal):
    """Calls `heard` whenever somebody subscribes."""

    __slots__ = ("_heard",)

    def __init__(self, heard: Callable[[], None]) -> None:
        super().__init__()
        self._heard = heard

    def subscribe(self, callback: Callable[[], None]) -> None:
        super().subscribe(callback)
        self._heard()


class DistantPartition:
    """As much of a partition as groups need. Its offsets are those that its leader told last; -1: nothing is known. Its
    leader gives events only for the leader epoch that this broker knows: in another leader epoch, other events may have
    these offsets."""

    offline = ""
    role = Role.FOLLOWER

    def __init__(self, owner: DistantPartitions, topic: Topic, index: int) -> None:
        self._owner, self._topic = owner, topic
        self.topic, self.index = topic.name, index
        self.gone: KrappyError | None = None
        self._start = -1, 0  # (the leader epoch in which this was told, where its log begins)
        self.last_stable_offset = -1
        self.readable_end = -1  # as of the last `look`
        self.moved = _Heard(lambda: owner.follow(self.leader))
        self.next = -1  # from where news are asked for; -1: its leader has to be asked for its ends first
        self.due = 0.0  # when the leader may be asked again, on trio's clock
        self.told = -1  # the leader epoch of its news, and of the offset that they are asked from
        self._news = Span(b"", -1, 0)  # the last ones
        self._since = -1  # their first offset; -1: there are none

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic, self.index)

    @property
    def topic_id(self) -> bytes:
        return self._topic.id

    @property
    def place(self) -> Place:
        return self.at, self.topic_id

    @property
    def leader(self) -> int:
        """NOBODY if there is none."""
        return self._topic.image.partitions[self.index].state.leader

    @property
    def leader_epoch(self) -> int:
        return self._topic.image.partitions[self.index].state.leader_epoch

    @property
    def start_offset(self) -> int:
        """0 if it is not known: after an unclean election the log may begin earlier than the last leader's."""
        epoch, start = self._start
        return start if epoch == self.leader_epoch else 0

    @property
    def high_watermark(self) -> int:
        return self.last_stable_offset

    end_offset = high_watermark

    @property
    def config(self) -> TopicConfig:
        return self._topic.config

    def read_now(self, offset: int, max_bytes: int, *, max_records: int | None = None) -> Span:
        """The news, if they begin at `offset`. Raises BlockingIOError: its leader has to be asked."""
        if self.gone is not None:
            raise self.gone
        if offset != self._since or self.told != self.leader_epoch:
            raise BlockingIOError
        return self._news

    async def read(self, offset: int, max_bytes: int, *, max_records: int | None = None) -> Span:
        """Committed batches from the one with `offset` on, without aborted events; there may be none yet. Raises
        OffsetOutOfRange and `gone`; NotLeader if its leader can't be asked. After an error it has nothing to read until
        its leader answers again."""
        with suppress(BlockingIOError):
            return self.read_now(offset, max_bytes)
        try:
            found = await self._owner.read(self, offset, max_bytes)
        except KrappyError as error:
            self.lose()
            if isinstance(error, OffsetOutOfRange):
                await self.look()  # so that what was deleted is known, though nobody may wait for news
            raise
        if not found.data:
            await trio.sleep(SHORT_S)
        return Span(found.data, found.next_offset, found.records)

    async def look(self) -> None:
        """Asks the leader for its offsets. Raises as `read`."""
        # ListOffsets has only the topic's name, and the leader may still have an earlier topic of that name. Fetch has
        # the id.
        end = await self._owner.offset_at(self, LATEST)
        epoch = self.leader_epoch
        found = await self._owner.read(self, end, 1)
        self._start, self.last_stable_offset = (epoch, found.start), found.last_stable
        self.readable_end = found.high_watermark

    async def end_of_epoch(self, epoch: int, position: int) -> tuple[int, int]:
        """As `Partition.end_of_epoch`. Raises as `read`."""
        current = self.leader_epoch
        if epoch >= 0:
            found = await self._owner.end_of_epoch(self, current, min(epoch, current))
            if found is None:
                raise NotLeader(f"{self}: its leader does not tell its leader epochs")
            return found
        try:
            await self._owner.read(self, position, 1)
            return epoch, position
        except OffsetOutOfRange:
            await self.look()
        if position < self.start_offset:
            return epoch, position
        found = await self._owner.end_of_epoch(self, current, current - 1)
        return epoch, self.readable_end if found is None else found[1]

    async def lineage(self, position: int) -> Lineage:
        """The last leader epochs of the events before this offset, as many as its leader tells in a few answers. Raises
        as `read`."""
        current = epoch = self.leader_epoch
        pairs: list[tuple[int, int]] = []
        for _ in range(ANSWERS):
            before = await self._owner.end_of_epoch(self, current, epoch - 1) if epoch else (-1, 0)
            if before is None or (pairs and before[1] >= pairs[0][1]):
                break  # there is no earlier one
            if before[1] < position:
                pairs.insert(0, (epoch, before[1]))
            epoch = before[0]
            if epoch < 0:
                break
        return Lineage(pairs)

    async def offset_for(self, start: str, start_at: int | None) -> int:
        """As `Partition.offset_for`. Raises as `read`."""
        if start == "timestamp":
            assert start_at is not None
            found = await self._owner.offset_at(self, start_at)
            await self.look()
            return found if 0 <= found < self.last_stable_offset else self.last_stable_offset
        await self.look()
        if start == "earliest":
            return self.start_offset
        if start == "latest":
            return self.last_stable_offset
        assert start_at is not None
        if not self.start_offset <= start_at <= self.last_stable_offset:
            first, end = self.start_offset, self.last_stable_offset
            raise OffsetOutOfRange(
                f"{self}: offset {start_at} is outside {first} to {end}",
                start=first,
                end=end,
                topic=self.topic,
                partition=self.index,
            )
        return start_at

    def begin(self) -> None:
        """To be called before its leader is asked. In a new leader epoch it forgets what the last leader told."""
        if self.told != self.leader_epoch:
            self.told = self.leader_epoch
            self.next = self.last_stable_offset = -1
            self.forget_news()

    def take(self, read: PeerRead, offset: int) -> None:
        """Takes what its leader has answered, in this leader epoch, to a request for news from this offset on."""
        grown = read.last_stable > self.last_stable_offset
        self._start, self.last_stable_offset = (self.told, read.start), read.last_stable
        if read.next_offset > offset:
            self._since, self.next = offset, read.next_offset
            self._news = Span(read.data, read.next_offset, read.records)
        if grown:
            self.moved.fire()

    def forget_news(self) -> None:
        self._since, self._news = -1, Span(b"", -1, 0)

    def is_asked(self, leader: int) -> bool:
        """Whether the broker `leader` still leads it, in the leader epoch in which it was asked last."""
        return self.leader == leader and self.told == self.leader_epoch

    def lose(self) -> None:
        """To be called when its leader can't be asked, or tells of another log."""
        self.next = self.last_stable_offset = -1
        self.due = trio.current_time() + PAUSE_S
        self.forget_news()


class DistantPartitions:
    """All distant partitions. `peers`: None: this broker is alone, and has every partition."""

    def __init__(self, runtime: Runtime, peers: LogPeersPort | None) -> None:
        self._runtime, self._peers = runtime, peers
        self._all: dict[tuple[bytes, int], DistantPartition] = {}
        self._followed: set[int] = set()  # leaders that have a task
        self._kept: dict[DistantPartition, int] = {}  # bytes of their news; the oldest first
        self._size = 0  # bytes of all kept news

    def all_of(self, topics: Iterable[str]) -> list[GroupPartition]:
        """The partitions of these topics, without those out of service: there a group keeps its position, and gets no
        new one. Raises UnknownTopic."""
        found = [self._runtime.topics.find(topic) for topic in topics]
        there = [self.of(topic, index) for topic in found for index in range(topic.count)]
        return [each for each in there if not each.offline]

    def now(self, at: tuple[str, int]) -> GroupPartition | None:
        """A partition of a topic that may be gone."""
        topic = self._runtime.topics.get(at[0])
        return None if topic is None or at[1] >= topic.count else self.of(topic, at[1])

    def of(self, topic: Topic, index: int) -> GroupPartition:
        """A partition, wherever it is. A replica here that is not in sync may be far behind, so it is not used. Raises
        UnknownPartition."""
        if self._peers is None or index >= topic.count or self._is_here(topic, index):
            return topic.held(index)
        return self._distant(topic, index)

    def as_led(self, at: tuple[str, int]) -> DistantPartition | None:
        """A partition as its leader tells of it, though this broker may have a replica. None: no other broker leads."""
        topic = self._runtime.topics.get(at[0])
        if self._peers is None or topic is None or at[1] >= topic.count:
            return None
        leader = topic.image.partitions[at[1]].state.leader
        return None if leader in (NOBODY, self._runtime.id) else self._distant(topic, at[1])

    def _distant(self, topic: Topic, index: int) -> DistantPartition:
        key = topic.id, index
        if key not in self._all:
            self._all[key] = DistantPartition(self, topic, index)
        return self._all[key]

    def asked(self, name: str, index: int) -> GroupPartition:
        """A partition, for a caller that needs to know where its log ends now. A follower's log may lack what was
        acknowledged just now, so the leader is asked. Raises UnknownTopic, UnknownPartition."""
        topic = self._runtime.topics.find(name)
        held = topic.local.get(index)
        if self._peers is None or index >= topic.count or (held is not None and held.role is Role.LEADER):
            return topic.held(index)
        return DistantPartition(self, topic, index)

    def _is_here(self, topic: Topic, index: int) -> bool:
        return index in topic.local and self._runtime.id in topic.image.partitions[index].state.isr

    def look(self) -> None:
        """Follows the leaders as they are now. To be called after each change of topics or leaders."""
        for key, each in list(self._all.items()):
            topic = self._runtime.topics.get(each.topic)
            if topic is None or topic.id != each.topic_id:
                each.gone = UnknownTopic(f"the topic '{each.topic}' was deleted", topic=each.topic)
                del self._all[key]
        for leader in {each.leader for each in self._all.values() if each.moved.is_heard}:
            self.follow(leader)

    def follow(self, leader: int) -> None:
        if leader != NOBODY and leader not in self._followed:
            self._followed.add(leader)
            with asked_for(""):  # it serves all users
                self._runtime.spawn(self._follow, leader)

    async def _follow(self, leader: int) -> None:
        """Until it leads none of the partitions that somebody waits for."""
        try:
            while not self._runtime.stopped:
                self.look()
                mine = [each for each in self._all.values() if each.leader == leader and each.moved.is_heard]
                if not mine:
                    break
                due = [each for each in mine if each.due <= trio.current_time()]
                if not due:
                    await trio.sleep(PAUSE_S)
                    continue
                for each in due:
                    each.begin()
                try:
                    answers = await self._ask(leader, due)
                except KrappyError:
                    answers = {}
                for each in due:
                    if each.is_asked(leader):
                        self._take(each, *answers.get(each.place, (-1, None)))
        finally:
            self._followed.discard(leader)
        if not self._runtime.stopped:
            self.look()

    async def _ask(
        self, leader: int, partitions: list[DistantPartition]
    ) -> dict[Place, tuple[int, PeerRead | KrappyError]]:
        """(the offset from which it was asked, its news) of each of these partitions. One that was not asked for before
        is asked from its end, without a wait."""
        assert self._peers is not None
        fresh = [each for each in partitions if each.next < 0]
        if fresh:
            ends = await self._peers.offsets_at(leader, [each.at for each in fresh], LATEST)
            for each in fresh:
                end = ends.get(each.at)
                if each.is_asked(leader):  # else the next leader is asked by now
                    each.next = end if isinstance(end, int) else -1
        some = [each for each in partitions if each.next >= 0 and each.is_asked(leader)]
        if not some:
            return {}
        wanted = {each.place: (each.next, each.told) for each in some}
        answers = await self._peers.fetch(leader, wanted, NEWS, 0 if fresh else WAIT_S)
        return {place: (wanted[place][0], answer) for place, answer in answers.items()}

    def _take(self, partition: DistantPartition, offset: int, answer: PeerRead | KrappyError | None) -> None:
        if answer is None or isinstance(answer, KrappyError):
            partition.lose()
            return
        partition.take(answer, offset)
        if answer.data:
            self._size += len(answer.data) - self._kept.pop(partition, 0)
            self._kept[partition] = len(answer.data)
        while self._size > MOST_NEWS:
            oldest = next(iter(self._kept))
            self._size -= self._kept.pop(oldest)
            oldest.forget_news()

    async def read(self, partition: DistantPartition, offset: int, max_bytes: int) -> PeerRead:
        assert self._peers is not None
        wanted = {partition.place: (offset, partition.leader_epoch)}
        answers = self._peers.fetch(_led(partition), wanted, max_bytes, 0)
        return _told(partition, (await _answered(partition, answers)).get(partition.place))

    async def end_of_epoch(self, partition: DistantPartition, current: int, epoch: int) -> tuple[int, int] | None:
        assert self._peers is not None
        asked = self._peers.end_of_epoch(_led(partition), partition.at, current, epoch)
        return await _answered(partition, asked)

    async def offset_at(self, partition: DistantPartition, timestamp: int) -> int:
        assert self._peers is not None
        answers = self._peers.offsets_at(_led(partition), [partition.at], timestamp)
        return _told(partition, (await _answered(partition, answers)).get(partition.at))


if TYPE_CHECKING:
    GroupPartition = Partition | DistantPartition


async def check_position(partition: GroupPartition, offset: int) -> None:
    """Raises OffsetOutOfRange for an offset behind the log's end. `partition`: one of `DistantPartitions.asked`."""
    if isinstance(partition, DistantPartition):
        await partition.look()
    if offset > partition.readable_end:
        start, end = partition.start_offset, partition.readable_end
        raise OffsetOutOfRange(
            f"{partition}: offset {offset} can't be a position, the log ends at {end}", start=start, end=end
        )


async def nearest(partition: GroupPartition, start: str, start_at: int | None) -> int:
    """The offset for a start as the protocol names it. An offset outside the log becomes the nearest end of the log.
    `partition`: as for `check_position`."""
    if start == "offset" and start_at is not None:
        if isinstance(partition, DistantPartition):
            await partition.look()
        return min(max(start_at, partition.start_offset), partition.readable_end)
    return await partition.offset_for(start, start_at)


async def _answered(partition: DistantPartition, question: Awaitable[T]) -> T:
    """Raises NotLeader if its leader can't be reached."""
    try:
        return await question
    except (ConnectionLost, RequestTimeout) as error:
        raise NotLeader(f"{partition}: its leader can't be reached: {error.text}") from error


def _told(partition: DistantPartition, answer: T | KrappyError | None) -> T:
    if answer is None:
        raise NotLeader(f"{partition}: its leader did not answer for it")
    if isinstance(answer, KrappyError):
        raise answer
    return answer


def _led(partition: DistantPartition) -> int:
    """Who leads it. Raises NotLeader."""
    if partition.leader == NOBODY:
        raise NotLeader(f"{partition}: nobody leads it now", topic=partition.topic, partition=partition.index)
    return partition.leader
