"""Ways in which a broker's process ends without a graceful stop. They are safe: what is acknowledged is on disk."""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable

STOP_LIMIT_S = 60.0  # for a graceful stop, which takes a second or two unless the disk does not answer
Report = Callable[..., None]


def bound_stop(report: Report) -> None:
    """Ends the process when a stop takes longer than `STOP_LIMIT_S`."""

    def give_up() -> None:
        report("stop_timed_out", seconds=STOP_LIMIT_S)
        faulthandler.dump_traceback()
        os._exit(1)

    timer = threading.Timer(STOP_LIMIT_S, give_up)
    timer.daemon = True
    timer.start()


def end_at_once(report: Report) -> None:
    """Ends the process. To be called once another folder stands in the place of the data folder."""
    text = "another folder stands in the place of the data folder: put that back, and start the broker again"
    report("data_folder_replaced", text=text)
    os._exit(1)
