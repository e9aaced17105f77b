"""What the broker reads of the classic consumers' own messages, compared with kio, cut anywhere, and mangled."""

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

from krappy.core.kafka.subscription import (
    Assignment,
    NamedPartition,
    Subscription,
    assignment,
    encode_assignment,
    subscribed_topics,
    subscription,
)

SUBSCRIPTIONS: list[Any] = [subscription_0, subscription_1, subscription_2, subscription_3]
ASSIGNMENTS: list[Any] = [assignment_0, assignment_1, assignment_2, assignment_3]
ROUNDS = 30
OF_TWO_TOPICS = bytes.fromhex("0000 00000002 0001 61 0003 74c3a9 ffffffff")


def written(version: int, entity: Any) -> bytes:
    """The bytes that kio writes."""
    body = io.BytesIO()
    entity_writer(type(entity))(body, entity)
    return version.to_bytes(2, "big") + body.getvalue()


def names(chance: random.Random) -> list[str]:
    return [f"topic-é{chance.randrange(100)}" for _ in range(chance.randrange(5))]


def partitions(module: Any, chance: random.Random) -> tuple[Any, frozenset[NamedPartition]]:
    """Partitions as kio has them, and as the broker has them."""
    owned = {name: tuple(chance.sample(range(2**31), chance.randrange(4))) for name in names(chance)}
    theirs = tuple(module.data.TopicPartition(topic=name, partitions=indexes) for name, indexes in owned.items())
    return theirs, frozenset((name, index) for name, indexes in owned.items() for index in indexes)


def a_subscription(version: int, chance: random.Random) -> tuple[bytes, Subscription]:
    module, topics = SUBSCRIPTIONS[version], names(chance)
    given: dict[str, Any] = {"topics": tuple(topics), "user_data": chance.choice([None, b"", b"\x00data"])}
    owned: frozenset[NamedPartition] = frozenset()
    rack = None
    if version >= 1:
        given["owned_partitions"], owned = partitions(module, chance)
    if version >= 2:
        given["generation_id"] = chance.randrange(-1, 2**31)
    if version >= 3:
        given["rack_id"] = rack = chance.choice([None, "rack"])
    data = written(version, module.ConsumerProtocolSubscription(**given))
    return data, Subscription(frozenset(topics), owned, rack)


def an_assignment(version: int, chance: random.Random) -> tuple[bytes, Assignment]:
    module, user_data = ASSIGNMENTS[version], chance.choice([None, b"", b"custom"])
    theirs, ours = partitions(module, chance)
    entity = module.ConsumerProtocolAssignment(assigned_partitions=theirs, user_data=user_data)
    return written(version, entity), Assignment(ours, bool(user_data))


@pytest.mark.parametrize("version", range(4))
def test_subscriptions_that_kio_wrote(version: int) -> None:
    chance = random.Random(version)
    for _ in range(ROUNDS):
        data, expected = a_subscription(version, chance)
        assert subscription(data) == expected
        assert subscribed_topics(data) == expected.topics


@pytest.mark.parametrize("version", range(4))
def test_assignments_both_ways(version: int) -> None:
    chance = random.Random(version)
    for _ in range(ROUNDS):
        data, expected = an_assignment(version, chance)
        assert assignment(data) == expected
        ours = encode_assignment(expected.partitions, version)
        found, size = entity_reader(ASSIGNMENTS[version].ConsumerProtocolAssignment)(ours, 2)
        assert size == len(ours) - 2
        read = frozenset((each.topic, index) for each in found.assigned_partitions for index in each.partitions)
        assert read == expected.partitions
        assert found.user_data is None
    assert assignment(b"") == Assignment(frozenset())


def test_a_version_that_is_not_known_yet_is_read_as_far_as_it_is_known() -> None:
    data, expected = a_subscription(3, random.Random(5))
    assert subscription(b"\x00\x09" + data[2:] + b"what version 9 adds") == expected


def test_what_is_not_of_it() -> None:
    for cut in range(len(OF_TWO_TOPICS)):
        assert subscription(OF_TWO_TOPICS[:cut]) is None
    for wrong in ("ffff 00000000 ffffffff", "0000 7fffffff", "0000 00000001 0002 c328 ffffffff"):
        assert subscription(bytes.fromhex(wrong)) is None
        assert subscribed_topics(bytes.fromhex(wrong)) is None
    assert assignment(b"\x00\x01range") is None


def test_no_bytes_whatever_get_more_out_of_it_than_none() -> None:
    chance = random.Random(9)
    for _ in range(100 * ROUNDS):
        data = bytearray(chance.choice([a_subscription, an_assignment])(chance.randrange(4), chance)[0])
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
            data = data or bytearray(b"\xff")
        mangled = bytes(data)
        assert isinstance(subscription(mangled), Subscription | None)
        assert isinstance(assignment(mangled), Assignment | None)
        assert isinstance(subscribed_topics(mangled), frozenset | None)
