"""How long a round of a broker's event loop takes: what comes meanwhile waits for that long."""

from __future__ import annotations

import gc
import math
import threading
import time
from typing import Any

import trio


class Rounds(trio.abc.Instrument):
    """The longest round, in seconds of processor time of its thread: other threads and programs do not count, nor does
    the garbage collector, which goes through all that the tests keep.

    With `run_broker(…, report=rounds.report)` it measures from the broker's first event on; `measured` is set then.
    """

    def __init__(self) -> None:
        self._began = math.inf  # it is added in the middle of a round, which does not count
        self._collects_since = 0.0
        self._thread = 0
        self.longest = 0.0
        self.measured = threading.Event()

    def report(self, event: str, **facts: Any) -> None:
        if not self.measured.is_set():
            trio.lowlevel.add_instrument(self)
            self._thread = threading.get_ident()
            gc.callbacks.append(self._collect)
            self.measured.set()

    def after_run(self) -> None:
        gc.callbacks.remove(self._collect)

    def _collect(self, phase: str, info: object) -> None:
        if threading.get_ident() == self._thread:
            now = time.thread_time()
            if phase == "start":
                self._collects_since = now
            else:
                self._began += now - self._collects_since

    def after_io_wait(self, timeout: float) -> None:
        self._began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        self.longest = max(self.longest, time.thread_time() - self._began)


class HeldRounds(Rounds):
    """While `go` is not set, the event loop stands still, so that all that is sent meanwhile arrives at the same
    moment."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def before_io_wait(self, timeout: float) -> None:
        super().before_io_wait(timeout)
        self.go.wait(60)
