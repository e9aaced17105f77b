"""`krappy bench loop`: the loop that the documents show, `async for event in consumer: … await consumer.ack(event)`.

Each member of the group is a consumer of the async client with its own connection; all run in one thread. Timed: from
opening the consumers until all have been left, which waits until the acks are durable. A reader without a group is
timed until the topic's last event.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import trio

from krappy.bench import load
from krappy.bench.report import Round
from krappy.bench.settings import BenchSettings
from krappy.bench.topics import fill, own_topic
from krappy.cli.errors import Failure
from krappy.clients.aio.consumer import Consumer

if TYPE_CHECKING:
    from krappy.blocking import Client

NAP_S = 0.005  # a member sleeps for the work of several events together, since no sleep takes less than a millisecond
LEASE_MS = 60_000  # far longer than a round, since an event that is delivered twice would be counted twice
GIVE_UP = 10.0  # seconds without an event


def loop(client: Client, address: str, settings: BenchSettings) -> list[Round]:
    """`connections` members of a group, or one reader, get `count` events."""
    events = load.make(settings.count, settings.record_bytes, settings.keys)
    with own_topic(client, settings) as topic:
        fill(client, topic, events, settings)
        rounds = []
        for number in range(settings.rounds):
            loops = _Loops(topic, f"{topic}-{number}", address, settings)
            start = time.perf_counter()
            trio.run(loops.run)
            rounds.append(Round(loops.taken, time.perf_counter() - start, events.size))
            if loops.taken != settings.count:
                raise Failure(f"{loops.taken:,} events were taken, of {settings.count:,}")
            if settings.grouped:
                client.delete_group(loops.group)
        return rounds


class _Work:
    """A member's work: it takes `us` µs an event, in the mean, in which the processor is free."""

    def __init__(self, us: float) -> None:
        self._s = us / 1e6
        self._owed = 0.0  # seconds of the events since the last nap; below 0 if that took too long

    async def do(self) -> None:
        self._owed += self._s
        if self._owed >= NAP_S:
            start = time.perf_counter()
            await trio.sleep(self._owed)
            self._owed -= time.perf_counter() - start


class _Loops:
    def __init__(self, topic: str, group: str, address: str, settings: BenchSettings) -> None:
        self.topic = topic
        self.group = group
        self.taken = 0
        self._address = address
        self._settings = settings
        self._done = trio.Event()

    async def run(self) -> None:
        settings = self._settings
        if not settings.grouped:
            await self._read()
            return
        async with trio.open_nursery() as nursery:
            for _ in range(settings.connections):
                nursery.start_soon(self._member)

    def _work(self) -> _Work | None:
        return _Work(self._settings.work_us) if self._settings.work_us else None

    async def _read(self) -> None:
        work = self._work()
        async with Consumer(self.topic, to=self._address, end="now") as consumer:
            async for _ in consumer:
                if work:
                    await work.do()
                self.taken += 1

    async def _member(self) -> None:
        settings = self._settings
        order, work, last = settings.order, self._work(), settings.count
        consuming = Consumer(self.topic, to=self._address, group=self.group, order=order, lease_ms=LEASE_MS)
        async with consuming as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(self._wait, nursery.cancel_scope)
            async for event in consumer:
                if work:
                    await work.do()
                await consumer.ack(event)
                self.taken += 1
                if self.taken >= last:
                    self._done.set()
                    break

    async def _wait(self, scope: trio.CancelScope) -> None:
        """Ends a member that waits for events when all have been taken."""
        before = -1
        while not self._done.is_set() and before != self.taken:
            before = self.taken
            with trio.move_on_after(GIVE_UP):
                await self._done.wait()
        scope.cancel()
