"""The backup of a cluster, as a client asks the brokers for it: begin, note the ends, hold the files, read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from krappy.clients.link import Link
from krappy.clients.router import Router
from krappy.errors import KrappyError
from krappy.wire import messages

ASKING = 8.0  # seconds that a broker has to begin, and to note ends: others decide nothing meanwhile
HOLDING = 120.0  # seconds that it has to link its files
READING = 60.0  # seconds that it has to read a piece of a file


class BegunAt(NamedTuple):
    """A broker where a backup was begun. `brokers`: id and epoch of those that it knows."""

    link: Link
    generation: int
    broker: int
    handle: int
    brokers: frozenset[tuple[int, int]]


class HeldAt(NamedTuple):
    """A broker that holds files. `size` in bytes."""

    link: Link
    generation: int
    broker: int
    handle: int
    size: int


class LeaderEnd(NamedTuple):
    """All events before `end` are committed, as this broker knew, which led in this epoch."""

    broker: int
    leader_epoch: int
    end: int


async def links(router: Router, seconds: float) -> Sequence[Link]:
    """One to each registered broker. Raises ConnectionLost if one can't be reached in time."""
    return await router.every(router.runtime.now() + seconds)


async def begin(link: Link) -> BegunAt | None:
    """Begins a backup at one broker. None: the broker is alone."""
    generation = await link.ready(link.runtime.now() + link.timeout)
    answer = await link.ask(messages.BeginBackup(), messages.BackupBegun, generation=generation, timeout=ASKING)
    if answer.handle is None:
        return None
    known = frozenset((id, epoch) for id, epoch in answer.brokers)
    return BegunAt(link, generation, answer.broker, answer.handle, known)


async def note(
    router: Router, begun: Sequence[BegunAt], topics: list[str] | None
) -> tuple[dict[tuple[str, int], LeaderEnd], set[frozenset[tuple[int, int]]]]:
    """(how far partitions of these topics (None: all) are committed, of those where that can be told; which brokers
    each broker knows)."""
    asked = [(each.link, messages.NoteEnds(each.handle, topics)) for each in begun]
    found: dict[tuple[str, int], LeaderEnd] = {}
    known = set()
    answers = await router.ask_each(asked, messages.EndsNoted, router.runtime.now() + ASKING)
    for at, answer in zip(begun, answers, strict=True):
        if isinstance(answer, KrappyError):
            raise answer
        known.add(frozenset((id, epoch) for id, epoch in answer.brokers))
        for topic, partition, epoch, end in answer.ends:
            before = found.get((topic, partition))
            if before is None or before.leader_epoch < epoch:
                found[topic, partition] = LeaderEnd(at.broker, epoch, end)
    return found, known


async def hold(router: Router, begun: Sequence[BegunAt]) -> list[HeldAt]:
    """Makes all these brokers hold their files. Those of the first one have the cluster's tree, too."""
    asked = [
        (each.link, messages.HoldBackup(each.handle, number == 0))  # all at the same time
        for number, each in enumerate(begun)
    ]
    answers = await router.ask_each(asked, messages.BackupHeld, router.runtime.now() + HOLDING)
    held = [
        HeldAt(at.link, at.generation, at.broker, answer.handle, answer.size)
        for at, answer in zip(begun, answers, strict=True)
        if isinstance(answer, messages.BackupHeld)
    ]
    failed = next((each for each in answers if isinstance(each, KrappyError)), None)
    if failed is not None:
        release(held)
        raise failed
    return held


def release(some: Sequence[BegunAt | HeldAt]) -> None:
    for each in some:
        if each.link.lives(each.generation):
            each.link.tell(messages.Unregister(each.handle), messages.Unregistered, each.generation)


async def read(held: HeldAt, name: str, offset: int, size: int) -> bytes:
    """Some bytes of a held file; none behind its end. Raises ConnectionLost, RequestTimeout and others when the broker
    does not hold it any more."""
    request = messages.ReadBackup(held.handle, name, offset, size)
    answer = await held.link.ask(request, messages.BackupRead, generation=held.generation, timeout=READING)
    return bytes(answer.data)
