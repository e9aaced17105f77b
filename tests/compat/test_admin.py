"""Administration by the clients' own admin classes, and what they are told when it is refused."""

from __future__ import annotations

import asyncio
import itertools
import warnings

import pytest
from confluent_kafka import ConsumerGroupState, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import ConsumerGroupTopicPartitions as GroupPositions
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, OffsetSpec, ResourceType
from confluent_kafka.admin import NewTopic as Wanted

from tests.compat.admin import Admin, one
from tests.compat.clients.base import Message, Sending
from tests.compat.clients.confluent import Confluent
from tests.compat.conftest import NewTopic
from tests.compat.servers import RETENTION_MS, Server
from tests.compat.test_groups import drain, new_group, settle

_numbers = itertools.count()
WRITER = Confluent()


def fresh() -> str:
    return f"admin-{next(_numbers)}"


def code(refused: pytest.ExceptionInfo[KafkaException]) -> str:
    return str(refused.value.args[0].name())


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (Wanted("", 1, 1), "TOPIC_EXCEPTION"),
        (Wanted("a/b", 1, 1), "TOPIC_EXCEPTION"),
        (Wanted("x" * 250, 1, 1), "TOPIC_EXCEPTION"),
        (Wanted("none", 0, 1), "INVALID_PARTITIONS"),
        (Wanted("copies", 1, 3), "INVALID_REPLICATION_FACTOR"),
        (Wanted("config", 1, 1, config={"no.such.setting": "1"}), "INVALID_CONFIG"),
        (Wanted("config", 1, 1, config={"retention.ms": "soon"}), "INVALID_CONFIG"),
        (Wanted("config", 1, 1, config={"cleanup.policy": "shred"}), "INVALID_CONFIG"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(wanted: Wanted, error: str, admin: Admin) -> None:
    with pytest.raises(KafkaException) as refused:
        one(admin.client.create_topics([wanted]))
    assert code(refused) == error
    assert wanted.topic not in admin.topics()


def test_topics_are_created_listed_described_grown_and_deleted(admin: Admin, running: Server) -> None:
    name = fresh()
    one(admin.client.create_topics([Wanted(name, 2, 1)], validate_only=True))
    assert name not in admin.topics()
    admin.create(name, 2)
    assert admin.topics()[name] == 2
    with pytest.raises(KafkaException) as refused:
        admin.create(name, 2)
    assert code(refused) == "TOPIC_ALREADY_EXISTS"
    admin.add_partitions(name, 5)
    assert admin.topics()[name] == 5
    with pytest.raises(KafkaException) as refused:
        admin.add_partitions(name, 3)
    assert code(refused) == "INVALID_PARTITIONS"
    described = one(admin.client.describe_topics(TopicCollection([name])))
    assert [partition.id for partition in described.partitions] == [0, 1, 2, 3, 4]
    assert not described.is_internal
    WRITER.produce(running.address, name, [Message(b"k", b"v", (), None, 4)], Sending())
    admin.delete(name)
    assert name not in admin.topics()
    with pytest.raises(KafkaException) as refused:
        admin.delete(name)
    assert code(refused) == "UNKNOWN_TOPIC_OR_PART"
    admin.create(name, 1)
    assert admin.offsets(name, 0, OffsetSpec.latest()) == 0, "nothing is left of the one before"


def test_the_cluster_is_described(admin: Admin, running: Server) -> None:
    found = admin.client.describe_cluster().result(30)
    assert len(found.cluster_id) == 22
    assert [f"{node.host}:{node.port}" for node in found.nodes] == [running.address]
    assert found.controller.id == found.nodes[0].id
    metadata = admin.client.list_topics(timeout=30)
    assert metadata.cluster_id == found.cluster_id
    assert metadata.controller_id == found.controller.id


def alter(admin: Admin, topic: str, name: str, operation: AlterConfigOpType, value: str | None) -> None:
    entry = ConfigEntry(name, value, incremental_operation=operation)
    one(
        admin.client.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])])
    )


def test_settings_are_shown_with_defaults_and_changed_one_by_one(admin: Admin, new_topic: NewTopic) -> None:
    topic = new_topic(retention_ms=1000)
    found = admin.config(topic)
    assert found["retention.ms"].value == "1000"
    assert not found["retention.ms"].is_default
    for name, value in (
        ("cleanup.policy", "delete"),
        ("segment.bytes", "1073741824"),
        ("max.message.bytes", "1048588"),
        ("compression.type", "producer"),
    ):
        assert found[name].value == value, name
        assert found[name].is_default, name
    alter(admin, topic, "retention.bytes", AlterConfigOpType.SET, "4000000")
    alter(admin, topic, "cleanup.policy", AlterConfigOpType.APPEND, "compact")
    found = admin.config(topic)
    assert found["retention.ms"].value == "1000", "the others stay"
    assert found["retention.bytes"].value == "4000000"
    assert set(found["cleanup.policy"].value.split(",")) == {"compact", "delete"}
    alter(admin, topic, "cleanup.policy", AlterConfigOpType.SUBTRACT, "delete")
    alter(admin, topic, "retention.ms", AlterConfigOpType.DELETE, None)
    found = admin.config(topic)
    assert found["cleanup.policy"].value == "compact"
    assert found["retention.ms"].value == RETENTION_MS
    assert found["retention.ms"].is_default
    for name, bad in (("no.such.setting", "1"), ("retention.ms", "soon")):
        with pytest.raises(KafkaException) as refused:
            alter(admin, topic, name, AlterConfigOpType.SET, bad)
        assert code(refused) == "INVALID_CONFIG"


def test_the_brokers_settings_are_shown(admin: Admin) -> None:
    node = str(admin.client.describe_cluster().result(30).nodes[0].id)
    found = one(admin.client.describe_configs([ConfigResource(ResourceType.BROKER, node)]))
    assert len(found) > 5
    assert "auto.create.topics.enable" in found


def test_records_are_deleted_up_to_an_offset(admin: Admin, running: Server, new_topic: NewTopic) -> None:
    topic = new_topic()
    WRITER.produce(running.address, topic, [Message(b"k", b"%d" % n) for n in range(10)], Sending())
    assert admin.delete_records(topic, 0, 7) == 7
    assert admin.offsets(topic, 0, OffsetSpec.earliest()) == 7
    assert [m.offset for m in WRITER.consume(running.address, topic, 3)] == [7, 8, 9]
    with pytest.raises(KafkaException) as refused:
        admin.delete_records(topic, 0, 11)
    assert code(refused) == "OFFSET_OUT_OF_RANGE"
    assert admin.delete_records(topic, 0, -1) == 10, "-1: up to the high watermark"
    running.kill()
    running.start()
    admin.served(topic)
    assert admin.offsets(topic, 0, OffsetSpec.earliest()) == 10
    assert admin.offsets(topic, 0, OffsetSpec.latest()) == 10


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_listed_described_moved_and_deleted(
    protocol: str, admin: Admin, running: Server, new_topic: NewTopic
) -> None:
    topic, group = new_topic(partitions=4), new_group()
    WRITER.produce(running.address, topic, [Message(b"k", b"%d" % n, (), None, n % 4) for n in range(8)], Sending())
    member = WRITER.member(running.address, topic, group, protocol=protocol)  # type: ignore[arg-type]
    drain([member], 8)
    settle([member])
    member.commit()
    listed = {item.group_id: item for item in admin.client.list_consumer_groups().result(30).valid}
    assert listed[group].state == ConsumerGroupState.STABLE
    described = one(admin.client.describe_consumer_groups([group]))
    assert described.state == ConsumerGroupState.STABLE
    (found,) = described.members
    assert {(part.topic, part.partition) for part in found.assignment.topic_partitions} == member.assignment()
    assert found.host
    positions = one(admin.client.list_consumer_group_offsets([GroupPositions(group)]))
    assert {part.partition: part.offset for part in positions.topic_partitions} == {0: 2, 1: 2, 2: 2, 3: 2}
    with pytest.raises(KafkaException) as refused:
        one(admin.client.delete_consumer_groups([group]))
    assert code(refused) == "NON_EMPTY_GROUP"
    member.close()
    wanted = [TopicPartition(topic, number, 1) for number in range(4)]
    one(admin.client.alter_consumer_group_offsets([GroupPositions(group, wanted)]))
    member = WRITER.member(running.address, topic, group, protocol=protocol)  # type: ignore[arg-type]
    assert len(drain([member], 4)) == 4, "one event of each partition comes again"
    member.close()
    one(admin.client.delete_consumer_groups([group]))
    listed = {item.group_id: item for item in admin.client.list_consumer_groups().result(30).valid}
    assert group not in listed
    with pytest.raises(KafkaException) as refused:
        one(admin.client.delete_consumer_groups([group]))
    assert code(refused) == "GROUP_ID_NOT_FOUND"


def test_kafka_pythons_admin(running: Server) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.admin import KafkaAdminClient
        from kafka.admin import NewTopic as TheirTopic
    name = fresh()
    client = KafkaAdminClient(bootstrap_servers=running.address)
    try:
        client.create_topics([TheirTopic(name, 3, 1)])
        (described,) = client.describe_topics([name])
        assert len(described["partitions"]) == 3
        assert name in str(client.list_topics())
        client.delete_topics([name])
        assert name not in str(client.list_topics())
    finally:
        client.close()


def test_aiokafkas_admin(running: Server) -> None:
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.admin import NewTopic as TheirTopic

    name = fresh()

    async def talk() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=running.address)
        await client.start()
        try:
            answer = await client.create_topics([TheirTopic(name, 3, 1)])
            assert answer.topic_errors[0][1] == 0
            assert name in await client.list_topics()
            (described,) = await client.describe_topics([name])
            assert len(described["partitions"]) == 3
            cluster = await client.describe_cluster()
            assert f"{cluster['brokers'][0]['host']}:{cluster['brokers'][0]['port']}" == running.address
            await client.list_consumer_groups()
            await client.delete_topics([name])
            assert name not in await client.list_topics()
        finally:
            await client.close()

    asyncio.run(talk())
