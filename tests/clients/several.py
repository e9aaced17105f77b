"""Several real brokers in one thread, which tell clients of one cluster: a stand-in for a cluster.

Each broker has every partition. `lead` says which broker leads a partition, as an election would. The new leader gets
all that was committed at the old one, with the producers' sequences, as if it had followed. Clients reach the brokers
through proxies, so that a broker can be lost.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.app import Broker
from krappy.broker.partition.follower import Follower
from krappy.broker.topics import catalog
from krappy.core.cluster import paths, znodes
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState, write_state
from krappy.core.cluster.tree import Create, Put
from krappy.settings.listeners import NATIVE, parse_address
from krappy.store.catalog import new_id
from tests.clients.proxy import Proxy, proxy

MOST = 1 << 30
NOBODY = -1


class Cluster:
    """`proxies`: by broker id, from 1 on."""

    def __init__(self, proxies: dict[int, Proxy]) -> None:
        self.proxies = proxies
        self.brokers: dict[int, Broker] = {}
        self.token: trio.lowlevel.TrioToken
        self.nursery: trio.Nursery
        self.leaders: dict[tuple[str, int], tuple[int, int]] = {}  # (broker, leader epoch)

    @property
    def addresses(self) -> list[str]:
        return [each.address for each in self.proxies.values()]

    def create(self, topic: str, partitions: int, **config: Any) -> None:
        """Makes a topic whose partitions are led by the brokers in turn."""
        self._call(self._create, topic, partitions, config)

    def lead(self, topic: str, partition: int, broker: int) -> None:
        self._call(self._lead, topic, partition, broker)

    def add_partition(self, topic: str, leader: int) -> None:
        self._call(self._add_partition, topic, leader, [*self.brokers])

    @contextmanager
    def late_partition(self, topic: str, leader: int, *, seconds: float) -> Iterator[None]:
        """Adds a partition. Its leader hears of it only after `seconds`."""
        self._call(self._add_partition, topic, leader, [id for id in self.brokers if id != leader])
        timer = threading.Timer(seconds, self._call, [self._add_partition, topic, leader, [leader]])
        timer.start()
        try:
            yield
        finally:
            timer.join()

    def create_no_topics(self) -> None:
        """From now on only `create` makes topics: whoever sends to another topic is told that there is none."""
        for broker in self.brokers.values():
            broker.engine.config = replace(broker.engine.config, auto_create_topics=False)

    @contextmanager
    def late(self, topic: str, *brokers: int, seconds: float) -> Iterator[None]:
        """These brokers do not know the topic for `seconds`."""

        async def hide() -> None:
            for id in brokers:
                topics = self.brokers[id].engine.topics
                hidden[id] = topics, topics.pop(topic)

        async def show() -> None:
            for topics, found in hidden.values():
                topics[topic] = found

        hidden: dict[int, tuple[Any, Any]] = {}
        self._call(hide)
        timer = threading.Timer(seconds, self._call, [show])
        timer.start()
        try:
            yield
        finally:
            timer.join()

    def kill(self, broker: int) -> None:
        """The broker's connections are lost, and it takes no more."""
        self.proxies[broker].refuse()
        self.proxies[broker].cut()

    def hang(self, broker: int) -> None:
        """The broker answers nothing any more, and keeps its connections."""
        self.proxies[broker].hang()

    def _call(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Runs `work` in the brokers' thread, and waits until it is done."""
        done: Future[None] = Future()

        async def run() -> None:
            try:
                await work(*args)
            except BaseException as error:
                done.set_exception(error)
                raise
            done.set_result(None)

        self.token.run_sync_soon(lambda: self.nursery.start_soon(run))
        done.result(30)

    async def _create(self, topic: str, partitions: int, config: dict[str, Any]) -> None:
        id = new_id()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "new_id", lambda: id)
            for broker in self.brokers.values():
                await broker.engine.create_topic(topic, partitions, config)
        ids = itertools.cycle(self.brokers)
        for index in range(partitions):
            await self._lead(topic, index, next(ids))

    async def _add_partition(self, topic: str, leader: int, among: list[int]) -> None:
        """Adds a partition. `among`: the brokers that hear of it."""
        for id in among:
            engine = self.brokers[id].engine
            index = engine.topics[topic].count
            await engine.alter_topic(topic, None, index + 1)
        await self._lead(topic, index, leader)

    async def _lead(self, topic: str, index: int, leader: int) -> None:
        old, epoch = self.leaders.get((topic, index), (NOBODY, 0))
        self.leaders[topic, index] = leader, epoch + 1
        source = None if old == NOBODY else self.brokers[old].engine.topics[topic].local[index]
        for id in sorted(self.brokers, key=lambda id: id == leader):  # the old leader stops before the new one begins
            engine = self.brokers[id].engine
            if index >= engine.topics[topic].count:
                continue  # this broker has not heard of the partition
            path = paths.state(topic, index)
            state = PartitionState(leader, epoch + 1, 0, (leader,))
            there = engine.image.topics[topic].partitions[index].version
            operation = Create(path, write_state(state)) if there < 0 else Put(path, write_state(state), there)
            image = await engine.store.multi([operation])
            engine.topics[topic].see(image.topics[topic])
            partition = engine.topics[topic].local[index]
            await partition.take(state, 0, Role.FOLLOWER, id)
            if id == leader:
                if source is not None and source is not partition:
                    await self._copy(source, partition, epoch + 1)
                await partition.take(state, 1, Role.LEADER, id)

    async def _copy(self, source: Any, to: Any, epoch: int) -> None:
        follower = Follower(to, b"", lambda start: source.log, 1)
        start, end = to.log.end_offset, source.high_watermark
        while start < end:
            span = await source.read(start, MOST, limit=end)
            await follower.append(epoch, span.data, end, source.start_offset)
            start = to.log.end_offset  # the follower may take fewer events than it is given
        await follower.sync()


@contextmanager
def cluster(folder: Path, count: int = 3) -> Iterator[Cluster]:
    """Brokers 1 to `count`."""
    said: queue.SimpleQueue[Cluster | BaseException] = queue.SimpleQueue()
    with ExitStack() as stack:
        proxies = {id: stack.enter_context(proxy("127.0.0.1:1")) for id in range(1, count + 1)}
        found = Cluster(proxies)
        stop: list[trio.Event] = []

        async def main() -> None:
            producer_ids = itertools.count(1000)

            async def new_producer_id() -> int:
                return next(producer_ids)

            async with trio.open_nursery() as nursery:
                found.token, found.nursery = trio.lowlevel.current_trio_token(), nursery
                stop.append(trio.Event())
                brokers: dict[int, Broker] = {}
                for id, at in proxies.items():
                    broker = brokers[id] = Broker(
                        folder / str(id),
                        durability="os",
                        ballast_bytes=0,
                        broker_id=id,
                        advertised_listeners=f"NATIVE://{at.address}",
                    )
                    await nursery.start(_run, broker, stop[0])
                    at.to = broker.address
                    broker.engine.new_producer_id = new_producer_id  # type: ignore[method-assign]
                    broker.engine.catalog.was_given = lambda producer_id: True  # type: ignore[method-assign]
                for id, broker in brokers.items():
                    others = {other: at for other, at in proxies.items() if other != id}
                    await broker.engine.store.multi(
                        [
                            Create(
                                paths.broker(other), znodes.registration(0, {NATIVE: parse_address(at.address)}, None)
                            )
                            for other, at in others.items()
                        ]
                    )
                found.brokers = brokers
                said.put(found)

        def run() -> None:
            try:
                trio.run(main)
            except BaseException as error:
                said.put(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        first = said.get(timeout=60)
        if isinstance(first, BaseException):
            raise first
        try:
            yield first
        finally:
            found.token.run_sync_soon(stop[0].set)
            thread.join(60)


async def _run(broker: Broker, stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
    async with broker:
        task_status.started()
        await stop.wait()
