"""The event with the highest timestamp, compared with a plain look through all events."""

from __future__ import annotations

import random

import pytest

from krappy.records import batch
from krappy.store import latest_time
from krappy.store.log import Log
from tests.store.compacted import CONFIG
from tests.store.faulty_disk import FaultyDisk
from tests.store.logs import FOLDER, rows


def check(log: Log) -> None:
    there = rows(log)
    for limit in (None, *range(log.start_offset, log.end_offset + 2)):
        below = [row for row in there if limit is None or row.offset < limit]
        first = max(below, key=lambda row: (row.timestamp, -row.offset), default=None)
        assert log.find_latest(limit) == (None if first is None else (first.offset, first.timestamp))


@pytest.mark.parametrize("seed", range(8))
def test_it_is_found_whatever_compaction_and_deletion_have_left(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_time, "AT_ONCE", 2)
    chance, disk = random.Random(seed), FaultyDisk()
    log = Log.open(FOLDER, CONFIG, disk=disk)
    check(log)
    for _ in range(40):
        count = chance.randrange(1, 5)
        times = [chance.randrange(30) for _ in range(count)]
        data = batch.encode([b"k"] * count, [b"v" * 20] * count, timestamps=times, codec=chance.choice([0, 3]))
        log.append([(batch.check(data), data)], 0, 1000)
    check(log)
    for share in (0.5, 0.9, 1.0):
        log.clean(lambda some, share=share: [chance.random() > share for _ in some], log.segments[-1].base_offset, 0)  # type: ignore[misc]
        check(log)
        log.delete_before(log.start_offset + chance.randrange(15))
        check(log)
        log.close()
        log = Log.open(FOLDER, CONFIG, disk=disk)
        check(log)
