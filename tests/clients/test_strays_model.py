"""Keys in other partitions than their own: every way to read a table gives what one dict of the newest entries has.

The histories have producers with partitioners of all kinds, tombstones, timestamps in any order, added partitions,
restarts, and views that are lost and folded anew.
"""

from __future__ import annotations

import base64
import shutil
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from krappy.blocking import Client
from krappy.clients.watch_progress import SnapshotEnd
from krappy.errors import ConnectionLost, InvalidRequest, OffsetMismatch, ShuttingDown
from krappy.partitioner import partition_for
from krappy.records import batch
from krappy.testing.running import RunningBroker, run_broker
from krappy.types import ABSENT, Entry
from krappy.wire import messages as m
from tests.console.web import Web
from tests.handlers.raw import Raw

KEYS = [b"", b"a", b"ab", b"b", b"key-0001", b"key-0002", b"key-0003"]
MOST = 6  # partitions


class Publish(NamedTuple):
    """`spread`: how keys are spread. murmur2 is right, crc32 is what librdkafka does, and `chance` takes
    any partition."""

    spread: str
    records: list[tuple[bytes, bytes | None, int, int]]  # key, value, timestamp, chance


class Expect(NamedTuple):
    """Writes to a partition if the key stands where the writer believes it to stand."""

    partition: int
    key: bytes
    believed: bool


keys = st.sampled_from(KEYS)
records = st.tuples(keys, st.none() | st.binary(min_size=1, max_size=3), st.integers(0, 6), st.integers(0, MOST - 1))
steps = st.one_of(
    st.builds(Publish, st.sampled_from(["murmur2", "crc32", "chance"]), st.lists(records, min_size=1, max_size=6)),
    st.builds(Expect, st.integers(0, MOST - 1), keys, st.booleans()),
    st.sampled_from(["add", "restart", "rebuild"]),
)


class Standing(NamedTuple):
    timestamp: int
    value: bytes | None
    offset: int


class Model:
    def __init__(self, count: int) -> None:
        self.count = count
        self.held: dict[tuple[int, bytes], Standing] = {}
        self.ends = [0] * MOST

    def write(self, partition: int, key: bytes, value: bytes | None, timestamp: int) -> None:
        self.held[partition, key] = Standing(timestamp, value, self.ends[partition])
        self.ends[partition] += 1

    def newest(self, key: bytes) -> tuple[int, Standing] | None:
        home = partition_for(key, self.count)
        some = [(each.timestamp, at == home, at) for (at, its), each in self.held.items() if its == key]
        if not some:
            return None
        at = max(some)[2]
        return at, self.held[at, key]

    def table(self, *, tombstones: bool) -> dict[bytes, Entry]:
        found = {}
        for key in KEYS:
            newest = self.newest(key)
            if newest is not None and (tombstones or newest[1].value is not None):
                at, held = newest
                found[key] = Entry(key, held.value, at, held.offset, held.timestamp, ())
        return found


def by_get(client: Client) -> dict[bytes, Entry]:
    table = client.table("t")
    return {key: found for key in KEYS if (found := table.get(key)) is not None}


def by_get_many(client: Client) -> dict[bytes, Entry]:
    return {entry.key: entry for entry in client.table("t").get_many(KEYS) if entry is not None}


def by_columns(client: Client) -> dict[bytes, Entry]:
    block = client.table("t").get_columns(KEYS)
    columns = block.lists()
    partitions = [block.partition] * len(KEYS) if block.partitions is None else array("i", block.partitions).tolist()
    return {
        key: Entry(key, columns["value"][row], partitions[row], columns["offset"][row], columns["timestamp"][row], ())
        for row, (key, there) in enumerate(zip(KEYS, block.there(), strict=True))
        if there
    }


LOOKUPS: list[Callable[[Client], dict[bytes, Entry]]] = [by_get, by_get_many, by_columns]


def by_scan(client: Client) -> dict[bytes, Entry]:
    return _once(client.table("t").scan(tombstones=True))


def by_small_pages(client: Client) -> dict[bytes, Entry]:
    return _once(client.table("t").scan(tombstones=True, page_entries=1))


def by_parts(client: Client) -> dict[bytes, Entry]:
    table = client.table("t")
    low, high = table.scan(end=b"b", tombstones=True), table.scan(start=b"b", tombstones=True)
    assert set(_once(table.scan(prefix=b"key", tombstones=True))) == {
        key for key in by_get(client) if key.startswith(b"key")
    }
    return _once([*low, *high])


def by_snapshot(client: Client) -> dict[bytes, Entry]:
    held = client.snapshot("t", splits=3, tombstones=True)
    found = []
    for part in held.ranges:
        for block in client.read_snapshot(held.id, part, block_bytes=40):
            rows = block.lists()
            found += [
                Entry(key, value, part.partition, offset, timestamp, ())
                for key, value, offset, timestamp in zip(
                    rows["key"], rows["value"], rows["offset"], rows["timestamp"], strict=True
                )
            ]
    client.close_snapshot(held.id)
    return _once(found)


def _once(entries: Iterable[Entry]) -> dict[bytes, Entry]:
    """The entries by key; fails if a key comes twice."""
    found: dict[bytes, Entry] = {}
    for entry in entries:
        assert entry.key not in found, f"{entry} beside {found[entry.key]}"
        found[entry.key] = entry
    return found


SCANS = [by_scan, by_small_pages, by_parts, by_snapshot]


class Watcher:
    """Folds what a watch tells: what it tells last of a key is what the table has."""

    def __init__(self, client: Client) -> None:
        self.table: dict[bytes, Entry] = {}
        self._live = threading.Event()
        self._watch = client.table("t").watch(tombstones=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(ConnectionLost, ShuttingDown):
            for item in self._watch:
                if isinstance(item, SnapshotEnd):
                    self._live.set()
                else:
                    self.table[item.key] = item

    def reaches(self, table: dict[bytes, Entry]) -> None:
        assert self._live.wait(60)
        until = time.monotonic() + 30
        while self.table != table:
            assert time.monotonic() < until, f"the watch has {self.table}, and the table is {table}"
            time.sleep(0.002)

    def close(self) -> None:
        self._watch.close()
        self._thread.join(60)
        assert not self._thread.is_alive()


class Running:
    """A broker that is restarted, its clients, and what its table should have."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.model = Model(count)
        self.stack = ExitStack()
        self.start()
        self.client.create_topic("t", count)
        self.watch()

    def start(self) -> None:
        broker: RunningBroker = self.stack.enter_context(
            run_broker(self.folder, durability="os", listen_http="127.0.0.1:0")
        )
        self.client = self.stack.enter_context(broker.connect())
        self.raw = self.stack.enter_context(Raw(broker.address))
        self.web = Web(
            self.stack.enter_context(
                httpx.Client(base_url=f"http://{broker.http_address}", timeout=60.0, trust_env=False)
            )
        )

    def watch(self) -> None:
        self.watcher = Watcher(self.client)
        self.stack.callback(self.watcher.close)

    def step(self, step: Any) -> None:
        if isinstance(step, Publish):
            self.publish(step)
        elif isinstance(step, Expect):
            self.expect(step)
        elif step == "add":
            if self.model.count < MOST:
                before = self.model.table(tombstones=True)
                self.model.count += 1
                self.client.alter_topic("t", partitions=self.model.count)
                if (
                    self.model.table(tombstones=True) != before
                ):  # two entries have the same timestamp, and no event tells which one counts now
                    self.watch()
        else:
            self.stack.close()
            if step == "rebuild":
                shutil.rmtree(self.folder / "views")
            self.start()
            self.watch()

    def publish(self, step: Publish) -> None:
        handle, count = self.raw.producer("t").handle, self.model.count
        for key, value, timestamp, chance in step.records:
            choices = {"murmur2": partition_for(key, count), "crc32": crc32(key) % count, "chance": chance % count}
            partition = choices[step.spread]
            self.raw.call(m.Batch(handle, partition, batch.encode([key], [value], timestamps=timestamp)))
            self.model.write(partition, key, value, timestamp)

    def expect(self, step: Expect) -> None:
        partition = step.partition % self.model.count
        newest = self.model.newest(step.key)
        alive = newest is not None and newest[1].value is not None
        where, offset = (newest[0], newest[1].offset) if newest is not None and alive else (partition, ABSENT)
        right = step.believed and where == partition
        handle = self.raw.producer("t").handle
        data = batch.encode([step.key], [b"E"], timestamps=7)
        expected = offset if step.believed else 10**9
        try:
            self.raw.call(m.Batch(handle, partition, data, expect=[(0, expected)]))
        except OffsetMismatch:
            assert not right, f"a condition did not hold that should: {step}"
            return
        assert right, f"a condition held that should not: {step}"
        self.model.write(partition, step.key, b"E", 7)

    def check(self) -> None:
        everything = self.model.table(tombstones=True)
        for face in [*LOOKUPS, *SCANS]:
            assert face(self.client) == everything, face.__name__
        assert self.by_http() == everything
        assert self.by_http_pages() == everything
        self.watcher.reaches(everything)
        self.check_histories()

    def by_http(self) -> dict[bytes, Entry]:
        found = self.web.post("/topics/t/table/lookup", {"keys": [key.decode() for key in KEYS], "values_as": "base64"})
        together = {key: _shown(key, each) for key, each in zip(KEYS, found["entries"], strict=True)}
        for key in KEYS:
            one = self.web.get("/topics/t/table/entry", key=key.decode(), values="base64")
            assert _shown(key, one) == together[key]
        return {key: entry for key, entry in together.items() if entry is not None}

    def by_http_pages(self) -> dict[bytes, Entry]:
        found: list[Entry] = []
        cursor: dict[str, Any] = {}
        while True:
            page = self.web.get("/topics/t/table", limit=2, tombstones=True, keys="base64", values="base64", **cursor)
            for each in page["entries"]:
                entry = _shown(base64.b64decode(each["key"]["data"]), each)
                assert entry is not None
                found.append(entry)
            if page["cursor"] is None:
                return _once(found)
            cursor = {"cursor": page["cursor"]}

    def check_histories(self) -> None:
        for key in KEYS:
            partitions = {at for at, its in self.model.held if its == key}
            if len(partitions) > 1:
                with pytest.raises(InvalidRequest, match="say which"):
                    list(self.client.table("t").history(key))
            else:
                found = list(self.client.table("t").history(key))
                assert {entry.partition for entry in found} == partitions


def _shown(key: bytes, shown: dict[str, Any]) -> Entry | None:
    """What the console shows of a key; None: absent."""
    if shown["state"] == "absent":
        return None
    value = None if shown["state"] == "deleted" else base64.b64decode(shown["value"]["data"])
    return Entry(key, value, shown["partition"], shown["offset"], shown["timestamp"], ())


@settings(
    max_examples=settings().max_examples // 3,  # since each example asks in every way after every step
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.integers(1, 3), st.lists(steps, min_size=1, max_size=8))
def test_every_face_has_the_newest(count: int, history: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        running = Running(Path(folder) / "data", count)
        with running.stack:
            for step in history:
                running.step(step)
                running.check()
