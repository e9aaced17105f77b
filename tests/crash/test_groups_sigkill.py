"""The broker is killed while members of groups work: acked events stay acked, and no event is lost."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from krappy.errors import KrappyError, LeaseLost
from krappy.records import batch
from krappy.wire import messages as m
from tests.peer import Gone, Peer
from tests.process import BrokerProcess, Launcher, wait_until

CYCLES = 12
ENOUGH = 100
Place = tuple[int, int]  # partition, offset


class Work:
    """The acks of the members, and the broker's answers."""

    def __init__(self, order: str, random: Random) -> None:
        self.order = order
        self.random = random
        self.lock = threading.Lock()
        self.acked: set[Place] = set()
        self.maybe: Counter[Place] = Counter()  # acks that were not answered
        self.published: set[Place] = set()

    @property
    def done(self) -> set[Place]:
        """The events that the broker may have settled: those with an answered ack, and those with an unanswered one."""
        return self.acked | set(+self.maybe)

    def join(self, peer: Peer) -> int:
        request = m.ConsumerRegistration(["t"], group="g", order=self.order, lease_ms=2_000, max_deliveries=1_000_000)
        return peer.ask(request, m.ConsumerRegistered).handle

    def publisher(self, address: str) -> None:
        try:
            with Peer(address) as peer:
                handle = peer.producer("t").handle
                while True:
                    partition, count = self.random.randrange(2), self.random.randint(1, 20)
                    keys = [self.random.choice([b"a", b"b", b"c", None]) for _ in range(count)]
                    data = batch.encode(keys, [b"x"] * count, timestamps=1_000)
                    offset = peer.ask(m.Batch(handle, partition, data), m.BatchStored).offset
                    self.published |= {(partition, offset + row) for row in range(count)}
        except Gone:
            return

    def member(self, address: str) -> None:
        try:
            with Peer(address) as peer:
                handle = self.join(peer)
                while True:
                    self.step(peer, handle, 50)
        except Gone:
            return

    def step(self, peer: Peer, handle: int, wait: int) -> int:
        leases = peer.ask(m.Poll(handle, max_records=self.random.choice([1, 7, 50]), max_wait=wait), m.Polled).leases
        assert leases is not None
        for topic, partition, first, last, _ in leases:
            places = {(partition, offset) for offset in range(first, last + 1)}
            with self.lock:
                assert not places & self.acked, "an acknowledged event was given out again"
                self.maybe.update(places)
            lost: set[Place] = set()
            try:
                peer.ask(m.Ack(handle, [(topic, partition, first, last)]), m.Acked)
            except LeaseLost as error:
                lost = {(at, offset) for _, at, low, high in error.lost for offset in range(low, high + 1)}
            with self.lock:
                self.acked |= places - lost
                self.maybe.subtract(places)
        return len(leases)


@pytest.mark.parametrize("order", ["none", "key"])
def test_acknowledged_events_never_come_again(order: str, launch: Launcher, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or Random().getrandbits(32))
    random = Random(seed)
    work = Work(order, random)
    failures: list[BaseException] = []

    def run(job: object, address: str) -> None:
        try:
            job(address)  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)

    print(f"seed {seed}")  # noqa: T201
    with BrokerProcess(tmp_path / "data", launch=launch, durability=random.choice(["fsync", "os"])) as broker:
        with Peer(broker.address) as peer:
            peer.ask(m.CreateTopic("t", 2), m.TopicCreated)
        for cycle in range(CYCLES):
            jobs = [work.publisher, work.member, work.member, work.member]
            threads = [threading.Thread(target=run, args=(job, broker.address)) for job in jobs]
            for thread in threads:
                thread.start()
            time.sleep(random.uniform(0, 0.25))
            if cycle == CYCLES - 1:  # a slow machine gets more time
                wait_until(lambda: bool(failures) or len(work.acked) > ENOUGH, "enough is acknowledged")
            broker.kill()
            for thread in threads:
                thread.join()
            if failures:
                raise failures[0]
            broker.start()
            with Peer(broker.address) as peer:
                try:
                    positions = peer.ask(m.Positions("g"), m.PositionsFound).offsets
                except KrappyError:
                    assert not work.acked
                    continue
                for _, partition, floor in positions:
                    mine = {offset for at, offset in work.done if at == partition}
                    assert set(range(floor)) <= mine, "the floor passed an event that nobody acknowledged"
        with Peer(broker.address) as peer:
            handle = work.join(peer)
            while any(row["lag"] for row in peer.ask(m.Groups("g"), m.GroupsFound).groups[0]["partitions"]):
                work.step(peer, handle, 50)
        assert len(work.acked) > ENOUGH, "hardly anything was tried"
        assert work.published <= work.done
        assert not broker.events("internal_error"), "the broker met a bug of its own"
