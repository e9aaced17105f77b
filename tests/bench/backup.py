"""How much a backup slows a busy broker down, how fast it is, and how much the next one still copies.

Writers publish all the time, as fast as they are acknowledged. Their rate while `krappy backup` runs, as a process of
its own, is compared with that before and after, when they have the broker to themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from krappy.bench import load
from krappy.blocking import connect
from krappy.cli.errors import Failure
from krappy.cli.output import note
from krappy.cli.progress import progress
from krappy.cli.spawn import spawn_broker

TOPIC, PARTITIONS, KEYS, RECORD_BYTES, CHUNK, WRITERS = "krappy-bench-backup", 4, 100_000, 1024, 500, 2
TIMEOUT_S = 600.0


def backup(megabytes: int, durability: str, seconds: float, max_rate: float | None) -> dict[str, Any]:
    """Fills a broker of its own with `megabytes` of events, backs it up twice under load, and restores the second.

    `seconds`: how long the writers are measured without a backup, each time. `max_rate`: of the backup, in MB/s. Raises
    Failure.
    """
    events = load.make(min(megabytes * 1000, KEYS), RECORD_BYTES, KEYS)
    with tempfile.TemporaryDirectory(prefix="krappy-") as name:
        folder = Path(name)
        with spawn_broker(folder / "data", {"durability": durability}) as broker:
            with connect(broker.address, timeout=TIMEOUT_S) as client:
                client.create_topic(TOPIC, partitions=PARTITIONS, config={"retention.ms": -1})
                with progress(megabytes * 1_000_000) as tell, client.producer(TOPIC) as producer:
                    for _ in range(max(1, megabytes * 1_000_000 // events.size)):
                        for keys, values in events.batches(CHUNK):
                            producer.post_columns(keys, values)
                            tell("writing", RECORD_BYTES * len(keys))
            command = ["backup", str(folder / "copies"), "--incremental", "--address", broker.address, "--json"]
            if max_rate is not None:
                command += ["--max-rate", str(max_rate)]
            with _writing(broker.address, events) as writers:
                note("alone, a first backup, alone, a second one, alone")
                spans = [writers.watch(seconds)]
                copies = []
                for _ in range(2):
                    with writers.span() as span:
                        copies.append(_krappy(*command))
                    spans += [span, writers.watch(seconds)]
        restored = _krappy("restore", copies[1]["target"], "--data", str(folder / "restored"), "--json")
    alone = [spans[0], spans[2], spans[4]]
    return {
        "bench": "backup",
        "megabytes": round(copies[0]["bytes"] / 1e6),
        **{
            f"{which}_{key}": value
            for which, copy in zip(("first", "second"), copies, strict=True)
            for key, value in _facts(copy).items()
        },
        "alone_megabytes_per_second": _rate(alone),
        "beside_megabytes_per_second": _rate([spans[1], spans[3]]),
        "beside_share": round(_rate([spans[1], spans[3]]) / _rate(alone), 3),
        "alone_longest_ms": round(max(span.longest for span in alone) * 1000),
        "beside_longest_ms": round(max(spans[1].longest, spans[3].longest) * 1000),
        "restore_megabytes_per_second": round(restored["bytes"] / restored["seconds"] / 1e6, 1),
    }


def _facts(copy: dict[str, Any]) -> dict[str, Any]:
    return {
        "seconds": round(copy["seconds"], 2),
        "hold_seconds": copy["hold_seconds"],
        "copied_megabytes": round(copy["copied_bytes"] / 1e6),
        "shared_megabytes": round(copy["shared_bytes"] / 1e6),
        "megabytes_per_second": round(copy["copied_bytes"] / (copy["seconds"] - copy["hold_seconds"]) / 1e6, 1),
    }


class _Span:
    """The writers' work in a span of time: bytes acknowledged, and the longest wait (seconds) that ended in it."""

    def __init__(self) -> None:
        self.size = 0
        self.seconds = 0.0
        self.longest = 0.0


def _rate(spans: list[_Span]) -> float:
    return round(sum(span.size for span in spans) / sum(span.seconds for span in spans) / 1e6, 1)


class _Writers:
    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.failed: list[Exception] = []
        self._lock = threading.Lock()
        self._span = _Span()

    def run(self, address: str, events: load.Load) -> None:
        """A writer's thread: each send begins once the one before was acknowledged."""
        try:
            with connect(address, timeout=TIMEOUT_S) as client, client.producer(TOPIC) as producer:
                while True:
                    for keys, values in events.batches(CHUNK):
                        if self.stopped.is_set():
                            return
                        began = time.perf_counter()
                        producer.send_columns(keys, values)
                        took = time.perf_counter() - began
                        with self._lock:
                            self._span.size += RECORD_BYTES * len(keys)
                            self._span.longest = max(self._span.longest, took)
        except Exception as error:
            self.failed.append(error)

    def watch(self, seconds: float) -> _Span:
        with self.span() as found:
            self.stopped.wait(seconds)
        return found

    @contextmanager
    def span(self) -> Iterator[_Span]:
        began = time.perf_counter()
        with self._lock:
            self._span = found = _Span()
        yield found
        with self._lock:
            self._span = _Span()
        found.seconds = time.perf_counter() - began


@contextmanager
def _writing(address: str, events: load.Load) -> Iterator[_Writers]:
    writers = _Writers()
    threads = [threading.Thread(target=writers.run, args=(address, events)) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield writers
    finally:
        writers.stopped.set()
        for thread in threads:
            thread.join()
    if writers.failed:
        raise writers.failed[0]


def _krappy(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "krappy", *arguments], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise Failure(f"`krappy {arguments[0]}` failed with status {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
