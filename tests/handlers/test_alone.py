"""Handlers called with a session of `krappy.testing`, and with stand-ins for the parts of a broker that they ask for.

No broker is started. The stand-ins show what a handler needs: what it asks beyond that is an AttributeError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from trio.testing import trio_test

from krappy.core.refused_batches import MANY
from krappy.entries.entry import pack_entry
from krappy.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    InvalidTopic,
    KrappyError,
    NotLeader,
    UnknownHandle,
    UnknownTopic,
)
from krappy.handlers import kafka
from krappy.handlers.handles import Membership, ProducerHandle, Stager
from krappy.handlers.kafka import api_versions, cluster
from krappy.handlers.native import groups, publish, table, topics
from krappy.partitioner import partition_for
from krappy.ports import StoredAt
from krappy.records import batch
from krappy.testing.sessions import kafka_session, native_session
from krappy.types import Record
from krappy.waiting import Later
from krappy.wire import messages as m
from krappy.wire.kafka import UUID_ZERO, Code

NIL = b"\xc0"
COUNT = 3  # partitions


def resolved(value: Any) -> Later[Any]:
    later: Later[Any] = Later()
    later.resolve(value)
    return later


class Partition:
    """What publishing and lookups ask of a partition. Its view has a key `kN` at the offset N. If it is `late`, the
    view is behind at first."""

    is_sure = True

    def __init__(self, index: int, late: bool) -> None:
        self.index = index
        self.late = late
        self.published: list[Any] = []

    def publish_record(self, record: Record, expect: int | None = None) -> Later[StoredAt]:
        self.published.append((record.key, expect))
        return resolved(StoredAt(len(self.published) - 1, 7))

    def publish(self, data: bytes, expect: Sequence[tuple[int, int]] | None = None, **_: object) -> Later[StoredAt]:
        self.published.append((data, expect))
        return resolved(StoredAt(40, 7))

    def view_ready(self, min_offset: int | None) -> bool:
        return not self.late

    def look_up(self, key: bytes) -> bytes | None:
        assert not self.late, "nobody has waited for the view"
        return pack_entry(int(key[1:]), 7, b"v") if key.startswith(b"k") else None

    def look_up_some(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.look_up(key) for key in keys[:2]]  # as if entries were large


class Topic:
    name = "t"
    id = b"i" * 16
    deleted = scattered = internal = False
    config = SimpleNamespace(max_message_bytes=1000)

    def __init__(self, count: int = COUNT, late: bool = False) -> None:
        self.count = count
        self.parts = [Partition(index, late) for index in range(count)]

    def led(self, index: int) -> Partition:
        return self.parts[index]

    def all_led(self) -> list[Partition]:
        return self.parts

    def published(self) -> list[list[Any]]:
        return [part.published for part in self.parts]


class Access:
    """`topics`: those that exist. `takes`: whether a new one may be made."""

    def __init__(self, *topics: Topic, takes: bool = True) -> None:
        self.there = {topic.name: topic for topic in topics}
        self.takes = takes
        self.made: list[str] = []
        self.ids = 0

    version = 0
    sees = None

    def may(self, *asked: object) -> bool:
        return True

    def check(self, *asked: object) -> None:
        pass

    def hold(self, *held: object) -> None:
        pass

    def topic(self, name: str, op: object) -> Topic:
        if name not in self.there:
            raise UnknownTopic(f"there is no topic '{name}'", topic=name)
        return self.there[name]

    def find_topic(self, name: str, op: object) -> Topic | None:
        return self.there.get(name)

    def find_special(self, name: str, op: object, state: object) -> None:
        return None

    def table_of(self, name: str) -> str | None:
        return None

    async def topic_for_producer(self, name: str, op: object = None) -> Topic:
        self.made.append(name)
        if not self.takes:
            raise InvalidTopic(f"'{name}' is no name for a topic")
        return self.there.setdefault(name, Topic())

    def cluster(self, op: object) -> Any:
        async def new_producer_id() -> int:
            self.ids += 1
            return 100 + self.ids

        return SimpleNamespace(new_producer_id=new_producer_id)


def broker(access: Access, **parts: Any) -> Any:
    async def wait_for_views(partitions: Sequence[Partition], min_offset: int | None = None) -> Any:
        async def wait() -> None:
            for partition in partitions:
                partition.late = False

        return SimpleNamespace(wait=wait, after=lambda pause: pause)

    image = SimpleNamespace(brokers={}, controller=None, controlled=True)
    found = {"id": 0, "cluster_id": "c", "image": image, "wait_for_views": wait_for_views, "stopped": False}
    found |= {"in_cluster": False, "client_quotas": SimpleNamespace(on=False), **parts}
    return SimpleNamespace(access=lambda principal, payer: access, **found)


# --- events on their way in


@trio_test
async def test_an_event_goes_to_the_partition_that_is_named_or_to_its_keys_own_or_to_each_in_turn() -> None:
    topic = Topic()
    session = native_session(broker(Access(topic)))
    handle = session.add(ProducerHandle(topic, None), [])  # type: ignore[arg-type]
    own = partition_for(b"k", COUNT)
    asked: list[tuple[m.Message, int]] = [
        (m.Message(handle, payload=b"v", key=b"k", partition=(own + 1) % COUNT), (own + 1) % COUNT),
        (m.Message(handle, payload=b"v", key=b"k", expect=5), own),
        *((m.Message(handle, payload=b"v"), number) for number in (1, 2, 0)),
    ]
    for message, expected in asked:
        stored = await publish.message(session, message).wait()
        assert (stored.partition, stored.timestamp) == (expected, 7)
    assert topic.parts[own].published.count((b"k", 5)) == 1
    assert sum(map(len, topic.published())) == len(asked)
    assert session.describe()["registrations"][0]["bytes"] == 5 + 2


@trio_test
async def test_a_batch_goes_to_its_partition_or_into_an_attempt_which_knows_no_conditions() -> None:
    topic = Topic()
    session = native_session(broker(Access(topic)))
    handle = session.add(ProducerHandle(topic, None), [])  # type: ignore[arg-type]
    assert (await publish.batch(session, m.Batch(handle, 2, b"records", [(0, 4)])).wait()).offset == 40
    assert topic.published() == [[], [], [(b"records", [(0, 4)])]]
    staged: list[tuple[int, bytes]] = []

    def stage(partition: int, data: bytes) -> Later[StoredAt]:
        staged.append((partition, data))
        return resolved(StoredAt(0, 7))

    attempt: Any = SimpleNamespace(topic=topic, publish=stage)
    handle = session.add(Stager(attempt), [])
    with pytest.raises(InvalidRequest, match="staged events have no conditions"):
        publish.batch(session, m.Batch(handle, 1, b"records", [(0, 4)]))
    await publish.batch(session, m.Batch(handle, 1, b"records")).wait()
    assert staged == [(1, b"records")]


def test_a_producer_remembers_what_was_refused_in_partitions_that_were_added_since() -> None:
    topic: Any = SimpleNamespace(name="t", count=1)
    handle = ProducerHandle(topic, None)
    first = batch.read_header(
        batch.encode([b"k"], [b"v"], timestamps=1, producer_id=7, producer_epoch=0, base_sequence=0)
    )
    topic.count = MANY + 100
    for index in range(topic.count):
        handle.refused.note((7, "t", index), first, NotLeader("elsewhere"), 0.0)
    assert len(handle.refused) == topic.count


def test_a_deleted_topic_and_a_foreign_handle_take_nothing() -> None:
    topic = Topic()
    session = native_session(broker(Access(topic)))
    handle = session.add(ProducerHandle(topic, None), [])  # type: ignore[arg-type]
    topic.deleted = True
    with pytest.raises(UnknownTopic, match="register again"):
        publish.message(session, m.Message(handle, payload=b"v"))
    with pytest.raises(UnknownHandle):
        publish.message(session, m.Message(handle + 1, payload=b"v"))
    assert topic.published() == [[], [], []]


@trio_test
async def test_a_producer_gets_an_id_unless_it_has_one_or_wants_none() -> None:
    access = Access(Topic())
    session = native_session(broker(access))
    fresh = await publish.register_producer(session, m.ProducerRegistration("t", idempotent=True))
    assert (fresh.producer_id, fresh.producer_epoch, fresh.partitions) == (101, 0, COUNT)
    again = m.ProducerRegistration("t", idempotent=True, producer_id=101, producer_epoch=4)
    kept = await publish.register_producer(session, again)
    assert (kept.producer_id, kept.producer_epoch) == (101, 4)
    await publish.register_producer(session, m.ProducerRegistration("t", idempotent=False))
    assert access.ids == 1
    with pytest.raises(InvalidRequest, match="at most 1000 characters"):
        await publish.register_producer(session, m.ProducerRegistration("t", name="n" * 1001))
    assert len(session.handles) == 3


# --- lookups


@trio_test
async def test_a_lookup_is_answered_at_once_or_once_the_view_has_come_up() -> None:
    for late in (False, True):
        for key, entry in ((b"k12", pack_entry(12, 7, b"v")), (b"absent", NIL)):
            session = native_session(broker(Access(Topic(late=late))))
            answer = table.get(session, m.Get("t", key))
            assert isinstance(answer, m.Got) is not late
            found = answer if isinstance(answer, m.Got) else await answer
            assert (found.partition, found.entry) == (partition_for(key, COUNT), [entry])


@trio_test
async def test_many_lookups_are_answered_in_the_order_of_their_keys() -> None:
    keys = [b"k%d" % number for number in range(20)]
    entries = [pack_entry(number, 7, b"v") for number in range(20)]
    for count in (1, COUNT):
        session = native_session(broker(Access(Topic(count))))
        answer = table.multi_get(session, m.MultiGet("t", keys))
        assert isinstance(answer, m.MultiGot) is (count == 1)
        found = answer if isinstance(answer, m.MultiGot) else await answer
        assert found.entries == entries
        assert found.partitions == (None if count == 1 else [partition_for(key, count) for key in keys])
    with pytest.raises(UnknownTopic):
        table.get(session, m.Get("other", b"k1"))


# --- groups


class Member:
    """Notes what is settled, and in how many parts."""

    def __init__(self) -> None:
        self.settled: list[tuple[str, int]] = []
        self.closed = False

    def check(self) -> None:
        """The group is here."""

    def ack(self, ranges: Sequence[Any]) -> Later[None]:
        self.settled.append(("ack", len(ranges)))
        return resolved(None)

    def nack(self, ranges: Sequence[Any], delay_ms: int = 0) -> None:
        self.settled.append((f"nack {delay_ms}", len(ranges)))

    def extend(self, ranges: Sequence[Any], lease_ms: int) -> None:
        self.settled.append((f"extend {lease_ms}", len(ranges)))

    async def in_parts(self, ranges: Sequence[Any], settle: Callable[..., Any], pause: Callable[..., Any]) -> None:
        for start in range(0, len(ranges), 1000):
            settle(ranges[start : start + 1000])
            await pause()

    def close(self) -> None:
        self.closed = True


@trio_test
async def test_few_ranges_are_settled_at_once_and_many_in_several_turns() -> None:
    member: Any = Member()
    session = native_session(broker(Access()))
    handle = session.add(Membership(member), [])
    few, many = [("t", 0, 1, 2)], [("t", 0, at, at) for at in range(0, 2 * groups.MANY + 2, 2)]
    await groups.ack(session, m.Ack(handle, few)).wait()  # type: ignore[union-attr]
    assert isinstance(groups.nack(session, m.Nack(handle, few, delay_ms=9)), m.Nacked)
    assert isinstance(groups.extend(session, m.Extend(handle, few, lease_ms=8)), m.Extended)
    assert member.settled == [("ack", 1), ("nack 9", 1), ("extend 8", 1)]
    for asked, what in (
        (groups.ack(session, m.Ack(handle, many)), "ack"),
        (groups.nack(session, m.Nack(handle, many, delay_ms=9)), "nack 9"),
        (groups.extend(session, m.Extend(handle, many, lease_ms=8)), "extend 8"),
    ):
        member.settled.clear()
        answer: Any = asked
        await answer
        assert member.settled == [(what, 1000), (what, 1000), (what, 1)]


def test_what_is_unregistered_is_closed_once() -> None:
    member: Any = Member()
    session = native_session(broker(Access()))
    handle = session.add(Membership(member), [])
    assert isinstance(topics.unregister(session, m.Unregister(handle)), m.Unregistered)
    assert member.closed
    with pytest.raises(UnknownHandle):
        topics.unregister(session, m.Unregister(handle))


# --- Kafka's


@pytest.mark.parametrize(
    ("name", "number", "version", "code"),
    [
        ("librdkafka", "2.1", 3, 0),
        ("", "2.1", 3, 42),
        ("a b", "2.1", 3, 42),
        ("x", "-1", 4, 42),
        ("a b", "", 2, 0),
    ],
)
def test_api_versions_checks_the_software_from_the_version_on_that_names_it(
    name: str, number: str, version: int, code: int
) -> None:
    served = set(kafka.registry().served)  # all modules of handlers are loaded by now
    session = kafka_session(broker(Access()))
    request = {"client_software_name": name, "client_software_version": number}
    answer = api_versions.api_versions(session, request, version)
    assert answer["error_code"] == code
    assert {each["api_key"] for each in answer["api_keys"]} == served


def test_only_the_level_of_a_feature_that_there_is_can_be_asked_for() -> None:
    session = kafka_session(broker(Access()))

    def update(name: str, level: int) -> Any:
        request = {"feature_updates": [{"feature": name, "max_version_level": level}]}
        return api_versions.update_features(session, request, 1)

    assert update("group.version", 1)["results"] == [
        {"feature": "group.version", "error_code": 0, "error_message": None}
    ]
    for name, level in (("group.version", 2), ("transaction.version", 1)):
        assert update(name, level)["error_code"] == Code.INVALID_UPDATE_VERSION


def asked_metadata(*names: str, create: bool) -> dict[str, Any]:
    return {
        "topics": [{"name": name, "topic_id": UUID_ZERO} for name in names],
        "allow_auto_topic_creation": create,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }


@trio_test
async def test_metadata_makes_at_most_a_hundred_topics_and_none_without_leave() -> None:
    names = [f"n{number}" for number in range(cluster.MOST_CREATED + 5)]
    access = Access(takes=False)
    session = kafka_session(broker(access))
    answer: Any = cluster.metadata(session, asked_metadata(*names, create=False), 12)
    assert access.made == []
    assert {each["error_code"] for each in answer["topics"]} == {Code.UNKNOWN_TOPIC_OR_PARTITION}
    answer = await cluster.metadata(session, asked_metadata(*names, "a@b", create=True), 12)  # type: ignore[misc]
    assert access.made == names[: cluster.MOST_CREATED]
    codes = [each["error_code"] for each in answer["topics"]]
    assert codes == [Code.INVALID_TOPIC_EXCEPTION] * 100 + [Code.UNKNOWN_TOPIC_OR_PARTITION] * 6


@trio_test
async def test_nothing_is_made_for_a_client_that_has_left() -> None:
    access = Access(takes=False)
    session = kafka_session(broker(access))
    session.closed = True
    await cluster.metadata(session, asked_metadata("n", create=True), 12)  # type: ignore[misc]
    assert access.made == []


@pytest.mark.parametrize(
    ("kind", "found", "code"),
    [
        (0, 0, 0),
        (1, 0, 0),
        (0, 9, Code.COORDINATOR_NOT_AVAILABLE),
        (0, CoordinatorNotAvailable("it moves"), Code.COORDINATOR_NOT_AVAILABLE),
        (2, 0, Code.INVALID_REQUEST),
    ],
    ids=["group", "transaction", "not alive", "moves", "share group"],
)
@trio_test
async def test_find_coordinator_names_a_broker_that_lives(kind: int, found: int | KrappyError, code: int) -> None:
    asked: list[tuple[str, str]] = []

    async def coordinator(topic: str, key: str) -> int:
        asked.append((topic, key))
        if isinstance(found, KrappyError):
            raise found
        return found

    lives = SimpleNamespace(id=0, endpoints={}, rack=None)
    image = SimpleNamespace(brokers={0: lives}, controller=None)
    session = kafka_session(broker(Access(), coordinator=coordinator, image=image))
    one = await cluster.find_coordinator(session, {"key": "g", "key_type": kind}, 3)
    several = await cluster.find_coordinator(session, {"coordinator_keys": ["g", "h"], "key_type": kind}, 4)
    for answer in (one, *several["coordinators"]):
        assert (answer["error_code"], answer["node_id"]) == (code, -1 if code else 0)
    topic = {0: "__consumer_offsets", 1: "__transaction_state"}.get(kind)
    assert asked == ([] if topic is None else [(topic, "g"), (topic, "g"), (topic, "h")])
