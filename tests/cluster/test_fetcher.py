"""The fetcher with the real handler of Fetch, over sockets, with leaders and followers in memory."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from krappy.cluster.fetcher import HELD_S, Fetcher, FetchSettings, LeaderFetch
from krappy.cluster.followed import FollowedPartition
from krappy.cluster.inter_broker import InterBroker
from krappy.core.cluster.image import Image
from krappy.core.cluster.state import NOBODY
from krappy.errors import CorruptBatch, StorageError
from krappy.records import batch
from krappy.waiting import HANGS_S
from krappy.wire.kafka import RANGES, ApiKey, Code
from tests.cluster.replication import (
    LEADER,
    LISTENER,
    ME,
    MY_EPOCH,
    OTHER,
    Listener,
    MemoryBroker,
    MemoryFollower,
    MemoryLeader,
    MemoryTopic,
    Message,
    image_of,
    listening,
)

ID = bytes(15) + b"\1"
QUICK = FetchSettings(backoff_ms=100)
# If no task runs for this time, nothing is under way between leader and follower, because both are in this process. It
# is long enough even if the machine is busy.
QUIET_S = 0.05


class Pair:
    """Leaders on one broker, and the fetcher of another broker."""

    def __init__(self, listener: Listener, leaders: list[MemoryLeader], settings: FetchSettings) -> None:
        self.listener, self.leaders = listener, leaders
        self.followers = [MemoryFollower(ID, each.index, each.epoch) for each in leaders]
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.epoch = MY_EPOCH
        self.image = image_of(listener)
        self.fetcher = Fetcher(
            ME, InterBroker(LISTENER), lambda: self.image, lambda: self.epoch, settings=settings, report=self._report
        )

    def _report(self, event: str, **facts: Any) -> None:
        self.events.append((event, facts))

    @property
    def leader(self) -> MemoryLeader:
        return self.leaders[0]

    @property
    def follower(self) -> MemoryFollower:
        return self.followers[0]

    def follow(self) -> None:
        self.fetcher.set(self.followers)

    async def same(self, *indexes: int) -> None:
        """Waits until the followers have what their leaders have, and know it."""
        for index in indexes or range(len(self.leaders)):
            leader, follower = self.leaders[index], self.followers[index]

            def is_same(leader: MemoryLeader = leader, follower: MemoryFollower = follower) -> bool:
                same = follower.log.content == leader.log.content
                return same and follower.high_watermark == leader.high_watermark == leader.end_offset

            await follower.until(is_same)


@asynccontextmanager
async def pair(partitions: int = 1, settings: FetchSettings = QUICK, start: int = 0) -> AsyncIterator[Pair]:
    leaders = [MemoryLeader(index, start=start) for index in range(partitions)]
    broker = MemoryBroker(MemoryTopic("t", ID, leaders, (LEADER, ME)))
    async with listening(broker) as listener, trio.open_nursery() as nursery:
        made = Pair(listener, leaders, settings)
        nursery.start_soon(made.fetcher.run)
        yield made
        nursery.cancel_scope.cancel()


def runs(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test with a limit of time."""

    async def main(*args: Any, **kwargs: Any) -> None:
        with trio.fail_after(60):
            await test(*args, **kwargs)

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        trio.run(functools.partial(main, *args, **kwargs))

    return run


async def eventually(ready: Callable[[], bool]) -> None:
    while not ready():
        await trio.sleep(0.005)


@runs
async def test_a_follower_gets_what_its_leader_has() -> None:
    async with pair() as it:
        it.leader.produce(b"a", b"b")
        it.follow()
        await it.same()
        it.leader.produce(b"c")
        await it.same()
        assert it.follower.high_watermark == 3
        assert it.follower.epoch == 5
        assert {each[:2] for each in it.leader.progress} == {(ME, MY_EPOCH)}
        assert [offset for _, _, offset in it.leader.progress][:2] == [0, 2]
        assert not it.events


@runs
async def test_the_offset_is_what_is_on_disk() -> None:
    async with pair() as it:
        it.follow()
        await it.follower.until(lambda: it.follower.syncs > 0)
        disk = it.follower.disk = trio.Event()
        it.leader.produce(b"a")
        await eventually(lambda: it.follower.log.end == 1)
        await trio.sleep(0.1)
        assert it.leader.high_watermark == 0
        disk.set()
        await it.same()


@runs
async def test_a_partition_whose_disk_hangs_keeps_no_other_waiting() -> None:
    async with pair(partitions=3) as it:
        it.follow()
        await it.same()
        hung = it.follower
        disk = hung.disk = trio.Event()
        for leader in it.leaders:
            leader.produce(b"a")
        await it.same(1, 2)
        for leader in it.leaders:
            leader.produce(b"b")
        await it.same(1, 2)
        assert hung.synced == 0
        it.leader.lead(6)
        hung.epoch = 6  # it follows anew, and has to finish first what is under way
        it.follow()
        it.leaders[1].produce(b"c")
        await it.same(1, 2)
        assert all(offset == 0 for _, _, offset in it.leader.progress), "the leader is not told of what is not on disk"
        hung.disk = None
        disk.set()
        await it.same()


@runs
async def test_what_ends_late_is_of_no_account_for_who_follows_anew() -> None:
    """The leader has shortened its log, and has another epoch by the time at which the disk goes on."""
    async with pair() as it:
        it.leader.produce(b"a")
        it.follow()
        await it.same()
        disk = it.follower.disk = trio.Event()
        it.leader.start_offset = 1
        it.leader.produce(b"b")
        await eventually(lambda: it.follower.told[1] == 1)
        await trio.sleep(1.5 * HANGS_S)
        it.leader.lead(6)
        it.follower.epoch = 6
        it.follow()
        await wait_all_tasks_blocked(QUIET_S)
        it.follower.disk = None
        disk.set()
        await it.follower.until(lambda: it.follower.synced == 2)
        it.follower.log.start = 1
        for offset in (2, 3):
            it.leader.produce(b"c")
            with trio.fail_after(5):
                await it.follower.until(lambda end=offset + 1: it.follower.synced == end)  # type: ignore[misc]


@runs
async def test_news_without_events_wait_for_no_other_partitions_disk() -> None:
    """A log from which events are being removed takes nothing meanwhile, not even a high watermark."""
    async with pair(partitions=4) as it:
        for leader in it.leaders:
            leader.commits = False
            leader.produce(b"a")
        it.follow()
        await eventually(lambda: all(leader.progress[-1:] == [(ME, MY_EPOCH, 1)] for leader in it.leaders))
        await wait_all_tasks_blocked(QUIET_S)
        it.followers[1].lock = lock = trio.Event()
        for leader in it.leaders:
            leader.commits = True
            leader.commit(1)
        await it.same(0, 2, 3)
        for leader in it.leaders:
            leader.produce(b"b")
        await it.same(0, 2, 3)
        assert it.followers[1].high_watermark == 0
        lock.set()
        await it.same()


@runs
async def test_a_high_watermark_is_told_at_once() -> None:
    async with pair(settings=FetchSettings(wait_max_ms=20_000)) as it:
        it.leader.commits = False
        it.follow()
        it.leader.produce(b"a")
        await it.follower.until(lambda: it.follower.synced == 1)
        await eventually(lambda: it.leader.progress[-1:] == [(ME, MY_EPOCH, 1)])
        with trio.fail_after(5):
            it.leader.commit(1)
            await it.same()


@runs
async def test_a_request_without_news_is_held() -> None:
    async with pair(settings=FetchSettings(wait_max_ms=300)) as it:
        it.leader.produce(b"a")
        it.follow()
        await it.same()
        before = len(it.listener.requests)
        await trio.sleep(1)
        assert len(it.listener.requests) - before <= 5


@runs
async def test_an_answer_has_only_the_partitions_with_news() -> None:
    answers = []
    async with pair(20) as it:
        it.listener.changes = lambda request, answer: answers.append(answer) or answer  # type: ignore[func-returns-value]
        it.follow()
        await eventually(lambda: len(it.listener.requests) >= 3)
        await wait_all_tasks_blocked(QUIET_S)
        answers.clear()
        it.leaders[7].produce(b"a")
        await it.same(7)
        assert {
            row["partition_index"] for each in answers for topic in each["responses"] for row in topic["partitions"]
        } == {7}
        named = [topic["partitions"] for each in it.listener.requests for topic in each["topics"]]
        assert [len(each) for each in named[:2]] == [20, 20]  # all partitions were in the first answers
        assert all(len(each) == 1 for each in named[2:])


@runs
async def test_logs_that_part_are_cut_and_go_on() -> None:
    async with pair() as it:
        leader, follower = it.leader, it.follower
        leader.log.cut(0)
        for epoch in (1, 1, 3):
            leader.log.add(_one(b"x"), leader.log.end, epoch)
        leader.lead(5)
        leader.produce(b"new")
        for epoch, value in ((1, b"x"), (1, b"x"), (2, b"lost"), (2, b"lost")):
            follower.log.add(_one(value), follower.log.end, epoch)
        follower.synced = follower.log.end
        it.follow()
        await it.same()
        assert follower.cuts == [2]
        assert all(offset in (2, 3, 4) for _, _, offset in leader.progress)


def _one(value: bytes) -> bytes:
    return batch.encode(None, [value], timestamps=1)


@runs
async def test_a_follower_below_the_log_start_starts_over_there() -> None:
    async with pair() as it:
        for _ in range(5):
            it.leader.produce(b"x", b"y")
        it.leader.delete_before(5)
        it.follow()
        await it.follower.until(lambda: it.follower.synced == 10)
        assert it.follower.starts == [4]  # the batch with offset 5 begins at 4
        assert it.follower.log.content == it.leader.log.content[2:]


@runs
async def test_a_follower_that_ends_where_the_leaders_first_batch_begins_starts_over() -> None:
    async with pair() as it:
        for _ in range(5):
            it.leader.produce(b"x", b"y")
        it.follower.log.add(batch.encode(None, [b"a"] * 4, timestamps=1), 0, 5)
        it.follower.synced = 4
        it.leader.delete_before(5)
        it.follow()
        await it.follower.until(lambda: it.follower.synced == 10)
        assert it.follower.starts == [4]
        assert it.follower.log.content == it.leader.log.content[2:]


@runs
async def test_a_log_that_parts_before_the_followers_log_start_starts_over() -> None:
    async with pair() as it:
        it.leader.log.cut(0)
        it.leader.produce(b"x", epoch=1)
        it.leader.lead(6)
        it.leader.produce(b"y")
        [follower] = it.followers = [MemoryFollower(ID, epoch=6, start=100)]
        follower.log.add(_one(b"other"), 100, 4)
        follower.synced = 101
        it.follow()
        await it.same()
        assert follower.starts == [0]


@runs
async def test_an_empty_log_behind_the_leaders_end_starts_over() -> None:
    async with pair() as it:
        [follower] = it.followers = [MemoryFollower(ID, start=100)]
        it.leader.produce(b"a")
        it.follow()
        await it.same()
        assert follower.starts == [0]


@runs
async def test_it_starts_over_when_the_leader_says_that_nothing_may_stay() -> None:
    """The leader says so, for example, to a follower that was away while tombstones were removed."""
    async with pair() as it:
        it.leader.produce(b"a")
        it.follow()
        await it.same()

        def change(request: Message, answer: Message) -> Message:
            it.listener.changes = lambda request, answer: answer
            row: Message = {"partition_index": 0, "error_code": 0, "high_watermark": -1, "log_start_offset": 0}
            row |= {"diverging_epoch": {"epoch": -1, "end_offset": 0}}
            return {"responses": [{"topic_id": ID, "partitions": [row]}]}

        it.listener.changes = change
        it.leader.produce(b"b")
        await it.follower.until(lambda: it.follower.starts == [0])
        await it.same()


# --- epochs


@pytest.mark.parametrize(("mine", "code"), [(4, Code.FENCED_LEADER_EPOCH), (6, Code.UNKNOWN_LEADER_EPOCH)])
def test_another_epoch_is_waited_out(mine: int, code: Code) -> None:
    async def main() -> None:
        errors: list[int] = []
        async with pair() as it:

            def change(request: Message, answer: Message) -> Message:
                errors.extend(row["error_code"] for topic in answer["responses"] for row in topic["partitions"])
                return answer

            it.listener.changes = change
            it.leader.produce(b"a")
            it.follower.epoch = mine
            it.follow()
            await eventually(lambda: len(errors) > 0)
            with trio.move_on_after(0.5):
                await it.same()
            assert set(errors) == {code}
            assert len(errors) < 15
            assert not it.leader.progress
            assert not it.follower.log.batches
            assert not it.events
            if mine < 5:
                it.follower.epoch = 5
                it.fetcher.changed()
            else:
                it.leader.lead(6)
            await it.same()

    trio.run(main)


@runs
async def test_an_answer_of_another_epoch_is_ignored() -> None:
    async with pair() as it:
        it.follow()
        await it.follower.until(lambda: it.follower.syncs > 0)

        def change(request: Message, answer: Message) -> Message:
            it.follower.epoch = 6  # the image has changed while the answer was under way
            return answer

        it.listener.changes = change
        it.leader.produce(b"a")
        await eventually(lambda: it.follower.epoch == 6)
        await trio.sleep(0.3)
        assert it.follower.log.end == 0
        it.listener.changes = lambda request, answer: answer
        it.leader.lead(6)
        it.fetcher.changed()
        await it.same()


@runs
async def test_a_partition_moves_to_another_leader() -> None:
    async with pair(2) as it:
        it.follow()
        it.leaders[0].produce(b"a")
        await it.same()
        leader = MemoryLeader(epoch=6)
        leader.log.add(_one(b"a"), 0, 5)
        leader.lead(6)
        leader.produce(b"b")
        async with listening(MemoryBroker(MemoryTopic("t", ID, [leader], (LEADER, ME, OTHER)))) as other:
            other.broker.id = OTHER
            it.image = Image(brokers={**it.image.brokers, **image_of(other, OTHER).brokers})
            it.followers[0].epoch, it.followers[0].leader = 6, OTHER
            it.fetcher.changed()
            await it.followers[0].until(lambda: it.followers[0].high_watermark == 2)
            assert it.followers[0].log.content == leader.log.content
            it.leaders[1].produce(b"c")
            await it.same(1)
            it.followers[0].leader = NOBODY
            it.fetcher.changed()
            leader.produce(b"d")
            await trio.sleep(0.2)
            assert it.followers[0].synced == 2


@runs
async def test_a_partition_that_comes_does_not_wait_for_a_held_request() -> None:
    async with pair(2, FetchSettings(wait_max_ms=20_000)) as it:
        it.fetcher.set(it.followers[:1])
        await it.followers[0].until(lambda: it.followers[0].syncs > 0)
        await wait_all_tasks_blocked(QUIET_S)
        it.leaders[1].produce(b"a")
        begun = trio.current_time()
        it.follow()
        await it.same(1)
        assert trio.current_time() - begun < 5
        it.leaders[0].produce(b"b")
        await it.same()


@runs
async def test_many_changes_do_not_keep_a_leader_from_answering() -> None:
    async with pair(100) as it:
        for each in it.leaders:
            each.produce(b"a")
        for count in range(1, 101):
            it.fetcher.set(it.followers[:count])
            await trio.sleep(0.005)
        await it.same()


@pytest.mark.parametrize("slow", ["connection", "answer"])
@runs
async def test_many_changes_do_not_keep_it_from_connecting(slow: str) -> None:
    """A connection with TLS and a login takes longer than a request is held at least, and so do answers of a leader
    that is busy with the same changes."""
    many = 100

    async def wait(request: Message) -> None:
        await trio.sleep(4 * HELD_S)

    async def answer(request: Message) -> None:
        await trio.sleep(2 * HELD_S)

    async with pair(many) as it:
        it.listener.greets = wait
        it.listener.hears = answer if slow == "answer" else None
        it.leader.produce(b"a")
        came = 0
        while it.follower.high_watermark < 1:
            came += 1
            assert came < many, "it has nothing of what the leader has while changes go on"
            it.fetcher.set(it.followers[:came])
            await trio.sleep(HELD_S)


@runs
async def test_a_partition_that_goes_is_left_alone() -> None:
    async with pair(2) as it:
        it.follow()
        it.leaders[0].produce(b"a")
        await it.same()
        await wait_all_tasks_blocked(QUIET_S)  # the leader holds a request for both partitions
        it.fetcher.set(it.followers[:1])
        it.leaders[0].produce(b"b")
        await it.same(0)
        it.leaders[1].produce(b"b")
        await wait_all_tasks_blocked(QUIET_S)
        assert it.followers[1].log.end == 0
        assert [each for each in it.listener.requests if each["forgotten_topics_data"]]
        it.fetcher.set([])
        await wait_all_tasks_blocked(QUIET_S)
        before = len(it.listener.requests)
        it.leaders[0].produce(b"c")
        await trio.sleep(0.2)
        assert len(it.listener.requests) == before
        it.follow()
        await it.same()


@runs
async def test_nothing_is_fetched_while_the_broker_is_not_registered() -> None:
    async with pair() as it:
        it.epoch = -1
        it.leader.produce(b"a")
        it.follow()
        await trio.sleep(0.2)
        assert not it.listener.requests
        it.epoch = MY_EPOCH + 1
        it.listener.broker.image = Image(epochs={ME: it.epoch})
        it.fetcher.changed()
        await it.same()
        assert it.leader.progress[0][:2] == (ME, it.epoch)


@runs
async def test_a_follower_whose_leader_learns_late_of_its_registration_gets_through_soon() -> None:
    async with pair(2) as it:
        it.leader.produce(b"a")
        it.follow()
        await it.same()
        it.epoch = MY_EPOCH + 1
        it.fetcher.set([])
        await wait_all_tasks_blocked(QUIET_S)
        it.leader.progress.clear()  # after the last fetch with the old epoch
        it.leader.produce(b"b")
        it.follow()
        await trio.sleep(0.5)
        assert it.leader.high_watermark == 1
        assert not it.leader.progress
        it.listener.broker.image = Image(epochs={ME: it.epoch})
        learned = trio.current_time()
        await it.same()
        assert trio.current_time() - learned < 5
        assert {each[:2] for each in it.leader.progress} == {(ME, it.epoch)}
        assert not it.events


# --- failures


@runs
async def test_a_partition_that_fails_does_not_stop_the_others_and_is_told_once() -> None:
    async with pair(3) as it:
        it.followers[1].fails = [CorruptBatch("wrong")] * 2 + [StorageError("full")] * 2 + [ValueError("a fault")]
        it.followers[1].fails.insert(0, None)
        for each in it.leaders:
            each.produce(b"a")
        it.follow()
        await it.same(0, 2)
        it.leaders[0].produce(b"b")
        await it.same()
        failures = [facts for event, facts in it.events if event == "following_failed"]
        assert [each["partition"] for each in failures] == ["t-1"]
        assert [event for event, _ in it.events if event == "internal_error"] == ["internal_error"]


@runs
async def test_a_sync_that_failed_is_repeated_before_it_asks() -> None:
    """The events are in the log, and the next request must say that they are on disk."""
    async with pair() as it:
        it.follow()
        await it.follower.until(lambda: it.follower.syncs > 0)
        it.follower.fails = [None, StorageError("no descriptor")]
        it.leader.produce(b"a")
        await it.same()
        assert it.follower.high_watermark == 1
        assert len(it.follower.log.batches) == 1


def test_a_pause_that_ends_while_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause ends while the fetcher computes how long it still lasts, because the machine does something else.
    Nothing else would wake the waiting fetcher."""
    due_at = LeaderFetch._due_at

    def slowly(self: LeaderFetch, each: FollowedPartition, now: float) -> float:
        found = due_at(self, each, now)
        time.sleep(max(0.0, found - trio.current_time()))
        return found

    monkeypatch.setattr(LeaderFetch, "_due_at", slowly)

    @runs
    async def main() -> None:
        async with pair() as it:
            it.follower.fails = [StorageError("full")] * 3
            it.leader.produce(b"a")
            it.follow()
            await it.same()

    main()


@pytest.mark.parametrize("at", [0, 3, 4, 9, 60, 150])
def test_a_leader_that_dies_within_an_answer(at: int) -> None:
    async def main() -> None:
        async with pair() as it:
            it.follow()
            await it.follower.until(lambda: it.follower.syncs > 0)
            times = 0

            def speak(data: bytes) -> Sequence[bytes | None]:
                nonlocal times
                times += 1
                return [data] if times > 3 else [data[:at], None]

            it.listener.speaks = speak
            it.leader.produce(b"a" * 100)
            await it.same()
            assert times > 3
            assert it.listener.connections >= 4
            assert [event for event, _ in it.events] == ["leader_unreachable"]

    trio.run(main)


@runs
async def test_bytes_come_one_by_one() -> None:
    async with pair() as it:
        it.listener.speaks = lambda data: [data[at : at + 1] for at in range(len(data))]
        it.leader.produce(b"a", b"b")
        it.follow()
        await it.same()


@pytest.mark.parametrize(
    "spoken",
    [
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\4\0\0\0\1",
        b"\0\0\0\5\0\0\x03\xe7\0",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_what_is_no_answer_ends_the_connection(spoken: bytes) -> None:
    async def main() -> None:
        async with pair() as it:
            times = 0

            def speak(data: bytes) -> list[bytes]:
                nonlocal times
                times += 1
                return [spoken] if times <= 2 else [data]

            it.listener.speaks = speak
            it.leader.produce(b"a")
            it.follow()
            await it.same()
            assert [event for event, _ in it.events] == ["leader_unreachable"]

    trio.run(main)


def _rows(answer: Message) -> list[Message]:
    return [row for topic in answer["responses"] for row in topic["partitions"]]


@runs
async def test_answers_that_nobody_asked_for_are_ignored() -> None:
    async with pair() as it:

        def change(request: Message, answer: Message) -> Message:
            for topic in list(answer["responses"]):
                for row in topic["partitions"]:
                    others = [{**row, "partition_index": index} for index in (-1, 1, 2**31 - 1)]
                    answer["responses"].append({"topic_id": ID, "partitions": others})
                    answer["responses"].append({"topic_id": bytes(16), "partitions": [row]})
                    answer["responses"].append({"topic_id": ID, "partitions": [row, row]})
            return answer

        it.listener.changes = change
        it.leader.produce(b"a")
        it.follow()
        await it.same()
        it.leader.produce(b"b")
        await it.same()
        assert not it.events


@pytest.mark.parametrize(
    "records",
    [b"\0", b"\0" * 12, b"\xff" * 70, bytes(8) + b"\xff\xff\xff\xff" + bytes(60), bytes(8) + b"\0\0\0\1" + bytes(60)],
)
def test_records_that_are_no_batches(records: bytes) -> None:
    async def main() -> None:
        async with pair(2) as it:
            times = 0

            def change(request: Message, answer: Message) -> Message:
                nonlocal times
                times += 1
                for row in _rows(answer):
                    if row["partition_index"] == 0 and times <= 3 and row["records"]:
                        row["records"] = records
                return answer

            it.listener.changes = change
            for each in it.leaders:
                each.produce(b"a")
            it.follow()
            await it.same()

    trio.run(main)


@runs
async def test_a_batch_of_a_later_epoch_is_dropped_and_does_not_busy_the_leader() -> None:
    async with pair() as it:
        it.leader.produce(b"a")
        it.leader.log.add(_one(b"later"), 1, 9)
        it.follow()
        await it.follower.until(lambda: it.follower.synced == 1)
        await trio.sleep(0.5)
        assert it.follower.synced == 1
        assert len(it.listener.requests) < 15


@runs
async def test_a_leader_that_always_answers_at_once_is_not_asked_all_the_time() -> None:
    async with pair() as it:
        it.listener.broker.stopped = True
        it.follow()
        await trio.sleep(0.5)
        assert len(it.listener.requests) < 15


@runs
async def test_an_error_for_the_whole_request_is_waited_out() -> None:
    async with pair() as it:
        it.listener.changes = lambda request, answer: {"error_code": 70, "responses": []}
        it.leader.produce(b"a")
        it.follow()
        await trio.sleep(0.35)
        assert len(it.listener.requests) <= 4
        await eventually(lambda: bool(it.events))
        [(event, facts)] = it.events
        assert event == "leader_unreachable"
        assert "FETCH_SESSION_ID_NOT_FOUND" in facts["error"]
        it.listener.changes = lambda request, answer: answer
        await it.same()


@runs
async def test_a_leader_that_is_not_registered_is_waited_for() -> None:
    async with pair() as it:
        image, it.image = it.image, Image()
        it.leader.produce(b"a")
        it.follow()
        await eventually(lambda: bool(it.events))
        it.image = image
        it.fetcher.changed()
        await it.same()
        assert [event for event, _ in it.events] == ["leader_unreachable"]


@runs
async def test_a_leader_without_this_version_of_fetch_is_named() -> None:
    async with pair() as it:
        found = it.listener.versions
        keys = [{**each, "max_version": min(each["max_version"], 12)} for each in found["api_keys"]]
        it.listener.versions = {**found, "api_keys": keys}
        it.follow()
        while not it.events:
            await trio.sleep(0.01)
        [(_, facts)] = it.events
        assert (
            f"serves versions 4 to 12 of FETCH, and one from 15 to {RANGES[ApiKey.FETCH][1]} is needed"
            in facts["error"]
        )
        it.listener.versions = {
            **found,
            "api_keys": [{**each, "max_version": min(each["max_version"], 15)} for each in found["api_keys"]],
        }
        it.leader.produce(b"a")
        await it.same()


# --- sizes


@runs
async def test_a_batch_larger_than_any_limit_arrives() -> None:
    settings = FetchSettings(max_bytes=100, response_max_bytes=200)
    async with pair(3, settings) as it:
        for each in it.leaders:
            each.produce(b"x" * 5000)
            each.produce(b"y" * 10)
            each.produce(b"z" * 3000)
        it.follow()
        await it.same()


@runs
async def test_all_partitions_have_their_turn() -> None:
    """This is so although one partition alone would fill all answers."""
    settings = FetchSettings(max_bytes=1000, response_max_bytes=1000)
    async with pair(3, settings) as it:
        for each in it.leaders[1:]:
            each.produce(b"x")
        for _ in range(200):
            it.leaders[0].produce(b"x" * 900)
        it.follow()
        await it.same(1, 2)
        assert it.followers[0].synced < 100
        await it.same()


@runs
async def test_partitions_that_fill_answers_take_turns() -> None:
    """An answer has room for one batch, and for a little of the next partition's batch."""
    async with pair(2, FetchSettings(max_bytes=1100, response_max_bytes=1100)) as it:
        for each in it.leaders:
            for _ in range(100):
                each.produce(b"x" * 900)
        it.follow()
        await eventually(lambda: it.followers[1].synced + it.followers[0].synced >= 50)
        assert abs(it.followers[0].synced - it.followers[1].synced) <= 3
        await it.same()


@runs
async def test_records_without_bytes() -> None:
    async with pair() as it:
        it.leader.log.add(batch.encode([None], [None], timestamps=0), 0, 5)
        it.leader.produce(b"")
        it.follow()
        await it.same()


@runs
async def test_a_log_with_holes_is_copied_with_its_holes() -> None:
    async with pair() as it:
        for offset in (0, 10, 500):
            it.leader.log.add(_one(b"x"), offset, 5)
        it.follow()
        await it.same()
        assert it.follower.synced == 501


@runs
async def test_a_throttled_follower_copies_no_faster_than_the_quota() -> None:
    """Copying takes at least as long as the rate demands. Other partitions are not slowed down."""
    async with pair(2) as it:
        it.fetcher.quota.rate = 40_000
        it.followers[0].is_throttled = True
        for _ in range(30):
            it.leader.produce(bytes(2000))
        begun = trio.current_time()
        it.follow()
        it.leaders[1].produce(b"free")
        await it.same(1)
        assert it.followers[0].synced < 30
        await it.same(0)
        took, size = trio.current_time() - begun, sum(map(len, it.leader.log.content))
        assert took >= (size - 40_000) / 40_000  # one request may ask for what a second allows
        asked = [
            each["partition_max_bytes"]
            for request in it.listener.requests
            for topic in request["topics"]
            for each in topic["partitions"]
            if each["partition"] == 0
        ]
        assert set(asked) == {40_000}
        assert not it.events


@runs
async def test_a_follower_whose_throttle_is_removed_goes_on_at_once() -> None:
    async with pair() as it:
        it.fetcher.quota.rate = 1
        it.follower.is_throttled = True
        it.leader.produce(bytes(1000))
        it.follow()
        await it.follower.until(lambda: it.follower.log.end == 1)
        it.leader.produce(b"next")  # with the throttle, the follower would get it after 1,000 s
        await trio.sleep(0.3)
        assert it.follower.log.end == 1
        it.follower.is_throttled = False
        await it.same()
