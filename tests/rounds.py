"""How long a round of a broker's event loop takes: what comes meanwhile waits for that long."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import trio


class Rounds(trio.abc.Instrument):
    """The longest round, in seconds of processor time of its thread: other threads and programs count nothing.

    With `report=rounds.report`, a broker of `run_broker` has it from its first event on; `measured` says that it does.
    """

    def __init__(self) -> None:
        self._began = math.inf  # since it is added in the middle of a round
        self.longest = 0.0
        self.measured = threading.Event()

    def report(self, event: str, **facts: Any) -> None:
        if not self.measured.is_set():
            trio.lowlevel.add_instrument(self)
            self.measured.set()

    def after_io_wait(self, timeout: float) -> None:
        self._began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        self.longest = max(self.longest, time.thread_time() - self._began)


class HeldRounds(Rounds):
    """`go`: while it is not set, the event loop stands still, so what is sent meanwhile comes at the same moment."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def before_io_wait(self, timeout: float) -> None:
        super().before_io_wait(timeout)
        self.go.wait(60)
