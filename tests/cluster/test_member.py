"""Brokers as members of a cluster, and their controller, with a real ZooKeeper: who registers, who leads, and what
happens when a broker is gone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import trio
from trio.testing import trio_test

from krappy.cluster.controller import Controller
from krappy.cluster.member import UNREGISTERED, ClusterMember
from krappy.cluster.mirror import Mirror
from krappy.cluster.zk.client import ZooKeeper
from krappy.core.cluster import paths, znodes
from krappy.core.cluster.image import Image, PartitionImage, TopicImage
from krappy.core.cluster.registration import Loss
from krappy.core.cluster.state import NOBODY, PartitionState, write_state
from krappy.core.cluster.tree import Create, Delete, Operation, Put
from krappy.waiting import Signal
from tests.cluster.proxy import Proxy
from tests.cluster.zookeeper import ZooKeeperServer

LIMIT_S = 60
SESSION_MS = 4000
LONG_SESSION_MS = 20_000  # the longest that the server allows, so the session has not ended when a test checks that


class Node:
    """A broker that has no partitions: a mirror, a member and a controller."""

    def __init__(self, mirror: Mirror, member: ClusterMember, controller: Controller) -> None:
        self.mirror, self.member, self.controller = mirror, member, controller
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.mirror.run)
                nursery.start_soon(self.member.run)
                nursery.start_soon(self.controller.run)
                task_status.started()
        self.ended.set()

    async def kill(self) -> None:
        """Ends its tasks like a kill of the process: the session goes on until it expires."""
        self.scope.cancel()
        await self.ended.wait()

    def partition(self) -> PartitionImage:
        return self.mirror.image.topics["t"].partitions[0]


@dataclass
class MemoryHome:
    directory: str
    endpoints: Mapping[str, tuple[str, int]]
    has_lost: Callable[[TopicImage, int], Loss | None]
    seen_epoch: Callable[[TopicImage, int], int]
    boot: str = ""
    away: bool = False
    pulse: int = 0
    lease: int = -1
    doubts: int = 0
    moved: Signal = field(default_factory=Signal)

    async def new_start(self, registered: str) -> tuple[str, bool]:
        return "", True

    def beat(self) -> None: ...

    def producer_ids(self, following: int) -> int:
        return following

    def renewed(self, lease: int) -> None:
        self.lease = lease

    async def doubt(self) -> None:
        self.doubts += 1

    def told(self) -> None: ...


class Cluster:
    def __init__(self, nursery: trio.Nursery, server: tuple[str, int], chroot: str) -> None:
        self._nursery, self._server, self._chroot = nursery, server, chroot
        self.events: list[tuple[str, dict[str, object]]] = []

    async def start(
        self,
        broker: int,
        *,
        directory: str = "",
        boot: str = "",
        lease: int = -1,
        server: tuple[str, int] | None = None,
        has_lost: Callable[[TopicImage, int], Loss | None] = lambda topic, index: None,
        seen_epoch: Callable[[TopicImage, int], int] = lambda topic, index: -1,
        session_ms: int = SESSION_MS,
        kind: type[Mirror] = Mirror,
    ) -> Node:
        make = partial(ZooKeeper, [server or self._server], chroot=self._chroot, timeout_ms=session_ms)
        mirror = kind(make)
        endpoints = {"PLAINTEXT": ("127.0.0.1", 9090 + broker)}
        directory = directory or f"folder {broker}"
        home = MemoryHome(directory, endpoints, has_lost, seen_epoch, boot, lease=lease)
        member = ClusterMember(mirror, broker, home, report=self.report)
        node = Node(mirror, member, Controller(mirror, member, broker, self.report))
        await self._nursery.start(node.run)
        return node

    def report(self, event: str, **facts: object) -> None:
        self.events.append((event, facts))


@contextlib.asynccontextmanager
async def cluster(zookeeper: ZooKeeperServer, chroot: str) -> AsyncIterator[Cluster]:
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            yield Cluster(nursery, zookeeper.address, chroot)
            nursery.cancel_scope.cancel()


async def until(ready: Callable[[], bool]) -> None:
    with trio.fail_after(LIMIT_S / 2):
        while not ready():
            await trio.sleep(0.01)


async def make_topic(node: Node, replicas: list[int]) -> None:
    await until(lambda: node.member.epoch != UNREGISTERED)
    id = b"t" * 16
    below = [Create(paths.identity("t", id)), Create(paths.partitions("t"))]
    await node.mirror.multi([Create(paths.topic("t"), znodes.topic(id, [replicas], 0)), *below])


@trio_test
async def test_one_of_three_is_the_controller_and_gives_a_topic_its_leader(
    shared_zookeeper: ZooKeeperServer, chroot: str
) -> None:
    async with cluster(shared_zookeeper, chroot) as made:
        nodes = [await made.start(broker) for broker in (1, 2, 3)]
        await until(lambda: all(len(node.mirror.image.brokers) == 3 for node in nodes))
        await until(lambda: all(node.mirror.image.controller is not None for node in nodes))
        assert [node.controller.controls for node in nodes].count(True) == 1
        assert nodes[0].mirror.image.brokers[2].endpoints == {"PLAINTEXT": ("127.0.0.1", 9092)}
        await make_topic(nodes[1], [2, 3, 1])
        await until(lambda: all("t" in node.mirror.image.topics and node.partition().version == 0 for node in nodes))
        state = nodes[2].partition().state
        assert (state.leader, state.leader_epoch, set(state.isr), state.min_isr) == (2, 0, {1, 2, 3}, 2)
        assert state.leader_inc == nodes[1].member.epoch
        await until(lambda: all(node.member.lease.holds(trio.current_time() * 1000) for node in nodes))


@trio_test
async def test_a_killed_leader_is_replaced_before_its_session_ends(
    shared_zookeeper: ZooKeeperServer, chroot: str
) -> None:
    """The controller treats a silent broker as gone once its lease has certainly ended."""
    async with cluster(shared_zookeeper, chroot) as made:
        first = await made.start(1)
        await until(lambda: first.controller.controls)
        others = [await made.start(broker, session_ms=LONG_SESSION_MS) for broker in (2, 3)]
        await until(lambda: len(first.mirror.image.brokers) == 3)
        await make_topic(first, [2, 3, 1])
        await until(lambda: first.partition().version == 0 and others[0].member.lease.holds(trio.current_time() * 1000))
        began = trio.current_time()
        await others[0].kill()
        await until(lambda: first.partition().state.leader == 3)
        took = trio.current_time() - began
        assert 2 in first.mirror.image.brokers, "its session goes on"
        assert took > 2.0, "before that its lease may hold"
        state = first.partition().state
        assert (state.leader_epoch, set(state.isr), state.elr) == (1, {1, 3}, ())


@trio_test
async def test_a_controller_that_is_gone_is_replaced(shared_zookeeper: ZooKeeperServer, chroot: str) -> None:
    """The connection of the old controller is held up, so it still believes that it is the controller."""
    proxy = Proxy(shared_zookeeper.address)
    async with cluster(shared_zookeeper, chroot) as made, trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        old = await made.start(1, server=proxy.address)
        await until(lambda: old.controller.controls)
        new = await made.start(2)
        await until(lambda: len(old.mirror.image.brokers) == 2)
        await make_topic(new, [1, 2])
        await until(lambda: new.partition().version == 0)
        proxy.silent = True
        await until(lambda: new.controller.controls and new.partition().state.leader == 2)
        assert old.controller.version < new.controller.version
        await until(lambda: 1 not in new.mirror.image.brokers)  # otherwise its session would go on
        proxy.silent = False
        await until(lambda: old.mirror.is_over and not old.controller.controls)
        assert [facts["broker"] for event, facts in made.events if event == "controller"] == [1, 2]
        nursery.cancel_scope.cancel()


@trio_test
async def test_a_killed_controller_that_leads_costs_no_more_than_another_leader(
    shared_zookeeper: ZooKeeperServer, chroot: str
) -> None:
    """Every broker watches the leases, so the next controller knows at once which brokers are silent."""
    async with cluster(shared_zookeeper, chroot) as made:
        first = await made.start(1, session_ms=LONG_SESSION_MS)
        await until(lambda: first.controller.controls)
        others = [await made.start(broker) for broker in (2, 3)]
        await until(lambda: all(len(node.mirror.image.brokers) == 3 for node in others))
        await make_topic(first, [1, 2, 3])
        await until(lambda: "t" in others[0].mirror.image.topics and others[0].partition().version == 0)
        await until(lambda: first.member.lease.holds(trio.current_time() * 1000))
        await first.kill()
        await until(lambda: others[0].partition().state.leader == 2)
        assert 1 in others[0].mirror.image.brokers, "its session has not ended yet"
        assert [node.controller.controls for node in others].count(True) == 1


@trio_test
async def test_the_same_folder_registers_at_once_and_another_waits(
    shared_zookeeper: ZooKeeperServer, chroot: str
) -> None:
    async with cluster(shared_zookeeper, chroot) as made:
        first = await made.start(1, directory="this folder", session_ms=LONG_SESSION_MS)
        await until(lambda: first.member.epoch != UNREGISTERED)
        before = first.member.epoch
        await first.kill()
        killed = trio.current_time()
        again = await made.start(1, directory="this folder")
        await until(lambda: again.member.epoch > before)
        assert trio.current_time() - killed < LONG_SESSION_MS / 2000, "it does not wait for the end of the session"
        other = await made.start(1, directory="another folder")
        await until(lambda: any(event == "broker_id_in_use" for event, _ in made.events))
        assert other.member.epoch == UNREGISTERED
        await again.kill()
        await until(lambda: other.member.epoch != UNREGISTERED)


@trio_test
async def test_a_broker_that_was_removed_registers_again(shared_zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with cluster(shared_zookeeper, chroot) as made:
        one, other = await made.start(1), await made.start(2)
        await until(lambda: len(other.mirror.image.brokers) == 2)
        before = one.member.epoch
        await other.mirror.multi([Delete(paths.broker(1))])
        await until(lambda: one.member.epoch > before)
        await until(
            lambda: (1, one.member.epoch) in {(id, each.epoch) for id, each in other.mirror.image.brokers.items()}
        )


@trio_test
async def test_a_broker_that_has_lost_events_is_no_candidate_when_it_comes_back(
    shared_zookeeper: ZooKeeperServer, chroot: str
) -> None:
    async with cluster(shared_zookeeper, chroot) as made:
        one, other = await made.start(1), await made.start(2)
        await until(lambda: len(one.mirror.image.brokers) == 2)
        await make_topic(one, [2, 1])
        await until(lambda: one.partition().state.isr == (2, 1))
        await other.kill()
        back = await made.start(2, directory="a new disk", has_lost=lambda topic, index: Loss.ALL)
        await until(lambda: back.member.epoch != UNREGISTERED)
        await until(lambda: one.partition().state.leader == 1)
        assert one.partition().state.isr == (1,)


@trio_test
async def test_nobody_leads_while_no_candidate_is_alive(shared_zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with cluster(shared_zookeeper, chroot) as made:
        one, other = await made.start(1), await made.start(2)
        await until(lambda: len(one.mirror.image.brokers) == 2)
        await make_topic(one, [2])
        await until(lambda: one.partition().state.leader == 2)
        await other.kill()
        await until(lambda: one.partition().state.leader == NOBODY)
        back = await made.start(2)
        await until(lambda: one.partition().state.leader == 2)
        assert one.partition().state.leader_inc == back.member.epoch


class Overtaken(Mirror):
    """A mirror that is overtaken. Just before it first changes a partition's state, the topic is deleted and made anew,
    with znodes of the same versions. `anew`: the new state of the partition."""

    anew: PartitionState | None = None

    async def multi(self, operations: Sequence[Operation]) -> Image:
        topic = self.image.topics.get("t")
        path = paths.state("t", 0)
        if topic is not None and self.anew is None and any(getattr(each, "path", "") == path for each in operations):
            made = replace(topic, id=b"j" * 16)
            self.anew = PartitionState(1, 7, 0, (1, 2))
            below = (path, paths.partition("t", 0), paths.partitions("t"), paths.identity("t", topic.id))
            await self.client.multi([Delete(each) for each in (*below, paths.topic("t"))])
            await self.client.multi(
                [
                    Create(paths.topic("t"), znodes.topic(made.id, [[1, 2]], 0)),
                    Create(paths.identity("t", made.id)),
                    Create(paths.partitions("t")),
                    Create(paths.partition("t", 0)),
                    Create(path, write_state(self.anew)),
                ]
            )
            for _ in range(topic.partitions[0].version):
                await self.client.multi([Put(path, write_state(self.anew))])
        return await super().multi(operations)


@trio_test
async def test_a_broker_that_takes_itself_out_changes_no_topic_that_was_made_anew(
    shared_zookeeper: ZooKeeperServer, chroot: str
) -> None:
    lost: list[bytes] = []

    def has_lost(topic: TopicImage, index: int) -> Loss | None:
        lost.append(topic.id)
        return None if topic.id == b"j" * 16 else Loss.ALL

    async with cluster(shared_zookeeper, chroot) as made:
        one, other = await made.start(1), await made.start(2)
        await until(lambda: len(one.mirror.image.brokers) == 2)
        await make_topic(one, [1, 2])
        await until(lambda: one.partition().state.isr == (1, 2) and one.mirror.image.topics["t"].identified)
        for each in (one, other):
            await each.kill()  # so that no controller decides anything
        back = await made.start(2, has_lost=has_lost, kind=Overtaken)
        await until(lambda: back.member.epoch != UNREGISTERED)
        assert b"j" * 16 in lost
        assert back.mirror.image.topics["t"].id == b"j" * 16
        assert back.partition().state.isr == (1, 2)


@trio_test
async def test_a_broker_that_has_seen_a_later_leader_epoch_says_so_before_it_enters(
    shared_zookeeper: ZooKeeperServer, chroot: str
) -> None:
    """This happens after ZooKeeper was given older data. The leader goes on in an epoch in which no broker has led."""
    async with cluster(shared_zookeeper, chroot) as made:
        one = await made.start(1)
        await until(lambda: len(one.mirror.image.brokers) == 1)
        await make_topic(one, [1, 2])
        await until(lambda: one.partition().state.leader == 1)
        before = one.partition().state
        assert before.leader_epoch < 6
        other = await made.start(2, seen_epoch=lambda topic, index: 6)
        await until(lambda: other.member.epoch != UNREGISTERED)
        assert other.partition().state == before._replace(leader_epoch=7)
        await other.kill()
        again = await made.start(2, seen_epoch=lambda topic, index: 7)
        await until(lambda: again.member.epoch != UNREGISTERED)
        assert again.partition().state.leader_epoch == 7
        assert [event for event, _ in made.events].count("older_tree") == 1


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize(("directory", "boot"), [("a new disk", "boot 1"), ("folder 2", "boot 2")])
@trio_test
async def test_older_data_does_not_tell_what_a_broker_has_lost(
    shared_zookeeper: ZooKeeperServer, chroot: str, is_older: bool, directory: str, boot: str
) -> None:
    """It has another folder of the broker, or an earlier boot of its machine. The broker has run since, as it is."""
    async with cluster(shared_zookeeper, chroot) as made:
        one, other = await made.start(1), await made.start(2, boot="boot 1")
        await until(lambda: len(one.mirror.image.brokers) == 2)
        await make_topic(one, [2])
        await until(lambda: one.partition().state.isr == (2,))
        await other.kill()
        back = await made.start(2, directory=directory, boot=boot, lease=10_000 if is_older else -1)
        await until(lambda: back.member.epoch != UNREGISTERED)
        state = back.partition().state
        assert (2 in (*state.isr, *state.elr)) is is_older


@trio_test
async def test_a_broker_whose_session_is_in_older_data_of_zookeeper_registers_anew(
    shared_zookeeper: ZooKeeperServer, chroot: str
) -> None:
    """Its lease has an earlier version there than the last one that it wrote."""
    path = paths.lease(1)
    async with cluster(shared_zookeeper, chroot) as made:
        one, other = await made.start(1), await made.start(2)
        await until(lambda: one.member.lease.holds(trio.current_time() * 1000))
        while (found := await other.mirror.read(path)) is None or found.version < 2:
            await trio.sleep(0.05)
        await other.mirror.multi([Delete(path), Create(path)])
        await until(lambda: one.mirror.is_over)
        assert [event for event, _ in made.events].count("older_tree") == 1
        assert one.member.epoch == UNREGISTERED
