"""Apache Flink: the job of the page counts exactly once, even if it is killed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from krappy.blocking import Client
from krappy.errors import UnknownTopic
from tests.compat import tools
from tests.compat.clients.base import PATIENCE
from tests.compat.programs import LONG_S, MADE, Program, jvm, shown
from tests.compat.servers import KrappyServer

CLASS = """
import java.nio.file.*;
import java.util.*;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.kafka.clients.producer.ProducerRecord;

public class Job {
    public static void main(String[] arguments) throws Exception {
%s
    }
}
"""
# Started again, a job of this kind does not look for its last checkpoint; who starts it names that.
MORE = """
settings.setString("restart-strategy.type", "none");
settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
try (var made = Files.find(Path.of("checkpoints"), 4, (path, attributes) -> path.endsWith("_metadata"))) {
    made.max(Comparator.comparing(path -> path.toFile().lastModified())).ifPresent(
        last -> settings.setString("execution.state-recovery.path", last.getParent().toUri().toString()));
}
StreamExecutionEnvironment flink"""
pytestmark = [MADE, pytest.mark.timeout(4 * LONG_S)]
PARTITIONS = 3


@pytest.fixture
def job(broker: KrappyServer, tmp_path: Path) -> Iterator[Program]:
    """The page's job, not started. Its checkpoints are in `tmp_path/checkpoints`."""
    (tmp_path / "checkpoints").mkdir()
    source = tmp_path / "Job.java"
    page = shown("Flink", broker).replace("/tmp/checkpoints", f"{tmp_path}/checkpoints")
    source.write_text(CLASS % page.replace("StreamExecutionEnvironment flink", MORE, 1))
    try:
        tools.javac("flink", source, tmp_path)
    except tools.Missing as reason:
        pytest.skip(str(reason))
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.util", "java.lang")]
    found = Program(jvm("flink", "Job", options=opened, path=str(tmp_path)), tmp_path, "flink")
    yield found
    found.kill()


def counts(client: Client) -> dict[str, int]:
    try:
        return {entry.key.decode(): int(entry.value or b"") for entry in client.table("flink-counts").scan()}
    except UnknownTopic:
        return {}


def test_it_counts_exactly_once(job: Program, broker: KrappyServer, native: Client) -> None:
    chosen = random.Random(22)
    sent: Counter[str] = Counter()
    for topic in ("words", "flink-counts"):
        native.create_topic(topic, PARTITIONS)

    def send(number: int) -> None:
        with native.producer("words") as producer:
            for word in chosen.choices("abcdefg", k=number):
                producer.send(word)
                sent[word] += 1

    def committed() -> int:
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "flink"})
        asked = [TopicPartition("words", number) for number in range(PARTITIONS)]
        found: int = sum(max(each.offset, 0) for each in consumer.committed(asked, PATIENCE))
        consumer.close()
        return found

    send(500)
    job.start()
    job.until(lambda: counts(native) == dict(sent), "the first words are counted")
    for waits in (False, True, False):
        send(1000)
        if waits:
            before = sum(counts(native).values())
            job.until(lambda before=before: sum(counts(native).values()) > before, "it goes on")  # type: ignore[misc]
        job.kill()
        send(200)
        job.start()
    job.until(lambda: counts(native) == dict(sent), f"the counts are {dict(sent)}")
    job.until(lambda: committed() == sum(sent.values()), "the group has the position")
    job.stop()
    told: dict[str, int] = {}
    with native.consumer("flink-counts", end="now") as consumer:
        for event in consumer:
            word, count = (event.key or b"").decode(), int(event.value or b"")
            assert count == told.get(word, 0) + 1, f"{word} was not counted once"
            told[word] = count
    assert told == dict(sent)
