"""No native request holds the event loop for long. Each array is filled with as much as it may have. What is done
between two turns of others is counted in calls rather than seconds. (tests/kafka/test_turns.py has Kafka's requests.)
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import trio

from krappy.errors import KrappyError
from krappy.handlers import native
from krappy.records import batch
from krappy.server.session import Session
from krappy.testing.sessions import native_session
from krappy.waiting import Later
from krappy.wire import messages as m
from krappy.wire.messages import parse
from krappy.wire.schema import MOST
from tests.broker.engine import publish, running
from tests.kafka.test_turns import Turns
from tests.wire.test_arrays import arrays

CALLS = 500_000  # in one turn: they take about 50 ms
PARTITIONS = 20
EVENTS = 2000  # in each partition
SERVED = native.registry().served
ONE = batch.encode([b"k"], [b"v"], timestamps=1)
KEYS = [b"k%d" % number for number in range(MOST)]
EVERY = [at % PARTITIONS for at in range(MOST)]
# Every second event of each partition, so that the ranges can't be joined.
RANGES = [("t", at % PARTITIONS, at // PARTITIONS * 2, at // PARTITIONS * 2) for at in range(MOST)]
POSITIONS = [("t", at, 0) for at in EVERY]
Make = Callable[["Handles"], m.Request]


class Handles:
    member = producer = 0
    snapshot = ""


REQUESTS: dict[tuple[str, str], Make] = {
    ("ConsumerRegistration", "topics"): lambda h: m.ConsumerRegistration([f"m{at % 100}" for at in range(MOST)]),
    ("ConsumerRegistration", "partitions"): lambda h: m.ConsumerRegistration(["t"], partitions=EVERY),
    ("ConsumerRegistration", "positions"): lambda h: m.ConsumerRegistration(["t"], positions=POSITIONS),
    ("ConsumerRegistration", "epochs"): lambda h: m.ConsumerRegistration(["t"], positions=POSITIONS, epochs=POSITIONS),
    ("Ack", "ranges"): lambda h: m.Ack(h.member, RANGES),
    ("Ack", "epochs"): lambda h: m.Ack(h.member, RANGES, [at % 2 for at in range(len(RANGES))]),
    ("Nack", "ranges"): lambda h: m.Nack(h.member, RANGES),
    ("Extend", "ranges"): lambda h: m.Extend(h.member, RANGES, 1000),
    ("Unregister", "unseen"): lambda h: m.Unregister(h.member, unseen=RANGES),
    ("Commit", "offsets"): lambda h: m.Commit("c", POSITIONS),
    ("ResetGroup", "partitions"): lambda h: m.ResetGroup("Ack", "t", EVERY, dry_run=True),
    ("Batch", "expect"): lambda h: m.Batch(
        h.producer, 0, batch.encode(KEYS, [b""] * MOST, timestamps=1), expect=[(at, -1) for at in range(MOST)]
    ),
    ("Message", "headers"): lambda h: m.Message(h.producer, b"v", b"k", headers=[(f"{at}", b"") for at in range(MOST)]),
    ("CreateAcls", "acls"): lambda h: m.CreateAcls(
        [("topic", "literal", f"t{at}", "User:ada", "*", "read", "allow") for at in range(MOST)]
    ),
    ("DescribeTopics", "topics"): lambda h: m.DescribeTopics(["t", *(f"m{at % 100}" for at in range(MOST - 1))]),
    ("Metadata", "topics"): lambda h: m.Metadata(["t", *(f"m{at}" for at in range(MOST - 1))]),
    ("NoteEnds", "topics"): lambda h: m.NoteEnds(h.member, [f"m{at}" for at in range(MOST)]),
    ("DeleteRecords", "before"): lambda h: m.DeleteRecords("t", [(at, 0) for at in EVERY]),
    ("MultiGet", "keys"): lambda h: m.MultiGet("t", KEYS),
    ("MultiGet", "min_offsets"): lambda h: m.MultiGet("t", KEYS[:1], min_offsets=[(at, 0) for at in EVERY]),
    ("Scan", "min_offsets"): lambda h: m.Scan("t", min_offsets=[(at, 0) for at in EVERY]),
    ("Scan", "partitions"): lambda h: m.Scan("t", partitions=EVERY),
    ("Watch", "partitions"): lambda h: m.Watch("t", partitions=EVERY, offsets=[(at, 0) for at in range(PARTITIONS)]),
    ("Watch", "offsets"): lambda h: m.Watch("t", offsets=[(at, 0) for at in EVERY]),
    ("Watch", "epochs"): lambda h: m.Watch(
        "t", offsets=[(at, 0) for at in range(PARTITIONS)], epochs=[(at, 0) for at in EVERY]
    ),
    ("OpenSnapshot", "partitions"): lambda h: m.OpenSnapshot("t", partitions=EVERY),
    ("ReadSnapshot", "columns"): lambda h: m.ReadSnapshot(h.snapshot, 0, columns=["key"] * MOST),
    ("GetColumns", "columns"): lambda h: m.GetColumns("t", bytes(8), b"", columns=["key"] * MOST),
    ("CommitStaged", "tokens"): lambda h: m.CommitStaged("job", [f"{at}" for at in range(MOST)]),
}


class Silent:
    async def send(self, answer: m.Answer, stands: Any = None) -> None:
        await trio.lowlevel.checkpoint()


async def ask(session: Session, request: m.Request, turns: Turns | None = None) -> Any:
    handler, streams, _ = SERVED[type(request)]
    values = dict(request.__dict__)
    await trio.lowlevel.checkpoint()
    with trio.move_on_after(1 if streams else 120), nullcontext() if turns is None else turns:
        read = parse(type(request), values)
        answer: Any = handler(session, read, Silent()) if streams else handler(session, read)
        if isinstance(answer, Later):
            answer = await answer.wait()
        elif inspect.iscoroutine(answer):
            answer = await answer
    return answer


def test_every_array_is_here() -> None:
    there = {(cls.__name__, name) for cls, name, _ in arrays()}
    assert set(REQUESTS) == there, "REQUESTS here has a row for each array of a request, and no other"


def test_full_arrays_are_served_in_short_turns(tmp_path: Path) -> None:
    longest: dict[str, int] = {}

    async def main() -> None:
        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        async with running(tmp_path, auto_create_topics=False) as broker:
            await broker.create_topic("t", PARTITIONS, {})
            for number in range(100):
                await broker.create_topic(f"m{number}", 1, {})
            for partition in broker.topic("t").all_led():
                await publish(partition, EVENTS, KEYS[:EVENTS])
            session = native_session(broker)
            handles = Handles()
            handles.producer = (await ask(session, m.ProducerRegistration("t"))).handle
            handles.snapshot = (await ask(session, m.OpenSnapshot("t"))).snapshot
            for of, make in REQUESTS.items():
                if of[1] in ("ranges", "unseen"):
                    handles.member = await member_of_all(session, of[0])
                with contextlib.suppress(KrappyError):
                    await ask(session, make(handles), turns)
                longest[".".join(of)] = turns.longest

    trio.run(main)
    assert {what: calls for what, calls in longest.items() if calls > CALLS} == {}


async def member_of_all(session: Session, group: str) -> int:
    """The handle of a member that has leased all events, in a group of its own."""
    handle: int = (await ask(session, m.ConsumerRegistration(["t"], group=group))).handle
    while (await ask(session, m.Poll(handle, 10_000, 1 << 24))).leases:
        pass
    return handle
