"""Apache Kafka's own console tools, as users have them in scripts."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from krappy.errors import CorruptBatch
from krappy.records import batch
from krappy.records.batch import BatchHeader
from tests.compat import tools
from tests.compat.clients.base import PATIENCE, Codec, Message, Sending
from tests.compat.clients.confluent import Confluent
from tests.compat.conftest import NewTopic
from tests.compat.kafka_tools import KafkaTools
from tests.compat.servers import RETENTION_MS, UNDER_TEST, Server
from tests.compat.test_groups import drain, new_group, settle

WRITER = Confluent()
Tool = KafkaTools


@pytest.fixture
def tool(running: Server) -> Tool:
    try:
        return KafkaTools(running.address)
    except tools.Missing as reason:
        pytest.skip(str(reason))


def test_topics(tool: Tool) -> None:
    tool("topics", "--create", "--topic", "tooled", "--partitions", "3", "--config", "retention.ms=60000")
    assert "tooled" in tool("topics", "--list").split()
    told = tool("topics", "--describe", "--topic", "tooled")
    assert "PartitionCount: 3" in told
    assert "retention.ms=60000" in told
    id = told.partition("TopicId: ")[2].split()[0]
    assert "Topic: tooled" in tool("topics", "--describe", "--topic-id", id)
    assert "already exists" in tool("topics", "--create", "--topic", "tooled", fails=True)
    tool("topics", "--alter", "--topic", "tooled", "--partitions", "4")
    assert "PartitionCount: 4" in tool("topics", "--describe", "--topic", "tooled")
    tool("topics", "--delete", "--topic", "tooled")
    assert "tooled" not in tool("topics", "--list").split()


def test_configs(tool: Tool, new_topic: NewTopic) -> None:
    topic = new_topic()
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tool("configs", "--alter", *entity, "--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]")
    told = tool("configs", "--describe", *entity)
    assert "retention.ms=5000" in told
    assert "cleanup.policy=compact,delete" in told
    tool("configs", "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in tool("configs", "--describe", *entity)
    assert f"retention.ms={RETENTION_MS}" in tool("configs", "--describe", "--all", *entity)
    tool("configs", "--describe", "--entity-type", "brokers")


def test_what_the_console_producer_writes_the_console_consumer_reads(tool: Tool, new_topic: NewTopic) -> None:
    topic = new_topic()
    separated = ("--property", "parse.key=true", "--property", "key.separator=:")
    tool("console-producer", "--topic", topic, *separated, "--compression-codec", "zstd", stdin="a:one\nb:two\n")
    shown = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")
    told = tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "2", *shown)
    assert told.splitlines() == ["Offset:0\ta\tone", "Offset:1\tb\ttwo"]
    committed = ("--isolation-level", "read_committed")
    told = tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "2", *committed)
    assert told.splitlines() == ["one", "two"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_groups(protocol: str, tool: Tool, running: Server, new_topic: NewTopic) -> None:
    topic, group = new_topic(partitions=2), new_group()
    sent = [Message(b"k", b"%d" % n, (), 1_700_000_000_000 + n, n % 2) for n in range(20)]
    WRITER.produce(running.address, topic, sent, Sending())
    member = WRITER.member(running.address, topic, group, protocol=protocol)  # type: ignore[arg-type]
    drain([member], 20)
    settle([member], partitions=2)
    member.commit()
    assert group in tool("consumer-groups", "--list").split()
    assert "Stable" in tool("consumer-groups", "--describe", "--state", "--group", group)
    assert "rdkafka" in tool("consumer-groups", "--describe", "--members", "--verbose", "--group", group)

    def lags() -> dict[int, tuple[int, int, int]]:
        rows = [line.split() for line in tool("consumer-groups", "--describe", "--group", group).splitlines()]
        head = next(row for row in rows if "PARTITION" in row)
        places = [head.index(name) for name in ("PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")]
        found = {}
        for row in rows[rows.index(head) + 1 :]:
            part, *numbers = (int(row[place]) for place in places)
            found[part] = (numbers[0], numbers[1], numbers[2])
        return found

    assert lags() == {0: (10, 10, 0), 1: (10, 10, 0)}
    member.close()
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--execute")
    tool("consumer-groups", *reset, "--shift-by", "-3")
    assert lags() == {0: (7, 10, 3), 1: (7, 10, 3)}
    tool("consumer-groups", *reset, "--to-datetime", "2023-11-14T22:13:20.006")
    assert lags() == {0: (3, 10, 7), 1: (3, 10, 7)}
    tool("consumer-groups", *reset, "--to-earliest")
    assert lags() == {0: (0, 10, 10), 1: (0, 10, 10)}
    tool("consumer-groups", "--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    assert set(lags()) == {0}
    tool("consumer-groups", "--delete", "--group", group)
    assert group not in tool("consumer-groups", "--list").split()


def test_delete_records_and_offsets(tool: Tool, running: Server, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic()
    WRITER.produce(running.address, topic, [Message(b"k", b"%d" % n) for n in range(10)], Sending())
    wanted = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 6}]}
    (tmp_path / "wanted.json").write_text(json.dumps(wanted))
    assert "low_watermark: 6" in tool("delete-records", "--offset-json-file", str(tmp_path / "wanted.json"))
    for when, offset in (("earliest", 6), ("latest", 10)):
        assert tool("get-offsets", "--topic", topic, "--time", when).strip() == f"{topic}:0:{offset}"


def test_what_else_is_asked_of_a_broker(tool: Tool, new_topic: NewTopic) -> None:
    topic = new_topic()
    assert len(tool("cluster", "cluster-id").strip().rsplit(" ", 1)[1]) == 22
    assert "Produce(0)" in tool("api-versions")
    assert f"{topic}-0" in tool("log-dirs", "--describe")
    tool("transactions", "list")
    tool("transactions", "describe-producers", "--topic", topic, "--partition", "0")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_segments_are_read_to_the_last_record(codec: Codec, tool: Tool, running: Server, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = [Message(b"k%d" % n, b"value %d " % n * 20, (("h", b"x"),), 1_700_000_000_000 + n) for n in range(30)]
    WRITER.produce(running.address, topic, sent, Sending(codec=codec))
    WRITER.produce(running.address, topic, sent, Sending(codec=codec, transactional_id=f"dumped-{codec}"))
    WRITER.produce(running.address, topic, sent, Sending(codec=codec, transactional_id=f"dumped-{codec}", abort=True))
    files = running.segments(topic, 0)
    assert files
    told = tool("dump-log", "--deep-iteration", "--print-data-log", "--files", ",".join(map(str, files)))
    records = [line for line in told.splitlines() if line.startswith("|") and "payload:" in line]
    assert len(records) == 3 * len(sent)
    batches = [line for line in told.splitlines() if line.startswith("baseOffset:")]
    assert all("isvalid: true" in line for line in batches)
    assert sum(f"compresscodec: {codec}" in line for line in batches) >= 3
    assert sum("isControl: true" in line for line in batches) == 2
    assert "COMMIT" in told
    assert "ABORT" in told
    assert "KafkaException" not in told
    for name in ("index", "timeindex"):
        if UNDER_TEST == "kafka":
            tool("dump-log", "--files", str(files[0].with_suffix("." + name)))


def test_markers_go_when_nothing_is_left_of_their_transactions(
    tool: Tool, running: Server, new_topic: NewTopic
) -> None:
    """What read_committed consumers are given, from every offset on, is the same before the markers go, meanwhile and
    after."""
    topic = new_topic(
        cleanup_policy="compact", segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.01, delete_retention_ms=4000
    )
    for value, abort in ((b"1", False), (b"2", True), (b"3", False), (b"4", True)):
        sending = Sending(transactional_id="cleaned", abort=abort)
        WRITER.produce(running.address, topic, [Message(key, value) for key in (b"a", b"b")], sending)
    last = Message(b"b", b"5")
    WRITER.produce(running.address, topic, [Message(b"a", b"5"), last], Sending())
    consumer = Consumer(
        {"bootstrap.servers": running.address, "group.id": "every-offset", "isolation.level": "read_committed"}
    )

    def fill() -> None:
        """Makes the log roll; the last segment is never cleaned."""
        filler = [Message(b"filler %d" % n, b"x" * 100_000) for n in range(12)]
        WRITER.produce(running.address, topic, filler, Sending())

    def markers() -> list[BatchHeader]:
        found: list[BatchHeader] = []
        for file in running.segments(topic, 0):
            with contextlib.suppress(FileNotFoundError, CorruptBatch):  # the file is just being swapped, or written to
                found += [header for header, _ in batch.split(file.read_bytes()) if header.is_control]
        return found

    def check() -> None:
        for offset in range(14):
            consumer.assign([TopicPartition(topic, 0, offset)])
            seen: list[Message] = []
            while last.value not in [each.value for each in seen if each.key == b"b"]:
                raw = consumer.poll(PATIENCE)
                assert raw is not None
                assert raw.error() is None, raw.error()
                seen.append(Message(raw.key(), raw.value()))
            assert {each.value for each in seen} <= {b"1", b"3", b"5"}, "aborted events"

    def until(done: Callable[[list[BatchHeader]], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done(found := markers()):
            assert time.monotonic() < end, found
            fill()
            time.sleep(0.1)

    fill()
    check()
    until(lambda found: any(each.delete_horizon is not None for each in found))
    check()
    files = ",".join(map(str, running.segments(topic, 0)))
    told = tool("dump-log", "--deep-iteration", "--files", files)
    controls = [line for line in told.splitlines() if "isControl: true" in line]
    assert all("isvalid: true" in line for line in controls)
    assert any("deleteHorizonMs: OptionalLong[" in line for line in controls)
    until(lambda found: len(found) == 1)  # the header of the producer's last batch stays, for its sequence
    check()
    consumer.close()
