"""Prints results: text for people and pipes, JSON for programs.

Keys and values are bytes. Those that are UTF-8 are printed as text; others as `base64:…` in text output, and as
`{"base64": "…"}` in JSON.

Names are chosen by whoever sends an event or joins a group. No name can end a line or drive a terminal: a key with
invisible characters is printed as `base64:…`, too, and in other texts such characters are escaped. A value goes into a
pipe as it is.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, Any, NamedTuple

import click

from krappy.types import Entry, Event, Headers

# A terminal obeys control characters, so those in events are escaped.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
# Soft hyphen, zero widths, line separators, bidirectional controls, BOM: they hide what a name is.
_HIDDEN = (0xAD, 0x61C, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x206A), 0xFEFF)
_ONE_LINE = _VISIBLE | {ord("\t"): "\\t", ord("\n"): "\\n"} | {code: f"\\u{code:04x}" for code in _HIDDEN}
_INVISIBLE = re.compile("[" + "".join(map(chr, _ONE_LINE)) + "]")  # as in the console (bytes.js)
_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029]")  # JSON itself escapes other controls and line ends
BASE64 = "base64:"


def text(value: bytes | None, null: str = "") -> str:
    """Bytes as text: UTF-8 as it is, other bytes as `base64:…`; `null` for None."""
    if value is None:
        return null
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _base64(value)


def _base64(value: bytes) -> str:
    return BASE64 + base64.b64encode(value).decode()


def key_text(key: bytes | None, null: str = "") -> str:
    """A key as it can be typed (`options.key_bytes` reads it): text, or `base64:…` if it is not UTF-8, has invisible
    characters, such as line ends, or begins with `base64:`. `null` for None."""
    shown = text(key, null)
    return _base64(key) if key and (_INVISIBLE.search(shown) or key.startswith(BASE64.encode())) else shown


def plain(value: bytes | None) -> Any:
    """Bytes as a JSON value: a string, `{"base64": …}`, or null."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def when(timestamp: int) -> str:
    """Milliseconds since the epoch as ISO 8601 in UTC; as a number when no calendar has them."""
    try:
        moment = datetime.fromtimestamp(timestamp / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def headers_json(headers: Headers) -> list[list[Any]]:
    """The headers as pairs of name and value: a name may come several times."""
    return [[name, plain(value)] for name, value in headers]


def event_json(event: Event, show: Callable[[bytes | None], Any] = plain) -> dict[str, Any]:
    """An event as `consume --json` prints it and `produce --format events` reads it. `show` makes JSON of its value."""
    return {
        "topic": event.topic,
        "partition": event.partition,
        "offset": event.offset,
        "timestamp": event.timestamp,
        "key": plain(event.key),
        "value": show(event.value),
        "headers": headers_json(event.headers),
        "deliveries": event.deliveries,
    }


def entry_json(entry: Entry, show: Callable[[bytes | None], Any] = plain) -> dict[str, Any]:
    """A table's entry as `get`, `scan` and `watch` print it. `show` makes JSON of its value."""
    return {
        "key": plain(entry.key),
        "value": show(entry.value),
        "deleted": entry.deleted,
        "partition": entry.partition,
        "offset": entry.offset,
        "timestamp": entry.timestamp,
        "headers": headers_json(entry.headers),
    }


def to_json(value: Any) -> str:
    """One line of JSON. It has no control characters, so what a terminal shows is still JSON."""
    found = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_jsonable)
    return _IN_JSON.sub(lambda each: f"\\u{ord(each[0]):04x}", found)


def _jsonable(value: Any) -> Any:
    """What JSON has no type for: bytes as `plain` has them, times and decimal numbers as text."""
    return plain(value) if isinstance(value, bytes) else str(value)


def emit_json(value: Any) -> None:
    """Prints one JSON document as one line on stdout."""
    write_lines([to_json(value)])


def write_lines(lines: Iterable[str], end: str = "\n") -> None:
    """Prints lines on stdout as UTF-8 and flushes, so that the reader of a pipe sees them at once. On a terminal,
    control characters are escaped."""
    whole = "".join(line + end for line in lines)
    if sys.stdout.isatty():
        whole = whole.translate(_VISIBLE)
    out = sys.stdout.buffer
    out.write(whole.encode(errors="surrogateescape"))
    out.flush()


def drop_stdout() -> None:
    """Points stdout at /dev/null, so that the interpreter's last flush does not fail, say on a closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class ReaderIsGone(BaseException):
    """Raised between any two steps of the main thread, as KeyboardInterrupt is. It is not BrokenPipeError, which a
    client would take for an error of its connection. It may be raised while `ending_with_reader` ends, and
    may then leave that block."""


@contextmanager
def ending_with_reader() -> Iterator[None]:
    """For commands that print and then wait for more. It raises BrokenPipeError (or ReaderIsGone) on the main thread
    once the reader of stdout has closed the pipe (`| head`). A write would fail too, but the next one may be far off.

    A thread waits for the pipe to be closed and then sends SIGPIPE to the main thread, which interrupts it as Ctrl-C
    would. Writes to closed sockets raise that signal too; those are ignored.
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
            waiting = False  # raise only once: a failed write during the clean-up raises the signal again
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
    """Waits until the reader of `out` has closed it, or the other end of `stopped` is closed. Returns whether it
    was the reader."""
    poll = select.poll()
    for descriptor in (out, stopped):
        poll.register(descriptor, 0)  # reported even so: POLLERR for a pipe without readers, POLLHUP
    return any(event & select.POLLERR for _, event in poll.poll(milliseconds))


def note(line: str) -> None:
    """Prints a remark as one line on stderr; it is not part of the result."""
    click.echo(visible(line), err=True)


class ByteCount(int):
    """A number of bytes in a table: 1.5 KiB for people, the number for programs."""


class SettingValue(NamedTuple):
    """A setting's value in a table: in the largest unit for people, as it is stored for programs."""

    shown: str
    stored: str


class Lag(int):
    """A number that should be 0, such as a lag: people see at once where it is not."""


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """Prints a table on stdout.

    On a terminal, numbers are grouped and right-aligned. Into a pipe go lines with tabs between the columns, the names
    first: numbers as they are, an empty field for None, and no title.
    """
    listed = [list(row) for row in rows]
    if not sys.stdout.isatty():
        write_lines([tabbed(columns), *map(tabbed, listed)])
        return
    from rich.table import Table  # imported here because rich loads slowly and most commands print no table
    from rich.text import Text

    heading = None if title is None else Text(visible(title))  # a str would be read for marks of rich
    shown = Table(
        title=heading, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="cyan"
    )
    for index, column in enumerate(columns):
        numbers = bool(listed) and all(isinstance(row[index], int | float) for row in listed)
        shown.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in listed:
        shown.add_row(*(Text(visible(_cell(value)), style=_style(value)) for value in row))
    print_rich(shown)


def tabbed(cells: Iterable[Any]) -> str:
    """A line for programs. Tabs and line ends in a cell are escaped."""
    return "\t".join(visible(_plain_cell(cell)) for cell in cells)


def _plain_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(int(value))
    return value.stored if isinstance(value, SettingValue) else _cell(value)


def _style(value: Any) -> str:
    """How a cell is marked for people."""
    if isinstance(value, Lag) and value > 0:
        return "bold yellow"
    return "dim" if value is None or value is False else ""


def print_rich(what: Any) -> None:
    """Prints an object of rich on the terminal."""
    from rich.console import Console

    out: IO[str] = sys.stdout
    Console(file=out, highlight=False, soft_wrap=False).print(what)
    out.flush()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, ByteCount):
        return size(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, SettingValue):
        return value.shown
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def visible(text: str) -> str:
    """The text with invisible characters escaped: those that a terminal would obey, line ends, tabs. It is one line."""
    return text.translate(_ONE_LINE)


def size(number: int) -> str:
    """Bytes for people: 512 B, 1.5 KiB, 3.2 MiB."""
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
