"""Requests about one group, all at once, in many schedules: their outcome is that of the same requests one after the
other, in some order.

The model is the specification in a few lines. The schedules try what may happen while a request waits for the disk, so
a new "look, wait, write" shows here.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from krappy.broker.broker import LocalBroker
from krappy.broker.groups.groups import GroupCoordinator
from krappy.core.kafka.faults import Refused
from krappy.core.kafka.offset import Offset
from krappy.errors import KrappyError
from krappy.records import batch
from tests import schedules
from tests.broker.engine import running

EVENTS = 8  # in each of two partitions, a batch each; the timestamp of each is its offset
ROUNDS = 150
TOGETHER = 3


class State(NamedTuple):
    """The state of a group; where there is no group, it is None. `floors`: by partition."""

    kafka: bool
    members: int
    floors: tuple[tuple[int, int], ...]

    def moved(self, floors: dict[int, int]) -> State:
        return self._replace(floors=tuple(sorted({**dict(self.floors), **floors}.items())))


Found = State | None


class Request(NamedTuple):
    kind: str
    at: int = 0  # an offset; an event's timestamp is its offset, too

    def model(self, found: Found) -> tuple[Found, str]:
        """What the group is after the request, and how the request is answered."""
        kind = self.kind
        if kind in ("join", "commit"):
            if found is not None and found.kafka:
                return found, "WrongGroupKind"
            if kind == "join":
                begun = found or State(False, 0, ())
                missing = {} if begun.floors else {0: self.at, 1: self.at}  # new partitions: from their first event
                missing = missing or {index: 0 for index in range(2) if index not in dict(begun.floors)}
                return begun._replace(members=begun.members + 1).moved(missing), "done"
            if found is not None and found.members:
                return found, "GroupNotEmpty"
            return (found or State(False, 0, ())).moved({0: self.at}), "done"
        if kind == "kafka":
            if found is not None and not found.kafka:
                return found, "Refused"
            return (found or State(True, 0, ())).moved({1: self.at}), "done"
        if found is None:
            return found, "UnknownGroup"
        if found.members:
            return found, "GroupNotEmpty"
        if kind == "delete":
            return None, "done"
        return found.moved({0: self.at, 1: self.at}), f"done from {dict(found.floors).get(1, 0)}"

    async def send(self, broker: LocalBroker, name: str) -> str:
        try:
            return await self._send(broker, name) or "done"
        except (KrappyError, Refused) as error:
            return type(error).__name__

    async def _send(self, broker: LocalBroker, name: str) -> str | None:
        groups = broker.groups
        if self.kind == "join":
            await groups.join(name, "client", ["t"], start="timestamp", start_at=self.at)
        elif self.kind == "commit":
            await groups.commit(name, [("t", 0, self.at)])
        elif self.kind == "delete":
            await groups.delete(name)
        elif self.kind == "kafka":
            group = broker.kafka_groups.offsets.check(name, "", -1, None)
            await broker.kafka_groups.offsets.commit(group, {("t", 1): Offset(self.at, -1, "", broker.now_ms())})
        else:
            moved = await groups.reset(name, "t", None, "timestamp", self.at)
            return f"done from {moved[1][2]}"
        return None


def found(groups: GroupCoordinator, name: str) -> Found:
    try:
        told = groups.describe(name)
    except KrappyError:
        return None
    kafka = told["kind"] not in ("shared", "positions")
    return State(kafka, len(told["members"]), tuple((index, floor) for _, index, floor in groups.positions(name)))


def possible(before: Found, requests: list[Request]) -> set[tuple[Found, tuple[str, ...]]]:
    """What the group may be in the end, with the answers, for every order of the requests."""
    outcomes = set()
    for order in itertools.permutations(range(len(requests))):
        state, answers = before, [""] * len(requests)
        for number in order:
            state, answers[number] = requests[number].model(state)
        outcomes.add((state, tuple(answers)))
    return outcomes


KINDS = ("join", "join", "commit", "commit", "reset", "delete", "kafka")


@pytest.mark.parametrize("seed", range(4))
def test_requests_at_once_have_the_outcome_of_some_order(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        async with running(tmp_path, durability="fsync") as broker:
            topic, _ = await broker.create_topic("t", 2, {})
            for partition in topic.local.values():
                for number in range(EVENTS):
                    await partition.publish(batch.encode(None, [b""], timestamps=number)).wait()
            for number in range(ROUNDS):
                await one_round(broker, f"g{number}", chance)
            left = [found(broker.groups, f"g{number}") for number in range(ROUNDS)]
        async with running(tmp_path) as broker:
            kept = [found(broker.groups, f"g{number}") for number in range(ROUNDS)]
            assert kept == [each and each._replace(members=0) for each in left]

    async def one_round(broker: LocalBroker, name: str, chance: random.Random) -> None:
        before: Found = None
        if chance.random() < 0.3:
            first = Request(chance.choice(("commit", "kafka")), chance.randrange(EVENTS))
            before, answer = first.model(None)
            assert await first.send(broker, name) == answer
        requests = [Request(chance.choice(KINDS), chance.randrange(1, EVENTS)) for _ in range(TOGETHER)]
        answers = [""] * TOGETHER

        async def send(which: int, after: int) -> None:
            for _ in range(after):
                await trio.lowlevel.checkpoint()
            answers[which] = await requests[which].send(broker, name)

        async with trio.open_nursery() as nursery:
            for which in range(TOGETHER):
                nursery.start_soon(send, which, chance.randrange(6))
        outcome = found(broker.groups, name), tuple(answers)
        assert outcome in possible(before, requests), f"{name}: {before}, then {requests}"

    schedules.run(main, seed)
