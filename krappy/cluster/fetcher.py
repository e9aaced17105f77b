"""Keeps the partitions that this broker follows as their leaders have them: it asks each leader for what is new.

- For each leader there is one task with one connection. A request names the partitions that were in the last answer,
  and new ones; for all others the leader still waits. It holds the request until there is news of any partition, and
  answers with those that have news. So the work for a request grows only with the news.
- All events of an answer are put on disk together, and then the next request tells how far each partition is. No
  request is sent meanwhile: the leader would hold it, and could not be told how far they are. But a partition for which
  the disk hangs is not waited for longer than `HANGS_S`: it is named again once its events are on disk.
- A partition whose log has been shortened, as the leader's was before, is named again: the leader waits for that.
- A partition that is throttled is named only while the quota has room, and for a second's worth of bytes (KIP-73).
- A partition that is added while its leader holds a request does not wait for the answer: the request is given up, with
  its connection. But not earlier than `HELD_S` after it was sent, nor before it has lasted as long as connecting did
  (with TLS and a login, at a leader that is busy): many partitions may be added one after the other, as when a broker
  dies, and each would end what the one before had begun. For that reason no attempt to connect is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from functools import partial
from math import inf
from typing import NamedTuple

import trio

from krappy.cluster.followed import FollowedPartition, Message, PartitionKey, Report, is_quiet, named_code
from krappy.cluster.inter_broker import InterBroker
from krappy.cluster.peers import TIMEOUT_S, PeerLink
from krappy.cluster.streams import Address
from krappy.core.cluster.image import Image
from krappy.core.cluster.state import NOBODY
from krappy.core.throttle import ReplicationQuota
from krappy.errors import BrokerError, KrappyError
from krappy.ports import FollowerPort
from krappy.waiting import HANGS_S, Errands, Signal, wait_any
from krappy.wire.kafka import ApiKey

LEAST_VERSION = 15  # of Fetch: the first with replica_state (KIP-903)
HELD_S = 0.05
LARGEST_BATCH = 64 << 20  # bytes: the largest request of a producer by default
LAST_EPOCH = 2**31 - 1  # of a session (KIP-227); 1 comes after it
QUOTA_LOOK_S = 1.0  # between two looks while a quota is used up: a partition may come into sync, the quota may change
CLIENT_ID = "krappy-replica"
LEAST_SILENCE_S = 2.0


class FetchSettings(NamedTuple):
    """The settings replica.fetch.max.bytes (of a partition), .response.max.bytes, .wait.max.ms, .min.bytes and
    .backoff.ms. `silence_s`: how long a leader may bring nothing beyond the wait that it was asked for; then the
    connection counts as lost."""

    max_bytes: int = 1 << 20
    response_max_bytes: int = 10 << 20
    wait_max_ms: int = 500
    min_bytes: int = 1
    backoff_ms: int = 1000
    silence_s: float = TIMEOUT_S


def silence_s(lag_ms: float) -> float:
    """`lag_ms`: after so long a follower that gets nothing leaves the ISR. A connection that is dead is left before."""
    return max(LEAST_SILENCE_S, min(TIMEOUT_S, lag_ms / 3000))


class Fetcher:
    """`run` works until it is cancelled. `set` tells what this broker follows, and `changed` that a partition has
    another leader or epoch, or that the image or the broker's epoch is another one."""

    def __init__(
        self,
        broker: int,
        way: InterBroker,
        image: Callable[[], Image],
        broker_epoch: Callable[[], int],
        *,
        settings: FetchSettings = FetchSettings(),  # noqa: B008  (a constant)
        largest_batch: int = LARGEST_BATCH,
        report: Report = lambda event, **facts: None,
    ) -> None:
        """`broker_epoch()`: of this broker; below 0 while it is not registered, and then nothing is fetched."""
        self.broker, self.way = broker, way
        self.image, self.broker_epoch = image, broker_epoch
        self.settings, self.report = settings, report
        self.largest_batch = largest_batch
        self.quota = ReplicationQuota()
        self._ports: dict[PartitionKey, FollowerPort] = {}
        self._leaders: dict[int, LeaderFetch] = {}
        self._changed = Signal()
        self._stale = False

    def set(self, partitions: Iterable[FollowerPort]) -> None:
        """From now on these are followed, and no others."""
        self._ports = {(each.topic_id, each.index): each for each in partitions}
        self.changed()

    def changed(self) -> None:
        self._stale = True
        self._changed.fire()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                await wait_any([self._changed], lambda: self._stale)
                self._stale = False
                self._share_out(nursery)

    def _share_out(self, nursery: trio.Nursery) -> None:
        """Gives each leader its partitions."""
        shares: dict[int, list[FollowerPort]] = {}
        for port in self._ports.values():
            if port.leader not in (NOBODY, self.broker):
                shares.setdefault(port.leader, []).append(port)
        for leader in self._leaders.keys() - shares.keys():
            self._leaders.pop(leader).end()
        for leader, ports in shares.items():
            if leader not in self._leaders:
                fetch = self._leaders[leader] = LeaderFetch(self, leader)
                nursery.start_soon(fetch.run)
            self._leaders[leader].set(ports)


class LeaderFetch:
    """What this broker fetches from one leader."""

    def __init__(self, owner: Fetcher, leader: int) -> None:
        self._owner, self._leader = owner, leader
        self._settings = owner.settings
        largest = owner.settings.response_max_bytes + owner.largest_batch
        self._link = PeerLink(
            *(self._address, CLIENT_ID, owner.way), silence_s=owner.settings.silence_s, largest=largest
        )
        self._followed: dict[PartitionKey, FollowedPartition] = {}
        self._unnamed: dict[PartitionKey, FollowedPartition] = {}  # those that the next request names, if they are due
        self._waiting: dict[PartitionKey, FollowedPartition] = {}  # those that the leader waits for
        self._shortening: dict[PartitionKey, FollowedPartition] = {}  # those that have not deleted what the leader has
        self._session = (0, 0)  # id and epoch that the next request continues; 0: it begins anew
        self._news = trio.Event()  # the partitions or the broker's epoch have changed
        self._scope = trio.CancelScope()
        self._held = trio.CancelScope()  # of the request that is outstanding
        self._sent = 0.0  # when it was sent
        self._held_s = HELD_S  # after which it may be given up
        self._failed = ""  # the failure that has been reported, if no answer has come since
        self._errands: Errands[Hashable]  # what came is put on disk

    def set(self, ports: Iterable[FollowerPort]) -> None:
        """From now on these are fetched."""
        given = {(port.topic_id, port.index): port for port in ports}
        before, self._followed = self._followed, {}
        for key, known in before.items():
            if given.get(key) is known.port and known.stands:
                self._followed[key] = known
            else:
                known.end()
                self._unnamed.pop(key, None)
                self._shortening.pop(key, None)
        came = [key for key in given if key not in self._followed]
        for key in came:
            pause_s = self._settings.backoff_ms / 1000
            made = FollowedPartition(given[key], pause_s, self._owner.report)
            self._followed[key] = self._unnamed[key] = made
        if came:
            self._held.deadline = min(self._held.deadline, self._sent + self._held_s)
        self._news.set()

    def end(self) -> None:
        for each in self._followed.values():
            each.end()
        self._scope.cancel()

    def _address(self) -> Address | None:
        found = self._owner.image().brokers.get(self._leader)
        return None if found is None else found.endpoints.get(self._owner.way.listener)

    # --- the loop

    async def run(self) -> None:
        with self._scope:
            try:
                async with trio.open_nursery() as nursery:
                    self._errands = Errands(nursery, HANGS_S, lambda _: self._news.set())
                    while True:
                        named = await self._due()
                        if not self._link.is_open:
                            if not await self._connect():
                                continue
                            named = await self._due()  # some may have been added meanwhile
                        answer = await self._ask(named)
                        if answer is not None:
                            await self._take(answer)
            finally:
                self._link.close()

    async def _due(self) -> list[FollowedPartition]:
        """The partitions to name. Returns once there is one, or the leader waits for one."""
        while True:
            news = self._news = trio.Event()
            if self._owner.broker_epoch() >= 0:
                self._name_shortened()
                now = trio.current_time()
                unnamed = [each for key, each in self._unnamed.items() if key not in self._errands]
                ready = [each for each in unnamed if each.stands and self._due_at(each, now) <= now]
                await self._errands.run({each.key: each.finish for each in ready if each.unfinished})
                found = [each for each in ready if each.stands and not each.unfinished]
                if found or any(each.stands for each in self._waiting.values()):
                    return found
                with trio.move_on_at(self._next_due(now)):
                    await news.wait()
            else:
                await news.wait()

    def _name_shortened(self) -> None:
        for key, each in tuple(self._shortening.items()):
            if each.start_moved:
                self._unnamed[key] = each
            if not each.follows_start:
                del self._shortening[key]

    def _next_due(self, now: float) -> float:
        """When the next partition is due that was not due at `now`; infinite if there is none."""
        due = (self._due_at(each, now) for each in self._unnamed.values() if each.stands)
        return min((at for at in due if at > now), default=inf)

    def _due_at(self, each: FollowedPartition, now: float) -> float:
        """When the partition may be asked for. If it waits for the quota, that is at the next look at the latest."""
        pause = self._owner.quota.pause(now) if each.port.is_throttled else 0.0
        return max(each.due, now + min(QUOTA_LOOK_S, pause)) if pause else each.due

    async def _connect(self) -> bool:
        """Whether there is a connection now."""
        began = trio.current_time()
        try:
            await self._link.open()
        except KrappyError as error:
            await self._fail(error)
            return False
        self._held_s = max(HELD_S, trio.current_time() - began)
        return True

    async def _fail(self, error: KrappyError) -> None:
        """Notes that the leader can't be asked, and pauses if it has refused."""
        self._begin_anew()
        if self._failed != str(error):
            self._failed = str(error)
            self._owner.report("leader_unreachable", leader=self._leader, error=self._failed)
        if isinstance(error, BrokerError):
            await trio.sleep(self._settings.backoff_ms / 1000)

    async def _ask(self, named: Collection[FollowedPartition]) -> Message | None:
        """The answer to a request that names these partitions. None: there is none."""
        now = trio.current_time()
        wait_ms = int(min(self._settings.wait_max_ms, 1 + (self._next_due(now) - now) * 1000))
        body = self._request(named, wait_ms)
        for each in named:
            self._unnamed.pop(each.key, None)
            self._waiting[each.key] = each
        self._sent = trio.current_time()
        with trio.CancelScope() as self._held:
            try:
                answer = await self._link.ask(
                    ApiKey.FETCH, body, least=LEAST_VERSION, held_s=wait_ms / 1000, begun=self._begun
                )
                if answer["error_code"]:
                    raise BrokerError(f"the leader answers {named_code(answer['error_code'])}")
            except KrappyError as error:
                await self._fail(error)
                return None
            self._failed = ""
            self._session = (answer["session_id"], self._session[1] % LAST_EPOCH + 1)
            return answer
        self._begin_anew()
        return None

    def _begin_anew(self) -> None:
        """The leader waits for nothing any more."""
        self._session = (0, 0)
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            self._name_again(each)

    def _name_again(self, each: FollowedPartition) -> None:
        each.unanswered()
        if self._followed.get(each.key) is each:
            self._unnamed[each.key] = each

    def _begun(self) -> None:
        self._held.deadline = inf

    def _request(self, named: Collection[FollowedPartition], wait_ms: int) -> Message:
        settings, owner = self._settings, self._owner
        topics: dict[bytes, list[Message]] = {}
        share = owner.quota.share(sum(each.port.is_throttled for each in named))
        for each in named:
            topic_id, index = each.key
            offset, epoch = each.ask()
            most = settings.max_bytes
            if share is not None and each.port.is_throttled:
                most = min(most, share)
            if each.doubts:
                most = 1  # the leader gives a whole batch at least
            partition = {
                "partition": index,
                "current_leader_epoch": each.epoch,
                "fetch_offset": offset,
                "last_fetched_epoch": epoch,
                "log_start_offset": each.told_start,
                "partition_max_bytes": most,
            }
            topics.setdefault(topic_id, []).append(partition)
        return {
            "replica_state": {"replica_id": owner.broker, "replica_epoch": owner.broker_epoch()},
            "max_wait_ms": wait_ms,
            "min_bytes": settings.min_bytes,
            "max_bytes": settings.response_max_bytes,
            "session_id": self._session[0],
            "session_epoch": self._session[1],
            "topics": [{"topic_id": id, "partitions": partitions} for id, partitions in topics.items()],
            "forgotten_topics_data": self._forgotten(),
        }

    def _forgotten(self) -> list[Message]:
        """The partitions that the leader need not wait for any more."""
        topics: dict[bytes, list[int]] = {}
        for key, each in tuple(self._waiting.items()):
            if not each.stands:
                del self._waiting[key]
                topics.setdefault(key[0], []).append(key[1])
        return [{"topic_id": id, "partitions": indexes} for id, indexes in topics.items()]

    async def _take(self, answer: Message) -> None:
        """Takes an answer. Returns when all its events are on disk, or the disk hangs."""
        quiet: deque[tuple[FollowedPartition, Message]] = deque()
        works: dict[Hashable, Callable[[], Awaitable[None]]] = {}
        for topic in answer["responses"]:
            for row in topic["partitions"]:
                found = self._waiting.pop((topic["topic_id"], row["partition_index"]), None)
                if found is not None:
                    if is_quiet(row):
                        quiet.append((found, row))
                    else:
                        works[found.key] = partial(self._take_row, found, row)
                    if found.port.is_throttled:
                        self._owner.quota.spend(len(row["records"] or b""), trio.current_time())
        came = bool(quiet or works)
        while quiet or works:  # quiet ones seldom wait for the disk, so they are taken in turn; the rest, if one does
            in_turn = partial(self._take_in_turn, quiet)
            await self._errands.run({**works, in_turn: in_turn})
            works = {}
        if not self._session[0]:
            self._begin_anew()
        if not came and trio.current_time() < self._sent + HELD_S:
            await trio.sleep(HELD_S)  # the leader did not hold the request, because it is about to stop

    async def _take_in_turn(self, rows: deque[tuple[FollowedPartition, Message]]) -> None:
        while rows:
            await self._take_row(*rows.popleft())

    async def _take_row(self, found: FollowedPartition, row: Message) -> None:
        await found.take(row)
        self._name_again(found)
        if found.follows_start and self._followed.get(found.key) is found:
            self._shortening[found.key] = found
