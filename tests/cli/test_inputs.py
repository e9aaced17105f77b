"""What `krappy produce` reads, as a table: bytes in, events out, or the line that is wrong."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.cli.errors import Failure
from krappy.cli.inputs import FORMATS, BadInput, InputSource, Item, guess_format, open_input, parse
from krappy.cli.output import event_json, to_json
from krappy.types import Event


def read(folder: Path, data: bytes, format: str, name: str = "input", **options: str | None) -> list[Item]:
    path = folder / name
    path.write_bytes(data)
    with open_input(str(path)) as source:
        return list(parse(source, format, **options))  # type: ignore[arg-type]


CASES: list[tuple[str, str, bytes, dict[str, str], list[tuple[bytes | None, bytes | None]]]] = [
    # name, format, input, options, (key, value) of each event
    ("nothing", "lines", b"", {}, []),
    ("a line is a value", "lines", b"a\nb\n", {}, [(None, b"a"), (None, b"b")]),
    ("the last line may lack its end", "lines", b"a\nb", {}, [(None, b"a"), (None, b"b")]),
    ("an empty line is an empty value", "lines", b"a\n\n", {}, [(None, b"a"), (None, b"")]),
    ("line ends of other systems", "lines", b"a\r\nb\r", {}, [(None, b"a"), (None, b"b\r")]),
    ("bytes that are no text", "lines", b"\xff\x00\n", {}, [(None, b"\xff\x00")]),
    ("a separator", "lines", b"k:v:w\n", {"separator": ":"}, [(b"k", b"v:w")]),
    ("a long separator", "lines", b"k||v|\n", {"separator": "||"}, [(b"k", b"v|")]),
    ("an empty key is none", "lines", b":v\n", {"separator": ":", "key_optional": "1"}, [(None, b"v")]),
    ("an empty value is one", "lines", b"k:\n", {"separator": ":"}, [(b"k", b"")]),
    ("a tombstone", "lines", b"k:NULL\n", {"separator": ":", "null": "NULL"}, [(b"k", None)]),
    ("empty as tombstone", "lines", b"k:\n", {"separator": ":", "null": ""}, [(b"k", None)]),
    ("a word for no key", "lines", b"NA:v\n:w\n", {"separator": ":", "no_key": "NA"}, [(None, b"v"), (b"", b"w")]),
    ("JSON without a key", "json", b'{"a": 1}\n\n[2]\n', {}, [(None, b'{"a": 1}'), (None, b"[2]")]),
    ("JSON with a key", "json", b'{"id":"u1", "n":1}\n', {"key": "id"}, [(b"u1", b'{"id":"u1", "n":1}')]),
    ("a number as key", "json", b'{"id":7}\n', {"key": "id"}, [(b"7", b'{"id":7}')]),
    (
        "an object as key",
        "json",
        b'{"i":{"b":1,"a":2}}\n',
        {"key": "i"},
        [(b'{"a":2,"b":1}', b'{"i":{"b":1,"a":2}}')],
    ),
    ("no such field", "json", b'{"x":7}\n', {"key": "id", "key_optional": "1"}, [(None, b'{"x":7}')]),
    ("null as key", "json", b'{"id":null}\n', {"key": "id", "key_optional": "1"}, [(None, b'{"id":null}')]),
    ("a field of a field", "json", b'{"u":{"id":7}}\n', {"key": "u.id"}, [(b"7", b'{"u":{"id":7}}')]),
    ("a name with a dot", "json", b'{"u":{"id":7},"u.id":8}\n', {"key": "u.id"}, [(b"8", b'{"u":{"id":7},"u.id":8}')]),
    ("CSV", "csv", b"id,n\nu1,5\n", {"key": "id"}, [(b"u1", b'{"id":"u1","n":"5"}')]),
    ("CSV, only a header", "csv", b"id,n\n", {"key": "id"}, []),
    ("CSV, nothing", "csv", b"", {"key": "id"}, []),
    ("CSV without a key", "csv", b"id,n\nu1,5\n", {}, [(None, b'{"id":"u1","n":"5"}')]),
    ("CSV, quoted", "csv", b'id,n\n"u,1","a\r\nb"\n', {"key": "id"}, [(b"u,1", b'{"id":"u,1","n":"a\\r\\nb"}')]),
    ("CSV, a byte order mark", "csv", b"\xef\xbb\xbfid\nu1\n", {"key": "id"}, [(b"u1", b'{"id":"u1"}')]),
    (
        "CSV, no key",
        "csv",
        b"id,n\nNA,1\n",
        {"key": "id", "no_key": "NA", "key_optional": "1"},
        [(None, b'{"id":"NA","n":"1"}')],
    ),
    ("TSV", "csv", b"id\tn\nu1\t5\n", {"key": "n", "delimiter": "\t"}, [(b"5", b'{"id":"u1","n":"5"}')]),
    ("events", "events", b'{"key":"k","value":{"base64":"/w=="}}\n', {}, [(b"k", b"\xff")]),
    ("an event's tombstone", "events", b'{"key":"","value":null}\n', {}, [(b"", None)]),
]


@pytest.mark.parametrize(("format", "data", "options", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_events_read(
    tmp_path: Path,
    format: str,
    data: bytes,
    options: dict[str, str],
    expected: list[tuple[bytes | None, bytes | None]],
) -> None:
    assert [(item.key, item.value) for item in read(tmp_path, data, format, **options)] == expected


WRONG: list[tuple[str, str, bytes, dict[str, str], str]] = [
    ("no separator", "lines", b"a:b\nc\n", {"separator": ":"}, "line 2: has no ':' between key and value"),
    ("not JSON", "json", b"{}\n{\n", {}, "line 2: not JSON"),
    ("not UTF-8 in JSON", "json", b'{"a":"\xff"}\n', {}, "line 1: not JSON"),
    ("nested too deeply", "json", b"[" * 200_000 + b"\n", {}, "line 1: not JSON"),
    ("no object", "json", b"[1]\n", {"key": "id"}, "line 1: a JSON object is needed, not [1]"),
    ("no such field", "json", b'{"id":1,"n":2}\n', {"key": "idd"}, "line 1: no key in 'idd'; its fields are id, n."),
    ("no such field of a field", "json", b'{"u":1}\n', {"key": "u.id"}, "line 1: no key in 'u.id'; its fields are u."),
    ("null as key", "json", b'{"id":1}\n{"id":null}\n', {"key": "id"}, "line 2: no key in 'id'"),
    ("an empty key", "csv", b"id,n\nu,1\n,2\n", {"key": "id"}, "line 3: no key in 'id'"),
    ("no such column", "csv", b"a,b\n1,2\n", {"key": "id"}, "has no column 'id'; it has a, b"),
    ("a column twice", "csv", b"a,b,a\n1,2,3\n", {}, "line 1: names the column 'a' twice"),
    ("a short row", "csv", b"a,b\n1,2\n3\n", {}, "line 3: has 1 fields; the header has 2"),
    ("an open quote", "csv", b'a,b\n"1,2\n', {}, "not CSV"),
    ("not UTF-8 in CSV", "csv", b"a\n\xff\n", {}, "line 2: not UTF-8"),
    ("an event without value", "events", b"{}\n", {}, "needs 'value'"),
    ("an event of wrong types", "events", b'{"value":1}\n', {}, "line 1: not an event"),
    ("a wrong header", "events", b'{"value":"","headers":[1]}\n', {}, "line 1: not an event"),
    ("a wrong timestamp", "events", b'{"value":"","timestamp":"x"}\n', {}, "whole number of milliseconds"),
    ("wrong base64", "events", b'{"value":{"base64":"*"}}\n', {}, "line 1: not an event"),
    ("half a character", "events", b'{"value":"\\ud800"}\n', {}, "line 1: not an event"),
]


@pytest.mark.parametrize(("format", "data", "options", "message"), [c[1:] for c in WRONG], ids=[c[0] for c in WRONG])
def test_wrong_input_names_its_line(
    tmp_path: Path, format: str, data: bytes, options: dict[str, str], message: str
) -> None:
    with pytest.raises(BadInput) as raised:
        read(tmp_path, data, format, **options)
    assert message in raised.value.message
    assert raised.value.message.startswith("input line ")
    assert "\n" not in raised.value.message


@given(st.binary(max_size=300), st.sampled_from(FORMATS), st.sampled_from([None, "a", ":"]))
def test_no_bytes_raise_anything_else(data: bytes, format: str, word: str | None) -> None:
    stream = io.BytesIO(data)
    try:
        for item in parse(InputSource("x", stream, stream, len(data)), format, key=word, separator=word):
            assert item.value is None or isinstance(item.value, bytes)
    except BadInput:
        pass


_bytes = st.one_of(st.none(), st.binary(max_size=20), st.text(max_size=20).map(str.encode))
_headers = st.lists(st.tuples(st.text(max_size=5), _bytes), max_size=3).map(tuple)


@given(_bytes, _bytes, _headers, st.integers(0, 2**40))
def test_an_event_printed_as_json_reads_back_the_same(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...], timestamp: int
) -> None:
    line = to_json(event_json(Event("t", 0, 1, timestamp, key, value, headers))).encode()
    stream = io.BytesIO(line)
    assert list(parse(InputSource("x", stream, stream, None), "events")) == [Item(value, key, headers, timestamp)]


def test_a_gzipped_file_is_unpacked(tmp_path: Path) -> None:
    assert read(tmp_path, gzip.compress(b"a\nb\n"), "lines", "x.gz") == [Item(b"a"), Item(b"b")]


def test_a_broken_gzip_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="can't be read"):
        read(tmp_path, gzip.compress(b"abc" * 1000)[:-9], "lines", "x.gz")
    with pytest.raises(BadInput, match="can't be read"):
        read(tmp_path, b"plain", "lines", "x.gz")


def test_a_zip_with_one_file_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.csv", "id\nu1\n" * 10_000)
    with open_input(str(tmp_path / "x.csv.zip")) as source:
        assert source.total == (tmp_path / "x.csv.zip").stat().st_size
        items = list(parse(source, "csv", key="id"))
        assert 0 < source.position <= source.total
    assert len(items) == 19_999
    assert items[0] == Item(b'{"id":"u1"}', b"u1")


def test_a_zip_with_several_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a", "")
        archive.writestr("b", "")
    with pytest.raises(Failure, match="holds 2 files"), open_input(str(tmp_path / "x.zip")):
        pass


def test_what_is_no_zip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"no zip at all")
    with pytest.raises(Failure, match="can't be unpacked"), open_input(str(tmp_path / "x.zip")):
        pass


@pytest.mark.parametrize(
    ("path", "format"),
    [
        (None, "lines"),
        ("-", "lines"),
        ("a", "lines"),
        ("a.txt", "lines"),
        ("a.b.csv", "csv"),
        ("/x/a.CSV.gz", "csv"),
        ("a.csv.zip", "csv"),
        ("a.tsv.gz", "csv"),
        ("a.jsonl", "json"),
        ("a.ndjson.gz", "json"),
        (".gz", "lines"),
    ],
)
def test_the_format_that_a_name_promises(path: str | None, format: str) -> None:
    assert guess_format(path) == format


def test_values_of_csv_are_json(tmp_path: Path) -> None:
    [item] = read(tmp_path, 'a,b\n"x""y",ä\n'.encode(), "csv")
    assert item.value is not None
    assert json.loads(item.value) == {"a": 'x"y', "b": "ä"}
