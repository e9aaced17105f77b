"""Reports on stderr while a command runs: how many bytes are done, and what it waits for."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from krappy.cli.output import note, visible

EACH_S = 30.0  # seconds between two lines when stderr is no terminal
SILENCE_S = 3.0  # seconds between two checks whether the command waits for something


@contextmanager
def progress(total: int) -> Iterator[Callable[[str, int], None]]:
    """Shows progress over `total` bytes: a bar on stderr, or a line every half minute when that is no terminal. Gives a
    function to call with a name and the bytes done since the last call."""
    if not sys.stderr.isatty():
        yield _lines(total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda name, count: bar.update(task, description=visible(name), advance=count)


def _lines(total: int) -> Callable[[str, int], None]:
    done, told = 0, time.monotonic()

    def tell(name: str, count: int) -> None:
        nonlocal done, told
        done += count
        now = time.monotonic()
        if now - told >= EACH_S:
            told = now
            share = f", {done / total:.0%}" if total else ""
            note(f"{name}: {done:,} bytes{share}")

    return tell


@contextmanager
def telling(trouble: Callable[[], str], what: str) -> Iterator[None]:
    """Calls `trouble` every few seconds, and prints each new text that it returns after `what` on stderr. An empty text
    means that there is no trouble."""
    over = threading.Event()

    def look() -> None:
        told = ""
        while not over.wait(SILENCE_S):
            found = trouble()
            if found and found != told:
                note(f"{what}: {found}")
            told = found

    looking = threading.Thread(target=look, name="krappy: what keeps it waiting", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
