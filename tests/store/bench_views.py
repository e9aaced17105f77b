"""Measures the views alone: `python tests/store/bench_views.py [--folder DIR] [--keys N] [--value BYTES]` prints JSON.

Fold and apply, with keys that come once and with keys that come again; gets of known and unknown keys, one by one and
by hundreds; pages of a snapshot. One thread, no broker. `us` is microseconds of this thread's own processor time a
record (what it costs the broker's loop, whatever else runs on the machine), `per_s` counts by the clock.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from krappy.entries.entry import pack_columns, packed_rows
from krappy.store.views import Views

SLICE = 500
Figure = dict[str, float]


def measured(work: Callable[[], int], rounds: int = 3) -> Figure:
    """The best of `rounds` rounds; `work` returns how many records it has done."""
    best_clock = best_own = float("inf")
    for _ in range(rounds):
        clock, own = time.perf_counter(), time.thread_time()
        count = work()
        best_own = min(best_own, (time.thread_time() - own) / count)
        best_clock = min(best_clock, (time.perf_counter() - clock) / count)
    return {"per_s": round(1 / best_clock), "us": round(best_own * 1e6, 3)}


class Bench:
    def __init__(self, folder: Path, keys: int, value: int) -> None:
        self.views = Views(folder)
        self.count = keys
        half = value // 2  # half of it is random, the other half compresses
        self.values = [random.randbytes(half) + b"x" * (value - half) for _ in range(min(keys, 20_000))]
        self.keys = [b"user-%012d" % (index * 7919 % keys) for index in range(keys)]
        self.stalls = 0
        self.offset = 0

    def of(self, first: int, count: int) -> list[bytes]:
        first %= len(self.values)
        found = self.values[first : first + count]
        return found if len(found) == count else found + self.values[: count - len(found)]

    def fold(self, keys: list[bytes]) -> int:
        for first in range(0, len(keys), SLICE):
            some = keys[first : first + SLICE]
            pack_columns(range(first, first + len(some)), [first] * len(some), some, self.of(first, len(some)))
        return len(keys)

    def apply(self, keys: list[bytes]) -> int:
        for first in range(0, len(keys), SLICE):
            some = keys[first : first + SLICE]
            offsets = range(self.offset, self.offset + len(some))
            entries = pack_columns(offsets, [first] * len(some), some, self.of(first, len(some)))
            while self.views.busy():
                self.stalls += 1
                time.sleep(0.005)
            self.offset += len(some)
            self.views.apply(1, entries, self.offset)
        return len(keys)

    def get(self, keys: list[bytes]) -> int:
        get = self.views.get
        for key in keys:
            get(1, key)
        return len(keys)

    def get_many(self, keys: list[bytes]) -> int:
        for first in range(0, len(keys), 100):
            self.views.get_many(1, keys[first : first + 100])
        return len(keys)

    def scan(self, page: int) -> int:
        snapshot = self.views.snapshot()
        count = 0
        following: bytes | None = b""
        while following is not None:
            found = snapshot.rows(1, start=following, max_entries=page)
            count += len(packed_rows(found.keys, found.entries)) // 2
            following = found.following
        snapshot.close()
        return count

    def run(self) -> dict[str, object]:
        report: dict[str, object] = {"keys": self.count, "value_bytes": len(self.values[0])}
        hot = [self.keys[random.randrange(min(1000, self.count))] for _ in range(self.count)]
        report["fold_distinct"] = measured(lambda: self.fold(self.keys))
        report["fold_1000_keys"] = measured(lambda: self.fold(hot))
        report["apply_distinct"] = measured(lambda: self.apply(self.keys), 1)
        report["apply_again"] = measured(lambda: self.apply(self.keys), 1)
        report["apply_1000_keys"] = measured(lambda: self.apply(hot), 1)
        report["pauses_while_busy"] = self.stalls
        report["scan_while_compacting"] = measured(lambda: self.scan(1000), 1)
        begin = time.perf_counter()
        self.views.flush()
        report["flush_s"] = round(time.perf_counter() - begin, 3)
        self.views.reclaim(1)
        asked = random.choices(self.keys, k=min(200_000, 2 * self.count))
        few = random.choices(self.keys[: max(1, self.count // 10)], k=len(asked))
        unknown = [key + b"?" for key in asked]
        report["get"] = measured(lambda: self.get(asked))
        report["get_of_a_tenth"] = measured(lambda: self.get(few))
        report["get_unknown"] = measured(lambda: self.get(unknown))
        report["get_many_100"] = measured(lambda: self.get_many(asked))
        report["get_many_100_of_a_tenth"] = measured(lambda: self.get_many(few))
        for page in (100, 1000, 10_000):
            report[f"pages_of_{page}"] = measured(lambda page=page: self.scan(page))  # type: ignore[misc]
        report["stats"] = self.views.stats()
        begin = time.perf_counter()
        self.views.close()
        report["close_s"] = round(time.perf_counter() - begin, 3)
        begin = time.perf_counter()
        Views(self.views.folder).close()
        report["open_and_close_s"] = round(time.perf_counter() - begin, 3)
        return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", help="where to make the views; a temporary folder if left out")
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--value", type=int, default=100, help="bytes of each value")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        json.dump(Bench(Path(folder) / "views", given.keys, given.value).run(), sys.stdout, indent=2)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
