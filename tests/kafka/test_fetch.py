"""Fetch: how much it brings, when it waits, what is out of range, and how large fetches leave the file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from krappy.handlers.kafka import fetch_work
from krappy.partitioner import partition_for
from krappy.records import batch
from krappy.testing.running import run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw, create, fetch, produce, values_of
from tests.peer import Peer
from tests.process import BrokerProcess, readable, wait_until

LONG_MS = 60_000  # ms: longer than any test may take


def some(count: int, size: int = 1, first: int = 0) -> bytes:
    return batch.encode(None, [b"%d" % number + b"x" * size for number in range(first, first + count)], timestamps=1)


@pytest.mark.parametrize("version", range(4, 18))
def test_every_version(raw: Raw, version: int) -> None:
    uuid = raw.make("versions")
    if raw.fetch("versions", 0)["high_watermark"] == 0:  # only the first case of this process writes
        raw.produce("versions", some(3))
    answer = raw.ask(ApiKey.FETCH, fetch([(uuid if version >= 13 else "versions", 0, 1)]), version)
    assert (answer["error_code"], answer["session_id"]) == (0, 0)
    (topic,) = answer["responses"]
    assert (topic["topic_id"] == uuid) if version >= 13 else (topic["topic"] == "versions")
    (found,) = topic["partitions"]
    assert (found["error_code"], found["high_watermark"], found["last_stable_offset"]) == (0, 3, 3)
    if version >= 5:
        assert found["log_start_offset"] == 0
    assert found["aborted_transactions"] is None
    assert len(values_of(found["records"], 1)) == 2


def test_an_offset_inside_a_batch_brings_the_whole_batch(raw: Raw) -> None:
    raw.make("inside")
    raw.produce("inside", some(10))
    records = raw.fetch("inside", 7)["records"]
    (header,) = [batch.read_header(data) for _, data in batch.split(records)]
    assert (header.base_offset, header.count) == (0, 10)


def test_the_first_partition_with_anything_brings_at_least_one_batch(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "first", 4)
    for index in (1, 2, 3):
        raw.produce("first", some(1, 100_000), index)
    wanted: list[tuple[str | bytes, int, int]] = [("first", index, 0) for index in range(4)]
    answer = raw.ask(ApiKey.FETCH, fetch(wanted, max_bytes=1, partition_max_bytes=1), 12)
    sizes = [len(values_of(each["records"])) for topic in answer["responses"] for each in topic["partitions"]]
    assert sizes == [0, 1, 0, 0]
    answer = raw.ask(ApiKey.FETCH, fetch(wanted, max_bytes=150_000), 12)
    sizes = [len(values_of(each["records"])) for topic in answer["responses"] for each in topic["partitions"]]
    assert sizes == [0, 1, 0, 0]
    answer = raw.ask(ApiKey.FETCH, fetch(wanted), 12)
    sizes = [len(values_of(each["records"])) for topic in answer["responses"] for each in topic["partitions"]]
    assert sizes == [0, 1, 1, 1]


@pytest.mark.parametrize("each", [10, 200, 5000, 300_000])
def test_reading_on_brings_everything_once(raw: Raw, each: int) -> None:
    """By small and large fetches; the last batch of a fetch may be cut."""
    topic = f"through-{each}"
    raw.make(topic)
    total = max(60, min(3000, 300_000 // each))
    for first in range(0, total, 3):
        raw.produce(topic, some(min(3, total - first), each, first))
    for most in (1, 70_000, 1 << 20, 50 << 20):
        offset = rounds = 0
        while offset < total:
            data = raw.fetch(topic, offset, partition_max_bytes=most)["records"]
            values = values_of(data, offset)
            assert values == [b"%d" % number + b"x" * each for number in range(offset, offset + len(values))]
            assert values
            offset += len(values)
            rounds += 1
            if most == 1 and rounds == 5:
                break


def test_across_segments(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "segments", segment_bytes="200000")
    for first in range(0, 100, 5):
        raw.produce("segments", some(5, 10_000, first))
    offset = 0
    while offset < 100:
        values = raw.values("segments", offset)
        assert values
        offset += len(values)


@pytest.mark.parametrize("most", [1000, 1 << 20])
def test_what_the_page_cache_has_lost_comes_from_the_disk(raw: Raw, broker: BrokerProcess, most: int) -> None:
    topic = f"cold-{most}"
    raw.make(topic)
    for first in range(0, 1000, 100):
        raw.produce(topic, some(100, 1000, first))
    for file in (broker.data / "topics" / f"{topic}-0").glob("*.log"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    offset = 0
    while offset < 1000:
        values = raw.values(topic, offset, partition_max_bytes=most)
        assert values == [b"%d" % number + b"x" * 1000 for number in range(offset, offset + len(values))]
        assert values
        offset += len(values)


@pytest.mark.parametrize("offset", [-1, 4, 1000, 2**62])
def test_outside_of_the_log(raw: Raw, offset: int) -> None:
    raw.make("three")
    if not raw.fetch("three", 0)["high_watermark"]:
        raw.produce("three", some(3))
    found = raw.fetch("three", offset, max_wait_ms=LONG_MS)
    assert (found["error_code"], found["high_watermark"], bytes(found["records"])) == (
        Code.OFFSET_OUT_OF_RANGE,
        -1,
        b"",
    )


def test_the_end_of_the_log_is_no_error(raw: Raw) -> None:
    raw.make("ended")
    found = raw.fetch("ended", 0)
    assert (found["error_code"], found["high_watermark"], bytes(found["records"])) == (0, 0, b"")


def test_a_long_poll_ends_with_the_first_event(raw: Raw, broker: BrokerProcess) -> None:
    raw.make("polled")
    raw.send(ApiKey.FETCH, fetch([("polled", 0, 0)], max_wait_ms=LONG_MS), 12)
    with Raw(broker.kafka) as other:
        other.produce("polled", some(1))
    (topic,) = raw.receive()["responses"]
    assert len(values_of(topic["partitions"][0]["records"])) == 1


def test_a_long_poll_ends_when_its_time_is_up(raw: Raw) -> None:
    raw.make("quiet")
    begun = time.monotonic()
    assert bytes(raw.fetch("quiet", 0, max_wait_ms=300)["records"]) == b""
    assert time.monotonic() - begun >= 0.29


def test_min_bytes_is_waited_for(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "least", 2)
    raw.send(ApiKey.FETCH, fetch([("least", 0, 0), ("least", 1, 0)], max_wait_ms=LONG_MS, min_bytes=20_000), 12)
    with Raw(broker.kafka) as other:
        for number in range(6):
            other.produce("least", some(1, 3000), number % 2)
        assert not readable(raw.socket.fileno(), 0.2)
        other.produce("least", some(1, 3000))
    sizes = [len(each["records"]) for topic in raw.receive()["responses"] for each in topic["partitions"]]
    assert sum(sizes) > 20_000


def test_nothing_asked_is_answered_at_once(raw: Raw) -> None:
    assert raw.ask(ApiKey.FETCH, fetch([], max_wait_ms=LONG_MS), 12)["responses"] == []


def test_an_error_ends_the_wait(raw: Raw) -> None:
    raw.make("fine")
    answer = raw.ask(ApiKey.FETCH, fetch([("fine", 0, 0), ("missing", 0, 0)], max_wait_ms=LONG_MS), 12)
    assert [topic["partitions"][0]["error_code"] for topic in answer["responses"]] == [0, 3]


def test_no_such_partition(raw: Raw) -> None:
    raw.make("fine")
    assert raw.fetch("fine", 0, index=1)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert raw.fetch("fine", 0, index=-1)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    answer = raw.ask(ApiKey.FETCH, fetch([(b"?" * 16, 0, 0), (bytes(16), 0, 0)]))
    assert [topic["partitions"][0]["error_code"] for topic in answer["responses"]] == [Code.UNKNOWN_TOPIC_ID] * 2


@pytest.mark.parametrize(("epoch", "code"), [(-1, 0), (0, 0), (1, Code.UNKNOWN_LEADER_EPOCH)])
def test_leader_epochs(raw: Raw, epoch: int, code: int) -> None:
    raw.make("fine")
    assert raw.fetch("fine", 0, current_leader_epoch=epoch)["error_code"] == code


@pytest.mark.parametrize("session_id", [0, 7])
@pytest.mark.parametrize("epoch", [-1, 0, 1, -2])
def test_there_are_no_sessions(raw: Raw, session_id: int, epoch: int) -> None:
    """Epoch 0 asks for a new session and -1 for none: both name all that they want, and end the session that they
    name (KIP-227; kafka-go's Client.Fetch sends what it was told last). Other epochs continue a session."""
    raw.make("fine")
    answer = raw.ask(ApiKey.FETCH, fetch([("fine", 0, 0)], session_id=session_id, session_epoch=epoch), 12)
    if epoch in (0, -1):
        assert (answer["error_code"], answer["session_id"], len(answer["responses"])) == (0, 0, 1)
    else:
        assert (answer["error_code"], answer["responses"]) == (Code.FETCH_SESSION_ID_NOT_FOUND, [])


def test_read_committed_without_transactions(raw: Raw) -> None:
    raw.make("committed")
    raw.produce("committed", some(2))
    found = raw.fetch("committed", 0, isolation_level=1)
    assert (found["aborted_transactions"], found["last_stable_offset"]) == ([], 2)
    assert len(values_of(found["records"])) == 2


def test_a_deleted_topic_ends_the_wait(raw: Raw, broker: BrokerProcess) -> None:
    uuid = raw.make("doomed")
    raw.send(ApiKey.FETCH, fetch([(uuid, 0, 0)], max_wait_ms=LONG_MS))
    with Raw(broker.kafka) as other:
        other.send(ApiKey.FETCH, fetch([("doomed", 0, 0)], max_wait_ms=LONG_MS), 12)
        with Peer(broker.address) as peer:
            peer.ask(m.DeleteTopic("doomed"), m.TopicDeleted)
        codes = [each.receive()["responses"][0]["partitions"][0]["error_code"] for each in (raw, other)]
    assert codes == [Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION]


def test_what_is_asked_behind_a_long_poll_waits_for_it(raw: Raw, broker: BrokerProcess) -> None:
    raw.make("muted")
    raw.send(ApiKey.FETCH, fetch([("muted", 0, 0)], max_wait_ms=LONG_MS), 12)
    raw.send(ApiKey.METADATA, {"topics": []})
    with Raw(broker.kafka) as other:
        other.produce("muted", some(1))
    assert raw.receive()["responses"]
    assert raw.receive()["brokers"]


def test_a_large_request_behind_a_long_poll_waits_for_it_too(raw: Raw, broker: BrokerProcess) -> None:
    raw.make("muted-large")
    raw.send(ApiKey.FETCH, fetch([("muted-large", 0, 0)], max_wait_ms=LONG_MS), 12)
    raw.send(ApiKey.PRODUCE, produce("muted-large", some(3, 300_000)), 9)
    raw.send(ApiKey.METADATA, {"topics": []})
    with Raw(broker.kafka) as other:
        assert other.produce("muted-large", some(1))["base_offset"] == 0
    assert raw.receive()["responses"][0]["partitions"][0]["high_watermark"] == 1
    assert raw.receive()["responses"][0]["partition_responses"][0]["base_offset"] == 1
    assert raw.receive()["brokers"]


def test_hundreds_of_partitions_in_one_fetch(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "many", 1200)
    for index in (0, 600, 1199):
        raw.produce("many", some(1), index)
    wanted: list[tuple[str | bytes, int, int]] = [("many", at, 0) for at in range(1200)]
    (topic,) = raw.ask(ApiKey.FETCH, fetch(wanted, max_wait_ms=LONG_MS), 12)["responses"]
    found = [len(values_of(each["records"])) for each in topic["partitions"]]
    assert [index for index, count in enumerate(found) if count] == [0, 600, 1199]


@pytest.mark.parametrize("number", [-1, -(2**31), 0, 2**31 - 1])
def test_absurd_numbers_of_bytes_do_no_harm(raw: Raw, number: int) -> None:
    raw.make("absurd")
    if not raw.fetch("absurd", 0)["high_watermark"]:
        raw.produce("absurd", some(2))
    for least in (number, 1):
        answer = raw.fetch("absurd", 0, min_bytes=least, max_bytes=number, partition_max_bytes=number, max_wait_ms=100)
        assert len(values_of(answer["records"])) == 2


def test_who_leaves_in_a_long_poll_is_noticed(broker: BrokerProcess) -> None:
    with Raw(broker.kafka) as raw:
        raw.make("abandoned")
        before = broker.sockets
        others = [Raw(broker.kafka) for _ in range(20)]
        for other in others:
            other.send(ApiKey.FETCH, fetch([("abandoned", 0, 0)], max_wait_ms=LONG_MS), 12)
        wait_until(lambda: broker.sockets == before + 20, "they are connected")
        for other in others:
            other.close()
        wait_until(lambda: broker.sockets == before, "they are gone")


def test_long_polls_cost_nothing_while_they_wait(broker: BrokerProcess) -> None:
    def ticks() -> int:
        fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    raws = [Raw(broker.kafka) for _ in range(50)]
    try:
        raws[0].make("waiting")
        for raw in raws:
            raw.send(ApiKey.FETCH, fetch([("waiting", 0, 0)], max_wait_ms=LONG_MS), 12)

        def calm() -> bool:
            before = ticks()
            time.sleep(1.0)
            return ticks() - before <= 10  # 100 a second; 50 loops that poll would take far more

        wait_until(calm, "a second in which the broker has next to nothing to do", LONG_MS / 2000)
        raws[0].close()
        with Raw(broker.kafka) as other:
            other.ask(ApiKey.PRODUCE, produce("waiting", some(1)), 12)
        for raw in raws[1:]:
            assert raw.receive()["responses"][0]["partitions"][0]["high_watermark"] == 1
    finally:
        for raw in raws:
            raw.close()


def test_what_takes_long_is_sent_before_other_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_work, "LONG_MS", -1)
    monkeypatch.setattr(fetch_work, "WORTH", 1)
    with run_broker(tmp_path, durability="os") as broker, Raw(broker.kafka_address) as raw:
        with broker.connect() as client:
            client.create_topic("slow", partitions=3)
        for index in range(3):
            key = next(key for key in (b"%d" % number for number in range(100)) if partition_for(key, 3) == index)
            raw.produce("slow", batch.encode([key], [b"%d" % index], timestamps=1), index)
        left = [0, 1, 2]
        while left:
            wanted: list[tuple[str | bytes, int, int]] = [("slow@latest", index, 0) for index in left]
            (topic,) = raw.ask(ApiKey.FETCH, fetch(wanted), 12)["responses"]
            answers = topic["partitions"]
            assert [found["high_watermark"] for found in answers] == [1] * len(left)
            brought = [values_of(found["records"]) for found in answers]
            assert brought == [[b"%d" % left[0]]] + [[]] * (len(left) - 1), "one at a time"
            del left[0]
