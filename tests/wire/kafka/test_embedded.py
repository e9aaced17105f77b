"""The consumer protocol, held against kio and against bytes by hand."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
from kio.schema.consumer_protocol_assignment import v0 as assignment_0
from kio.schema.consumer_protocol_assignment import v1 as assignment_1
from kio.schema.consumer_protocol_assignment import v2 as assignment_2
from kio.schema.consumer_protocol_assignment import v3 as assignment_3
from kio.schema.consumer_protocol_subscription import v0 as subscription_0
from kio.schema.consumer_protocol_subscription import v1 as subscription_1
from kio.schema.consumer_protocol_subscription import v2 as subscription_2
from kio.schema.consumer_protocol_subscription import v3 as subscription_3
from kio.serial import entity_reader, entity_writer

from krappy.errors import ProtocolError
from krappy.wire.kafka import embedded
from krappy.wire.kafka.notation import at, read
from tests.wire.kafka.samples import expected, message

SUBSCRIPTIONS: list[Any] = [
    module.ConsumerProtocolSubscription for module in (subscription_0, subscription_1, subscription_2, subscription_3)
]
ASSIGNMENTS: list[Any] = [
    module.ConsumerProtocolAssignment for module in (assignment_0, assignment_1, assignment_2, assignment_3)
]
OF_TWO_TOPICS = bytes.fromhex("0000 00000002 0001 61 0003 74c3a9 ffffffff")


@pytest.mark.parametrize("version", range(embedded.NEWEST + 1))
@pytest.mark.parametrize("what", ["subscription", "assignment"])
def test_against_kio(what: str, version: int) -> None:
    text = embedded.SUBSCRIPTION if what == "subscription" else embedded.ASSIGNMENT
    entity = (SUBSCRIPTIONS if what == "subscription" else ASSIGNMENTS)[version]
    fields, chance = at(read(text), version), random.Random(version)
    for _ in range(20):
        given = message(chance, fields)
        ours = getattr(embedded, f"encode_{what}")(version, given)
        assert getattr(embedded, f"decode_{what}")(ours) == {"version": version, **expected(given, fields)}
        found, size = entity_reader(entity)(ours, 2)
        assert size == len(ours) - 2
        written = io.BytesIO()
        entity_writer(entity)(written, found)
        assert written.getvalue() == ours[2:]


def test_a_subscription() -> None:
    found = embedded.decode_subscription(OF_TWO_TOPICS)
    assert found == {
        "version": 0,
        "topics": ["a", "té"],
        "user_data": None,
        "owned_partitions": [],
        "generation_id": -1,
        "rack_id": None,
    }
    assert embedded.encode_subscription(0, found) == OF_TWO_TOPICS


def test_a_version_that_is_not_known_yet_is_read_as_the_newest() -> None:
    known = embedded.encode_subscription(3, {"topics": ["a"], "rack_id": "r", "generation_id": 5})
    found = embedded.decode_subscription(b"\x00\x09" + known[2:] + b"what version 9 adds")
    assert (found["version"], found["topics"], found["rack_id"], found["generation_id"]) == (9, ["a"], "r", 5)


def test_what_is_not_of_it() -> None:
    for cut in range(len(OF_TWO_TOPICS)):
        with pytest.raises(ProtocolError):
            embedded.decode_subscription(OF_TWO_TOPICS[:cut])
    for wrong in ("ffff 00000000 ffffffff", "0000 7fffffff", "0000 00000001 0002 c328 ffffffff"):
        with pytest.raises(ProtocolError):
            embedded.decode_subscription(bytes.fromhex(wrong))
    with pytest.raises(ProtocolError):
        embedded.decode_assignment(b"\x00\x01range")
