"""Consumer groups: members share the work, come, go, and the group's positions are kept."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest

from tests.compat.clients.base import PATIENCE, Client, Member, Message, Protocol848, Refused, Sending
from tests.compat.clients.confluent import Confluent
from tests.compat.conftest import GetClient, NewTopic
from tests.compat.servers import Server

PARTITIONS = 4
WRITER = Confluent()
_numbers = itertools.count()
CLASSIC = ["confluent-kafka", "kafka-python", "aiokafka", "kafkajs", "java-3", "java-4", "sarama", "kafka-go"]
MODERN = ["confluent-kafka", "java-4"]
BOTH: list[tuple[str, Protocol848]] = [(name, "classic") for name in CLASSIC]
BOTH += [(name, "consumer") for name in MODERN]


def new_group() -> str:
    return f"group-{next(_numbers)}"


def write(running: Server, topic: str, start: int, count: int) -> None:
    sent = [Message(b"k", b"%d" % n, (), None, n % PARTITIONS) for n in range(start, start + count)]
    WRITER.produce(running.address, topic, sent, Sending())


def settle(members: Sequence[Member], partitions: int = PARTITIONS) -> list[Message]:
    """Polls all members in turn until they hold all partitions, and each holds some; returns the messages that came
    meanwhile."""
    end = time.monotonic() + PATIENCE
    found = []
    while True:
        for member in members:
            found += member.poll()
        held = [member.assignment() for member in members]
        if sum(map(len, held)) == partitions == len(set().union(*held)) and all(held):
            return found
        assert time.monotonic() < end, f"the members hold {held}"


def drain(members: Sequence[Member], count: int) -> list[Message]:
    """Polls all members in turn until `count` messages have come."""
    end = time.monotonic() + PATIENCE
    found: list[Message] = []
    while len(found) < count:
        for member in members:
            found += member.poll()
        assert time.monotonic() < end, f"{len(found)} of {count} messages came"
    return found


def numbers(messages: Sequence[Message]) -> list[int]:
    return sorted(int(message.value or b"-1") for message in messages)


@pytest.mark.parametrize(("name", "protocol"), BOTH)
def test_members_share_leave_and_take_over(
    name: str, protocol: Protocol848, get_client: GetClient, running: Server, new_topic: NewTopic
) -> None:
    client = get_client(name)
    topic, group = new_topic(partitions=PARTITIONS), new_group()
    first = client.member(running.address, topic, group, protocol=protocol)
    settle([first])
    second = client.member(running.address, topic, group, protocol=protocol)
    settle([first, second])
    assert len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2
    write(running, topic, 0, 40)
    assert numbers(drain([first, second], 40)) == list(range(40)), "each exactly once"
    first.commit()
    second.commit()
    second.close()
    settle([first])
    write(running, topic, 40, 40)
    assert numbers(drain([first], 40)) == list(range(40, 80)), "the committed position is where it goes on"
    first.commit()
    first.close()
    write(running, topic, 80, 8)
    third = client.member(running.address, topic, group, protocol=protocol)
    assert numbers(drain([third], 8)) == list(range(80, 88)), "the group's position outlives its members"
    third.close()


@pytest.mark.parametrize("modern", MODERN)
@pytest.mark.parametrize("name", [name for name in CLASSIC if name != "kafka-go"])  # below
def test_a_group_moves_to_kip_848_and_back_under_its_members(
    name: str, modern: str, get_client: GetClient, running: Server, new_topic: NewTopic
) -> None:
    """Online migration: a member of the other protocol comes, is the only one for a while, and leaves."""
    topic, group = new_topic(partitions=PARTITIONS), new_group()
    old, new = get_client(name), get_client(modern)
    first = old.member(running.address, topic, group)
    settle([first])
    write(running, topic, 0, 40)
    assert numbers(drain([first], 40)) == list(range(40))
    first.commit()
    second = new.member(running.address, topic, group, protocol="consumer")
    settle([first, second])
    write(running, topic, 40, 40)
    assert numbers(drain([first, second], 40)) == list(range(40, 80)), "each exactly once, from where it was"
    first.commit()
    second.commit()
    first.close()
    settle([second])
    third = old.member(running.address, topic, group)
    settle([second, third])
    write(running, topic, 80, 40)
    assert numbers(drain([second, third], 40)) == list(range(80, 120))
    second.commit()
    third.commit()
    second.close()
    settle([third])
    write(running, topic, 120, 40)
    assert numbers(drain([third], 40)) == list(range(120, 160))
    third.close()


def test_a_group_of_kafka_go_does_not_move_to_kip_848(
    get_client: GetClient, running: Server, new_topic: NewTopic
) -> None:
    """What its members send lacks the owned partitions, which that version has. Kafka refuses it with the same code."""
    topic, group = new_topic(partitions=PARTITIONS), new_group()
    member = get_client("kafka-go").member(running.address, topic, group)
    settle([member])
    modern = get_client("java-4").member(running.address, topic, group, protocol="consumer")
    with pytest.raises(Refused, match="GroupIdNotFound"):
        drain([modern], 1)
    modern.close()
    write(running, topic, 0, 40)
    assert numbers(drain([member], 40)) == list(range(40)), "the group goes on"
    member.close()


def test_clients_of_different_languages_share_one_group(
    get_client: GetClient, running: Server, new_topic: NewTopic
) -> None:
    """They use the assignor that they have in common (range)."""
    topic, group = new_topic(partitions=PARTITIONS), new_group()
    clients = [get_client("confluent-kafka"), get_client("kafka-python"), get_client("confluent-kafka")]
    for name in ("java-3", "java-4"):
        try:
            clients[-1] = get_client(name)
        except pytest.skip.Exception:
            continue
    members: list[Member] = []
    for client in clients:
        members.append(client.member(running.address, topic, group))
        settle(members)
    write(running, topic, 0, 40)
    assert numbers(drain(members, 40)) == list(range(40))
    for member in members:
        member.close()


@pytest.mark.parametrize("name", ["confluent-kafka", "kafka-python", "aiokafka", "java-3", "java-4"])
def test_a_static_member_comes_back_without_a_rebalance(
    name: str, get_client: GetClient, running: Server, new_topic: NewTopic
) -> None:
    """KIP-345: closing does not leave the group, and the next member of that instance name takes over the same
    partitions."""
    client = get_client(name)
    topic, group = new_topic(partitions=PARTITIONS), new_group()
    first = client.member(running.address, topic, group, instance="one")
    second = client.member(running.address, topic, group, instance="two")
    settle([first, second])
    kept, before = first.assignment(), second.assignment()
    second.close()
    second = client.member(running.address, topic, group, instance="two")
    settle([first, second])
    assert second.assignment() == before
    assert first.assignment() == kept
    write(running, topic, 0, 40)
    assert numbers(drain([first, second], 40)) == list(range(40))
    first.close()
    second.close()


def test_two_of_one_instance_name_fence_each_other(running: Server, new_topic: NewTopic) -> None:
    topic, group = new_topic(partitions=PARTITIONS), new_group()
    older = WRITER.member(running.address, topic, group, instance="one")
    settle([older])
    newer = WRITER.member(running.address, topic, group, instance="one")

    def both() -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            newer.poll()
            older.poll()

    with pytest.raises(Refused) as refused:
        both()
    assert "fenced" in refused.value.reason
    settle([newer])
    older.close()
    newer.close()


def test_positions_and_their_metadata_survive_a_restart(client: Client, running: Server, new_topic: NewTopic) -> None:
    if client.name == "kcat":
        pytest.skip("kcat commits by itself: test_kcat.py")
    topic, group = new_topic(partitions=PARTITIONS), new_group()
    write(running, topic, 0, 20)
    member = client.member(running.address, topic, group)
    assert numbers(drain([member], 20)) == list(range(20))
    member.commit()
    member.close()
    running.kill()
    running.start()
    write(running, topic, 20, 8)
    member = client.member(running.address, topic, group)
    assert numbers(drain([member], 8)) == list(range(20, 28))
    member.close()
