"""Native groups in a cluster: acknowledgements, and the delivery counts of the other events, survive a failover."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from krappy import blocking
from krappy.broker.topics.internal_topics import SHARES
from krappy.core.cluster.coordinators import partition_of
from krappy.core.cluster.state import NOBODY
from krappy.errors import KrappyError
from krappy.types import Event
from krappy.wire import messages as m
from krappy.wire.kafka import Code
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.test_moves import reassign, until_moved
from tests.long import long, some
from tests.peer import Peer
from tests.process import PATIENCE, wait_until

LONG_S = 120.0


def coordinator(cluster: ClusterProcesses, group: str) -> int:
    """The broker that coordinates a group, as all running brokers know it."""
    found = cluster.partitions(SHARES)
    return found[partition_of(group, len(found))].leader


def kill_coordinator(cluster: ClusterProcesses, group: str) -> int:
    killed = coordinator(cluster, group)
    cluster.brokers[killed].kill()
    return killed


def until_another(cluster: ClusterProcesses, group: str, killed: int) -> None:
    """Waits until another broker than `killed` coordinates the group."""
    wait_until(lambda: coordinator(cluster, group) not in (killed, NOBODY), "another broker coordinates", LONG_S)


def fill(client: blocking.Client, topic: str, count: int, partitions: int = 3, keys: int = 50) -> None:
    client.create_topic(topic, partitions)
    with client.producer(topic) as producer:
        producer.send_columns([b"%d" % (n % keys) for n in range(count)], [b"%d" % n for n in range(count)])


class Worker:
    """A member in a thread that acknowledges all its events, until it is stopped."""

    def __init__(
        self, cluster: ClusterProcesses, topic: str, group: str, order: str = "none", *, pause: float = 0.001
    ) -> None:
        self.taken: list[Event] = []
        self.error: BaseException | None = None
        self._over = threading.Event()
        self._with = cluster.native, topic, group, order
        self._pause = pause
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        addresses, topic, group, order = self._with
        try:
            with (
                blocking.connect(addresses, timeout=LONG_S) as client,
                client.consumer(topic, group=group, order=order) as consumer,  # type: ignore[arg-type]
            ):
                while not self._over.is_set():
                    for event in consumer.poll(0.5):
                        self.taken.append(event)
                        consumer.ack(event)
                        time.sleep(self._pause)
        except BaseException as error:
            self.error = error

    def stop(self) -> list[Event]:
        self._over.set()
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.taken


def test_every_event_is_delivered_through_three_coordinators(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    fill(client, "orders", 3_000)
    cluster.until_in_sync("orders")
    workers = [Worker(cluster, "orders", "mail") for _ in range(2)]
    for round in range(1, 4):
        wait_until(lambda enough=500 * round: sum(len(each.taken) for each in workers) >= enough, "events", LONG_S)  # type: ignore[misc]
        killed = kill_coordinator(cluster, "mail")
        until_another(cluster, "mail", killed)
        cluster.brokers[killed].start()
        cluster.until_in_sync(SHARES)
        cluster.until_in_sync("orders")
    wanted = {b"%d" % n for n in range(3_000)}
    wait_until(lambda: {e.value for each in workers for e in list(each.taken)} >= wanted, "all events", LONG_S)
    times = Counter(event.value for each in workers for event in each.stop())
    assert set(times) == wanted
    assert sum(times.values()) < 3 * 3_000, "what was acknowledged came again and again"
    wait_until(lambda: sum(each.lag for each in client.group("mail").partitions) == 0, "the group has no lag")


@pytest.mark.parametrize("order", some(["none", "key"], 2))
def test_partitions_of_which_the_coordinator_has_no_replica(
    cluster: ClusterProcesses, client: blocking.Client, order: str
) -> None:
    """The coordinator serves partitions of which it has no replica, even while their replicas are moved."""
    topic, group, count = f"spread-{order}", f"far-{order}", 2_000
    assigned = [[1], [2], [3], [1], [2], [3]]
    [made] = cluster.admin.create_topics([NewTopic(topic, len(assigned), replica_assignment=assigned)]).values()
    made.result(LONG_S)
    wait_until(lambda: NOBODY not in {each.leader for each in cluster.partitions(topic).values()}, "it is led", LONG_S)
    with client.producer(topic) as producer:
        producer.send_columns([b"%d" % (n % 50) for n in range(count)], [b"%d" % n for n in range(count)])
    workers = [Worker(cluster, topic, group, order) for _ in range(2)]

    def have(least: int) -> None:
        wait_until(lambda: sum(len(each.taken) for each in workers) >= least, f"{least} events", LONG_S)

    have(count)
    assert {event.partition for each in workers for event in list(each.taken)} == set(range(len(assigned)))
    mine = coordinator(cluster, group)
    there = next(at for at, (broker,) in enumerate(assigned) if broker != mine)  # it will get a replica of this one
    away = next(at for at, (broker,) in enumerate(assigned) if broker == mine)  # it will lose its replica of this one
    assert reassign(cluster, topic, {there: [mine], away: [mine % 3 + 1]}) == [Code.NONE] * 2
    with client.producer(topic) as producer:
        for number in range(count, count + 600):
            producer.send(b"%d" % number, key=b"%d" % (number % 50))
    until_moved(cluster)
    have(count + 600)
    transactional = Producer({"bootstrap.servers": cluster.kafka, "transactional.id": topic})
    transactional.init_transactions(LONG_S)
    for end in (transactional.abort_transaction, transactional.commit_transaction, transactional.abort_transaction):
        transactional.begin_transaction()
        for index in range(len(assigned)):
            kept = end == transactional.commit_transaction
            transactional.produce(topic, b"committed" if kept else b"aborted", b"%d" % index, index)
        transactional.flush(LONG_S)
        end(LONG_S)
    with client.producer(topic) as producer:
        producer.send_columns(
            [b"%d" % (n % 50) for n in range(600)], [b"%d" % n for n in range(count + 600, count + 1200)]
        )
    wanted = {b"%d" % n for n in range(count + 1200)} | {b"committed"}
    wait_until(lambda: {e.value for each in workers for e in list(each.taken)} >= wanted, "all events", LONG_S)
    times = Counter(event.value for each in workers for event in each.stop())
    assert set(times) == wanted
    wait_until(lambda: not client.group(group).members, "the workers have left")
    wait_until(lambda: sum(each.lag for each in client.group(group).partitions) == 0, "the group has no lag")
    assert [each.end for each in client.group(group).partitions] == [
        each for _, each in sorted(client.offsets(topic, "latest").items())
    ]
    moves = client.reset_group(group, "earliest")
    assert len(moves) == len(assigned)
    assert {each.new for each in moves} == {0}


def test_a_member_joins_while_nobody_tells_where_a_partition_ends(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    topic, group, assigned = "thirds", "early", [[1], [2], [3]]
    [made] = cluster.admin.create_topics([NewTopic(topic, 3, replica_assignment=assigned)]).values()
    made.result(LONG_S)
    with client.producer(topic) as producer:
        for partition in range(3):
            producer.send(b"before", partition=partition)
    first = Worker(cluster, topic, group)
    wait_until(lambda: len(first.taken) == 3, "all events", LONG_S)
    first.stop()
    mine = coordinator(cluster, group)
    away = mine % 3 + 1
    cluster.brokers[away].kill()
    wait_until(lambda: client.group(group).partitions[away - 1].end == -1, "nobody tells of it", LONG_S)
    with client.producer(topic) as producer:
        producer.send(b"after", partition=mine - 1)
    second = Worker(cluster, topic, group)
    wait_until(lambda: bool(second.taken) or second.error is not None, "an event of one that is led", LONG_S)
    cluster.brokers[away].start()
    assert [event.value for event in second.stop()] == [b"after"]


@long
def test_a_durable_ack_is_not_forgotten(cluster: ClusterProcesses, client: blocking.Client) -> None:
    fill(client, "acked", 60)
    cluster.until_in_sync("acked")
    seen: set[bytes | None] = set()
    for _ in range(3):
        with client.consumer("acked", group="sure", max_records=20) as consumer:
            some = consumer.poll(LONG_S)[:20]
            consumer.ack(some, wait=True)
            assert not seen & {event.value for event in some}
            seen |= {event.value for event in some}
        killed = kill_coordinator(cluster, "sure")
        assert "sure" in {group.group for group in client.groups()}, "a list leaves nothing out, but waits"
        until_another(cluster, "sure", killed)
        cluster.brokers[killed].start()
        cluster.until_in_sync(SHARES)
        cluster.until_in_sync("acked")


def test_deliveries_are_counted_through_a_failover(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """An event that nobody acknowledges is dead-lettered after `max_deliveries`, even if the coordinator changes."""
    fill(client, "poison", 9, partitions=1)
    cluster.until_in_sync("poison")

    def refuse(times: int) -> None:
        """Polls, and nacks the first event. Acknowledges another one durably, so the nack is durable, too."""
        with client.consumer("poison", group="sick", max_deliveries=3, max_records=2) as consumer:
            events = consumer.poll(LONG_S)
            while len(events) < 2 and times < 3:  # polls before the nack; after it the first event may come again
                events += consumer.poll(LONG_S)
            first, *others = events
            assert (first.value, first.deliveries) == (b"0", times)
            consumer.nack(first)
            consumer.ack(others, wait=True)

    refuse(1)
    refuse(2)
    killed = kill_coordinator(cluster, "sick")
    until_another(cluster, "sick", killed)
    refuse(3)
    wait_until(lambda: "poison.sick.dead" in {each.name for each in client.topics()}, "the dead-letter topic", LONG_S)
    with client.consumer("poison.sick.dead", start="earliest") as dead:  # the topic may be there before the event
        end = time.monotonic() + PATIENCE
        while not (found := dead.poll(1)):
            assert time.monotonic() < end
    assert [event.value for event in found] == [b"0"]


def test_events_of_a_key_stay_in_order_through_a_failover(cluster: ClusterProcesses, client: blocking.Client) -> None:
    fill(client, "keyed", 1_000, keys=7)
    cluster.until_in_sync("keyed")
    workers = [Worker(cluster, "keyed", "inorder", "key") for _ in range(3)]
    wait_until(lambda: sum(len(each.taken) for each in workers) >= 200, "events", LONG_S)
    kill_coordinator(cluster, "inorder")
    wanted = {b"%d" % n for n in range(1_000)}
    wait_until(lambda: {e.value for each in workers for e in list(each.taken)} >= wanted, "all events", LONG_S)
    for worker in workers:
        last: dict[bytes | None, int] = {}
        for event in worker.stop():
            number = int(event.value or b"")
            assert event.deliveries > 1 or number > last.get(event.key, -1)
            last[event.key] = max(number, last.get(event.key, -1))


def test_a_group_is_moved_and_deleted_at_its_next_coordinator(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    fill(client, "moved", 30)
    client.commit("hand", {("moved", 0): 3})  # type: ignore[dict-item]
    killed = kill_coordinator(cluster, "hand")
    until_another(cluster, "hand", killed)
    assert {at.partition: floor for at, floor in client.positions("hand").items()} == {0: 3}
    client.delete_group("hand")
    cluster.brokers[killed].start()
    cluster.until_in_sync(SHARES)
    last = kill_coordinator(cluster, "hand")
    until_another(cluster, "hand", last)
    with pytest.raises(KrappyError, match="no group"):
        client.group("hand")


def make_at(cluster: ClusterProcesses, topic: str, replicas: list[int]) -> None:
    """Makes a topic of one partition. The first of these brokers leads it."""
    [made] = cluster.admin.create_topics([NewTopic(topic, 1, replica_assignment=[replicas])]).values()
    made.result(30)
    wait_until(lambda: (found := cluster.topic(topic)) is not None and found.partitions[0].leader == replicas[0], topic)
    cluster.until_led(topic)


def take_all(client: blocking.Client, topic: str, group: str, values: list[bytes]) -> None:
    """Publishes these values, and checks that the group gets exactly these events. Acknowledges them."""
    with client.producer(topic) as producer:
        producer.send_columns([b"k"] * len(values), values)
    with client.consumer(topic, group=group) as consumer:
        taken: list[Event] = []
        end = time.monotonic() + PATIENCE
        while len(taken) < len(values):
            assert time.monotonic() < end, f"only {len(taken)} events came"
            taken += consumer.poll(1)
        consumer.ack(taken, wait=True)
    assert [event.value for event in taken] == values


def test_a_topic_made_anew_is_read_from_its_start_by_a_coordinator_that_had_no_replica(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    fill(client, "other", 1)
    client.commit("elsewhere", {("other", 0): 0})  # type: ignore[dict-item]
    make_at(cluster, "anew", [coordinator(cluster, "elsewhere")])
    take_all(client, "anew", "elsewhere", [b"old %d" % n for n in range(20)])
    killed = kill_coordinator(cluster, "elsewhere")
    until_another(cluster, "elsewhere", killed)
    client.delete_topic("anew")
    wait_until(lambda: cluster.topic("anew") is None, "the topic is gone")
    make_at(cluster, "anew", [coordinator(cluster, "elsewhere")])
    take_all(client, "anew", "elsewhere", [b"new %d" % n for n in range(20)])


def test_a_topic_is_deleted_while_the_coordinator_is_away(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """When the coordinator is back, it learns of the deletion first, and then that it does not lead the group's
    partition any more."""
    fill(client, "gone", 20, partitions=1)
    with client.consumer("gone", group="zombie") as consumer:
        consumer.ack(consumer.poll(LONG_S), wait=True)
    away = coordinator(cluster, "zombie")
    other = next(id for id in cluster.running if id != away)
    with cluster.paused(away):
        with blocking.connect(str(cluster.brokers[other].settings["listen_native"]), timeout=LONG_S) as there:
            there.delete_topic("gone")
        until_another(cluster, "zombie", away)
    wait_until(lambda: len(cluster.events(away, "topic_deleted")) == 1, "the deletion is followed")
    cluster.until_in_sync(SHARES)


def test_a_topic_is_made_anew_while_the_coordinator_may_not_write(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """Too few replicas of the groups' topic are in sync. So the positions in the deleted topic can't be removed for a
    while."""
    fill(client, "other", 1)
    client.commit("lonely", {("other", 0): 0})  # type: ignore[dict-item]
    alone = coordinator(cluster, "lonely")
    make_at(cluster, "anew", [alone])
    take_all(client, "anew", "lonely", [b"old %d" % n for n in range(20)])
    others = [id for id in cluster.running if id != alone]
    for id in others:
        cluster.brokers[id].kill()
    wait_until(
        lambda: all(each.isrs == [alone] for each in cluster.partitions(SHARES).values()), "the rest left", LONG_S
    )
    client.delete_topic("anew")
    wait_until(lambda: cluster.topic("anew") is None, "the topic is gone")
    make_at(cluster, "anew", [alone])
    for id in others:
        cluster.brokers[id].start()
    cluster.until_in_sync(SHARES)
    take_all(client, "anew", "lonely", [b"new %d" % n for n in range(20)])


def test_acks_go_to_the_next_coordinator_when_a_paused_one_goes_on(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """The paused coordinator still has the member's connection, and refuses. The member asks the next coordinator by
    itself."""
    fill(client, "paused", 60)
    cluster.until_in_sync("paused")
    with client.consumer("paused", group="patient", max_records=20, lease_ms=60_000) as consumer:
        some: list[Event] = []
        while len(some) < 20:  # one poll may bring events of some partitions only
            some += consumer.poll(LONG_S)
        assert len(some) == 20
        late = some[10:]
        consumer.ack(some[:10], wait=True)
        before = coordinator(cluster, "patient")
        with cluster.paused(before):
            until_another(cluster, "patient", before)
        consumer.nack(late[5:])
        consumer.ack(late[:5], wait=True)
    settled = {(event.partition, event.offset) for event in [*some[:10], *late[:5]]}
    with client.consumer("paused", group="patient") as consumer:
        found: list[Event] = []
        while len(found) < 45:
            found += (polled := consumer.poll(LONG_S))
            consumer.ack(polled, wait=True)
    assert not settled & {(event.partition, event.offset) for event in found}
    assert len(found) == 45


def test_a_coordinator_that_wakes_up_gives_no_event_of_a_key(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """The coordinator was stopped and deposed. Its socket has an ack of the event that it leased last, and a poll. The
    next coordinator has leased this event to another member meanwhile, so the key's next event must not be leased."""
    fill(client, "woken", 6, partitions=1, keys=1)
    client.commit("keyed", {("woken", 0): 0})  # type: ignore[dict-item]
    for topic in ("woken", SHARES):
        cluster.until_in_sync(topic)
    before = coordinator(cluster, "keyed")
    joining = m.ConsumerRegistration(["woken"], "keyed", order="key", lease_ms=600_000)
    one = Peer(cluster.brokers[before].address)
    handle = one.ask(joining, m.ConsumerRegistered).handle
    leases = one.ask(m.Poll(handle, 1, 1 << 20, 60_000), m.Polled).leases
    assert [lease[2] for lease in leases or ()] == [0]
    with cluster.paused(before):
        until_another(cluster, "keyed", before)
        with blocking.connect(cluster.native, timeout=LONG_S) as other:
            consumer = other.consumer("woken", group="keyed", order="key", lease_ms=600_000, max_records=1)
            with consumer:
                assert [event.offset for event in consumer.poll(LONG_S)] == [0]
                _, polled = one.send(m.Ack(handle, [("woken", 0, 0, 0)]), m.Poll(handle, 1, 1 << 20, 500))
    try:
        leases = one.answer(polled, m.Polled).leases
    except KrappyError:
        leases = []
    one.close()
    assert not leases
    cluster.until_in_sync(SHARES)
