"""PROTOCOL.md is the protocol: every example in it is run, every message and field of the code is in it."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from pathlib import Path
from typing import Any

import msgpack
import pytest

import krappy.wire
from krappy import batch, errors
from krappy.entry import pack_entry
from krappy.partitioner import murmur2_unsigned
from krappy.testing.running import RunningBroker
from krappy.wire import messages
from krappy.wire.frames import ERROR, FrameReader
from krappy.wire.messages import Answer, Request

DOCUMENT = (Path(krappy.wire.__file__).parent / "PROTOCOL.md").read_text("utf-8")
CLASSES: dict[str, type[Request] | type[Answer]] = {
    **{cls.__name__: cls for cls in messages.REQUESTS.values()},
    **{cls.__name__: cls for cls in messages.ANSWERS.values()},
}
HEX = re.compile(r"^((?:[0-9a-f]{2} ?)+?)(?:\s{2,}.*)?$")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def octets(lines: list[str]) -> bytes:
    found = bytearray()
    for line in lines:
        match = HEX.match(line)
        assert match is not None, f"a line that does not begin with bytes: {line!r}"
        found += bytes.fromhex(match[1])
    return bytes(found)


def example(block: str) -> tuple[str, dict[str, Any], bytes]:
    """The class that an example names, its fields, its bytes."""
    title, *lines = block.splitlines()
    name, _, fields = title.partition(" ")
    return name, ast.literal_eval(fields), octets(lines)


def as_packed(items: list[Any]) -> list[bytes]:
    """Keys, entries and nils as they stand in a Raw field."""
    packed = []
    for item in items:
        if type(item) is list:
            offset, timestamp, value, headers = item
            packed.append(pack_entry(offset, timestamp, value, headers))
        else:
            packed.append(msgpack.packb(item))
    return packed


def plain(value: Any) -> Any:
    """Tuples as the lists that they are on the wire."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value


EXAMPLES = [example(block) for block in blocks("frame")]


@pytest.mark.parametrize(("name", "fields", "data"), EXAMPLES, ids=[each[0] for each in EXAMPLES])
def test_an_example_is_what_the_code_writes_and_reads(name: str, fields: dict[str, Any], data: bytes) -> None:
    cls = CLASSES[name]
    id = fields.pop("id")
    given = dict(fields)
    if cls.raw is not None:
        given[cls.raw] = as_packed(given[cls.raw])
    assert cls(**given).frame(id) == data

    reader = FrameReader()
    reader.feed(data)
    [(kind, body)] = reader.frames()
    answer = issubclass(cls, Answer)
    assert kind == cls.kind | (0x80000000 if answer else 0)
    values = messages.unpack(body)
    assert messages.take_id(values) == id
    found = messages.parse(cls, values, strict=not answer)
    assert found.__dict__ == plain(fields)


def test_every_message_has_an_example() -> None:
    assert {name for name, _, _ in EXAMPLES} == set(CLASSES)


@pytest.mark.parametrize("request_class", messages.REQUESTS.values(), ids=lambda cls: cls.__name__)
def test_every_message_has_its_section_and_every_field_its_row(request_class: type[Request]) -> None:
    answer_class = messages.ANSWERS[request_class.kind]
    title = f"### {request_class.__name__} ({request_class.kind}), answered by {answer_class.__name__}"
    assert f"\n{title}\n" in DOCUMENT
    section = DOCUMENT.split(title)[1].split("\n### ")[0].split("\n## ")[0]
    tables = re.findall(r"^\| (?:field|`(\w+)`) \| type \|.*\n\|[-|]+\|\n((?:\|.*\n)*)", section, re.MULTILINE)
    told = {title: [re.match(r"\| `(\w+)` \|", row) for row in rows.splitlines()] for title, rows in tables}
    for cls, key in ((request_class, ""), (answer_class, answer_class.__name__)):
        names = [name for name, *_ in cls.table]
        assert [match and match[1] for match in told.get(key, [])] == names, cls.__name__


@pytest.mark.parametrize("request_class", messages.REQUESTS.values(), ids=lambda cls: cls.__name__)
def test_the_defaults_told_are_the_defaults(request_class: type[Request]) -> None:
    section = DOCUMENT.split(f"\n### {request_class.__name__} (")[1].split("\n```")[0]
    for name, _, _, default in request_class.table:
        row = re.search(rf"^\| `{name}` \| [^|]+ \| ([^|]+) \|", section, re.MULTILINE)
        assert row is not None, name
        if row[1] == "required":
            assert default is not None
            assert not isinstance(default, str | int)
        else:
            shown = {"nil": None, "true": True, "false": False}
            assert (shown[row[1]] if row[1] in shown else ast.literal_eval(row[1])) == default


def test_the_error_example() -> None:
    [block] = blocks("error")
    name, fields, data = example(block)
    error = getattr(errors, name)(fields["text"], **fields["details"])
    assert messages.error_frame(fields["id"], error) == data
    reader = FrameReader()
    reader.feed(data)
    [(kind, body)] = reader.frames()
    assert kind == ERROR
    values = messages.unpack(body)
    assert messages.take_id(values) == fields["id"]
    found = messages.read_error(values)
    assert (type(found), found.text, found.details) == (type(error), error.text, error.details)


def test_every_error_is_told() -> None:
    told = re.findall(r"^\| (-?\d+) \| ([A-Z_]+) \| (yes|) ?\|", DOCUMENT, re.MULTILINE)
    assert {(int(code), name, retry == "yes") for code, name, retry in told} == {
        (cls.code, cls.name, cls.retriable) for cls in errors.BY_NAME.values()
    }


def test_the_batch_example() -> None:
    [block] = blocks("batch")
    data = octets(block.splitlines())
    header = batch.check(data)
    assert (header.base_offset, header.count, header.size) == (40, 2, len(data))
    columns = batch.decode(data)
    assert (list(columns.offsets), columns.keys, columns.values) == ([40, 41], [b"u1", b"u2"], [b"Ada", None])
    assert columns.timestamps[1] - columns.timestamps[0] == 5


def test_batches_inside_examples_are_batches() -> None:
    records = [fields["records"] for name, fields, _ in EXAMPLES if name == "Batch"]
    records += [part[4] for name, fields, _ in EXAMPLES if name == "Polled" for part in fields["parts"]]
    assert [batch.check(each).size for each in records] == [len(each) for each in records]


def test_the_first_client(krappy_broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> None:
    [program] = blocks("python")
    assert program.count('Broker("127.0.0.1", 7092)') == 1
    host, port = krappy_broker.address.split(":")
    exec(program.replace('Broker("127.0.0.1", 7092)', f'Broker("{host}", {port})'), {})
    version, *said = capsys.readouterr().out.splitlines()
    assert version == f"version {importlib.metadata.version('krappy')}"
    assert said == [
        "stored at 0 0",
        "the table has b'Ada'",
        "event 0 b'u1' b'Ada'",
        "the group is at [['users', 0, 1]]",
    ]


def test_the_hashes_told_are_the_hashes() -> None:
    told = re.findall(r'`murmur2\("(\w+)"\)`\s+is\s+0x([0-9a-f]{8})', DOCUMENT)
    assert [(key, int(hash, 16)) for key, hash in told] == [(key, murmur2_unsigned(key.encode())) for key, _ in told]
    assert re.search(rf"of no\s+bytes\s+0x{murmur2_unsigned(b''):x}", DOCUMENT)
    assert len(told) == 2
