"""What is said on stderr meanwhile: how far work over many bytes has come, and what keeps a command waiting."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

EACH_S = 30.0  # between two lines, where stderr is no terminal
SILENCE_S = 3.0  # after which somebody who waits is told why


@contextmanager
def progress(total: int) -> Iterator[Callable[[str, int], None]]:
    """Of the bytes to be read: a bar on stderr; where that is no terminal, a line each half a minute."""
    if not sys.stderr.isatty():
        yield _lines(total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda name, count: bar.update(task, description=name, advance=count)


def _lines(total: int) -> Callable[[str, int], None]:
    done, told = 0, time.monotonic()

    def tell(name: str, count: int) -> None:
        nonlocal done, told
        done += count
        now = time.monotonic()
        if now - told >= EACH_S:
            told = now
            share = f", {done / total:.0%}" if total else ""
            click.echo(f"{name}: {done:,} bytes{share}", err=True)

    return tell


@contextmanager
def telling(trouble: Callable[[], str], what: str) -> Iterator[None]:
    """Says on stderr what `trouble` tells when it is asked now and then, each once; empty: there is none."""
    over = threading.Event()

    def look() -> None:
        told = ""
        while not over.wait(SILENCE_S):
            found = trouble()
            if found and found != told:
                click.echo(f"{what}: {found}", err=True)
            told = found

    looking = threading.Thread(target=look, name="krappy: what keeps it waiting", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
