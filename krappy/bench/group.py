"""`krappy bench group`: members of one group share a topic by leases, and acknowledge the events.

One thread drives all members, each with its own connection. When a poll is answered, the member sends the
acknowledgement and the next poll together, as the client does. Timed: from the first poll to the last acknowledgement,
without decoding the events, which `krappy bench consume` measures.
"""

from __future__ import annotations

import selectors
import time
from typing import TYPE_CHECKING, Any

from krappy.bench import load
from krappy.bench.brokers import coordinator_of
from krappy.bench.pipe import Pipe, close_pipes, open_pipes
from krappy.bench.report import Round
from krappy.bench.settings import BenchSettings
from krappy.bench.topics import fill, own_topic
from krappy.cli.errors import Failure
from krappy.errors import GroupNotEmpty
from krappy.wire.messages import Ack, ConsumerRegistration, DeleteGroup, Poll

if TYPE_CHECKING:
    from krappy.blocking import Client

GIVE_UP = 10.0  # seconds without an answer
LEASE_MS = 60_000  # far longer than a round, since an event that is delivered twice would be counted twice
MAX_WAIT = 1000  # ms that a poll waits for events


class _Member:
    def __init__(self, pipe: Pipe, topic: str, group: str) -> None:
        self.pipe = pipe
        asked = ConsumerRegistration([topic], group=group, start="earliest", lease_ms=LEASE_MS)
        self.handle: int = pipe.ask(asked)["handle"]
        pipe.socket.setblocking(False)
        self.polled = 0.0
        self.acks = 0  # sent and not answered
        self._ids = 0

    def poll(self, settings: BenchSettings) -> None:
        self.polled = time.perf_counter()
        self._send(Poll(self.handle, max_records=settings.batch, max_bytes=8 << 20, max_wait=MAX_WAIT))

    def ack(self, leases: list[Any]) -> None:
        self.acks += 1
        self._send(Ack(self.handle, [tuple(each[:4]) for each in leases]))

    def _send(self, request: Poll | Ack) -> None:
        self._ids += 1
        self.pipe.send(request.frame(self._ids))


def group(client: Client, address: str, settings: BenchSettings) -> list[Round]:
    """`connections` members read and acknowledge `count` events, up to `batch` with each poll."""
    events = load.make(settings.count, settings.record_bytes, settings.keys)
    with own_topic(client, settings) as topic:
        fill(client, topic, events, settings)
        rounds = []
        for number in range(settings.rounds):
            name = f"{topic}-{number}"
            coordinator = coordinator_of(address, name)
            pipes = open_pipes(coordinator, settings.connections)
            try:
                rounds.append(_round([_Member(pipe, topic, name) for pipe in pipes], settings, events.size))
            finally:
                close_pipes(pipes)
            _delete(coordinator, name)
        return rounds


def _round(members: list[_Member], settings: BenchSettings, size: int) -> Round:
    taken = 0
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member.pipe.socket, selectors.EVENT_READ, member)
        start = time.perf_counter()
        for member in members:
            member.poll(settings)
        while taken < settings.count or any(member.acks for member in members):
            ready = selector.select(GIVE_UP)
            if not ready:
                raise Failure(f"no answer for {GIVE_UP:g} s, after {taken:,} of {settings.count:,} events")
            for key, mask in ready:
                member = key.data
                if mask & selectors.EVENT_WRITE:
                    member.pipe.flush()
                if mask & selectors.EVENT_READ:
                    for answer in member.pipe.answers():
                        taken += _take(member, answer, settings, latencies)
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if member.pipe.unsent else 0)
                if events != key.events:
                    selector.modify(key.fileobj, events, member)
        seconds = time.perf_counter() - start
    if taken != settings.count:
        raise Failure(f"{taken:,} events were leased, of {settings.count:,}: some came twice")
    return Round(taken, seconds, size, latencies)


def _take(member: _Member, answer: dict[str, Any], settings: BenchSettings, latencies: list[float]) -> int:
    """Handles the answer to a poll or to an ack. Returns the number of events in it."""
    if "leases" not in answer:
        member.acks -= 1
        return 0
    leases = answer["leases"]
    if leases:
        latencies.append(time.perf_counter() - member.polled)
        member.ack(leases)
    member.poll(settings)
    return sum(last - first + 1 for _, _, first, last, _ in leases)


def _delete(address: str, name: str) -> None:
    """Deletes the group. Retries while the broker has not yet noticed that the members' connections are closed."""
    (pipe,) = open_pipes(address, 1)
    try:
        end = time.monotonic() + GIVE_UP
        while True:
            try:
                pipe.ask(DeleteGroup(name))
            except GroupNotEmpty:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)
            else:
                return
    finally:
        close_pipes([pipe])
