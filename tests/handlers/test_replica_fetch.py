"""What a leader answers to the Fetch of a replica. The partitions are in memory, and the test sets the time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from krappy.core.cluster.image import Image
from krappy.errors import ClusterAuthorizationFailed, CorruptBatch, StorageError
from krappy.handlers.kafka.fetch import fetch
from krappy.records import batch
from krappy.testing.sessions import kafka_session
from krappy.wire.kafka import ApiKey, Code, decode_request, encode_request, encode_response, parse_header
from tests.cluster.replication import LEADER, ME, OTHER, MemoryBroker, MemoryLeader, MemoryTopic, Message

ID = bytes(15) + b"\1"


class Refused(Exception):
    """The whole request was refused."""


class Asker:
    """A replica that fetches on one connection."""

    def __init__(self, *leaders: MemoryLeader, replicas: tuple[int, ...] = (LEADER, ME, OTHER)) -> None:
        self.leaders = leaders or (MemoryLeader(),)
        self.broker: Any = MemoryBroker(MemoryTopic("t", ID, self.leaders, replicas))
        self.session: Any = kafka_session(self.broker)

    @property
    def leader(self) -> MemoryLeader:
        return self.leaders[0]

    async def ask(
        self,
        *asked: Message,
        replica: int = ME,
        epoch: int = 7,
        version: int = 17,
        wait_ms: int = 0,
        max_bytes: int = 1 << 20,
        id: bytes = ID,
        session: tuple[int, int] = (0, -1),
        forgotten: Sequence[int] = (),
    ) -> list[Message]:
        """The partitions of the answer. `session`: the id and epoch of its session."""
        body = {
            "replica_id": replica,
            "replica_state": {"replica_id": replica, "replica_epoch": epoch},
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": max_bytes,
            "session_id": session[0],
            "session_epoch": session[1],
            "topics": [{"topic": "t", "topic_id": id, "partitions": asked or (at(0),) if session[1] <= 0 else asked}],
            "forgotten_topics_data": [{"topic": "t", "topic_id": id, "partitions": list(forgotten)}],
        }
        data = memoryview(encode_request(ApiKey.FETCH, version, 1, "x", body))[4:]
        request = decode_request(ApiKey.FETCH, version, data[parse_header(data).body_at :])
        found: Any = fetch(self.session, request, version)
        answer: Message = found if isinstance(found, dict) else await found
        encode_response(ApiKey.FETCH, version, 1, answer)
        if answer["error_code"]:
            raise Refused(answer["error_code"])
        assert bool(answer["session_id"]) == (session[1] >= 0)
        return [row for topic in answer["responses"] for row in topic["partitions"]]

    async def one(self, *asked: Message, **more: Any) -> Message:
        [row] = await self.ask(*asked, **more)
        return row


def at(offset: int, last: int = -1, *, epoch: int = 5, index: int = 0, most: int = 1 << 20) -> Message:
    return {
        "partition": index,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": last,
        "log_start_offset": 0,
        "partition_max_bytes": most,
    }


def runs(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@runs
async def test_it_reads_up_to_the_logs_end_and_is_noted() -> None:
    asker = Asker()
    asker.leader.commits = False
    asker.leader.produce(b"a", b"b")
    row = await asker.one(at(0))
    assert (row["error_code"], row["high_watermark"], row["log_start_offset"]) == (0, 0, 0)
    assert bytes(row["records"]) == asker.leader.log.content[0]
    assert asker.leader.progress == [(ME, 7, 0)]


@runs
async def test_a_replica_that_compares_is_not_noted() -> None:
    """Before the offset it may have other events than the leader."""
    asker = Asker()
    asker.leader.produce(b"a", b"b")
    row = await asker.one(at(0) | {"log_start_offset": -1})
    assert bytes(row["records"]) == asker.leader.log.content[0]
    assert not asker.leader.progress


@runs
async def test_a_replica_that_has_compared_is_told_the_high_watermark_at_once() -> None:
    """It did not take the one before: the logs might have differed."""
    asker = Asker()
    asker.leader.commits = False
    asker.leader.produce(b"a")
    asker.leader.high_watermark = 1
    [row] = await asker.ask(at(0) | {"log_start_offset": -1}, session=(0, 0))
    assert row["high_watermark"] == 1
    [row] = await asker.ask(at(1, 5), session=(1, 1), wait_ms=10_000)
    assert row["high_watermark"] == 1
    assert await asker.ask(at(1, 5), session=(1, 2), wait_ms=0) == []


@pytest.mark.parametrize("version", range(15, 18))
def test_every_version_with_epochs(version: int) -> None:
    async def main() -> None:
        asker = Asker()
        asker.leader.produce(b"a")
        row = await asker.one(at(0), version=version)
        assert len(row["records"])
        assert asker.leader.progress == [(ME, 7, 0)]

    trio.run(main)


@runs
async def test_a_version_without_epochs_is_refused() -> None:
    asker = Asker()
    for version in range(4, 15):
        assert (await asker.one(at(0), version=version))["error_code"] == Code.INVALID_REQUEST
    assert not asker.leader.progress


@runs
async def test_only_a_replica_is_served() -> None:
    """Else a client's offset would count as a replica's, or the log would be taken for another one."""
    asker = Asker(replicas=(LEADER, ME))
    asker.leader.produce(b"a")
    for replica in (OTHER, LEADER, 2**31 - 1):
        row = await asker.one(at(0), replica=replica)
        assert (row["error_code"], row["records"]) == (Code.UNKNOWN_LEADER_EPOCH, b"")
    assert not asker.leader.progress


@runs
async def test_only_the_process_that_is_registered_is_a_replica() -> None:
    """The offset of another process would commit events that are nowhere, or would keep the true replica's offset from
    counting."""
    asker = Asker()
    asker.leader.produce(b"a", b"b")
    for epoch, code in (
        (6, Code.NOT_LEADER_OR_FOLLOWER),  # an earlier registration: Kafka answers so
        (-1, Code.NOT_LEADER_OR_FOLLOWER),
        (8, Code.UNKNOWN_LEADER_EPOCH),
        (2**60, Code.UNKNOWN_LEADER_EPOCH),
    ):
        for row in (await asker.one(at(0), epoch=epoch), await asker.one(at(2, 5), epoch=epoch)):
            assert (row["error_code"], row["high_watermark"], row["records"]) == (code, -1, b"")
    asker.broker.image = Image(epochs={OTHER: 7})
    assert (await asker.one(at(2, 5)))["error_code"] == Code.UNKNOWN_LEADER_EPOCH
    assert not asker.leader.progress
    assert asker.leader.high_watermark == 0
    asker.broker.image = Image(epochs={ME: 7})
    assert (await asker.one(at(2, 5)))["error_code"] == Code.NONE
    assert asker.leader.high_watermark == 2


@runs
async def test_what_waits_on_a_connection_counts_only_for_the_registered_replica_that_asked() -> None:
    asker = Asker()
    await asker.ask(session=(0, 0))
    await asker.ask(at(0), session=(1, 1), wait_ms=2000)
    asker.leader.progress.clear()
    await asker.ask(session=(1, 2), wait_ms=600, replica=OTHER)
    await asker.ask(session=(1, 3), wait_ms=600, epoch=6)
    await asker.ask(session=(1, 4), wait_ms=600, epoch=8)
    asker.broker.image = Image(epochs={ME: 8})
    await asker.ask(session=(1, 5), wait_ms=600)
    assert not asker.leader.progress
    await asker.ask(session=(1, 6), wait_ms=600, epoch=8)
    assert asker.leader.progress == [(ME, 8, 0)]


@runs
async def test_a_replica_that_may_have_missed_deletions_begins_anew() -> None:
    """The tombstones of these deletions are gone, so what the replica has might never be deleted."""
    asker = Asker()
    for _ in range(3):
        asker.leader.produce(b"a", b"b")
    asker.leader.commits = False
    asker.leader.gone_below = 4
    for offset in (2, 3):
        row = await asker.one(at(offset, 5))
        assert (row["error_code"], row["records"]) == (Code.NONE, b"")
        assert row["diverging_epoch"] == {"epoch": -1, "end_offset": 0}
        assert row["log_start_offset"] == 0
    assert not asker.leader.progress
    for asked in (at(0, -1), at(4, 5)):
        assert len((await asker.one(asked))["records"])
    assert [each[2] for each in asker.leader.progress] == [0, 4]


@runs
async def test_it_begins_anew_where_a_batch_begins() -> None:
    asker = Asker()
    asker.leader.produce(b"a")
    asker.leader.produce(b"b", b"c", b"d")
    asker.leader.delete_before(2)
    asker.leader.gone_below = 4
    row = await asker.one(at(3, 5))
    assert (row["diverging_epoch"], row["log_start_offset"]) == ({"epoch": -1, "end_offset": 1}, 1)
    assert bytes((await asker.one(at(1, -1)))["records"]) == asker.leader.log.content[1]


@runs
async def test_a_replica_that_waits_begins_anew_after_a_silence() -> None:
    """It comes back on the same connection, and does not name its partitions anew."""
    asker = Asker()
    asker.leader.produce(b"a")
    await asker.ask(session=(0, 0))
    await asker.ask(at(1, 5), session=(1, 1))
    assert await asker.ask(at(1, 5), session=(1, 2), wait_ms=600) == []
    asker.leader.progress.clear()
    asker.leader.gone_below = 2
    asker.leader.commits = False
    asker.leader.produce(b"b", b"c")
    await trio.sleep(20)
    [row] = await asker.ask(session=(1, 3), wait_ms=600)
    assert row["diverging_epoch"] == {"epoch": -1, "end_offset": 0}
    assert not asker.leader.progress


@runs
async def test_the_epoch_must_be_the_leaders() -> None:
    asker = Asker()
    for epoch, code in ((4, Code.FENCED_LEADER_EPOCH), (6, Code.UNKNOWN_LEADER_EPOCH), (-1, Code.INVALID_REQUEST)):
        assert (await asker.one(at(0, epoch=epoch)))["error_code"] == code
    assert not asker.leader.progress


@runs
async def test_what_is_not_there() -> None:
    asker = Asker()
    assert (await asker.one(at(0, index=1)))["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert (await asker.one(id=bytes(16)))["error_code"] == Code.UNKNOWN_TOPIC_ID
    asker.leader.epoch = -1
    assert (await asker.one())["error_code"] == Code.NOT_LEADER_OR_FOLLOWER
    asker.leader.epoch, asker.leader.gone = 5, StorageError("")
    assert (await asker.one())["error_code"] == Code.KAFKA_STORAGE_ERROR


@runs
async def test_an_offset_out_of_range_is_answered_with_the_log_start() -> None:
    asker = Asker()
    for _ in range(4):
        asker.leader.produce(b"a", b"b")
    asker.leader.delete_before(4)
    row = await asker.one(at(3, 5))
    assert (row["error_code"], row["log_start_offset"]) == (Code.OFFSET_OUT_OF_RANGE, 4)
    row = await asker.one(at(9))  # an empty log
    assert (row["error_code"], row["log_start_offset"]) == (Code.OFFSET_OUT_OF_RANGE, 4)
    assert not asker.leader.progress
    assert (await asker.one(at(4)))["error_code"] == 0


@runs
async def test_a_replica_starts_over_where_a_batch_begins() -> None:
    asker = Asker()
    for _ in range(4):
        asker.leader.produce(b"a", b"b")
    asker.leader.delete_before(5)
    row = await asker.one(at(3, 5))
    assert (row["error_code"], row["log_start_offset"]) == (Code.OFFSET_OUT_OF_RANGE, 4)
    row = await asker.one(at(4, 5))  # it has events before, and nobody knows whether this log had the same
    assert (row["error_code"], row["log_start_offset"]) == (Code.OFFSET_OUT_OF_RANGE, 4)
    row = await asker.one(at(4), wait_ms=10_000)
    assert (row["error_code"], row["log_start_offset"]) == (0, 5)
    assert bytes(row["records"]) == b"".join(asker.leader.log.content[2:])
    assert (await asker.one(at(5)))["error_code"] == 0
    asker.leader.log.batches.clear()
    asker.leader.delete_before(8)
    row = await asker.one(at(4, 5))
    assert (row["error_code"], row["log_start_offset"]) == (Code.OFFSET_OUT_OF_RANGE, 8)


@runs
async def test_a_replica_whose_log_ends_within_a_deleted_batch_has_another_log() -> None:
    asker = Asker()
    for _ in range(3):
        asker.leader.produce(b"a", b"b", b"c")
    asker.leader.delete_before(5)
    row = await asker.one(at(4, 5))
    assert (row["error_code"], row["log_start_offset"]) == (0, 3)
    assert row["diverging_epoch"] == {"epoch": -1, "end_offset": 3}


@pytest.mark.parametrize(
    ("offset", "last", "diverging"),
    [
        (3, 2, (1, 2)),  # an epoch that this log does not have
        (4, 1, (1, 2)),  # the epoch ends earlier here
        (2, 1, None),
        (3, 4, None),
        (5, 5, None),
        (6, 5, (5, 5)),  # behind the end
        (5, 9, (5, 5)),
    ],
)
def test_where_logs_part(offset: int, last: int, diverging: tuple[int, int] | None) -> None:
    async def main() -> None:
        asker = Asker()
        leader = asker.leader
        leader.log.cut(0)
        for epoch in (1, 1, 4, 4, 5):
            leader.produce(b"x", epoch=epoch)
        row = await asker.one(at(offset, last))
        found = row.get("diverging_epoch")
        assert (found and (found["epoch"], found["end_offset"])) == diverging
        assert bool(leader.progress) == (diverging is None)
        if diverging:
            assert (row["error_code"], len(row["records"]), row["log_start_offset"]) == (0, 0, 0)

    trio.run(main)


# --- news


@runs
async def test_a_request_without_news_waits_and_is_answered_with_nothing() -> None:
    asker = Asker()
    assert len(await asker.ask(at(0), wait_ms=500)) == 1  # a high watermark that was not told yet
    begun = trio.current_time()
    assert await asker.ask(at(0), wait_ms=500) == []
    assert trio.current_time() - begun == pytest.approx(0.5)


@runs
async def test_events_and_a_high_watermark_and_another_epoch_end_the_wait() -> None:
    asker = Asker(MemoryLeader(), MemoryLeader(1))
    asker.leader.commits = False

    async def after(deed: Callable[[], None], offset: int, last: int) -> list[Message]:
        await asker.ask(at(offset, last), at(0, index=1))
        async with trio.open_nursery() as nursery:
            found: list[Message] = []

            async def ask() -> None:
                found.extend(await asker.ask(at(offset, last), at(0, index=1), wait_ms=10_000))

            nursery.start_soon(ask)
            await trio.sleep(1)
            assert not found
            begun = trio.current_time()
            deed()
        assert trio.current_time() == begun
        return found

    [row] = await after(lambda: asker.leader.produce(b"a"), 0, -1)
    assert len(row["records"])
    [row] = await after(lambda: asker.leader.commit(1), 1, 5)
    assert (row["high_watermark"], len(row["records"])) == (1, 0)
    [row] = await after(lambda: asker.leader.lead(6), 1, 5)
    assert row["error_code"] == Code.FENCED_LEADER_EPOCH


@runs
async def test_who_is_no_broker_any_more_is_told_nothing_that_comes_while_he_waits() -> None:
    def deny(*_: object) -> None:
        raise ClusterAuthorizationFailed("no broker any more")

    asker = Asker()
    await asker.ask(at(0))
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def ask() -> None:
            with pytest.raises(Refused) as refused:
                await asker.ask(at(0), wait_ms=10_000)
            assert refused.value.args == (Code.CLUSTER_AUTHORIZATION_FAILED,)

        await trio.sleep(1)
        asker.session.access.check, asker.session.access.version = deny, 1
        asker.leader.produce(b"secret")


@runs
async def test_what_one_replica_was_told_is_not_told_to_another_or_on_another_connection() -> None:
    asker = Asker()
    assert await asker.ask()
    assert await asker.ask() == []
    assert await asker.ask(replica=OTHER)
    asker.session = kafka_session(asker.broker)
    assert await asker.ask()


@runs
async def test_a_log_start_is_told() -> None:
    asker = Asker()
    asker.leader.produce(b"a")
    await asker.ask(at(0))
    await asker.ask(at(1, 5))
    asker.leader.delete_before(1)
    assert (await asker.one(at(1, 5)))["log_start_offset"] == 1


@runs
async def test_the_fetch_itself_commits_and_is_told_so() -> None:
    asker = Asker()
    asker.leader.produce(b"a")
    assert (await asker.one(at(0)))["high_watermark"] == 0
    assert (await asker.one(at(1, 5), wait_ms=10_000))["high_watermark"] == 1


# --- reads


@runs
async def test_a_read_may_wait_for_the_disk() -> None:
    asker = Asker()
    asker.leader.produce(b"a")
    asker.leader.disk_waits = 1
    assert len((await asker.one(at(0)))["records"])


@runs
async def test_a_partition_that_can_not_be_read_is_answered_with_its_error() -> None:
    asker = Asker(MemoryLeader(), MemoryLeader(1))
    for each in asker.leaders:
        each.produce(b"a")

    def fail(offset: int, max_bytes: int, *, min_one: bool = True) -> Any:
        raise CorruptBatch("")

    asker.leader.fetch_all_now = fail  # type: ignore[method-assign]
    first, second = await asker.ask(at(0), at(0, index=1))
    assert first["error_code"] == Code.CORRUPT_MESSAGE
    assert len(second["records"])


@runs
async def test_a_partition_that_is_not_led_any_more_after_the_read_is_refused() -> None:
    """The data may be another leader's."""
    asker = Asker()
    asker.leader.produce(b"a")
    read = asker.leader.fetch_all_now

    def lose(offset: int, max_bytes: int, *, min_one: bool = True) -> Any:
        asker.leader.epoch = 6
        return read(offset, max_bytes, min_one=min_one)

    asker.leader.fetch_all_now = lose  # type: ignore[method-assign]
    row = await asker.one(at(0))
    assert (row["error_code"], row["records"]) == (Code.FENCED_LEADER_EPOCH, b"")


@runs
async def test_the_first_partition_with_events_brings_a_whole_batch() -> None:
    asker = Asker(*map(MemoryLeader, range(3)))
    for each in asker.leaders[1:]:
        each.produce(b"x" * 500)
    rows = await asker.ask(*(at(0, index=index, most=10) for index in range(3)), max_bytes=100)
    sizes = [len(list(batch.split(row["records"]))) for row in rows]
    assert sizes == [0, 1]


@pytest.mark.parametrize("count", [499, 500, 1200])
def test_many_partitions_are_read_in_turns(count: int) -> None:
    async def main() -> None:
        asker = Asker(*map(MemoryLeader, range(count)))
        for each in asker.leaders:
            each.produce(b"x")
        rows = await asker.ask(*(at(0, index=index) for index in range(count)))
        assert [row["partition_index"] for row in rows] == list(range(count))
        rows = await asker.ask(*(at(1, 5, index=index) for index in range(count)), wait_ms=100)
        assert all(row["high_watermark"] == 1 for row in rows)
        assert len(rows) == count
        assert await asker.ask(*(at(1, 5, index=index) for index in range(count)), wait_ms=100) == []

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# --- what is waited for


@runs
async def test_what_is_not_named_again_is_waited_for() -> None:
    asker = Asker(*map(MemoryLeader, range(4)))
    first = await asker.ask(*(at(0, index=index) for index in range(4)), session=(0, 0))
    assert [row["partition_index"] for row in first] == [0, 1, 2, 3]
    assert await asker.ask(*(at(0, index=index) for index in range(4)), session=(1, 1)) == []
    asker.leaders[2].produce(b"a")
    [row] = await asker.ask(session=(1, 2), wait_ms=10_000)
    assert (row["partition_index"], len(row["records"]) > 0) == (2, True)
    asker.leaders[2].produce(b"b")  # the partition was answered, so it must be named again first
    asker.leaders[3].commit(1)
    [row] = await asker.ask(session=(1, 3), wait_ms=10_000)
    assert row["partition_index"] == 3
    [row] = await asker.ask(at(1, 5, index=2), session=(1, 4), wait_ms=10_000)
    assert row["high_watermark"] == 1
    asker.leaders[0].lead(6)
    [row] = await asker.ask(session=(1, 5), wait_ms=10_000)
    assert (row["partition_index"], row["error_code"]) == (0, Code.FENCED_LEADER_EPOCH)


@runs
async def test_what_is_named_again_replaces_what_was_waited_for() -> None:
    asker = Asker()
    await asker.ask(session=(0, 0))
    await asker.ask(at(0), session=(1, 1))
    asker.leader.produce(b"a")
    assert await asker.ask(at(1, 5), session=(1, 2)) != []  # with the high watermark
    assert await asker.ask(at(1, 5), session=(1, 3)) == []
    assert [offset for _, _, offset in asker.leader.progress] == [0, 0, 1, 1]


@runs
async def test_what_is_forgotten_is_not_waited_for() -> None:
    asker = Asker(MemoryLeader(), MemoryLeader(1))
    for epoch in (0, 1):
        await asker.ask(at(0), at(0, index=1), session=(min(epoch, 1), epoch))
    asker.leaders[0].produce(b"a")
    assert await asker.ask(session=(1, 2), forgotten=[0, 7]) == []
    await asker.ask(session=(1, 3), forgotten=[1])
    assert not _subscribers(asker)


def _subscribers(asker: Asker) -> int:
    return sum(len(signal._callbacks) for each in asker.leaders for signal in (each.moved, each.grown))


@runs
async def test_only_the_next_request_continues() -> None:
    asker = Asker()
    for session in ((1, 1), (0, 5)):
        with pytest.raises(Refused):
            await asker.ask(session=session)
    await asker.ask(session=(0, 0))
    for session in ((1, 2), (2, 1), (0, 1)):
        with pytest.raises(Refused):
            await asker.ask(session=session)
    await asker.ask(session=(1, 1))
    await asker.ask(session=(0, 0))
    with pytest.raises(Refused):
        await asker.ask(session=(1, 2))
    await asker.ask(session=(2, 1))


@runs
async def test_nothing_is_waited_for_when_the_connection_has_ended() -> None:
    asker = Asker(*map(MemoryLeader, range(3)))
    for epoch in (0, 1):
        await asker.ask(*(at(0, index=index) for index in range(3)), session=(epoch, epoch))
    assert _subscribers(asker) == 6
    asker.session.close()
    assert _subscribers(asker) == 0


@runs
async def test_a_replica_that_waits_is_noted_now_and_then() -> None:
    """It is at the end of the log, so it must stay in sync however long nothing comes."""
    asker = Asker()
    await asker.ask(session=(0, 0))
    await asker.ask(at(0), session=(1, 1), wait_ms=2000)
    asker.leader.progress.clear()
    asker.broker.image = Image(epochs={ME: 8})
    for epoch in (2, 3, 4):
        await asker.ask(session=(1, epoch), wait_ms=600, epoch=8)
    assert asker.leader.progress == [(ME, 8, 0)] * 3
    asker.leader.epoch = 6
    await asker.ask(session=(1, 5), wait_ms=600)
    assert len(asker.leader.progress) == 3


@runs
async def test_who_found_no_room_comes_first_the_next_time() -> None:
    asker = Asker(*map(MemoryLeader, range(3)))
    for each in asker.leaders:
        each.produce(b"x" * 500)
        each.produce(b"x" * 500)
    rows = await asker.ask(*(at(0, index=index) for index in range(3)), session=(0, 0), max_bytes=600)
    assert [row["partition_index"] for row in rows if len(list(batch.split(row["records"])))] == [0]
    rows = await asker.ask(at(1, 5), session=(1, 1), max_bytes=600)
    assert rows[0]["partition_index"] in (1, 2)
    assert len(list(batch.split(rows[0]["records"]))) == 1


@runs
async def test_a_throttled_replica_gets_no_more_than_the_quota() -> None:
    """40 batches of about 1 kB at 1,000 bytes a second take about 40 s; the test sets the time."""
    asker = Asker()
    asker.leader.throttled = {ME}
    asker.broker.quotas.leader.rate = 1000
    for number in range(40):
        asker.leader.produce(b"%d" % number + bytes(1000))
    size = sum(map(len, asker.leader.log.content))
    begun, offset, got = trio.current_time(), 0, 0
    rows = await asker.ask(at(0), session=(0, 0), wait_ms=500)
    number = 1
    while True:
        assert trio.current_time() - begun < 100
        for row in rows:
            records = bytes(row["records"])
            headers = [header for header, _ in batch.split(records)]
            assert sum(header.size for header in headers) <= 2100, "more than two batches at once"
            got += len(b"".join(bytes(data) for _, data in batch.split(records)))
            offset = headers[-1].next_offset if headers else offset
        if offset == 40:
            break
        rows = await asker.ask(*([at(offset, 5)] if rows else []), session=(1, number), wait_ms=500)
        number += 1
    assert got == size
    assert 0.9 * size / 1000 <= trio.current_time() - begun <= 1.1 * size / 1000


@runs
async def test_others_are_not_held_by_a_throttled_one() -> None:
    """Nor is the throttled replica held any more once it is in sync."""
    throttled, free = MemoryLeader(0), MemoryLeader(1)
    throttled.commits = free.commits = False
    asker = Asker(throttled, free)
    throttled.throttled = {ME}
    asker.broker.quotas.leader.rate = 1
    throttled.produce(b"a" * 100)
    assert [row["partition_index"] for row in await asker.ask(at(0), session=(0, 0))] == [0]
    throttled.produce(b"b" * 100)
    assert await asker.ask(at(1, 5), at(0, index=1), session=(1, 1)) != []  # the high watermark of the second is news
    begun = trio.current_time()
    free.produce(b"c")
    [row] = await asker.ask(at(0, index=1), session=(1, 2), wait_ms=500)
    assert row["partition_index"] == 1
    assert len(row["records"])
    assert await asker.ask(at(1, 5, index=1), session=(1, 3), wait_ms=500) == []
    assert trio.current_time() - begun == pytest.approx(0.5)
    throttled.throttled = set()
    throttled.moved.fire()
    [row] = await asker.ask(session=(1, 4), wait_ms=500)
    assert row["partition_index"] == 0
    assert len(row["records"])


@runs
async def test_a_held_partition_is_told_of_errors() -> None:
    asker = Asker()
    asker.leader.throttled = {ME}
    asker.broker.quotas.leader.rate = 1
    asker.leader.produce(b"a" * 100)
    await asker.ask(at(0), session=(0, 0))
    asker.leader.produce(b"b" * 100)
    assert await asker.ask(at(1, 5), session=(1, 1), wait_ms=500) == []
    asker.leader.lead(6)
    [row] = await asker.ask(session=(1, 2), wait_ms=500)
    assert row["error_code"] == Code.FENCED_LEADER_EPOCH
