"""A coordinator of native groups is deposed, and does not know it yet. So two brokers serve the same group."""

from __future__ import annotations

from itertools import count

from krappy import blocking
from krappy.broker.topics.internal_topics import SHARES
from krappy.core.cluster.coordinators import partition_of
from krappy.core.cluster.state import NOBODY
from krappy.errors import KrappyError
from krappy.wire import messages as m
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.cut_off import cut_off
from tests.cluster.test_native_groups import coordinator, fill
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
