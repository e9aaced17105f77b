"""PROTOCOL.md is the protocol: every example in it is run, and every message and field of the code is in it."""

from __future__ import annotations

import ast
import importlib.metadata
import pkgutil
import re
from typing import Any

import pytest

from krappy import errors
from krappy.partitioner import murmur2_unsigned
from krappy.records import batch
from krappy.testing.running import RunningBroker
from krappy.wire import messages
from krappy.wire.frames import ERROR, FrameReader
from krappy.wire.messages import Answer
from tests.wire import protocol
from tests.wire.examples import EXAMPLES
from tests.wire.protocol import CHAPTERS, class_of, frame_of, written

DOCUMENT = protocol.DOCUMENT.read_text("utf-8")
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


def plain(value: Any) -> Any:
    """A value with lists in place of its tuples, as on the wire."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(("name", "fields"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_is_read_as_it_was_written(name: str, fields: dict[str, Any]) -> None:
    cls = class_of(name)
    reader = FrameReader()
    reader.feed(frame_of(name, fields))
    [(kind, body)] = reader.frames()
    answer = issubclass(cls, Answer)
    assert kind == cls.kind | (0x80000000 if answer else 0)
    values = messages.unpack(body)
    assert messages.take_id(values) == fields["id"]
    found = messages.parse(cls, values, strict=not answer)
    assert {"id": fields["id"], **found.__dict__} == plain(fields)


def test_every_message_has_an_example() -> None:
    told = {cls.__name__ for cls in (*messages.REQUESTS.values(), *messages.ANSWERS.values())}
    without = told - {name for name, _ in EXAMPLES}
    assert not without, f"tests/wire/examples.py has no example of {without}"


def test_every_module_of_messages_is_a_chapter() -> None:
    there = {each.name for each in pkgutil.iter_modules(messages.__path__)}
    assert there == set(CHAPTERS), "CHAPTERS of tests/wire/protocol.py names the modules of krappy/wire/messages/"
    for name in there:
        module = importlib.import_module(f"{messages.__name__}.{name}")
        classes = [each for each in vars(module).values() if isinstance(each, type)]
        theirs = [each for each in classes if each.__module__ == module.__name__]
        left_out = {each.__name__ for each in theirs if getattr(messages, each.__name__, None) is not each}
        assert not left_out, f"krappy/wire/messages/__init__.py does not import {name}: {left_out}"


def test_every_request_has_its_answer() -> None:
    alone = {kind: cls.__name__ for kind, cls in messages.REQUESTS.items() if kind not in messages.ANSWERS}
    alone |= {kind: cls.__name__ for kind, cls in messages.ANSWERS.items() if kind not in messages.REQUESTS}
    assert not alone, "a request and its answer have the same number, which no other has"


def test_the_document_is_what_the_messages_say() -> None:
    assert written(DOCUMENT) == DOCUMENT, "run `make generate`"
    for request in messages.REQUESTS.values():
        assert f"\n### {request.__name__} ({request.kind}), answered by " in DOCUMENT


def test_the_error_example() -> None:
    [block] = blocks("error")
    title, *lines = block.splitlines()
    name, _, told = title.partition(" ")
    fields, data = ast.literal_eval(told), octets(lines)
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
    records = [fields["records"] for name, fields in EXAMPLES if name == "Batch"]
    records += [part[4] for name, fields in EXAMPLES if name == "Polled" for part in fields["parts"]]
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
    assert re.search(rf"of no\s+bytes\s+is\s+0x{murmur2_unsigned(b''):x}", DOCUMENT)
    assert len(told) == 2
