"""What has changed between two images, in words."""

from __future__ import annotations

from dataclasses import replace

from krappy.core.cluster.changes import ChangeKind, changes_between
from krappy.core.cluster.health import PartitionHealth, count_health, healing, health
from krappy.core.cluster.image import Image, PartitionImage, Registration, TopicImage
from krappy.core.cluster.replica_set import ReplicaSet
from krappy.core.cluster.state import NOBODY, PartitionState

STATE = PartitionState(1, 4, 0, (1, 2, 3), min_isr=2)


def image(*states: PartitionState, brokers: tuple[int, ...] = (1, 2, 3), controller: int | None = 1) -> Image:
    partitions = tuple(PartitionImage((1, 2, 3), state, 7) for state in states)
    topics = {"t": TopicImage("t", b"i" * 16, partitions)} if states else {}
    return Image({id: Registration(id, 0, {}) for id in brokers}, topics=topics, controller=controller)


def told(before: Image, after: Image) -> list[str]:
    return [each.text for each in changes_between(before, after)]


def test_nothing_has_changed() -> None:
    assert told(image(STATE), image(STATE)) == []


def test_a_leader_dies() -> None:
    after = image(STATE._replace(leader=2, leader_epoch=5, isr=(2, 3)), brokers=(2, 3), controller=2)
    assert told(image(STATE), after) == [
        "broker 1 is gone",
        "broker 2 is the controller",
        "t-0: broker 2 leads it instead of 1, in epoch 5",
        "t-0: in sync are 2, 3 (broker 1 left)",
    ]
    *_, isr = changes_between(image(STATE), after)
    assert (isr.kind, isr.before, isr.after, isr.shrinks, isr.expands) == (
        ChangeKind.ISR,
        (1, 2, 3),
        (2, 3),
        True,
        False,
    )


def test_a_partition_loses_its_last_leader_and_gets_one() -> None:
    none = STATE._replace(leader=NOBODY, leader_epoch=5, isr=(1,))
    assert told(image(STATE), image(none)) == [
        "t-0: nobody leads it, in epoch 5",
        "t-0: in sync are 1 (brokers 2, 3 left)",
    ]
    back = none._replace(leader=1, leader_epoch=6)
    assert told(image(none), image(back)) == ["t-0: broker 1 leads it, in epoch 6"]


def test_a_broker_comes_and_one_is_started_again() -> None:
    before = image(brokers=(1,), controller=None)
    after = replace(before, brokers={1: Registration(1, 3, {}), 2: Registration(2, 8, {})})
    assert told(before, after) == ["broker 1 was started again, in its epoch 3", "broker 2 is there, in its epoch 8"]
    assert told(image(brokers=(1,)), before) == ["no broker is the controller"]


def test_a_replica_is_healed() -> None:
    def seen(state: PartitionState, old_folder: bool = False, epoch: int = 0, **spoiled: str) -> Image:
        troubles = {name.replace("_", "-"): trouble for name, trouble in spoiled.items()}
        found = Registration(2, epoch, {}, old_folder=old_folder, spoiled=troubles)
        before = image(state)
        return replace(before, brokers={**before.brokers, 2: found})

    def shown(image: Image) -> list[str | None]:
        partition = image.topics["t"].partitions[0]
        return [healing(image, "t", 0, partition, broker) for broker in (1, 2, 3)]

    whole, damaged = seen(STATE), seen(STATE, t_0="damaged")
    assert told(whole, damaged) == ["t-0: the replica of broker 2 is spoiled (damaged)"]
    assert shown(damaged) == [None, "spoiled (damaged)", None]
    emptied = STATE._replace(isr=(1, 3), emptied=(2,))
    begun = seen(emptied, t_0="damaged")
    assert told(damaged, begun)[1:] == ["t-0: the replica of broker 2 begins anew"]
    assert shown(begun) == shown(seen(emptied)) == [None, "begins anew", None]
    assert told(begun, seen(emptied)) == told(begun, begun) == []
    assert told(seen(emptied), whole)[1:] == ["t-0: the replica of broker 2 is whole"]
    assert told(damaged, whole) == []
    refuses = seen(STATE, t_0="refuses")
    assert told(damaged, refuses) == ["t-0: the replica of broker 2 is spoiled (refuses)"]
    assert told(refuses, whole) == ["t-0: the replica of broker 2 takes events again"]
    assert told(whole, seen(STATE, epoch=1, t_1="damaged", u_0="damaged", nonsense="damaged")) == [
        "broker 2 was started again, in its epoch 1"
    ]
    old = seen(STATE._replace(isr=(1, 3)), old_folder=True, epoch=1)
    assert told(whole, old)[0] == "broker 2 was started again, in its epoch 1, with an old folder"
    assert shown(old) == [None, "old folder", None]
    assert shown(seen(STATE, old_folder=True)) == [None, None, None]


def test_a_topic_is_made_and_deleted() -> None:
    assert told(image(), image(STATE)) == [
        "the topic t was created: 1 partitions, 3 replicas of each",
        "t-0: broker 1 leads it, in epoch 4",
    ]
    assert told(image(STATE), image()) == ["the topic t was deleted"]


def test_how_whole_partitions_are() -> None:
    whole, small = STATE, STATE._replace(isr=(1,))
    gone = STATE._replace(leader=NOBODY, isr=(3,))
    seen = image(whole, small, gone, brokers=(1, 2))
    partitions = seen.topics["t"].partitions
    assert health(seen, partitions[0]) == PartitionHealth(False, False, False)
    assert health(seen, partitions[1]) == PartitionHealth(False, True, True)
    assert health(seen, partitions[2]) == PartitionHealth(True, True, True)
    assert count_health(seen, seen.topics["t"]) == (3, 1, 2, 2)
    assert count_health(seen, seen.topics["t"], led_by=1) == (2, 0, 1, 1)
    assert health(replace(seen, brokers={}), partitions[0]).offline


def test_how_far_followers_are() -> None:
    replicas = ReplicaSet(1, (1, 2, 3), 2, 10, 10, 0.0)
    replicas.fetched(2, 0, 15, 20, 1000.0)
    replicas.fetched(3, 0, 20, 20, 1500.0)
    lags = replicas.lags(22, 2000.0)
    assert lags[2] == (15, 7, 1000.0, None)
    assert lags[3] == (20, 2, 500.0, 500.0)
