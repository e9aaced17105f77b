"""A replica whose log is damaged, or has lost events, is made anew from its leader, whatever happens meanwhile. The
last replica in sync stays as it is. No replica leads that lacks acknowledged events. The tests flip bytes of files
under running or stopped brokers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from krappy import blocking
from krappy.cli.main import run
from krappy.core.epochs import LAST
from krappy.errors import KrappyError
from krappy.records import batch
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.dying import STEPS, dies_at, dying, has_died
from tests.cluster.failing_disk import failing_at
from tests.cluster.test_lookout import state_by, watching
from tests.cluster.zookeeper import ZooKeeperServer
from tests.long import some
from tests.process import wait_until

LONG_S = 60.0
SMALL = {"segment.bytes": "20000"}
VALUES = [b"%d." % number * 300 for number in range(100)]


@pytest.fixture
def cluster(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> Iterator[ClusterProcesses]:
    """A cluster in which no follower leaves the ISR because it lags."""
    shared = SharedProcesses(shared_zookeeper, dying)
    with brokers(tmp_path, shared=shared, replica_lag_time_max_ms=600_000, cleaner_backoff_ms=300) as made:
        yield made
        made.check_errors()


@pytest.fixture
def client(cluster: ClusterProcesses) -> Iterator[blocking.Client]:
    with blocking.connect(cluster.native, timeout=LONG_S) as made:
        yield made


def filled(cluster: ClusterProcesses, client: blocking.Client, values: list[bytes] = VALUES, **config: str) -> int:
    """Makes the topic, with these events in many segments; returns its leader."""
    client.create_topic("t", 1, {**SMALL, **{name.replace("_", "."): value for name, value in config.items()}})
    cluster.until_in_sync("t")
    add(client, values)
    return cluster.partitions("t")[0].leader


def add(client: blocking.Client, values: list[bytes]) -> None:
    with client.producer("t") as producer:
        for number, value in enumerate(values):
            producer.send(value, key=b"%d" % (number % 10)).result(LONG_S)


def segments(cluster: ClusterProcesses, id: int) -> list[Path]:
    return sorted((cluster.brokers[id].data / "topics" / "t-0").glob("*.log"))


def flip(cluster: ClusterProcesses, id: int, value: bytes) -> None:
    """Changes a byte of the event with this value on a broker's disk."""
    for segment in segments(cluster, id):
        content = segment.read_bytes()
        if (at := content.find(value)) >= 0:
            with segment.open("r+b") as file:
                file.seek(at + 3)
                file.write(bytes([content[at + 3] ^ 1]))
            return
    raise AssertionError(f"no segment of broker {id} has it")


def set_epoch(segment: Path, number: int, epoch: int) -> None:
    """Writes a leader epoch into a batch of this segment. No checksum covers it. `number`: of the batch; if it is
    negative, it counts from the end."""
    data = segment.read_bytes()
    places, at = list[int](), 0
    while at < len(data):
        places.append(at)
        at += batch.read_header(data, at).size
    with segment.open("r+b") as file:
        file.seek(places[number] + 12)
        file.write(epoch.to_bytes(4, "big", signed=True))


def copy_from(cluster: ClusterProcesses, id: int) -> None:
    """Removes the log of another broker, which then copies it again from this broker, the leader."""
    other = cluster.brokers[id % 3 + 1]
    other.stop()
    shutil.rmtree(other.data / "topics" / "t-0")
    other.start()


def read(client: blocking.Client) -> list[bytes | None]:
    with client.consumer("t", end="now") as consumer:
        return [event.value for event in consumer]


def reads(client: blocking.Client, values: list[bytes]) -> bool:
    with suppress(KrappyError):
        return read(client) == values
    return False


def until_anew(cluster: ClusterProcesses, *ids: int) -> None:
    """Waits until these brokers have made their replicas anew, and all replicas are in sync."""
    for id in ids:
        wait_until(
            lambda id=id: bool(cluster.events(id, "replica_begins_anew")),  # type: ignore[misc]
            f"broker {id} has begun anew",
        )
    cluster.until_in_sync("t")


def check_the_same(cluster: ClusterProcesses, client: blocking.Client, values: list[bytes]) -> None:
    """Checks that all replicas get in sync and have the same bytes, and that the table is right."""
    add(client, [b"last"])
    values = [*values, b"last"]
    cluster.until_in_sync("t")
    assert read(client) == values
    entry = client.table("t").get("0")
    assert entry is not None
    assert entry.value == b"last"
    for broker in cluster.brokers.values():
        broker.stop()
    logs = {id: b"".join(each.read_bytes() for each in segments(cluster, id)) for id in cluster.brokers}
    assert logs[1] == logs[2] == logs[3], {id: len(log) for id, log in logs.items()}
    assert all(values[0] in log and values[-2] in log for log in logs.values())


def test_a_damaged_leader_is_made_anew(cluster: ClusterProcesses, client: blocking.Client) -> None:
    leader = filled(cluster, client)
    flip(cluster, leader, VALUES[5])
    wait_until(lambda: reads(client, VALUES), "all of it is read")
    until_anew(cluster, leader)
    assert cluster.partitions("t")[0].leader != leader
    wait_until(lambda: len(cluster.events(leader, "replica_whole")) > 0, "it is whole")
    assert not list((cluster.brokers[leader].data / "set-aside").glob("*"))
    check_the_same(cluster, client, VALUES)


def test_a_damaged_follower_is_made_anew(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """The follower's cleaner finds the damage."""
    leader = filled(cluster, client)
    follower = leader % 3 + 1
    flip(cluster, follower, VALUES[5])
    client.alter_topic("t", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    until_anew(cluster, follower)
    for id in cluster.brokers:
        assert bool(cluster.events(id, "replica_spoiled")) == (id == follower)


@pytest.mark.parametrize("spoil", ["event", "epoch"])
def test_damage_that_nobody_meets_is_found(tmp_path: Path, shared_zookeeper: ZooKeeperServer, spoil: str) -> None:
    """The broker finds it by itself, because it reads all of its logs now and then. `spoil`: what is damaged in the
    middle of a segment: an event, or a leader epoch, which no checksum covers."""
    with (
        brokers(tmp_path, shared=SharedProcesses(shared_zookeeper, dying), scrub_interval_ms=500) as cluster,
        blocking.connect(cluster.native, timeout=LONG_S) as client,
    ):
        leader = filled(cluster, client)
        follower = leader % 3 + 1
        if spoil == "event":
            flip(cluster, follower, VALUES[5])
        else:
            set_epoch(segments(cluster, follower)[0], 5, 7)
        until_anew(cluster, follower)
        for id in cluster.brokers:
            assert bool(cluster.events(id, "replica_spoiled")) == (id == follower)
        check_the_same(cluster, client, VALUES)


def test_everybody_is_shown_how_a_replica_is_healed(
    cluster: ClusterProcesses, client: blocking.Client, tmp_path: Path
) -> None:
    """Each broker shows it, in the words of the log of the replica's broker."""
    leader = filled(cluster, client)
    follower, other = (id for id in cluster.brokers if id != leader)
    with watching(cluster, other, tmp_path / "told") as lines:
        wait_until(lambda: "1 partition:" in lines(), "the watch has begun")
        flip(cluster, follower, VALUES[5])
        client.alter_topic("t", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        wait_until(lambda: "is whole" in lines(), "it is told")
        told = [line.partition(f"t-0: the replica of broker {follower} ")[2] for line in lines().splitlines()]
        assert [each for each in told if each] == ["is spoiled (damaged)", "begins anew", "is whole"]
    wait_until(lambda: not any(healings(cluster, other).values()), "nobody is told that anything ails it")


def healings(cluster: ClusterProcesses, at: int) -> dict[int, str | None]:
    """What one broker says about the replicas of the partition in trouble, by the replica's broker. None: it is
    healthy."""
    return {
        each["broker"]: each["healing"]
        for topic in state_by(cluster, at, troubled="true")["topics"]
        for partition in topic["partitions"]
        for each in partition["replicas"]
    }


def test_two_replicas_that_are_damaged_in_two_places(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """The broker that leads next is damaged, too. Both replicas are made anew from the third."""
    leader = filled(cluster, client)
    _, second, third = cluster.partitions("t")[0].replicas
    flip(cluster, leader, VALUES[5])
    flip(cluster, second, VALUES[50])
    flip(cluster, second, VALUES[5])
    wait_until(lambda: reads(client, VALUES), "all of it is read")
    until_anew(cluster, leader, second)
    assert not cluster.events(third, "replica_begins_anew")
    check_the_same(cluster, client, VALUES)


def test_two_damaged_replicas_while_the_third_is_out_of_sync(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """Each of the two has events that the other lacks, so neither is made anew from the other. The third one copies
    from both."""
    leader = filled(cluster, client, VALUES[:30])
    follower, third = (id for id in cluster.brokers if id != leader)
    cluster.brokers[third].stop()
    add(client, VALUES[30:])
    flip(cluster, leader, VALUES[50])
    flip(cluster, follower, VALUES[70])
    for id in (leader, follower):
        wait_until(lambda id=id: finds(cluster, client, id), f"broker {id} knows its damage")  # type: ignore[misc]
    for _ in range(3):
        led = cluster.partitions("t")[0].leader
        wait_until(lambda led=led: cluster.partitions("t")[0].leader not in (led, -1), "they lead in turns")  # type: ignore[misc]
        read_some(client)
    both = dict.fromkeys((leader, follower), "spoiled (damaged)")
    wait_until(lambda: both.items() <= healings(cluster, leader).items(), "the trouble of both is told")
    for id in (leader, follower):
        assert not cluster.events(id, "replica_begins_anew")
        assert id in cluster.partitions("t")[0].isrs
    cluster.brokers[third].start()
    until_anew(cluster, leader, follower)
    assert not cluster.events(third, "replica_begins_anew")
    check_the_same(cluster, client, VALUES)


def finds(cluster: ClusterProcesses, client: blocking.Client, id: int) -> bool:
    read_some(client)
    return len(cluster.events(id, "replica_spoiled")) > 0


def read_some(client: blocking.Client) -> None:
    """Checks that a reader gets the right events, perhaps only the first of them."""
    values: list[bytes | None] = []
    with suppress(KrappyError), client.consumer("t", end="now") as consumer:
        values.extend(event.value for event in consumer)
    assert values == VALUES[: len(values)]


@pytest.mark.parametrize("step", some(STEPS, 3))
def test_a_broker_is_killed_while_its_replica_is_made_anew(
    cluster: ClusterProcesses, client: blocking.Client, step: str
) -> None:
    leader = filled(cluster, client)
    dies_at(cluster.brokers[leader], step)
    flip(cluster, leader, VALUES[5])
    with suppress(KrappyError):
        read(client)
    wait_until(lambda: has_died(cluster.brokers[leader]), f"it has died: {step}")
    add(client, [b"meanwhile"])
    cluster.brokers[leader].start()
    cluster.until_in_sync("t")
    check_the_same(cluster, client, [*VALUES, b"meanwhile"])


def test_the_last_replica_in_sync_stays(
    cluster: ClusterProcesses, client: blocking.Client, capfd: pytest.CaptureFixture[str]
) -> None:
    """The only replica in sync is damaged, and its broker is started again. No other replica has its events."""
    leader = filled(cluster, client, min_insync_replicas="1")
    others = [id for id in cluster.brokers if id != leader]
    for id in others:
        cluster.brokers[id].stop()
    wait_until(lambda: cluster.partitions("t")[0].isrs == [leader], "it is alone")
    add(client, [b"alone"])
    flip(cluster, leader, VALUES[50])
    for restart in (False, True):
        if restart:
            cluster.brokers[leader].kill()
            cluster.brokers[leader].start()
        with pytest.raises(KrappyError):
            read(client)
        wait_until(lambda: len(cluster.events(leader, "replica_spoiled")) > 0, "the damage is known")
        with client.consumer("t", start=51, end="now") as consumer:
            assert [event.value for event in consumer] == [*VALUES[51:], b"alone"]
        time.sleep(3)  # a replica that may leave the ISR would leave it in this time
        assert cluster.partitions("t")[0].isrs == [leader]
        assert cluster.partitions("t")[0].leader == leader
        wait_until(lambda: healings(cluster, leader).get(leader) == "spoiled (damaged)", "all are told")
        assert run(["cluster", "--url", cluster.brokers[leader].http]) == 0
        assert f"{leader} spoiled (damaged)" in capfd.readouterr().out
    assert not (anew := cluster.events(leader, "replica_begins_anew")), anew
    assert not list((cluster.brokers[leader].data / "set-aside").glob("*"))


def test_a_log_that_cant_be_opened(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """A segment of the log is gone. Other replicas have all events, so this one is made anew."""
    leader = filled(cluster, client)
    lost = cluster.brokers[leader]
    lost.stop()
    segments(cluster, leader)[1].unlink()
    lost.start()
    until_anew(cluster, leader)
    assert cluster.events(leader, "partition_offline")
    check_the_same(cluster, client, VALUES)


def test_the_last_replica_in_sync_stays_though_it_cant_be_opened(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """Its log can be opened again once somebody has brought the missing segment back."""
    leader = filled(cluster, client, min_insync_replicas="1")
    others = [id for id in cluster.brokers if id != leader]
    for id in others:
        cluster.brokers[id].stop()
    wait_until(lambda: cluster.partitions("t")[0].isrs == [leader], "it is alone")
    add(client, [b"alone"])
    alone = cluster.brokers[leader]
    alone.stop()
    segment = segments(cluster, leader)[1]
    content = segment.read_bytes()
    segment.unlink()
    for broker in cluster.brokers.values():
        broker.start()
    time.sleep(5)  # a replica that may leave the ISR would leave it in this time
    assert cluster.states("t")[0]["isr"] == [leader]
    assert not (anew := cluster.events(leader, "replica_begins_anew")), anew
    assert not list((alone.data / "set-aside").glob("*"))
    alone.stop()
    segment.write_bytes(content)
    alone.start()
    wait_until(lambda: reads(client, [*VALUES, b"alone"]), "all of it is read")
    check_the_same(cluster, client, [*VALUES, b"alone"])


def test_a_broker_that_lacks_acknowledged_events_never_leads(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """All brokers are killed. The first one that comes back has damage at its log's end, and its recovery cuts that
    off."""
    leader = filled(cluster, client)
    for broker in cluster.brokers.values():
        broker.kill()
    flip(cluster, leader, VALUES[-1])
    cluster.brokers[leader].start()
    wait_until(lambda: len(cluster.events(leader, "replica_lost")) > 0, "it knows")
    wait_until(lambda: cluster.states("t")[0]["isr"] and leader not in cluster.states("t")[0]["isr"], "it is out")
    time.sleep(3)
    assert cluster.partitions("t")[0].leader != leader
    for id, broker in cluster.brokers.items():
        if id != leader:
            broker.start()
    wait_until(lambda: reads(client, VALUES), "all of it is read")
    until_anew(cluster, leader)
    check_the_same(cluster, client, VALUES)


def test_a_failed_disk_that_works_again(cluster: ClusterProcesses, client: blocking.Client) -> None:
    leader = filled(cluster, client)
    with failing_at(cluster.brokers[leader], "/t-0/"):
        add(client, [b"meanwhile"])
        wait_until(lambda: leader not in cluster.partitions("t")[0].isrs, "it is not in sync")
        wait_until(lambda: len(cluster.events(leader, "replica_waits")) >= 2, "it has tried again")
    cluster.until_in_sync("t")
    assert cluster.events(leader, "log_reopened")
    assert not (anew := cluster.events(leader, "replica_begins_anew")), anew
    check_the_same(cluster, client, [*VALUES, b"meanwhile"])


# --- leader epochs: no checksum covers them


def test_a_damaged_leader_epoch_at_the_end_of_a_killed_follower(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """The damaged epoch is the highest that there can be. No broker takes it for the partition's epoch."""
    leader = filled(cluster, client)
    follower = leader % 3 + 1
    cluster.brokers[follower].kill()
    set_epoch(segments(cluster, follower)[-1], -1, LAST)
    cluster.brokers[follower].start()
    until_anew(cluster, follower)
    assert cluster.states("t")[0]["leader_epoch"] < 100
    check_the_same(cluster, client, VALUES)


@pytest.mark.parametrize("epoch", some([1 << 24, LAST, -7], 3))
def test_a_leader_with_a_damaged_leader_epoch_is_made_anew(
    cluster: ClusterProcesses, client: blocking.Client, epoch: int
) -> None:
    leader = filled(cluster, client)
    set_epoch(segments(cluster, leader)[1], 3, epoch)
    copy_from(cluster, leader)
    until_anew(cluster, leader)
    check_the_same(cluster, client, VALUES)


def elections(cluster: ClusterProcesses, client: blocking.Client) -> int:
    """Makes the topic with events of two leader epochs; returns the last epoch. The present leader has not led
    before."""
    filled(cluster, client)
    for id in cluster.brokers:
        cluster.brokers[id].stop()
        cluster.brokers[id].start()
        cluster.until_in_sync("t")
    add(client, VALUES)
    epoch: int = cluster.states("t")[0]["leader_epoch"]
    return epoch


@pytest.mark.parametrize("epoch", some([0, 1], 2))
def test_a_leader_with_a_leader_epoch_of_before_is_made_anew(
    cluster: ClusterProcesses, client: blocking.Client, epoch: int
) -> None:
    """Some of the log's events really have this earlier epoch."""
    assert elections(cluster, client) > epoch
    leader = cluster.partitions("t")[0].leader
    set_epoch(segments(cluster, leader)[-2], 2, epoch)
    copy_from(cluster, leader)
    until_anew(cluster, leader)
    check_the_same(cluster, client, VALUES * 2)


@pytest.mark.parametrize("number", some([3, -1], 2))
def test_a_leader_with_the_current_leader_epoch_too_early_is_made_anew(
    cluster: ClusterProcesses, client: blocking.Client, number: int
) -> None:
    """The current epoch stands too early in the leader's log. The follower believes that, until events of an earlier
    epoch come."""
    epoch = elections(cluster, client)
    leader = cluster.partitions("t")[0].leader
    set_epoch(segments(cluster, leader)[1], number, epoch)
    copy_from(cluster, leader)
    until_anew(cluster, leader)
    check_the_same(cluster, client, VALUES * 2)


def test_a_killed_follower_whose_last_event_has_a_later_leader_epoch(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """The follower has missed the events of that later epoch."""
    leader = filled(cluster, client)
    follower = leader % 3 + 1
    cluster.brokers[follower].kill()
    wait_until(lambda: follower not in cluster.partitions("t")[0].isrs, "it is out of sync")
    cluster.brokers[leader].stop()
    cluster.brokers[leader].start()
    wait_until(lambda: len(cluster.partitions("t")[0].isrs) == 2, "the others are in sync")
    add(client, VALUES)
    set_epoch(segments(cluster, follower)[-1], -1, cluster.states("t")[0]["leader_epoch"])
    cluster.brokers[follower].start()
    check_the_same(cluster, client, VALUES * 2)
