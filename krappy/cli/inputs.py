"""The input of `krappy produce`: reads a file or stdin as events.

Formats: `lines` (a line is a value, or `key<sep>value`), `json` (a line is a JSON object, and is the value),
`csv` (a row becomes a JSON object of strings), `events` (the output of `krappy consume --json`). A file whose name
ends in .gz, or in .zip with one file in it, is decompressed. Bad bytes raise `BadInput` and nothing else.
"""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import os
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from krappy.cli.errors import Failure
from krappy.types import Headers

MAX_LINE = 64 << 20  # bytes; more than a broker takes in one request
MOST_NAMED = 200  # characters of the names that an error lists
FORMATS = ("lines", "json", "csv", "events")
_ENDINGS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


class BadInput(Failure):
    """A line of the input does not have the expected format. The message names the line."""

    def __init__(self, name: str, line: int, text: str) -> None:
        super().__init__(f"{name} line {line}: {text}")


class Item(NamedTuple):
    """One event to publish. `value` None is a tombstone."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None


class InputSource:
    """An open input: its lines, and how far it has been read for a progress bar."""

    def __init__(self, name: str, stream: IO[bytes], raw: IO[bytes], total: int | None) -> None:
        self.name = name
        self.total = total  # bytes of the file on disk, compressed or not; None for a pipe
        self._stream = stream
        self._raw = raw

    @property
    def position(self) -> int:
        """How many of the `total` bytes have been read."""
        return self._raw.tell() if self.total is not None else 0

    def lines(self, keep_ends: bool = False) -> Iterator[tuple[int, bytes]]:
        """Pairs of a line's number, from 1, and the line; without its end unless `keep_ends`. Raises BadInput."""
        number = 0
        while True:
            try:
                line = self._stream.readline(MAX_LINE + 2)
            except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
                raise BadInput(self.name, number + 1, f"can't be read: {error}") from None
            if not line:
                return
            number += 1
            if len(line) > MAX_LINE:
                raise BadInput(self.name, number, f"longer than {MAX_LINE:,} bytes")
            if line.endswith(b"\n") and not keep_ends:
                line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
            yield number, line


@contextmanager
def open_input(path: str | None) -> Iterator[InputSource]:
    """The file at `path`, or stdin for None and "-". Raises Failure when there is no such file."""
    if path is None or path == "-":
        yield InputSource("stdin", sys.stdin.buffer, sys.stdin.buffer, None)
        return
    with open(path, "rb") as raw:
        total, name = os.fstat(raw.fileno()).st_size, Path(path).name
        if path.endswith(".gz"):
            with gzip.open(raw) as stream:
                yield InputSource(name, stream, raw, total)  # type: ignore[arg-type]
        elif path.endswith(".zip"):
            with _only_member(raw, path) as stream:
                yield InputSource(name, io.BufferedReader(stream), raw, total)  # type: ignore[type-var]
        else:
            yield InputSource(name, raw, raw, total)


def _only_member(raw: IO[bytes], path: str) -> IO[bytes]:
    try:
        archive = zipfile.ZipFile(raw)
        members = [member for member in archive.infolist() if not member.is_dir()]
        if len(members) != 1:
            raise Failure(f"{path} holds {len(members)} files; take one out: unzip -p {path} NAME | krappy produce …")
        return archive.open(members[0])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise Failure(f"{path} can't be unpacked: {error}") from None


def guess_format(path: str | None) -> str:
    """The format by the ending of a file's name: csv for data.csv.gz."""
    return _ENDINGS.get(_ending(path), "lines")


def guess_delimiter(path: str | None) -> str:
    """What is between columns, by the ending of a file's name: a tab for data.tsv.gz."""
    return "\t" if _ending(path) == ".tsv" else ","


def _ending(path: str | None) -> str:
    suffixes = [suffix.lower() for suffix in Path(path or "-").suffixes]
    while suffixes and suffixes[-1] in (".gz", ".zip"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def parse(
    source: InputSource,
    format: str,
    *,
    key: str | None = None,
    separator: str | None = None,
    null: str | None = None,
    no_key: str = "",
    key_optional: bool = False,
    delimiter: str = ",",
) -> Iterator[Item]:
    """The events of a source.

    `key`: the json field (`u.id`: the field id of the object u) or csv column that is the key; an event without it is
    wrong, unless `key_optional`. `separator`: the text between key and value of a line; None: no keys. A line with an
    empty key is wrong, unless `key_optional` is set or `no_key` is another text. `null`: a value equal to this text is
    a tombstone. `no_key`: a key equal to this text counts as no key. Raises BadInput.
    """
    nothing, none = (null.encode() if null is not None else None), no_key.encode()
    wanted = None if key is None else KeyField(key, none, key_optional)
    if format == "lines":
        items = (
            _plain_lines(source)
            if separator is None
            else _keyed_lines(source, separator.encode(), optional=key_optional or no_key != "")
        )
    elif format == "json":
        items = _json_lines(source, wanted)
    elif format == "csv":
        items = _csv_rows(source, wanted, delimiter)
    else:
        items = _events(source)
    if format == "events":  # its JSON has null values and keys of its own
        yield from items
        return
    for item in items:
        if item.key == none:
            item = item._replace(key=None)
        if nothing is not None and item.value == nothing:
            item = item._replace(value=None)
        yield item


def _plain_lines(source: InputSource) -> Iterator[Item]:
    for _, line in source.lines():
        yield Item(line)


def _keyed_lines(source: InputSource, separator: bytes, optional: bool) -> Iterator[Item]:
    for number, line in source.lines():
        key, found, value = line.partition(separator)
        if not found:
            raise BadInput(source.name, number, f"has no {separator.decode()!r} between key and value")
        if not key and not optional:
            raise BadInput(
                source.name,
                number,
                f"has no key before {separator.decode()!r}. With --key-optional events may have no key",
            )
        yield Item(value, key)


class KeyField:
    """The field that has the key of each event. `none`: a key that counts as none."""

    def __init__(self, name: str, none: bytes, optional: bool) -> None:
        self.name = name
        self._none, self._optional = none, optional
        self._path = name.split(".")

    def of(self, record: dict[str, Any], source: InputSource, number: int) -> bytes | None:
        """The key of a record. Raises BadInput if it has none and needs one."""
        found: Any = record
        if self.name in record:  # a name with a dot in it
            found = record[self.name]
        else:
            for step in self._path:
                found = found.get(step) if isinstance(found, dict) else None
        key = _field_key(found)
        if key is not None and key != self._none:
            return key
        if self._optional:
            return None
        names = ", ".join(record)
        shown = names if len(names) <= MOST_NAMED else names[:MOST_NAMED] + "…"
        raise BadInput(
            source.name,
            number,
            f"no key in '{self.name}'; its fields are {shown or 'none'}. With --key-optional events may have no key",
        )


def _json_lines(source: InputSource, key: KeyField | None) -> Iterator[Item]:
    for number, line in source.lines():
        if not line.strip():
            continue
        if key is None:
            _load(source, number, line)
            yield Item(line)
            continue
        yield Item(line, key.of(_load_object(source, number, line), source, number))


def _field_key(value: Any) -> bytes | None:
    """A JSON field as a key: a string's UTF-8, None for null, else the value's compact JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _csv_rows(source: InputSource, key: KeyField | None, delimiter: str) -> Iterator[Item]:
    csv.field_size_limit(MAX_LINE)
    lines = _text_lines(source)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        names = next(filter(None, rows), None)  # skips empty lines before the header
        if names is None:
            return
        names[0] = names[0].removeprefix("\ufeff")  # the byte order mark that spreadsheets write
        if twice := next((name for name in names if name and names.count(name) > 1), None):
            raise BadInput(source.name, rows.line_num, f"names the column '{twice}' twice")
        if key is not None and key.name not in names:
            raise BadInput(source.name, 1, f"has no column '{key.name}'; it has {', '.join(names)}")
        for row in rows:
            if not row:
                continue
            if len(row) != len(names):
                raise BadInput(source.name, rows.line_num, f"has {len(row)} fields; the header has {len(names)}")
            record = dict(zip(names, row, strict=True))
            value = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
            yield Item(value, None if key is None else key.of(record, source, rows.line_num))
    except csv.Error as error:
        raise BadInput(source.name, rows.line_num, f"not CSV: {error}") from None


def _text_lines(source: InputSource) -> Iterator[str]:
    for number, line in source.lines(keep_ends=True):  # a quoted field may contain line ends
        try:
            yield line.decode()
        except UnicodeDecodeError:
            raise BadInput(source.name, number, "not UTF-8") from None


def _events(source: InputSource) -> Iterator[Item]:
    for number, line in source.lines():
        if not line.strip():
            continue
        found = _load_object(source, number, line)
        try:
            yield Item(
                _unplain(found["value"]),
                _unplain(found.get("key")),
                tuple((_text(name), _unplain(value)) for name, value in found.get("headers") or ()),
                _number(found.get("timestamp")),
            )
        except (KeyError, TypeError, ValueError) as error:
            what = f"needs {error}" if isinstance(error, KeyError) else str(error)
            raise BadInput(source.name, number, f"not an event of `krappy consume --json`: {what}") from None


def _unplain(value: Any) -> bytes | None:
    """The bytes of a JSON value that `output.plain` made. Raises ValueError."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    raise ValueError(f'{json.dumps(value):.60} is not text, null or {{"base64": …}}')


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a header's name is text")
    return value


def _number(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise ValueError("a timestamp is a whole number of milliseconds")
    return value


def _load(source: InputSource, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise BadInput(source.name, number, f"not JSON: {error}") from None


def _load_object(source: InputSource, number: int, line: bytes) -> dict[str, Any]:
    found = _load(source, number, line)
    if not isinstance(found, dict):
        raise BadInput(source.name, number, f"a JSON object is needed, not {line[:40].decode(errors='replace')}")
    return found
