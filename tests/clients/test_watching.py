"""What a watch hands out when its stream breaks off and begins again, against a table that changes all the while."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from krappy.clients.watch_progress import Progress, SnapshotEnd
from krappy.errors import ProtocolError
from krappy.types import Entry
from krappy.wire.messages import Watched

KEYS = [b"%02d" % number for number in range(12)]


class Topic:
    """A topic of some partitions: a log, and the table that is its fold, with tombstones."""

    def __init__(self, partitions: int) -> None:
        self.logs: list[list[tuple[bytes, bytes | None]]] = [[] for _ in range(partitions)]
        self.tables: list[dict[bytes, tuple[int, bytes | None]]] = [{} for _ in range(partitions)]

    def write(self, partition: int, key: bytes, value: bytes | None) -> None:
        self.tables[partition][key] = (len(self.logs[partition]), value)
        self.logs[partition].append((key, value))


class Broker:
    """One stream of a watch. Each call of `next` gives the next answer."""

    def __init__(self, topic: Topic, tombstones: bool, offsets: dict[int, int] | None, page: int) -> None:
        self.topic = topic
        self.page = page
        self.at = offsets
        self.waiting: list[Watched] = []
        if offsets is None:
            exact = {partition: len(log) for partition, log in enumerate(topic.logs)}
            for partition, table in enumerate(topic.tables):
                rows = [(key, *found) for key, found in sorted(table.items()) if tombstones or found[1] is not None]
                for first in range(0, len(rows), page):
                    flat: list[Any] = []
                    for key, offset, value in rows[first : first + page]:
                        flat += [key, [offset, 1, value, None]]
                    self.waiting.append(Watched("snapshot", 1, partition, exact[partition], True, None, flat))
            self.waiting.append(Watched("end_of_snapshot", 1, 0, exact[0], True, list(exact.items()), []))
            self.at = exact

    def next(self) -> Watched | None:
        if self.waiting:
            return self.waiting.pop(0)
        assert self.at is not None
        for partition, log in enumerate(self.topic.logs):
            first = self.at[partition]
            if first < len(log):
                last = min(len(log), first + self.page)
                flat: list[Any] = []
                for offset in range(first, last):
                    key, value = log[offset]
                    flat += [key, [offset, 1, value, None]]
                self.at[partition] = last
                return Watched("changes", 1, partition, last, True, None, flat)
        return None


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_no_gap_and_no_duplicate_wherever_it_breaks_off(seed: int, tombstones: bool) -> None:
    chance = random.Random(seed)
    topic = Topic(chance.randint(1, 3))

    def change(times: int) -> None:
        for _ in range(times):
            partition = chance.randrange(len(topic.logs))
            value = None if chance.random() < 0.3 else b"%d" % chance.randrange(1000)
            topic.write(partition, chance.choice(KEYS), value)

    change(chance.randrange(40))
    progress = Progress(tombstones)
    seen: set[tuple[int, int]] = set()
    table: dict[tuple[int, bytes], bytes | None] = {}
    ends = 0
    calm = False
    for life in range(30):
        calm = life == 29
        progress.restart()
        live = None if progress.live is None else dict(progress.live)
        broker = Broker(topic, progress.tombstones, live, chance.randint(1, 4))
        for _ in range(10_000 if calm else chance.randrange(12)):
            if not calm and chance.random() < 0.4:
                change(chance.randrange(4))
            answer = broker.next()
            if answer is None:
                break
            found = progress.take(answer)
            if isinstance(found, SnapshotEnd):
                ends += 1
                continue
            for entry in found:
                assert (entry.partition, entry.offset) not in seen
                seen.add((entry.partition, entry.offset))
                table[entry.partition, entry.key] = entry.value
    assert ends == 1
    truth = {
        (partition, key): value
        for partition, rows in enumerate(topic.tables)
        for key, (_, value) in rows.items()
        if value is not None
    }
    assert {place: value for place, value in table.items() if value is not None} == truth
    assert progress.live == {partition: len(log) for partition, log in enumerate(topic.logs)}


class Scattered(Topic):
    """Keys stand in any partition; the newest entry of a key, by when it was written, is its row."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self.newest: dict[bytes, tuple[int, int, bytes | None]] = {}  # partition, offset, value

    def write(self, partition: int, key: bytes, value: bytes | None) -> None:
        self.newest[key] = (partition, len(self.logs[partition]), value)
        self.logs[partition].append((key, value))
        self.tables = [
            {key: (offset, value) for key, (at, offset, value) in self.newest.items() if at == index}
            for index in range(len(self.logs))
        ]

    def judge(self, watched: Watched) -> Watched:
        """The answer without the changes that something newer has overtaken."""
        watched.scattered = True
        if watched.event == "changes":
            pairs = list(zip(watched.entries[::2], watched.entries[1::2], strict=True))
            newest = [pair for pair in pairs if self.newest[pair[0]][:2] == (watched.partition, pair[1][0])]
            watched.entries = [each for pair in newest for each in pair]
        return watched


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32))
def test_scattered_keys_go_whichever_partition_their_tombstone_is_in(seed: int) -> None:
    chance = random.Random(seed)
    topic = Scattered(chance.randint(2, 3))

    def change(times: int) -> None:
        for _ in range(times):
            value = None if chance.random() < 0.4 else b"%d" % chance.randrange(1000)
            topic.write(chance.randrange(len(topic.logs)), chance.choice(KEYS), value)

    change(chance.randrange(40))
    progress = Progress(tombstones=False)
    table: dict[bytes, bytes | None] = {}
    for life in range(30):
        calm = life == 29
        progress.restart()
        live = None if progress.live is None else dict(progress.live)
        broker = Broker(topic, progress.tombstones, live, chance.randint(1, 4))
        for _ in range(10_000 if calm else chance.randrange(12)):
            if not calm and chance.random() < 0.4:
                change(chance.randrange(4))
            answer = broker.next()
            if answer is None:
                break
            found = progress.take(topic.judge(answer))
            if not isinstance(found, SnapshotEnd):
                table.update((entry.key, entry.value) for entry in found)
    truth = {key: value for key, (_, _, value) in topic.newest.items() if value is not None}
    assert {key: value for key, value in table.items() if value is not None} == truth


def test_a_snapshot_without_breaks_is_handed_out_as_it_comes() -> None:
    progress = Progress(tombstones=False)
    progress.restart()
    assert not progress.tombstones
    page = Watched("snapshot", 1, 0, 5, True, None, [b"a", [1, 2, b"v", [["h", None]]]])
    assert progress.take(page) == [Entry(b"a", b"v", 0, 1, 2, (("h", None),))]
    assert progress.live is None


@pytest.mark.parametrize(
    "wrong",
    [
        Watched("changes", 1, 0, 5, True, None, []),
        Watched("something", 1, 0, 5, True, None, []),
        Watched("snapshot", 1, 0, 5, True, None, [b"a"]),
        Watched("snapshot", 1, 0, 5, True, None, [b"a", [1, 2, b"v"]]),
        Watched("snapshot", 1, 0, 5, True, None, [b"a", 5]),
    ],
)
def test_an_invalid_stream_is_a_protocol_error(wrong: Watched) -> None:
    progress = Progress(tombstones=False)
    progress.restart()
    with pytest.raises(ProtocolError):
        progress.take(wrong)
