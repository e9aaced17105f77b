"""How much compaction reads and writes at a time; and it may be ended in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from krappy.store.cleaner import CleaningPace
from tests.store.compacted import CONFIG, Table
from tests.store.logs import opened, rows


class Ended(Exception):
    pass


class Counting(CleaningPace):
    """Counts the bytes of the work, and ends it after `most` bytes."""

    def __init__(self, most: int = 10**12) -> None:
        self.pieces: list[int] = []
        self.swaps = 0
        self._most = most

    def spend(self, size: int) -> None:
        self.pieces.append(size)
        if sum(self.pieces) > self._most:
            raise Ended

    @contextmanager
    def swapping(self, markers: Sequence[int]) -> Iterator[None]:
        self.swaps += 1
        yield


def test_all_that_is_read_and_written_is_told(tmp_path: Path) -> None:
    config = replace(CONFIG, segment_bytes=8 << 20)
    table = Table(tmp_path, config=config)
    for number in range(300):  # 6 MB that stay, then an event that is overtaken: all that is before it is copied
        table.put((b"k%d" % number, b"x" * 20_000))
    table.put((b"twice", b"1"))
    table.put((b"twice", b"2"))
    table.log.roll()
    before, pace = table.log.size, Counting()
    assert table.log.clean(table.survives(), table.log.end_offset, 0, pace).records_removed == 1
    copied = 2 * (4 << 20)  # what was looked at before the change is copied within the file, not written again
    assert sum(pace.pieces) >= before + table.log.size
    assert sum(pace.pieces) <= before + table.log.size + copied
    assert max(pace.pieces) <= 5 << 20
    assert pace.swaps == 1
    again = Counting()
    table.log.clean(table.survives(), table.log.end_offset, 0, again)
    assert (sum(again.pieces), again.swaps) == (table.log.size, 0)


@pytest.mark.parametrize("most", [0, 3000, 12_000])
def test_a_cleaning_may_be_ended_at_any_pause(tmp_path: Path, most: int) -> None:
    table = Table(tmp_path)
    table.fill(200, 15)
    with pytest.raises(Ended):
        table.log.clean(table.survives(), table.log.segments[-1].base_offset, 0, Counting(most))
    assert not list(tmp_path.glob("*.cleaned"))
    assert table.log.clean_upto == 0
    found = rows(table.log)
    assert {row.key: row.offset for row in found} == table.latest
    table.log.close()
    table.log = opened(tmp_path, CONFIG)
    assert table.log.recovery.clean
    assert rows(table.log) == found
