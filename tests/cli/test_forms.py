"""`--as`: values shown as what they are."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fastavro
import msgpack
import pytest

from krappy.cli.forms import FORMS, Form
from tests.cli.conftest import Krappy

SCHEMA = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "name", "type": "string"}, {"name": "b", "type": "bytes"}],
}
USER = {"name": "Ada", "b": b"\xff"}


def avro(value: Any, header: bytes = b"") -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), value)
    return header + stream.getvalue()


def store(krappy: Krappy, topic: str, value: bytes) -> None:
    event = {"key": "k", "value": {"base64": base64.b64encode(value).decode()}}
    assert krappy("produce", topic, "--format", "events", stdin=json.dumps(event).encode()).status == 0


CASES = [
    ("text", b"\xc3\xa4", "ä", "ä"),
    ("json", b'{"a": [1, "\xc3\xa4"]}', '{"a":[1,"ä"]}', {"a": [1, "ä"]}),
    ("hex", b"\x00\xff", "00ff", "00ff"),
    ("long", (-7).to_bytes(8, "big", signed=True), "-7", -7),
    ("long", b"\x00\x00\x01\x00", "256", 256),
    (
        "msgpack",
        msgpack.packb({"n": 1, 2: [b"\xff", datetime(2026, 1, 31, tzinfo=UTC)]}, datetime=True),
        '{"n":1,"2":[{"base64":"/w=="},"2026-01-31 00:00:00+00:00"]}',
        {"n": 1, "2": [{"base64": "/w=="}, "2026-01-31 00:00:00+00:00"]},
    ),
]


@pytest.mark.parametrize(
    ("form", "value", "line", "plain"), CASES, ids=["text", "json", "hex", "long", "int", "msgpack"]
)
def test_a_value_is_shown_as_it_is(krappy: Krappy, topic: str, form: str, value: bytes, line: str, plain: Any) -> None:
    store(krappy, topic, value)
    for command in (
        ["get", topic, "k"],
        ["consume", topic, "--to", "now"],
        ["consume", topic, "--to", "now", "-f", "{value}"],
    ):
        assert krappy(*command, "--as", form).out == line + "\n"
    assert krappy("scan", topic, "--sep", ":", "--as", form).lines == [f"k:{line}"]
    assert krappy("watch", topic, "--max", "1", "--sep", ":", "--as", form).lines == [f"= k:{line}"]
    for command in (
        ["get", topic, "k"],
        ["consume", topic, "--to", "now"],
        ["scan", topic],
        ["watch", topic, "--max", "1"],
    ):
        assert krappy(*command, "--as", form, "--json").objects[0]["value"] == plain


@pytest.mark.parametrize("form", ["json", "long", "msgpack"])
def test_a_value_that_is_something_else_is_an_error(krappy: Krappy, topic: str, form: str) -> None:
    store(krappy, topic, b"\xc1\x00\x00")
    result = krappy("get", topic, "k", "--as", form)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"krappy: a value is not {form}: ")
    assert "c10000 (hex)" in result.err
    assert krappy("get", topic, "k").lines == ["base64:wQAA"]


def test_tombstones_are_shown_in_any_form() -> None:
    for form in FORMS[:-1]:
        assert Form(form).text(None, "-") == "-"
        assert Form(form).plain(None) is None


@pytest.fixture
def registry() -> Iterator[str]:
    """A schema registry that has the schema 7."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/schemas/ids/7" else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"schema": json.dumps(SCHEMA)}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_avro_by_a_registry_or_by_a_schema(krappy: Krappy, topic: str, registry: str, tmp_path: Path) -> None:
    line = '{"name":"Ada","b":{"base64":"/w=="}}'
    (tmp_path / "user.avsc").write_text(json.dumps(SCHEMA))
    asked = ("get", topic, "k", "--as", "avro")
    by_schema = ("--schema", str(tmp_path / "user.avsc"))
    store(krappy, topic, avro(USER, b"\0\0\0\0\7"))
    assert krappy(*asked, "--registry", registry).lines == [line]
    assert krappy("get", topic, "k", "--registry", registry, "--as", "avro").lines == [line]
    assert krappy(*asked, *by_schema).lines == [line]
    store(krappy, topic, avro(USER))
    assert krappy(*asked, *by_schema).lines == [line]
    assert "it has no schema's number" in krappy(*asked, "--registry", registry).err
    store(krappy, topic, avro(USER, b"\0\0\0\0\6"))
    assert "gives no schema 6" in krappy(*asked, "--registry", registry).err
    store(krappy, topic, avro(USER) + b"more")
    assert "something follows" in krappy(*asked, *by_schema).err
    assert krappy(*asked).status == 2
    assert krappy("get", topic, "k", *by_schema).status == 2
    (tmp_path / "user.avsc").write_text("{")
    assert "not an Avro schema" in krappy(*asked, *by_schema).err
