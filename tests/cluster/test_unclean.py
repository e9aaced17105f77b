"""An unclean election takes acknowledged events from a topic's log. Clients that have read the lost events must also
get the events that come in their place. So groups go back to where the log was cut. A watch ends, because its table is
not the topic's any more."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Literal, NamedTuple

import msgpack
import pytest
from confluent_kafka.admin import NewTopic

from krappy import SnapshotEnd, blocking
from krappy.blocking import Consumer
from krappy.broker.groups.replicated import ID
from krappy.broker.topics.internal_topics import OFFSETS, SHARES
from krappy.core.cluster.coordinators import partition_of
from krappy.errors import KrappyError, LeaseLost, OffsetOutOfRange
from krappy.records import batch
from krappy.store.groups import STATE, group_key
from krappy.types import Entry, Event, Headers
from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.test_share_groups import group_leader, make_ready, set_everywhere
from tests.kafka.shares import ACCEPT, Member, beat
from tests.kafka.test_latest_wire import following, rows
from tests.process import wait_until

LONG_S = 60.0
# FIRST: the leader that dies. LOST: the broker that lacks events, and leads then. THIRD: a broker without a replica.
FIRST, LOST, THIRD = 1, 2, 3
KEPT, GONE, NEW = 20, 10, 5  # numbers of events: that both have, that only FIRST has, and that come in their place
TABLE = dict.fromkeys(map(str, range(KEPT)), "kept")  # the table of the kept events
_numbers = count(1)
Order = Literal["none", "key"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses) -> Iterator[ClusterProcesses]:
    with brokers(tmp_path_factory.mktemp("unclean"), shared=shared_processes) as made:
        make_ready(made)
        yield made
        made.check_errors()


def write(cluster: ClusterProcesses, topic: str, count: int, value: bytes, key: bytes | None = None) -> None:
    """Writes `count` events. `key`: the key of all events; None: each event has its own key."""
    [found] = cluster.partitions(topic).values()
    keys = [b"%d" % n if key is None else key for n in range(count)]
    data = batch.encode(keys, [value] * count, timestamps=1_700_000_000_000)
    with cluster.asked(found.leader) as raw:
        wait_until(lambda: raw.produce(topic, data)["error_code"] == 0, "it is written")


class Scene(NamedTuple):
    cluster: ClusterProcesses
    topic: str

    @classmethod
    def made(cls, cluster: ClusterProcesses) -> Scene:
        topic = f"t{next(_numbers)}"
        config = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        new = NewTopic(topic, 1, replica_assignment=[[FIRST, LOST]], config=config)
        [done] = cluster.admin.create_topics([new]).values()
        done.result(30)
        cluster.until_in_sync(topic)
        write(cluster, topic, KEPT, b"kept")
        return cls(cluster, topic)

    def name_at(self, internal: str, broker: int) -> str:
        """The name of a group that this broker coordinates, or whose states it keeps."""
        return next(name for n in _numbers if group_leader(self.cluster, internal, name := f"g{n}") == broker)

    def led_by(self) -> int:
        return self.cluster.partitions(self.topic)[0].leader

    def write_alone(self) -> None:
        """Writes events that only the first leader has."""
        self.cluster.brokers[LOST].kill()
        wait_until(lambda: self.cluster.partitions(self.topic)[0].isrs == [FIRST], "it is alone", LONG_S)
        write(self.cluster, self.topic, GONE, b"gone", b"gone")

    def lose(self) -> None:
        """Lets the other broker lead, which lacks these events."""
        self.cluster.brokers[FIRST].kill()
        self.cluster.brokers[LOST].start()
        wait_until(lambda: self.led_by() == LOST, "who lacks events leads", LONG_S)

    def share(self, group: str) -> list[int]:
        """Fetches as a member of a share group until records come, and acknowledges them. Returns their offsets."""
        coordinator = partial(group_leader, self.cluster, OFFSETS, group)
        wait_until(lambda: coordinator() in self.cluster.running, "there is a coordinator", LONG_S)
        with self.cluster.asked(self.led_by()) as raw, self.cluster.asked(coordinator()) as its:
            wait_until(lambda: beat(its, group, "one", 0, [self.topic])["error_code"] == 0, "it is a member", LONG_S)
            member = Member(raw, group, "one", self.topic, coordinator=its, wait_ms=500)
            found: list[tuple[int, int, int]] = []

            def look() -> bool:
                found.extend(member.acquired())
                return bool(found)

            wait_until(look, "records", LONG_S)
            assert member.acknowledge(*((first, last, [ACCEPT]) for first, last, _ in found)) == 0
        return [offset for first, last, _ in found for offset in range(first, last + 1)]

    def latest(self) -> dict[str, str | None]:
        """The topic's table, read as TOPIC@latest from its leader. {}: it can't be read now."""
        table: dict[str, str | None] = {}
        with self.cluster.asked(self.led_by()) as raw:
            offset, end = 0, 1
            while offset < end:
                found = raw.fetch(f"{self.topic}@latest", offset)
                if not found["records"]:
                    return {}
                table.update({key: value for _, key, value in rows(found["records"])})
                offset, end = following(found["records"]), found["high_watermark"]
        return table

    def heal(self) -> None:
        for each in self.cluster.brokers.values():
            if not each.running:
                each.start()
        self.cluster.until_known()
        for topic in (OFFSETS, SHARES, self.topic):
            self.cluster.until_in_sync(topic)


@contextlib.contextmanager
def scene(cluster: ClusterProcesses) -> Iterator[Scene]:
    """A scene that is healed at the end. At its beginning each broker leads internal partitions."""
    found = Scene.made(cluster)
    before = {index: each.replicas for index, each in cluster.partitions(SHARES).items()}
    for topic in (OFFSETS, SHARES):
        cluster.until_in_sync(topic)
        cluster.spread(topic)
    try:
        yield found
    finally:
        found.heal()
        moved = {index for index, each in cluster.partitions(SHARES).items() if each.replicas != before[index]}
        if moved:
            reassign(cluster, SHARES, {index: before[index] for index in moved})


@pytest.mark.parametrize("coordinator", [LOST, THIRD])
def test_groups_get_what_comes_in_place_of_lost_events(cluster: ClusterProcesses, coordinator: int) -> None:
    """This is so if the groups' coordinator leads the topic then, and if it reads from the topic's leader. One group
    has a member meanwhile, and one has none."""
    with scene(cluster) as made, blocking.connect(cluster.native, timeout=LONG_S) as client:
        busy, idle = made.name_at(SHARES, THIRD), made.name_at(SHARES, THIRD)
        with consumer(client, made.topic, busy) as reader:
            take(reader, KEPT)
            made.write_alone()
            take(reader, GONE)
            with consumer(client, made.topic, idle) as other:
                take(other, KEPT + GONE)
            made.lose()
            write(cluster, made.topic, NEW, b"new")
            if coordinator == LOST:
                move(cluster, SHARES, busy, idle)
            assert take(reader, NEW) == {b"new"}
        with consumer(client, made.topic, idle) as other:
            assert take(other, NEW) == {b"new"}


@pytest.mark.parametrize("order", ["none", "key"])
@pytest.mark.parametrize("coordinator", [LOST, THIRD])
def test_groups_get_all_of_a_log_that_has_grown_beyond_them(
    cluster: ClusterProcesses, coordinator: int, order: Order
) -> None:
    """The new log becomes longer than the old one was before a group reads again, or while its member polls all the
    time."""
    new = list(range(KEPT, KEPT + GONE + NEW))
    with scene(cluster) as made, blocking.connect(cluster.native, timeout=LONG_S) as client:
        busy, idle, fresh = (made.name_at(SHARES, THIRD) for _ in range(3))
        with consumer(client, made.topic, busy, order=order) as reader:
            take(reader, KEPT)
            made.write_alone()
            take(reader, GONE)
            with consumer(client, made.topic, idle, order=order) as other:
                take(other, KEPT + GONE)
            with consumer(client, made.topic, fresh, start="latest", order=order):
                pass  # this group has read nothing, and gets the events that come from now on
            with polling(reader) as got:
                made.lose()
                write(cluster, made.topic, GONE + NEW, b"new")
                if coordinator == LOST:
                    move(cluster, SHARES, busy, idle, fresh)
                wait_until(lambda: len(got) >= len(new), "all of it", LONG_S)
        assert {each.value for each in got} == {b"new"}
        assert sorted({each.offset for each in got}) == new
        for group in (idle, fresh):
            with consumer(client, made.topic, group, order=order) as other:
                assert [each.offset for each in taken(other, len(new))] == new


def test_an_ack_for_a_lost_event_is_none_for_the_one_in_its_place(cluster: ClusterProcesses) -> None:
    with scene(cluster) as made, blocking.connect(cluster.native, timeout=LONG_S) as client:
        group = made.name_at(SHARES, THIRD)
        with consumer(client, made.topic, group) as reader:
            take(reader, KEPT)
            made.write_alone()
            lost = polled(reader, GONE)
            made.lose()
            write(cluster, made.topic, GONE + NEW, b"new")
            new = polled(reader, GONE + NEW)
            assert {each.leader_epoch for each in lost} != {each.leader_epoch for each in new}
            assert {each.offset for each in lost} < {each.offset for each in new}
            with pytest.raises(LeaseLost):
                reader.ack(lost, wait=True)
            reader.ack(new[-NEW:], wait=True)
        with consumer(client, made.topic, group) as other:
            assert [each.offset for each in taken(other, GONE)] == list(range(KEPT, KEPT + GONE))


def test_what_was_not_acknowledged_comes_again_though_nothing_new_is_written(cluster: ClusterProcesses) -> None:
    """The group's coordinator has a replica of the new log. This log has no event of its leader's epoch yet."""
    with scene(cluster) as made, blocking.connect(cluster.native, timeout=LONG_S) as client:
        group = made.name_at(SHARES, FIRST)
        cluster.brokers[LOST].kill()
        wait_until(lambda: cluster.partitions(made.topic)[0].isrs == [FIRST], "it is alone", LONG_S)
        cluster.brokers[FIRST].kill()
        cluster.start_again(FIRST)
        wait_until(lambda: made.led_by() == FIRST, "it leads in a new epoch", LONG_S)
        write(cluster, made.topic, GONE, b"gone")
        with consumer(client, made.topic, group) as reader:
            events: list[Event] = []

            def look() -> bool:
                events.extend(reader.poll(1))
                return len(events) >= KEPT + GONE

            wait_until(look, "all events", LONG_S)
            reader.ack([each for each in events if each.value == b"gone"], wait=True)
        made.lose()
        made.heal()
        cluster.spread(SHARES)
        wait_until(lambda: group_leader(cluster, SHARES, group) == FIRST, "it coordinates", LONG_S)
        with consumer(client, made.topic, group) as reader:
            assert take(reader, KEPT) == {b"kept"}


def test_brokers_of_earlier_versions_can_read_positions(cluster: ClusterProcesses) -> None:
    """Leader epochs are in headers, which earlier versions do not read. A broker that can't read a state leaves it out,
    and the group begins anew."""
    with scene(cluster) as made, blocking.connect(cluster.native, timeout=LONG_S) as client:
        native, share = made.name_at(SHARES, THIRD), made.name_at(SHARES, THIRD)
        with consumer(client, made.topic, native) as reader:
            take(reader, KEPT)
        with cluster.asked(THIRD) as raw:
            set_everywhere(cluster, raw, share, {"share.auto.offset.reset": "earliest"})
        assert made.share(share) == list(range(KEPT))
        for group, head in ((native, 0), (share, 4)):
            value, headers = last_state(cluster, group, made.topic)
            assert msgpack.unpackb(value)[head:] == [1, KEPT, 0]
            assert [(name, msgpack.unpackb(told or b"")) for name, told in headers] == [("lineage", [0, 0, 0])]


def last_state(cluster: ClusterProcesses, group: str, topic: str) -> tuple[bytes, Headers]:
    """(the last state of a group in the topic's partition as it is kept, without the topic's id; its headers)."""
    key, index = group_key(STATE, group, topic, 0), partition_of(group, len(cluster.partitions(SHARES)))
    found: tuple[bytes, Headers] = b"", ()
    with cluster.asked(group_leader(cluster, SHARES, group)) as raw:
        offset, end = 0, 1
        while offset < end:
            answer = raw.fetch(SHARES, offset, index)
            for header, data in batch.split(answer["records"]):
                columns = batch.decode(bytes(data))
                headers = columns.headers or [()] * len(columns.values)
                for at, value, told in zip(columns.keys, columns.values, headers, strict=True):
                    if at == key and value is not None:
                        found = bytes(value)[ID:], told
                offset = header.next_offset
            end = answer["high_watermark"]
    return found


def test_a_reader_is_told_where_the_log_was_cut(cluster: ClusterProcesses) -> None:
    """It is told so even if the new log is longer by now than the part of the old one that it has read."""
    with scene(cluster) as made, blocking.connect(cluster.native, timeout=LONG_S) as client:
        with client.consumer(made.topic, start="earliest") as reader:
            read(reader, KEPT)
            made.write_alone()
            read(reader, GONE)
            made.lose()
            write(cluster, made.topic, GONE + NEW, b"new")
            with pytest.raises(OffsetOutOfRange, match="is lost from offset") as told:
                read(reader, NEW)
        assert told.value.end == KEPT
        with client.consumer(made.topic, start=told.value.end) as reader:
            assert read(reader, GONE + NEW) == {b"new"}


def test_no_lost_event_comes_from_what_a_coordinator_has_read_ahead(cluster: ClusterProcesses) -> None:
    with (
        scene(cluster) as made,
        blocking.connect(cluster.native, timeout=LONG_S) as client,
        consumer(client, made.topic, made.name_at(SHARES, THIRD), max_records=1) as reader,
    ):
        take(reader, KEPT)
        made.write_alone()
        take(reader, 1)
        made.lose()
        write(cluster, made.topic, GONE, b"new")
        assert take(reader, GONE) == {b"new"}


def move(cluster: ClusterProcesses, internal: str, *groups: str) -> None:
    """Makes LOST, the broker that leads the topic now, the coordinator of these groups, too."""
    indexes = {partition_of(group, len(cluster.partitions(internal))) for group in groups}
    reassign(cluster, internal, {index: [LOST, THIRD] for index in indexes})
    elect(cluster, internal, indexes)
    wait_until(lambda: {group_leader(cluster, internal, group) for group in groups} == {LOST}, "it coordinates", LONG_S)


def reassign(cluster: ClusterProcesses, topic: str, replicas: Mapping[int, list[int]]) -> None:
    rows = [{"partition_index": index, "replicas": some} for index, some in replicas.items()]
    with cluster.asked(LOST) as raw:
        moves = {"timeout_ms": 30_000, "topics": [{"name": topic, "partitions": rows}]}
        raw.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, moves)

    def replicated() -> bool:
        found = cluster.partitions(topic)
        return all(sorted(found[index].isrs) == sorted(some) for index, some in replicas.items())

    wait_until(replicated, "they are moved", LONG_S)


def elect(cluster: ClusterProcesses, topic: str, indexes: Collection[int]) -> None:
    """Lets the preferred replicas of these partitions lead."""
    body = {"election_type": 0, "topic_partitions": [{"topic": topic, "partitions": [*indexes]}]}
    with cluster.asked(LOST) as raw:
        raw.ask(ApiKey.ELECT_LEADERS, {"timeout_ms": 30_000, **body})


@pytest.mark.parametrize("more", [NEW, GONE + NEW])
def test_a_share_group_gets_what_comes_in_place_of_lost_events(cluster: ClusterProcesses, more: int) -> None:
    with scene(cluster) as made:
        group = made.name_at(SHARES, THIRD)
        with cluster.asked(THIRD) as raw:
            set_everywhere(cluster, raw, group, {"share.auto.offset.reset": "earliest"})
        assert made.share(group) == list(range(KEPT))
        made.write_alone()
        assert made.share(group) == list(range(KEPT, KEPT + GONE))
        made.lose()
        write(cluster, made.topic, more, b"new")
        assert made.share(group) == list(range(KEPT, KEPT + more))


def test_the_table_that_a_broker_has_made_of_lost_events_is_given_to_nobody(cluster: ClusterProcesses) -> None:
    """This broker lives on, and leads again when the new log has as many events as its old one had."""
    with scene(cluster) as made:
        made.write_alone()
        wait_until(lambda: made.latest() == {**TABLE, "gone": "gone"}, "its table is made", LONG_S)
        with cluster.paused(FIRST):
            cluster.brokers[LOST].start()
            wait_until(lambda: made.led_by() == LOST, "who lacks events leads", LONG_S)
            write(cluster, made.topic, GONE, b"new")
        made.heal()
        elect(cluster, made.topic, [0])
        wait_until(lambda: made.led_by() == FIRST, "it leads again", LONG_S)
        table = {**TABLE, **dict.fromkeys(map(str, range(GONE)), "new")}
        wait_until(lambda: made.latest() == table, "its table is the topic's", 10)


def test_a_watch_of_what_was_lost_ends(cluster: ClusterProcesses) -> None:
    with scene(cluster) as made, blocking.connect(cluster.native, timeout=LONG_S) as client:
        seen: list[Entry] = []
        ends: list[Exception] = []

        def run() -> None:
            try:
                with client.table(made.topic).watch() as changes:
                    seen.extend(each for each in changes if isinstance(each, Entry))
            except KrappyError as error:
                ends.append(error)

        watching = threading.Thread(target=run)
        watching.start()
        made.write_alone()
        wait_until(lambda: seen[-1:] != [] and seen[-1].value == b"gone", "it is told", LONG_S)
        made.lose()
        write(cluster, made.topic, NEW, b"new")
        watching.join(LONG_S)
        assert [type(each) for each in ends] == [OffsetOutOfRange]


def test_a_watch_that_goes_on_late_ends_too(cluster: ClusterProcesses) -> None:
    """It ends even if the new log is longer by then than the part of the old one that the watch has shown."""
    with (
        scene(cluster) as made,
        blocking.connect(cluster.native, timeout=LONG_S) as client,
        client.table(made.topic).watch() as changes,
    ):
        assert len([*iter(partial(next, changes), SnapshotEnd({0: KEPT}))]) == KEPT
        made.write_alone()
        for _ in range(GONE):
            told = next(changes)
            assert isinstance(told, Entry)
            assert told.value == b"gone"
        made.lose()
        write(cluster, made.topic, GONE + NEW, b"new")
        with pytest.raises(OffsetOutOfRange, match=f"is lost from offset {KEPT} on"):
            next(changes)


def consumer(
    client: blocking.Client,
    topic: str,
    group: str,
    max_records: int = 100,
    start: Literal["earliest", "latest"] = "earliest",
    order: Order = "none",
) -> Consumer:
    return client.consumer(topic, group=group, start=start, order=order, max_records=max_records)


@contextlib.contextmanager
def polling(consumer: Consumer) -> Iterator[list[Event]]:
    """Polls and acknowledges all the time during the block. Yields the list of the events that it has got."""
    got: list[Event] = []
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            got.extend(taken(consumer, 0))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield got
    finally:
        over.set()
        thread.join(LONG_S)


def read(consumer: Consumer, count: int) -> set[bytes | None]:
    """Reads `count` events; returns their values."""
    events = polled(consumer, count)
    assert len(events) == count
    return {each.value for each in events}


def take(consumer: Consumer, count: int) -> set[bytes | None]:
    """Polls until there are `count` events, and acknowledges them durably; returns their values."""
    return {each.value for each in taken(consumer, count)}


def polled(consumer: Consumer, count: int) -> list[Event]:
    """Polls until there are `count` events; returns them."""
    found: list[Event] = []

    def look() -> bool:
        found.extend(consumer.poll(1))
        return len(found) >= count

    wait_until(look, f"{count} events", LONG_S)
    return found


def taken(consumer: Consumer, count: int) -> list[Event]:
    """Polls until there are `count` events, and acknowledges them durably; returns them."""
    found: list[Event] = []

    def look() -> bool:
        events = [*consumer.poll(1)]
        with contextlib.suppress(LeaseLost):  # their log was cut meanwhile
            consumer.ack(events, wait=True)
        found.extend(events)
        return len(found) >= count

    wait_until(look, f"{count} events", LONG_S)
    return found
