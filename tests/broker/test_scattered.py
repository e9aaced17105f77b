"""A topic of a cluster is marked before its first stray is written, and the writer waits until everybody knows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from krappy.broker.stillness import PATIENCE_S, STILL_S, Stillness
from krappy.broker.topics.scattered import HOLD_S, ScatteredMark
from krappy.core.cluster import paths, znodes
from krappy.core.cluster.image import Image
from krappy.core.cluster.presence import LEASE_MS
from krappy.core.cluster.roles import Role
from krappy.core.cluster.tree import Create, Plan, Tree
from krappy.errors import ConnectionLost, NotLeader, OutOfOrderSequence, PolicyViolation, RequestTimeout
from krappy.partitioner import partition_for
from krappy.records import batch
from krappy.types import ABSENT
from tests.broker.engine import running

ID = b"t" * 16


class FakeMark:
    """`known`: what `is_known` returns. `go_on`: `make_known` waits for it."""

    def __init__(self) -> None:
        self.is_set = self.is_known = False
        self.is_new = False
        self.is_split = True
        self.is_there: bool | None = True
        self.asked = self.wanted = 0
        self.go_on = trio.Event()
        self.error: Exception | None = None
        self.count = 2  # partitions of the topic in the cluster

    def fits(self, count: int) -> bool:
        return count == self.count

    def look(self) -> None: ...

    def want(self) -> None:
        self.wanted += 1

    async def make_known(self) -> None:
        self.asked += 1
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        self.is_set = self.is_known = True


def keys_of(partition: int, count: int, mine: bool = True) -> list[bytes]:
    every = (b"k%d" % number for number in range(10_000))
    return [key for key in every if (partition_for(key, 2) == partition) is mine][:count]


async def marked(broker: Any) -> tuple[Any, FakeMark]:
    topic, _ = await broker.create_topic("t", 2, {"cleanup.policy": "compact"})
    mark = topic.strays.mark = FakeMark()
    return topic.led(0), mark


def send(partition: Any, key: bytes, **more: Any) -> Any:
    return partition.publish(batch.encode([key], [b"v"], timestamps=1_000, **more))


@trio_test
async def test_the_first_stray_waits_until_everybody_knows(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition, mark = await marked(broker)
        own, strange = keys_of(0, 3), keys_of(0, 2, mine=False)
        with trio.fail_after(20):
            await send(partition, own[0]).wait()
            assert mark.asked == 0
            first = send(partition, strange[0])
            with trio.move_on_after(0.2):
                await first.wait()
            assert not first.done
            assert partition.end_offset == 1  # it is not even in the log
            mark.go_on.set()
            await first.wait()
            await send(partition, strange[1]).wait()
        assert mark.asked == 1


@trio_test
async def test_a_topic_without_a_view_is_not_scattered(tmp_path: Path) -> None:
    """The topic may be marked all the same. If it counted as scattered, clients would refuse its table for strays, in
    place of ViewDisabled."""
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 2, {})
        mark = topic.strays.mark = FakeMark()
        mark.is_set = True
        for view in (True, False, True):
            await broker.alter_topic("t", {"view.enable": view}, None)
            assert (topic.scattered, topic.unsure) == (view, False)


@trio_test
async def test_a_stray_waits_for_the_mark_also_while_there_is_no_view(tmp_path: Path) -> None:
    """The view may be turned on, and then nobody would know of the stray before the leader has folded its log."""
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 2, {"view.enable": False})
        mark = topic.strays.mark = FakeMark()
        partition = topic.led(0)
        with trio.fail_after(20):
            await send(partition, keys_of(0, 1)[0]).wait()
            assert mark.asked == 0
            first = send(partition, keys_of(0, 1, mine=False)[0])
            with trio.move_on_after(0.2):
                await first.wait()
            assert not first.done
            assert partition.end_offset == 1
            mark.go_on.set()
            await first.wait()
        assert mark.asked == 1


@trio_test
async def test_nothing_is_written_while_some_do_not_know_of_a_mark(tmp_path: Path) -> None:
    """There is such a mark when another leader has written a stray, or partitions were added."""
    async with running(tmp_path) as broker:
        partition, mark = await marked(broker)
        mark.is_set = mark.is_new = True
        with trio.fail_after(20):
            later = send(partition, keys_of(0, 1)[0])
            with trio.move_on_after(0.2):
                await later.wait()
            assert not later.done
            mark.go_on.set()
            await later.wait()


@trio_test
async def test_the_only_replica_writes_nothing_before_it_knows_of_its_topic(tmp_path: Path) -> None:
    """The broker stood still meanwhile: the topic may have been deleted, and made anew on another broker."""
    async with running(tmp_path) as broker:
        partition, mark = await marked(broker)
        key = keys_of(0, 1)[0]
        with trio.fail_after(20):
            mark.is_there = None
            later = send(partition, key)
            with trio.move_on_after(0.2):
                await later.wait()
            assert not later.done
            mark.is_there = True
            await later.wait()
            mark.is_there = False
            with pytest.raises(NotLeader):
                await send(partition, key).wait()
            assert partition.end_offset == 1


def test_who_stood_still_knows_nothing_before_it_is_told() -> None:
    clock = MockClock(autojump_threshold=0)

    async def main() -> None:
        told, stillness = False, Stillness()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stillness.run, lambda: told)
            await trio.sleep(5)
            assert not stillness.was
            clock.jump(STILL_S + 0.01)
            assert stillness.was  # its task had no turn yet
            begun = trio.current_time()
            await stillness.until_told()
            await stillness.until_told()  # while ZooKeeper is away, only the first request waits so long
            assert trio.current_time() - begun == pytest.approx(PATIENCE_S)
            assert stillness.was
            told = True
            await trio.sleep(1)
            assert not stillness.was
            told = False
            clock.jump(STILL_S + 0.01)
            assert stillness.was
            begun, told = trio.current_time(), True
            await stillness.until_told()
            assert trio.current_time() - begun < 1
            assert not stillness.was
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


@trio_test
async def test_a_condition_that_looks_everywhere_marks_nothing(tmp_path: Path) -> None:
    """A leader may not know yet whether there are strays, as after its start. If it marked the topic then, its table
    would be refused for good once several brokers lead it."""
    async with running(tmp_path) as broker:
        partition, mark = await marked(broker)
        strays = partition.applier.strays
        with trio.fail_after(20):
            await send(partition, keys_of(0, 1)[0]).wait()
            strays._some, strays._counting = None, True  # the view is being read through
            strays.tell()
            assert partition.strays
            conditional = batch.encode([keys_of(0, 2)[1]], [b"v"], timestamps=1_000)
            await partition.publish(conditional, expect=[(0, ABSENT)]).wait()
            assert mark.wanted == 0
            assert partition.views.strays(partition.number) is None  # so that a restart does not believe it
            strays._counting = False
            strays.tend()
            while partition.strays:
                await trio.sleep(0.01)
            await send(partition, keys_of(0, 3)[2]).wait()
            await partition.applier.caught_up()
            assert partition.views.strays(partition.number) == (2, False)
        assert (mark.wanted, mark.asked) == (0, 0)


@trio_test
async def test_a_condition_is_asked_again_of_a_leader_that_does_not_know_yet(tmp_path: Path) -> None:
    """That leader may not know yet whether there are strays, as after its start, while another broker leads the other
    partition."""
    async with running(tmp_path) as broker:
        partition, mark = await marked(broker)
        strays, key = partition.applier.strays, keys_of(0, 1)[0]
        with trio.fail_after(20):
            await send(partition, keys_of(0, 2)[1]).wait()
            partition.strays.partitions[1].role = Role.FOLLOWER
            partition.strays.partitions[1].applier.strays.tell()
            strays._some, strays._counting = None, True  # the view is being read through
            strays.tell()
            data = batch.encode([key], [b"v"], timestamps=1_000)
            with pytest.raises(NotLeader) as refused:
                await partition.publish(data, expect=[(0, ABSENT)]).wait()
            assert refused.value.retriable
            strays._counting = False
            strays.tend()
            while partition.strays:
                await trio.sleep(0.01)
            await partition.publish(data, expect=[(0, ABSENT)]).wait()
            mark.is_set = True
            with pytest.raises(PolicyViolation):
                await partition.publish(data, expect=[(0, 1)]).wait()
            mark.is_split = False  # the other one has died, and this one is about to lead its partition
            with pytest.raises(NotLeader):
                await partition.publish(data, expect=[(0, 1)]).wait()


@trio_test
async def test_without_the_mark_a_stray_is_refused_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition, mark = await marked(broker)
        mark.error = RequestTimeout("ZooKeeper is away")
        mark.go_on.set()
        own, strange = keys_of(0, 3), keys_of(0, 1, mine=False)
        producer = await broker.new_producer_id()
        sequence = {"producer_id": producer, "producer_epoch": 0}
        with trio.fail_after(20):
            before = send(partition, own[0], base_sequence=0, **sequence)
            refused = send(partition, strange[0], base_sequence=1, **sequence)
            behind = send(partition, own[1], base_sequence=2, **sequence)
            other = send(partition, own[2])
            await before.wait()
            with pytest.raises(RequestTimeout):
                await refused.wait()
            with pytest.raises(OutOfOrderSequence):
                await behind.wait()
            await other.wait()
        assert partition.end_offset == 2


def test_the_mark_counts_once_no_lease_of_before_is_left() -> None:
    async def main() -> None:
        tree = Tree()
        events: list[str] = []
        away = True
        runtime: Any = SimpleNamespace(image=Image(), stopped=False, report=lambda event, **facts: events.append(event))

        async def multi(operations: Any) -> Image:
            if away:
                raise ConnectionLost("away", sent=False)
            plan = Plan(tree)
            plan.do(operations)
            runtime.image = runtime.image.after(plan.changes)
            tree.apply(plan.changes)
            return runtime.image  # type: ignore[no-any-return]

        runtime.store = SimpleNamespace(multi=multi)
        away = False
        roots = [Create(path) for path in ("/brokers", paths.TOPICS, "/admin", "/admin/deleted")]
        await multi([*roots, Create(paths.topic("t"), znodes.topic(ID, [(1,), (2,)], 0, b'{"other": 7}'))])
        mark, other = ScatteredMark(runtime, "t", ID), ScatteredMark(runtime, "t", b"another id is  !")
        away = True
        with pytest.raises(RequestTimeout):
            await mark.make_known()
        assert (mark.is_set, mark.is_new, mark.is_known) == (False, False, False)
        away = False
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mark.make_known)
            await trio.sleep(LEASE_MS / 1000)
            assert (mark.is_set, mark.is_new, mark.is_known) == (True, True, False)
        assert trio.current_time() - began >= HOLD_S > LEASE_MS / 1000
        assert mark.is_known
        assert not other.is_set
        assert events == ["topic_scattered"] * 2
        await mark.make_known()
        znode = tree.get(paths.topic("t"))
        assert znode is not None
        assert b'"other":7' in znode.data.replace(b" ", b"")
        assert znode.version == 1
        # A reassignment, or more partitions, do not take it away.
        image = runtime.image.topics["t"]
        await multi([image.put_replicas([*image.partitions, image.partitions[0]])])
        assert runtime.image.topics["t"].scattered

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_whenever_partitions_are_added_writers_wait_until_no_lease_of_before_is_left() -> None:
    """Also where it has been known for long that the topic has strays: the number of partitions is news again. Until
    the lease ends, a leader that has not heard of it answers by the old number."""

    async def main() -> None:
        tree = Tree()
        image = Image()

        def see(partitions: int, id: bytes, *, scattered: bool) -> None:
            nonlocal image
            plan = Plan(tree)
            replicas = [(1,)] * partitions
            plan.do([Create(path) for path in ("/brokers", paths.TOPICS)])
            plan.do([Create(paths.topic("t"), znodes.topic(id, replicas, 0, scattered=scattered))])
            image = Image().after(plan.changes)

        class Runtime:
            image = property(lambda self: image)

        mark = ScatteredMark(cast("Any", Runtime()), "t", ID)
        see(2, ID, scattered=False)
        mark.look()
        assert (mark.is_new, mark.is_known) == (False, False)
        assert [mark.fits(count) for count in (1, 2, 3)] == [False, True, False]
        for count in (3, 6, 7):
            see(count, ID, scattered=True)
            mark.look()
            seen = trio.current_time()
            assert mark.fits(count)
            assert not mark.fits(count - 1)  # a topic that is not opened yet is not answered for
            assert mark.is_new
            await mark.make_known()
            assert trio.current_time() - seen >= HOLD_S > LEASE_MS / 1000
            await trio.sleep(100)
            assert mark.is_known
            assert not mark.is_new
        see(7, b"another id is  !", scattered=False)
        assert not mark.fits(7)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@trio_test
async def test_a_leader_that_lacks_added_partitions_is_not_sure(tmp_path: Path) -> None:
    """It has read of them, but they are not open here: it neither answers nor decides conditions meanwhile."""
    async with running(tmp_path) as broker:
        partition, mark = await marked(broker)
        mark.is_known = True
        key = keys_of(0, 1)[0]
        with trio.fail_after(20):
            await send(partition, key).wait()
            assert partition.is_sure
            mark.count = 3
            assert not partition.is_sure
            conditional = batch.encode([key], [b"w"], timestamps=1_000)
            with pytest.raises(NotLeader):
                await partition.publish(conditional, expect=[(0, 0)]).wait()
            mark.count = 2
            await partition.publish(conditional, expect=[(0, 0)]).wait()
