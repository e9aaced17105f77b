"""Measures the log alone, on a real disk: `python tests/store/bench_log.py [--folder DIR] [--mib N]` prints JSON.

Appends with and without sync, big and small batches; reads through the page cache; tail reads; open after a clean
close and after a kill. One thread, no broker.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from krappy.records import batch
from krappy.settings.topic import TopicConfig
from krappy.store.log import Log

MIB = 1 << 20


def make(records: int, size: int) -> bytes:
    return batch.encode(
        [b"key-%08d" % i for i in range(records)], [b"x" * size] * records, timestamps=1_700_000_000_000
    )


@contextmanager
def log_in(folder: Path, name: str) -> Iterator[Log]:
    log = Log.open(folder / name, TopicConfig())
    try:
        yield log
    finally:
        log.destroy()


def rounds(work: Callable[[], Any], seconds: float, most: int) -> tuple[int, float]:
    done, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds and done < most:
        work()
        done += 1
    return done, spent


def appends(folder: Path, data: bytes, each: int, sync: bool, mib: int) -> dict[str, float]:
    work = [(batch.check(data), data)] * each
    with log_in(folder, "append") as log:

        def once() -> None:
            log.append(work, 0, 1)
            if sync:
                log.sync()

        done, spent = rounds(once, 3.0, mib * MIB // (len(data) * each))
        return {
            "batch_bytes": len(data),
            "batches_per_append": each,
            "append_us": round(spent / done * 1e6, 1),
            "mb_per_s": round(done * each * len(data) / spent / 1e6),
            "batches_per_s": round(done * each / spent),
        }


def reads(log: Log, max_bytes: int, nowait: bool) -> dict[str, float]:
    position, read, calls, begin = log.start_offset, 0, 0, time.perf_counter()
    while position < log.end_offset:
        span = log.read_span(position, max_bytes, nowait=nowait)
        position = span.next_offset
        read += len(span.data)
        calls += 1
    spent = time.perf_counter() - begin
    return {"max_bytes": max_bytes, "mb_per_s": round(read / spent / 1e6), "read_us": round(spent / calls * 1e6, 1)}


def at_random(log: Log) -> float:
    end = log.end_offset
    spots = iter(range(end // 997, 10**12, 7919 * (end // 997)))
    return timed(lambda: log.read(next(spots) % end, 4096), 500)


def timed(work: Callable[[], Any], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        work()
    return round((time.perf_counter() - begin) / times * 1e6, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: a temporary folder)")
    parser.add_argument("--mib", type=int, default=512, help="MiB of log for each measurement")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    result: dict[str, Any] = {}
    try:
        big, medium, small = make(1000, 85), make(150, 85), make(1, 100)
        result["append_sync"] = [appends(folder, big, 1, True, given.mib), appends(folder, small, 1, True, given.mib)]
        result["append"] = [
            appends(folder, big, 1, False, given.mib),
            appends(folder, big, 16, False, given.mib),
            appends(folder, medium, 64, False, given.mib),
            appends(folder, small, 1, False, given.mib),
            appends(folder, small, 1000, False, given.mib),
        ]
        for name, data in (("100kb", big), ("15kb", medium), ("170b", small)):
            with log_in(folder, "read") as log:
                each = max(1, MIB // len(data))
                for _ in range((given.mib if len(data) > 1000 else 64) * MIB // (each * len(data))):
                    log.append([(batch.check(data), data)] * each, 0, 1)
                result[f"read_{name}"] = [
                    reads(log, size, nowait) for nowait in (False, True) for size in (1 << 16, 1 << 20, 8 << 20)
                ]
                result[f"read_{name}_at_random_us"] = at_random(log)
                result[f"read_{name}_timestamp_us"] = timed(partial(log.find_timestamp, 1_700_000_000_000), 100)
                if name == "15kb":
                    path, config = log.folder, log.config
                    begin = time.perf_counter()
                    Log.open(path, config).close()
                    result["open_all_unchecked_ms"] = round((time.perf_counter() - begin) * 1e3, 1)
                    begin = time.perf_counter()
                    again = Log.open(path, config)
                    result["open_clean_ms"] = round((time.perf_counter() - begin) * 1e3, 1)
                    result["open_bytes"] = again.size
        with log_in(folder, "tail") as log:
            work = [(batch.check(small), small)]
            for _ in range(200_000):
                log.append(work, 0, 1)

            def tail() -> None:
                at = log.append(work, 0, 1)
                assert log.read(at, MIB, nowait=True)

            result["append_and_read_tail_us"] = timed(tail, 20_000)
    finally:
        shutil.rmtree(folder)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
