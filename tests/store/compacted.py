"""What the tests of compaction share: a log, and what a view would know of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from krappy.core import retention
from krappy.records import batch
from krappy.settings.topic import TopicConfig
from krappy.store.cleaner import Candidate
from krappy.store.disk import OS_DISK, Disk
from krappy.store.log import Log
from tests.store.logs import FOLDER, Row, opened, rows

CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=100, compact=True, delete=False)


class Table:
    """A log, every row that was ever appended to it, and the latest offset of each key: what a view would know."""

    def __init__(self, folder: Path = FOLDER, disk: Disk = OS_DISK, config: TopicConfig = CONFIG) -> None:
        self.log = opened(folder, config, disk)
        self.rows: list[Row] = []
        self.latest: dict[bytes, int] = {}
        self.batches: dict[int, int] = {}  # offset -> base offset of its batch
        self.horizons: dict[int, int] = {}  # base offset -> delete horizon
        self.end = 0

    def put(self, *pairs: tuple[bytes, bytes | None], at: int = 1000, codec: int = 0) -> None:
        data = batch.encode([key for key, _ in pairs], [value for _, value in pairs], timestamps=at, codec=codec)
        first = self.log.append([(batch.check(data), data)], 0, at)
        self.end = first + len(pairs)
        for number, (key, value) in enumerate(pairs):
            self.rows.append(Row(first + number, at, key, value))
            self.latest[key] = first + number
            self.batches[first + number] = first

    def fill(self, batches: int, keys: int, seed: int = 1) -> None:
        chance = random.Random(seed)
        for number in range(batches):
            self.put(
                *[
                    (b"k%d" % chance.randrange(keys), chance.choice([None, b"x" * chance.randrange(30)]))
                    for _ in range(chance.randrange(1, 5))
                ],
                at=1000 + number,
                codec=chance.randrange(5),
            )

    def survives(self, now: int = 0) -> Callable[[list[Candidate]], list[bool]]:
        def decide(candidates: list[Candidate]) -> list[bool]:
            return [
                retention.survives(self.latest.get(key or b""), offset, tombstone, horizon, now)
                for key, offset, tombstone, horizon in candidates
            ]

        return decide

    def clean(self, upto: int | None = None, *, now: int = 0, kept_ms: int = 10**9) -> int:
        """Compacts and checks the outcome; returns how many records went."""
        upto = self.log.segments[-1].base_offset if upto is None else upto
        self.log.config = replace(self.log.config, delete_retention_ms=kept_ms)
        result = self.log.clean(self.survives(now), upto, now)
        upto = max([info.next_offset for info in self.log.segments[:-1] if info.next_offset <= upto], default=0)
        before = len(self.rows)
        self.rows = [row for row in self.rows if row.offset >= upto or self._stays(row, now)]
        for row in self.rows:
            if row.offset < upto and row.value is None:
                self.horizons.setdefault(self.batches[row.offset], now + kept_ms)
        assert result.records_removed == before - len(self.rows)
        self.check()
        return result.records_removed

    def _stays(self, row: Row, now: int) -> bool:
        horizon = self.horizons.get(self.batches[row.offset])
        return self.survives(now)([(row.key, row.offset, row.value is None, horizon)])[0]

    def check(self) -> None:
        assert rows(self.log) == self.rows
        assert self.log.end_offset == self.end

    def reopen(self) -> None:
        self.log.close()
        self.log = Log.open(self.log.folder, self.log.config, disk=self.log._disk)
        assert self.log.recovery.clean, str(self.log.recovery)
        self.check()
