"""Every version of every message: what is written is read back, and compared with two other implementations.

The messages are random, with fixed seeds. kio reads ours to the same bytes and the same fields; kafka-python reads ours
to the same values. Both write them as we do.
"""

from __future__ import annotations

import importlib
import io
import random
import warnings
from collections.abc import Iterator
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import cache
from typing import Any, get_args, get_type_hints

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from krappy.errors import ProtocolError
from krappy.wire.kafka import RANGES, ApiKey
from krappy.wire.kafka.notation import Field, at, read
from krappy.wire.kafka.schema import TABLE
from tests.wire.kafka.samples import KINDS, Kind, expected, leanest, message, plain

MESSAGES = 3  # random messages of each kind


OWN = 10_000  # fields with tags from this on are Krappy's own


def messages(fields: tuple[Field, ...], kind: Kind) -> Iterator[dict[str, Any]]:
    chance = random.Random(str(kind))
    for _ in range(MESSAGES):
        yield message(chance, fields)


def of_kafka(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """The fields without those that are Krappy's own, which nobody else writes."""
    return tuple(
        replace(field, fields=of_kafka(field.fields)) for field in fields if field.tag is None or field.tag < OWN
    )


def test_every_api_has_all_its_facts() -> None:
    assert set(TABLE) == set(ApiKey)
    assert all(low <= high for low, high in RANGES.values())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_is_written_is_read_back(kind: Kind) -> None:
    for given in [*messages(kind.fields(), kind), leanest(kind.fields())]:
        assert plain(kind.decode(kind.encode(given))) == expected(given, kind.fields())
    # An empty dict stands for a message of defaults.
    nothing = kind.encode({})
    assert kind.encode(kind.decode(nothing)) == nothing


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_message_that_is_cut_is_refused(kind: Kind) -> None:
    body = kind.encode(leanest(kind.fields()))
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            kind.decode(body[:cut])
    if kind.response:
        with pytest.raises(ProtocolError):
            kind.decode(body + b"\0")
    else:
        assert kind.decode(body + b"\0") == kind.decode(body), "what is behind a request is passed over, as by Kafka"


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_against_kio(kind: Kind) -> None:
    entity = (load_response_schema if kind.response else load_request_schema)(kind.key, kind.version)
    fields = of_kafka(kind.fields())
    for given in messages(fields, kind):
        ours = kind.encode(given)
        found, size = entity_reader(entity)(ours, 0)
        assert size == len(ours)
        written = io.BytesIO()
        entity_writer(entity)(written, found)
        assert written.getvalue() == ours
    assert_same_names(entity, fields)


def assert_same_names(entity: Any, fields: tuple[Field, ...]) -> None:
    """Asserts that kio's names are ours, except for those of times: kio leaves out the unit."""
    theirs = {field.name for field in fields_of(entity)}
    hints = get_type_hints(entity)
    ours = {field.name.removesuffix("_ms") if field.name not in theirs else field.name: field for field in fields}
    assert {name for name, field in ours.items() if field.present} == theirs
    for name, field in ours.items():
        if field.present and field.kind == "struct":
            hint = hints[name]
            while get_args(hint):  # tuple[X, ...], X | None
                hint = get_args(hint)[0]
            assert_same_names(hint, field.fields)


@cache
def theirs() -> dict[tuple[int, bool], Any]:
    """kafka-python's class for each (API key, whether a response)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it reads its resources in a deprecated way
        for module in ("admin", "consumer", "metadata", "producer", "sasl"):
            importlib.import_module(f"kafka.protocol.{module}")
        from kafka.protocol.api_message import ApiMessage
    found: dict[tuple[int, bool], Any] = {}
    classes = list(ApiMessage.__subclasses__())
    for cls in classes:
        classes += cls.__subclasses__()
        if cls._json is not None and cls._class_version is None:
            found.setdefault((cls.API_KEY, not cls.is_request()), cls)
    return found


IN_KAFKA_PYTHON = [kind for kind in KINDS if (kind.key, kind.response) in theirs()]


def test_kafka_python_has_most() -> None:
    missing = {kind.key for kind in KINDS} - {kind.key for kind in IN_KAFKA_PYTHON}
    of_shares = {key for key in ApiKey if "SHARE" in key.name}
    assert missing == {ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE} | of_shares


@pytest.mark.parametrize("kind", IN_KAFKA_PYTHON, ids=str)
def test_against_kafka_python(kind: Kind) -> None:
    cls = theirs()[kind.key, kind.response]
    fields = of_kafka(kind.fields())
    for given in messages(fields, kind):
        if kind.key is ApiKey.API_VERSIONS and kind.response:
            given["error_code"] = 0  # kafka-python reads the rest of a refusal as version 0
        ours = kind.encode(given)
        found = cls.decode(ours, version=kind.version)
        differs = assert_same_values(found, given, fields)
        if not differs:
            found._header = None  # kafka-python's `encode` asks for it
            assert bytes(found.encode(version=kind.version)) == ours


def assert_same_values(theirs: Any, ours: dict[str, Any], fields: tuple[Field, ...]) -> bool:
    """Asserts that the values are the same. Returns whether there were fields that kafka-python keeps otherwise: sets
    of bits, and default structs, which it has as None."""
    differs = False
    for field in fields:
        if not field.present:
            continue
        if field.name.endswith("authorized_operations") and field.kind == "int32":
            differs = True
            continue
        one, other = getattr(theirs, field.name), ours[field.name]
        if field.kind != "struct" or other is None:
            assert comparable(one) == other, field.name
        elif field.array:
            assert len(one) == len(other), field.name
            differs |= True in [assert_same_values(*pair, field.fields) for pair in zip(one, other, strict=True)]
        elif one is None:
            assert field.tag is not None
            assert other == eval(field.fresh())
        else:
            differs |= assert_same_values(one, other, field.fields)
    return differs


def comparable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [comparable(inner) for inner in value]
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return getattr(value, "bytes", value)  # of a UUID


def test_a_tagged_field_that_is_unknown_is_dropped() -> None:
    kind = Kind(ApiKey.HEARTBEAT, 4, False)
    body = kind.encode({"group_id": "g", "generation_id": 1, "member_id": "m"})
    more = body[:-1] + bytes.fromhex("03 00 01 ff 05 00 8001 02 aabb")
    assert kind.decode(more) == kind.decode(body)


def test_a_missing_key_is_the_default_and_a_key_that_the_version_lacks_is_ignored() -> None:
    fields = at(read("a int32 5+ = -1\nb string 0-4\nc string?3+"), 2)
    assert [field.fresh() for field in fields] == ["-1", "''", "None"]
    old, new = Kind(ApiKey.PRODUCE, 12, False), Kind(ApiKey.PRODUCE, 13, False)
    topic = {"name": "t", "topic_id": bytes(15) + b"\1", "partition_data": []}
    both = {"acks": 1, "timeout_ms": 5, "topic_data": [topic]}
    assert old.decode(old.encode(both))["topic_data"][0] == {**topic, "topic_id": bytes(16)}
    assert new.decode(new.encode(both))["topic_data"][0] == {**topic, "name": ""}


def test_none_is_written_as_the_default_where_the_version_has_no_null() -> None:
    joined = Kind(ApiKey.JOIN_GROUP, 6, True)
    assert joined.decode(joined.encode({"protocol_name": None, "members": None}))["protocol_name"] == ""
