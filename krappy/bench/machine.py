"""What the machine itself costs, for `krappy bench latency` to show beside what a broker on it costs.

An event needs one fdatasync and two hand-overs to another thread before its consumer gets it. Both are measured alone,
with nothing around them, at the rate of the events: a disk and a processor that rested are slower than busy ones.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from krappy.bench.report import Round
from krappy.bench.settings import BenchSettings

MOST = 2_000  # syncs, or hand-overs, in a round
OVERHEAD = 70  # bytes that a batch of one event takes beside the event


def fdatasync(folder: Path, settings: BenchSettings) -> list[Round]:
    """Appends `record_bytes` and a batch's header to a file in `folder`, `rate` times per second. Timed: fdatasync."""
    data = bytes(settings.record_bytes + OVERHEAD)
    file = os.open(folder / "fdatasync", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def once() -> float:
        os.write(file, data)
        start = time.perf_counter()
        os.fdatasync(file)
        return time.perf_counter() - start

    try:
        return [_at_rate(once, settings) for _ in range(settings.rounds)]
    finally:
        os.close(file)


def hand_over(settings: BenchSettings) -> list[Round]:
    """Wakes a second thread that waits, and waits until that has woken this one. Timed: both."""
    there, back = threading.Semaphore(0), threading.Semaphore(0)
    ended = False

    def other() -> None:
        while there.acquire() and not ended:
            back.release()

    def once() -> float:
        start = time.perf_counter()
        there.release()
        back.acquire()
        return time.perf_counter() - start

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    try:
        return [_at_rate(once, settings) for _ in range(settings.rounds)]
    finally:
        ended = True
        there.release()
        thread.join()


def _at_rate(once: Callable[[], float], settings: BenchSettings) -> Round:
    """`once` does what is measured, and returns its seconds."""
    count = min(settings.count, MOST)
    took = []
    began = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, began + number / settings.rate - time.perf_counter()))
        took.append(once())
    return Round(count, time.perf_counter() - began, latencies=took)
