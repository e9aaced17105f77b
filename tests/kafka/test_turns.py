"""No request of any API holds the event loop for long. Each array is filled with as much as it may have. What the
handler does between two turns of others is counted in calls rather than seconds."""

from __future__ import annotations

import cProfile
import gc
import itertools
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from krappy.app import COLLECTOR
from krappy.broker.broker import LocalBroker
from krappy.core.kafka.modern import ModernGroup
from krappy.core.kafka.name_regex import NameRegex
from krappy.core.transactions import Transaction
from krappy.errors import KrappyError
from krappy.handlers.kafka import registry, rows
from krappy.records import batch
from krappy.testing.sessions import kafka_session
from krappy.waiting import Later
from krappy.wire.kafka import RANGES, ApiKey, decode_request, encode_request, encode_response, parse_header
from krappy.wire.kafka.notation import Field, at, read
from krappy.wire.kafka.schema import TABLE
from tests.broker.engine import running
from tests.long import some
from tests.wire.kafka.test_once import arrays

MOST = 2000  # elements: a tenth of what an array may have; a handler that takes more than its share shows here as well
CALLS = 40_000  # in one turn: 20 for each element, which is about 50 ms for a full array
BYTES = 400  # of an answer, for each element of the request
PARTITIONS = 20  # of the one topic that exists
ONE = batch.encode([b"k"], [b"v"], timestamps=1)


class Turns(trio.abc.Instrument):
    """Counts the calls of Python and C functions in each step of each task, in a `with` of it. It is a
    clock of Python's own profiler, which looks at it when a function is entered and when it is left: that takes less
    than a function for sys.setprofile."""

    def __init__(self) -> None:
        self.longest = self._began = 0
        self._looks = itertools.count()
        self._profiler = cProfile.Profile(self._looks.__next__, 1.0, subcalls=False)

    def __enter__(self) -> None:
        """What was before does not count."""
        self.longest, self._began = 0, next(self._looks)
        self._profiler.enable()

    def __exit__(self, *_: object) -> None:
        self._profiler.disable()
        self.end()

    def before_task_step(self, task: Any) -> None:
        self._began = next(self._looks)

    def after_task_step(self, task: Any) -> None:
        self.end()

    def end(self) -> None:
        """The end of a step, or of what is counted: a handler that gives no turns ends within its step."""
        self.longest = max(self.longest, (next(self._looks) - self._began) // 2)


def value(field: Field, number: int) -> Any:
    """A value that differs from those of other numbers where the field allows it, and that is small enough to be a
    partition."""
    if field.kind == "string":
        return f"n{number}"
    if field.kind == "uuid":
        return number.to_bytes(16, "big")
    if field.kind == "records":
        return ONE
    if field.kind in ("bytes", "bool", "float64", "int8"):
        return {"bytes": b"x", "bool": False, "float64": 1.0, "int8": number % 100}[field.kind]
    return number % 30_000


def message(fields: tuple[Field, ...], path: tuple[str, ...], count: int, topic: str) -> dict[str, Any]:
    """A message with `count` different elements in the array at `path`; each other array has one element, and the
    structs around it name `topic`."""
    found: dict[str, Any] = {}
    for field in fields:
        if not field.present:
            continue
        here = path[0] == field.name if path else False
        if field.array:
            many = count if here and len(path) == 1 else 1
            inner = path[1:] if here else ()
            if field.kind == "struct":
                found[field.name] = [
                    message(field.fields, inner, count, topic) | (_named(field, number) if many > 1 else {})
                    for number in range(many)
                ]
            else:
                found[field.name] = [value(field, number) for number in range(many)]
        elif field.kind == "struct":
            found[field.name] = None if field.nullable else message(field.fields, (), count, topic)
        elif field.name in ("name", "topic", "topic_name"):
            found[field.name] = topic
        elif field.name in ("max_wait_ms", "timeout_ms", "session_timeout_ms", "rebalance_timeout_ms"):
            found[field.name] = 0
        elif field.name == "acks":
            found[field.name] = -1
        else:
            found[field.name] = value(field, 0)
    return found


def _named(field: Field, number: int) -> dict[str, Any]:
    """The fields that tell an element of an array of structs from the others."""
    return {
        each.name: value(each, number)
        for each in field.fields
        if each.present and not each.array and each.kind in ("string", "int32", "uuid")
    }


ARRAYS = [(key, path) for key, shape in TABLE.items() for path, _ in arrays(read(shape.request))]
CASES = [
    pytest.param(*array, allowed, id=f"{array[0].name}-{'.'.join(array[1])}-{'allowed' if allowed else 'denied'}")
    for number, array in enumerate(ARRAYS)
    for allowed in (True, False)[:: 1 if number % 2 else -1]
]


async def ask(broker: LocalBroker, key: ApiKey, version: int, body: dict[str, Any], turns: Turns | None = None) -> int:
    """Asks, and returns the bytes of the answer. `turns` counts the calls while the request is read, and until its
    answer is made. Only one can do that at a time."""
    session: Any = kafka_session(broker)
    data = memoryview(encode_request(key, version, 1, "x", body))[4:]
    header = parse_header(data)
    handler = registry().find(key, version)
    assert handler is not None
    await trio.lowlevel.checkpoint()
    try:
        with trio.fail_after(120), nullcontext() if turns is None else turns:
            answer = handler(session, decode_request(key, version, data[header.body_at :]), version)
            if isinstance(answer, Later):
                answer = await answer.wait()
            elif not isinstance(answer, dict):
                answer = await cast("Any", answer)
        return sum(len(part) for part in encode_response(key, version, 1, answer)) if answer is not None else 0
    finally:
        session.close()


@pytest.mark.parametrize(("key", "path", "allowed"), some(CASES, 2))
def test_a_full_array_is_served_in_short_turns(
    tmp_path: Path, key: ApiKey, path: tuple[str, ...], allowed: bool
) -> None:
    """Also for a user who may do nothing: the audit log tells what is denied."""
    guarded = {} if allowed else {"authorizer": "acl", "audit_log": f"file:{tmp_path}/audit"}

    async def main() -> None:
        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        async with running(tmp_path / "data", auto_create_topics=False, **guarded) as broker:
            await broker.create_topic("t", PARTITIONS, {})
            low, high = RANGES[key]
            for version in {low, high}:
                fields = at(read(TABLE[key].request), version)
                body = message(fields, path, MOST, "t")
                try:
                    size = await ask(broker, key, version, body, turns)
                except KrappyError:
                    size = 0  # the connection is closed
                assert turns.longest <= CALLS, f"version {version}: {turns.longest} calls in one turn"
                assert size <= MOST * BYTES

    trio.run(main)


def test_as_many_as_may_be_are_found_and_listed_in_short_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for the coordinators of a full array of groups; and for the list of all transactional ids that a broker
    may have, which no array of a request names. Reading the request is one call for each group."""
    most = 20_000

    async def main() -> None:
        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        async with running(tmp_path, auto_create_topics=False) as broker:
            every = [Transaction(f"x{number}", number, 0, 60_000) for number in range(most)]
            monkeypatch.setattr(broker.transactions, "list", lambda: every)
            listed = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
            keys = {"key_type": 0, "coordinator_keys": [f"g{number}" for number in range(most)]}
            for key, body in ((ApiKey.FIND_COORDINATOR, keys), (ApiKey.LIST_TRANSACTIONS, listed)):
                size = await ask(broker, key, RANGES[key][1], body, turns)
                assert size > most * 5
                assert turns.longest < 2 * most, f"{key.name}: {turns.longest} calls in one turn"

    trio.run(main)


@pytest.fixture
def matched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many names were matched with a pattern in each turn. To match one takes as long as a turn may: a pattern of
    4096 characters takes some ms for a topic's name, and 100 ms for a transactional id of 1000 characters."""
    found, matches = [0], NameRegex.matches

    def slow(self: NameRegex, name: str) -> bool:
        time.sleep(rows.TURN)
        found[-1] += 1
        return matches(self, name)

    monkeypatch.setattr(NameRegex, "matches", slow)
    return found


class EachTurn(trio.abc.Instrument):
    def __init__(self, matched: list[int]) -> None:
        self._matched = matched

    def before_task_step(self, task: Any) -> None:
        self._matched.append(0)


def test_transactional_ids_that_match_slowly_take_turns_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matched: list[int]
) -> None:
    async def main() -> None:
        trio.lowlevel.add_instrument(EachTurn(matched))
        async with running(tmp_path, auto_create_topics=False) as broker:
            every = [Transaction(f"x{number}", number, 0, 60_000) for number in range(30)]
            monkeypatch.setattr(broker.transactions, "list", lambda: every)
            listed = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
            listed["transactional_id_pattern"] = "x.*"
            await ask(broker, ApiKey.LIST_TRANSACTIONS, RANGES[ApiKey.LIST_TRANSACTIONS][1], listed)

    trio.run(main)
    assert sum(matched) == 30
    assert max(matched) == 1


def test_topics_that_match_slowly_take_turns_of_their_own(tmp_path: Path, matched: list[int]) -> None:
    """While members of KIP-848 join with patterns, topics are made and deleted, and a classic member joins them. No
    name is matched twice with a pattern. The group gets the topics that are there in the end."""
    key, high = ApiKey.CONSUMER_GROUP_HEARTBEAT, RANGES[ApiKey.CONSUMER_GROUP_HEARTBEAT][1]

    def beat(member: str, epoch: int, **more: object) -> dict[str, Any]:
        body = dict.fromkeys(("instance_id", "rack_id", "server_assignor", "subscribed_topic_names"))
        first = {"rebalance_timeout_ms": 60_000 if epoch == 0 else -1, "topic_partitions": None, **more}
        return (
            {"group_id": "g", "member_id": member, "member_epoch": epoch, "subscribed_topic_regex": None} | body | first
        )

    async def main() -> None:
        trio.lowlevel.add_instrument(EachTurn(matched))
        async with running(tmp_path, auto_create_topics=False) as broker:
            for number in range(20):
                await broker.create_topic(f"x{number}", 1, {})

            async def change() -> None:
                while sum(matched) < 5:
                    await trio.lowlevel.checkpoint()
                await broker.delete_topic("x19")
                await broker.create_topic("x20", 1, {})

            async with trio.open_nursery() as nursery:
                nursery.start_soon(change)
                for member, pattern in (("a", "x.*"), ("b", "x.*"), ("c", "x1?[0-9]")):
                    body = beat(member, 0, subscribed_topic_regex=pattern)
                    nursery.start_soon(ask, broker, key, high, body)
            assert max(matched) == 1
            await broker.create_topic("x21", 1, {})
            joins = {"name": "range", "metadata": (1).to_bytes(2, "big") + bytes(4) + b"\xff" * 4 + bytes(4)}
            classic: dict[str, Any] = {
                "group_id": "g",
                "member_id": "",
                "group_instance_id": None,
                "protocol_type": "consumer",
            }
            classic |= {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000, "protocols": [joins]}
            await ask(broker, ApiKey.JOIN_GROUP, 3, classic)
            membership = broker.kafka_groups.groups["g"].membership
            assert isinstance(membership, ModernGroup)
            assert len(membership.members) == 4
            had = {broker.store.image.names[topic] for has in membership.target.values() for topic, _ in has}
            assert had == {f"x{number}" for number in (*range(19), 20, 21)}

    trio.run(main)
    assert max(matched) == 1
    assert 2 * 21 <= sum(matched) <= 2 * 22


def test_the_garbage_collector_looks_at_few_objects_while_large_requests_are_read() -> None:
    """Else that takes longer than to read one of them."""
    topics = [{"name": f"t{number}", "partitions": [{"partition_index": 0}]} for number in range(20_000)]
    data = memoryview(encode_request(ApiKey.LIST_OFFSETS, 7, 1, "x", {"topics": topics}))[4:]
    body, looks = data[parse_header(data).body_at :], list[int]()

    def look(phase: str, facts: dict[str, int]) -> None:
        if phase == "start" and facts["generation"] < 2:
            looks.append(sum(len(gc.get_objects(each)) for each in range(facts["generation"] + 1)))

    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(*COLLECTOR)
    gc.callbacks.append(look)
    try:
        found = [decode_request(ApiKey.LIST_OFFSETS, 7, body) for _ in range(3)]
    finally:
        gc.callbacks.remove(look)
        gc.set_threshold(*before)
    assert len(found) == 3
    assert max(looks) < 40_000


def test_very_many_partitions_are_made_in_short_turns(tmp_path: Path) -> None:
    count = 1000

    async def main() -> None:
        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        async with running(tmp_path, auto_create_topics=False) as broker:
            await broker.create_topic("few", 1, {})
            made = {
                "topics": [{"name": "many", "num_partitions": count, "replication_factor": 1}],
                "timeout_ms": 60_000,
            }
            more = {"topics": [{"name": "few", "count": count, "assignments": None}], "timeout_ms": 60_000}
            for key, body in ((ApiKey.CREATE_TOPICS, made), (ApiKey.CREATE_PARTITIONS, more)):
                await ask(broker, key, RANGES[key][1], body, turns)
                assert turns.longest < 50 * count, f"{key.name}: {turns.longest} calls in one turn"
            assert len(broker.topic("few").all_led()) == len(broker.topic("many").all_led()) == count

    trio.run(main)
