"""Kafka Streams: the program of the page counts exactly once, even if it is killed and loses its state."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy.blocking import Client
from tests.compat import tools
from tests.compat.programs import LONG_S, MADE, Program, commands, do, jvm, shown
from tests.compat.servers import KrappyServer

HEADING = "Kafka Streams, and its state by `get`"
CLASS = """
import java.util.*;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

public class Counts {
    public static void main(String[] arguments) {
%s
    }
}
"""
# A killed program is replaced after 6 s; by default that takes 45 s, as the page says. Every count is written at once:
# with AT_LEAST_ONCE, counts that were not committed would be counted twice.
MORE = """
settings.put("session.timeout.ms", 6000);
settings.put("statestore.cache.max.bytes", 0);
StreamsBuilder builder"""
pytestmark = [MADE, pytest.mark.timeout(4 * LONG_S)]
WORDS = ["a", "b", "c", "d", "e", "f", "g"]


@pytest.fixture
def program(broker: KrappyServer, tmp_path: Path) -> Iterator[Program]:
    """The page's program, not started. It has its state in `tmp_path/kafka-streams`."""
    source = tmp_path / "Counts.java"
    source.write_text(CLASS % shown("Counts", broker).replace("StreamsBuilder builder", MORE))
    command = jvm("streams", "Counts", options=[f"-Djava.io.tmpdir={tmp_path}"], path=str(tmp_path))
    try:
        tools.javac("streams", source, tmp_path)
    except tools.Missing as reason:
        pytest.skip(str(reason))
    found = Program(command, tmp_path, "streams")
    yield found
    found.kill()


def counts(client: Client, topic: str) -> dict[str, int]:
    """The table of a topic whose values are Java's longs."""
    return {entry.key.decode(): int.from_bytes(entry.value or b"", "big") for entry in client.table(topic).scan()}


def test_it_counts_exactly_once(program: Program, broker: KrappyServer, native: Client, tmp_path: Path) -> None:
    create, look_up = commands(HEADING)
    do(create, broker, tmp_path)
    chosen = random.Random(14)
    sent = Counter(["a", "b", "a"])

    def send(number: int) -> None:
        with native.producer("words") as producer:
            for word in chosen.choices(WORDS, k=number):
                producer.send(word)
                sent[word] += 1

    program.start()
    program.until(lambda: counts_are_there(native), "the first counts are there")
    send(2000)
    program.until(lambda: sum(counts(native, "counts").values()) > 500, "it counts")
    send(2000)
    program.kill()
    shutil.rmtree(tmp_path / "kafka-streams")
    send(2000)
    program.start()
    program.until(lambda: counts(native, "counts") == dict(sent), f"the counts are {dict(sent)}")
    assert counts(native, "counts-by-word-changelog") == dict(sent), "and so is its state"
    assert do(look_up, broker, tmp_path).split("\n")[0] == str(sent["a"])

    program.stop()
    told: dict[str, int] = {}
    with native.consumer("counts", end="now") as consumer:
        for event in consumer:
            word, count = (event.key or b"").decode(), int.from_bytes(event.value or b"", "big")
            assert count == told.get(word, 0) + 1, f"{word} was not counted once"
            told[word] = count
    assert told == dict(sent)


def counts_are_there(client: Client) -> bool:
    return counts(client, "counts") == {"a": 2, "b": 1}
