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

    async def _read(self) -> None:
        work = self._settings.work_us / 1e6
        async with Consumer(self.topic, to=self._address, end="now") as consumer:
            async for _ in consumer:
                if work:
                    await trio.sleep(work)
                self.taken += 1

    async def _member(self) -> None:
        settings = self._settings
        order, work, last = settings.order, settings.work_us / 1e6, settings.count
        consuming = Consumer(self.topic, to=self._address, group=self.group, order=order, lease_ms=LEASE_MS)
        async with consuming as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(self._wait, nursery.cancel_scope)
            async for event in consumer:
                if work:
                    await trio.sleep(work)
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
