"""A coordinator of native groups, or of transactions, is deposed, and does not know it yet. So two brokers serve the
same group, or transactional id."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

from krappy import blocking
from krappy.broker.topics.internal_topics import SHARES, TRANSACTIONS
from krappy.core.cluster.coordinators import partition_of
from krappy.core.cluster.state import NOBODY
from krappy.errors import KrappyError
from krappy.wire import messages as m
from krappy.wire.kafka import Code
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.cut_off import cut_off
from tests.cluster.scattered_transactions import ScatteredProducer, coordinator_of
from tests.cluster.test_native_groups import coordinator, fill
from tests.kafka.transactional import Transactional
from tests.peer import Peer
from tests.process import Stopwatch, wait_until

CUT, EVENTS, SOME = 3, 40, 5
SESSION_S = 6.0


def ranges(topic: str, offsets: list[int]) -> list[tuple[str, int, int, int]]:
    return [(topic, 0, offset, offset) for offset in offsets]


def given(polled: m.Polled) -> list[int]:
    """The offsets of what was leased."""
    return [at for _, _, first, last, *_ in polled.leases or () for at in range(first, last + 1)]


def coordinator_at(cluster: ClusterProcesses, id: int, group: str) -> int:
    """The broker that coordinates a group, as the broker `id` knows it."""
    found = cluster.partitions_at(id, SHARES)
    return found[partition_of(group, len(found))].leader


def coordinated_by(cluster: ClusterProcesses, client: blocking.Client, broker: int) -> str:
    """Makes a group that this broker coordinates, and that begins with the first event of "t". Returns its name."""
    for number in count():
        client.commit(f"group-{number}", {("t", 0): 0})  # type: ignore[dict-item]
        if coordinator(cluster, f"group-{number}") == broker:
            return f"group-{number}"
    raise AssertionError


def test_what_a_deposed_coordinator_takes_is_not_acknowledged_and_no_event_is_lost(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """The old coordinator is cut off from ZooKeeper alone. The group has no order, so the old coordinator goes on to
    lease events, and its successor leases them, too. But the old one settles no acks any more, so these events come
    again."""
    with cut_off(cluster, CUT) as cut:
        fill(client, "t", EVENTS, partitions=1)
        client.commit("first", {("t", 0): 0})  # type: ignore[dict-item]  # the groups' topic is made now
        for topic in ("t", SHARES):
            cluster.until_in_sync(topic)
        cluster.spread(SHARES)
        group = coordinated_by(cluster, client, CUT)
        settled: set[int] = set()
        with Peer(cluster.brokers[CUT].address) as one:
            joining = m.ConsumerRegistration(["t"], group, lease_ms=600_000)
            handle = one.ask(joining, m.ConsumerRegistered).handle
            before = given(one.ask(m.Poll(handle, SOME, 1 << 20, 60_000), m.Polled))
            one.ask(m.Ack(handle, ranges("t", before[:2])), m.Acked)
            settled |= set(before[:2])
            with cut():
                wait_until(lambda: coordinator_at(cluster, 1, group) not in (CUT, NOBODY), "another one coordinates")
                watch = Stopwatch(cluster.brokers[CUT].pid)
                both = given(one.ask(m.Poll(handle, SOME, 1 << 20, 0), m.Polled))
                assert watch.seconds < SESSION_S / 4, "it asks somebody before it answers"
                assert both, "it served nobody: nothing is shown"
                late = one.send(m.Ack(handle, ranges("t", before[2:] + both)))[0]
                others = [cluster.brokers[id].address for id in cluster.brokers if id != CUT]
                with blocking.connect(others, timeout=60) as reached, reached.consumer("t", group=group) as consumer:
                    again = consumer.poll(60)
                    assert {event.offset for event in again} & set(both), "both gave the same events"
                    assert not settled & {event.offset for event in again}
                    assert again[0].deliveries > 1
                    consumer.ack(again[:1], wait=True)
                    settled.add(again[0].offset)
                try:
                    one.answer(late, m.Acked)
                except KrappyError:
                    pass
                else:
                    settled |= set(before[2:] + both)
        found: set[int] = set()
        with client.consumer("t", group=group) as consumer:
            while settled | found < set(range(EVENTS)):
                polled = consumer.poll(60)
                consumer.ack(polled, wait=True)
                found |= {event.offset for event in polled}
        assert not settled & found


def until_taken(cluster: ClusterProcesses, name: str, ask: Callable[[Transactional], Code]) -> None:
    """Asks the coordinator that broker 1 knows of, until that is another one than `CUT` and takes the request."""

    def taken() -> bool:
        found = cluster.partitions_at(1, TRANSACTIONS)
        leader = found[partition_of(name, len(found))].leader
        if leader in (CUT, NOBODY):
            return False
        with cluster.asked(leader) as raw:
            return ask(Transactional(raw, name)) == Code.NONE

    wait_until(taken, f"another one coordinates '{name}'")


def test_a_deposed_coordinator_does_not_refuse_what_its_successor_allows(cluster: ClusterProcesses) -> None:
    """The old coordinator is cut off from ZooKeeper alone. So it does not know what producers have done since. A client
    that comes to it would take a refusal for final, and end."""
    with cut_off(cluster, CUT) as cut:
        ScatteredProducer(cluster, "first").init()  # the topic of transactions is made now
        with cluster.asked(1) as raw:
            raw.make("t")
        for topic in ("t", TRANSACTIONS):
            cluster.until_in_sync(topic)
        cluster.spread(TRANSACTIONS)
        names = [name for name in map("id-{}".format, range(100)) if coordinator_of(cluster, name) == CUT]
        with cluster.asked(CUT) as raw:
            goes_on, restarts, comes = (Transactional(raw, name) for name in names[:3])
            for each in (goes_on, restarts):
                each.init()
            assert goes_on.add(("t", 0)) == [Code.NONE]
            assert goes_on.end(commit=True) == Code.NONE

            def begin(known: Transactional) -> Code:
                """As `goes_on`, at another broker."""
                known.id, known.epoch = goes_on.id, goes_on.epoch
                return known.add(("t", 0))[0]

            def take_over(known: Transactional, of: Transactional) -> Code:
                told = known.ask_init()
                of.id, of.epoch = told["producer_id"], told["producer_epoch"]
                return Code(told["error_code"])

            with cut():
                until_taken(cluster, goes_on.name, begin)
                for of in (restarts, comes):
                    until_taken(cluster, of.name, partial(take_over, of=of))
                told = {goes_on.end(commit=False), *restarts.add(("t", 0)), *comes.add(("t", 0))}
            assert told <= {Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE}
