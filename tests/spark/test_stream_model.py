"""A stream over topics that come, go, grow and lose events: all events that are there in the end came, and
came once."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from krappy.blocking import Client
from krappy.spark.options import parse
from krappy.spark.schema import spark_schema
from krappy.spark.stream_read import StreamReader
from krappy.spark.versions import features
from tests.long import some

if not features().admission_control:
    pytest.skip("PySpark before 4.2 has no limits of a read", allow_module_level=True)


class Topics:
    """What there is: by topic and partition, the values that nobody has deleted."""

    def __init__(self, client: Client, chance: Random, names: list[str]) -> None:
        self.client, self.chance, self.names = client, chance, names
        self.there: dict[str, list[list[bytes]]] = {}
        self.sent = 0
        for name in names:
            self.create(name)
            self.send(name)

    @property
    def values(self) -> set[bytes]:
        return {value for parts in self.there.values() for part in parts for value in part}

    def create(self, name: str) -> None:
        count = self.chance.choice([1, 3, 64])
        self.client.create_topic(name, count)
        self.there[name] = [[] for _ in range(count)]

    def send(self, name: str) -> None:
        with self.client.producer(name) as producer:
            for _ in range(self.chance.choice([1, 3, 30])):
                self.sent += 1
                at, value = self.chance.randrange(len(self.there[name])), b"%d" % self.sent
                producer.send(value, key=value, partition=at)
                self.there[name][at].append(value)

    def change(self, name: str) -> None:
        """Something happens to this topic."""
        if name not in self.there:
            self.create(name)
            return
        parts, chosen = self.there[name], self.chance.random()
        if chosen < 0.6:
            self.send(name)
        elif chosen < 0.8:
            self.client.delete_topic(name)
            del self.there[name]
        elif chosen < 0.9:
            parts += [[] for _ in range(self.chance.choice([1, 2]))]
            self.client.alter_topic(name, partitions=len(parts))
        else:
            at = self.chance.randrange(len(parts))
            self.client.delete_records(name, "latest", partitions=[at])
            parts[at].clear()


class Stream:
    """A query that is started again now and then, and the values that it has read."""

    def __init__(self, address: str, chance: Random, options: dict[str, Any]) -> None:
        self.chance = chance
        self._options = parse({"address": address, **{name: str(value) for name, value in options.items()}}, "stream")
        self._reader = self._started()
        self._at = self._reader.initialOffset()
        self.values: list[bytes] = []

    def _started(self) -> StreamReader:
        return StreamReader(spark_schema(self._options.columns), self._options)

    def batch(self) -> bool:
        """Runs the next batch, if there is something to read. Returns whether there was."""
        end = self._reader.latestOffset(self._at, self._reader.getDefaultReadLimit())
        if end == self._at:
            return False
        end = json.loads(json.dumps(end))
        if self.chance.random() < 0.3:  # the batch was planned, and then the driver died
            self._reader = self._started()
        for part in self._reader.partitions(self._at, end):
            for found in self._reader.read(part):
                self.values += found.column("value").to_pylist()
        self._at = end
        return True


@pytest.mark.parametrize("seed", some(range(8), 4))
def test_all_comes_and_comes_once(client: Client, address: str, topic: str, seed: int) -> None:
    chance = Random(seed)
    topics = Topics(client, chance, [f"{topic}.a", f"{topic}.b"])
    options: dict[str, Any] = {
        "columns": "value",
        "failOnDataLoss": False,
        "startingOffsets": chance.choice(["earliest", "snapshot"]),
        **chance.choice([{"subscribePattern": f"^{topic}\\."}, {"subscribe": ",".join(topics.names)}]),
        **chance.choice([{}, {"maxOffsetsPerTrigger": 1}, {"maxOffsetsPerTrigger": 64}]),
        **chance.choice([{}, {"minPartitions": 64}, {"maxRecordsPerPartition": 3}]),
    }
    stream = Stream(address, chance, options)
    assert stream.batch()
    for _ in range(40):
        if chance.random() < 0.6:
            topics.change(chance.choice(topics.names))
        else:
            stream.batch()
    for name in topics.names:
        if name not in topics.there:
            topics.create(name)
        topics.send(name)
    while stream.batch():
        pass
    assert len(stream.values) == len(set(stream.values))
    assert topics.values <= set(stream.values)
