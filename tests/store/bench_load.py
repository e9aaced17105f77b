"""How a large load could reach a view: `python tests/store/bench_load.py` prints JSON, microseconds an entry.

It compares batches of 500 entries, as the broker applies them, with sorted files (SstFileWriter) that RocksDB takes in
as they are. The figures are medians of rounds in turn, for entries with new keys in random and in rising order.
`thread`: CPU of the thread that writes, which the broker needs for all else. `process`: CPU of everything, until no
flush and no compaction is left. Not a test: nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median

from rocksdict import IngestExternalFileOptions, SstFileWriter

from krappy.broker.partition.applier import SLICE
from krappy.entries.entry import pack_columns
from krappy.store import rocks
from krappy.store.keys import applied_key, view_prefix
from krappy.store.views import Views

NUMBER = 1
BATCH = 5_000
FILE = 1_000_000  # entries that are sorted together
CACHE, MEMTABLES = 64 << 20, 64 << 20

Parts = Iterator[dict[bytes, bytes]]


def parts(count: int, in_order: bool) -> Parts:
    """Entries of 100 B, packed as a view holds them."""
    chance = random.Random(5)
    for base in range(0, count, BATCH):
        keys: list[bytes | None] = [
            (base + number if in_order else chance.getrandbits(64)).to_bytes(16, "big") for number in range(BATCH)
        ]
        values: list[bytes | None] = [chance.randbytes(100)] * BATCH
        for start in range(0, BATCH, SLICE):
            yield pack_columns(range(base, base + BATCH), [0] * BATCH, keys, values, [()] * BATCH, start, start + SLICE)


class Clock:
    """CPU time of this thread within its blocks."""

    def __init__(self) -> None:
        self.spent = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.spent += time.thread_time() - self._began


def by_batches(views: Views, of: Parts, clock: Clock, _: Path) -> None:
    applied = 0
    for entries in of:
        while views.busy():
            time.sleep(0.005)
        applied += SLICE
        with clock:
            views.apply(NUMBER, entries, applied)


def by_files(views: Views, of: Parts, clock: Clock, folder: Path) -> None:
    """The entries, and the offset up to which they are applied, lie in one file: so it is there as a whole or not at
    all."""
    applied, prefix = 0, view_prefix(NUMBER)
    while some := list(islice(of, FILE // SLICE)):
        applied += len(some) * SLICE
        path = os.fspath(folder / f"{applied}.sst")
        with clock:
            entries: dict[bytes, bytes] = {}
            for each in some:
                entries.update(each)
            writer = SstFileWriter(options=rocks.db_options(CACHE, MEMTABLES))
            writer.open(path)
            writer[applied_key(NUMBER)] = applied.to_bytes(8, "big")
            for key in sorted(entries):
                writer[prefix + key] = entries[key]
            writer.finish()
            how = IngestExternalFileOptions()
            how.set_move_files(True)
            views._db.ingest_external_file([path], how)


def settle(views: Views) -> None:
    views.flush()
    while any(rocks.number_of(views._db, name) for name in RUNNING):
        time.sleep(0.05)


RUNNING = ("num-running-compactions", "num-running-flushes", "compaction-pending")


def measured(load: Callable[[Views, Parts, Clock, Path], None], count: int, in_order: bool) -> dict[str, float]:
    made = list(parts(count, in_order))
    with tempfile.TemporaryDirectory() as folder:
        views, clock = Views(Path(folder, "views"), CACHE, MEMTABLES), Clock()
        began, wall = time.process_time(), time.perf_counter()
        load(views, iter(made), clock, Path(folder))
        wall = time.perf_counter() - wall
        settle(views)
        spent = time.process_time() - began
        if views.applied(NUMBER) != count:
            raise SystemExit(f"{views.applied(NUMBER)} of {count} entries are in the view")
        views.close()
    return {"thread": clock.spent * 1e6 / count, "process": spent * 1e6 / count, "wall": wall * 1e6 / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=10_000_000, help="default: %(default)s, a multiple of a million")
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    for in_order in (False, True):
        rounds: dict[str, list[dict[str, float]]] = {"batches": [], "files": []}
        for _ in range(given.rounds):
            rounds["batches"].append(measured(by_batches, given.entries, in_order))
            rounds["files"].append(measured(by_files, given.entries, in_order))
        medians = {
            way: {what: round(median(each[what] for each in found), 2) for what in found[0]}
            for way, found in rounds.items()
        }
        sys.stdout.write(json.dumps({"keys": "rising" if in_order else "random", **medians}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
