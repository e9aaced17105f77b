"""How results are shown: text for people and pipes, JSON for programs.

Keys and values are bytes. They are shown as text when they are UTF-8; else as `base64:…` in text output, and as
`{"base64": "…"}` in JSON, where nothing else looks like it.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, Any

import click

from krappy.types import Entry, Event, Headers

# A terminal obeys control characters; an event must not be able to speak to it.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}


def text(value: bytes | None, null: str = "") -> str:
    """Bytes as text: UTF-8 as it is, anything else as base64, marked so."""
    if value is None:
        return null
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()


def plain(value: bytes | None) -> Any:
    """Bytes as a JSON value: a string, `{"base64": …}`, or null."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def when(timestamp: int) -> str:
    """Milliseconds since the epoch as ISO 8601 in UTC; a number beyond the calendar stays one."""
    try:
        moment = datetime.fromtimestamp(timestamp / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _headers(headers: Headers) -> list[list[Any]]:
    return [[name, plain(value)] for name, value in headers]


def event_json(event: Event) -> dict[str, Any]:
    """An event as `consume --json` prints it, and as `produce --format events` reads it."""
    return {
        "topic": event.topic,
        "partition": event.partition,
        "offset": event.offset,
        "timestamp": event.timestamp,
        "key": plain(event.key),
        "value": plain(event.value),
        "headers": _headers(event.headers),
        "deliveries": event.deliveries,
    }


def entry_json(entry: Entry) -> dict[str, Any]:
    """A table's entry as `get`, `scan` and `watch` print it."""
    return {
        "key": plain(entry.key),
        "value": plain(entry.value),
        "deleted": entry.deleted,
        "partition": entry.partition,
        "offset": entry.offset,
        "timestamp": entry.timestamp,
        "headers": _headers(entry.headers),
    }


def to_json(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def emit_json(value: Any) -> None:
    """One JSON document as one line of stdout."""
    write_lines([to_json(value)])


def write_lines(lines: Iterable[str], end: str = "\n") -> None:
    """Lines to stdout as UTF-8, flushed: a reader at the other end of a pipe sees them at once."""
    whole = "".join(line + end for line in lines)
    if sys.stdout.isatty():
        whole = whole.translate(_VISIBLE)
    out = sys.stdout.buffer
    out.write(whole.encode(errors="surrogateescape"))
    out.flush()


def drop_stdout() -> None:
    """Keeps the interpreter's last flush from failing aloud, into a pipe that nobody reads, say."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class ReaderIsGone(BaseException):
    """Comes between any two steps, as KeyboardInterrupt does: nothing may take it for an error of its own, as a client
    would BrokenPipeError. One of these steps may be the end of the `with` that waits for it, so it may leave that."""


@contextmanager
def ending_with_reader() -> Iterator[None]:
    """For output that waits for more, on the main thread: BrokenPipeError once nobody reads the pipe that stdout is any
    more (`| head`), or ReaderIsGone. A write would say so, but the next one may be far off.

    A thread waits for the pipe to tell, and wakes the main thread as Ctrl-C would, by a SIGPIPE. Writes to sockets that
    the other side has closed raise that signal too, and those mean nothing here.
    """
    out = sys.stdout.fileno()
    main = threading.get_ident()
    stopped, stop = os.pipe()
    waiting = True

    def look() -> None:
        if _reader_is_gone(out, stopped, None):
            signal.pthread_kill(main, signal.SIGPIPE)

    def woken(*_: object) -> None:
        nonlocal waiting
        if waiting and _reader_is_gone(out, stopped, 0):
            waiting = False  # once: a failed write raises the signal too, and what it ends is cleaned up by then
            raise ReaderIsGone

    before = signal.signal(signal.SIGPIPE, woken)
    thread = threading.Thread(target=look, name="krappy-reader", daemon=True)
    thread.start()
    try:
        yield
    except ReaderIsGone:
        raise BrokenPipeError from None
    finally:
        waiting = False
        os.close(stop)
        thread.join()
        signal.signal(signal.SIGPIPE, before)
        os.close(stopped)


def _reader_is_gone(out: int, stopped: int, milliseconds: int | None) -> bool:
    """Waits for it, or for the other end of `stopped` to be closed."""
    poll = select.poll()
    for descriptor in (out, stopped):
        poll.register(descriptor, 0)  # what is told in any case: POLLERR of a pipe without readers, POLLHUP
    return any(event & select.POLLERR for _, event in poll.poll(milliseconds))


def note(line: str) -> None:
    """A remark for a person; never part of the result."""
    click.echo(line, err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """A table on stdout. Numbers stand to the right; nothing in a cell is taken as markup."""
    from rich.table import Table  # here: most commands print no table, and rich takes its time to load
    from rich.text import Text

    listed = [list(row) for row in rows]
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numbers = bool(listed) and all(isinstance(row[index], int | float) for row in listed)
        shown.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in listed:
        shown.add_row(*(Text(_cell(value)) for value in row))
    print_rich(shown)


def print_rich(what: Any) -> None:
    """Something of rich's on stdout; wide enough not to fold when stdout is no terminal."""
    from rich.console import Console

    out: IO[str] = sys.stdout
    Console(file=out, width=None if out.isatty() else 200, highlight=False, soft_wrap=False).print(what)
    out.flush()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value).translate(_VISIBLE)


def visible(text: str) -> str:
    """Text without the control characters that a terminal obeys."""
    return text.translate(_VISIBLE)


def size(number: int) -> str:
    """Bytes for people: 512 B, 1.5 KiB, 3.2 MiB."""
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
