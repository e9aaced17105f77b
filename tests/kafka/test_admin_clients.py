"""Every call of the administration clients of kafka-python, aiokafka and confluent-kafka, against a broker process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from krappy.settings.topic_table import SETTINGS
from tests.process import BrokerProcess

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


# --- kafka-python


@pytest.fixture
def python(broker: BrokerProcess) -> Iterator[Any]:
    kafka = pytest.importorskip("kafka", minversion="3.0", reason="kafka-python 3 is not installed")
    client = kafka.KafkaAdminClient(bootstrap_servers=broker.kafka)
    yield client
    client.close()


def test_kafka_python_topics(python: Any, broker: BrokerProcess) -> None:
    from kafka import KafkaProducer, TopicPartition, errors
    from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic

    made = python.create_topics([NewTopic("kp", 2, 1, topic_configs={"retention.ms": "5000"})])
    assert [(each["name"], each["error_code"], each["num_partitions"]) for each in made["topics"]] == [("kp", 0, 2)]
    for wrong, error in [
        (NewTopic("kp", 2, 1), errors.TopicAlreadyExistsError),
        (NewTopic("k p", 2, 1), errors.InvalidTopicError),
        (NewTopic("kp2", 2, 3), errors.InvalidReplicationFactorError),
        (NewTopic("kp2", 2, 1, topic_configs={"retention": "1"}), errors.InvalidConfigurationError),
    ]:
        with pytest.raises(error):
            python.create_topics([wrong])
    python.create_topics([NewTopic("kp2")], validate_only=True)
    assert "kp" in python.list_topics()
    assert "kp2" not in python.list_topics()
    python.create_partitions({"kp": NewPartitions(3)})
    [described] = python.describe_topics(["kp"])
    assert len(described["partitions"]) == 3
    [paged] = python.describe_topic_partitions(["kp"])["topics"]
    assert str(paged["topic_id"]) == described["topic_id"]

    resource = ConfigResource(ConfigResourceType.TOPIC, "kp")
    assert python.describe_configs([resource])["topic"]["kp"].keys() == {"retention.ms"}
    every = python.describe_configs([resource], config_filter="all", include_synonyms=True)["topic"]["kp"]
    assert every.keys() == SETTINGS.keys()
    python.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "kp", {"segment.ms": "7000"})])
    assert python.describe_configs([resource])["topic"]["kp"].keys() == {"retention.ms", "segment.ms"}
    python.reset_configs([ConfigResource(ConfigResourceType.TOPIC, "kp", {"segment.ms": None})])
    assert python.describe_configs([resource])["topic"]["kp"].keys() == {"retention.ms"}

    producer = KafkaProducer(bootstrap_servers=broker.kafka)
    for _ in range(5):
        producer.send("kp", b"value", key=b"key", partition=1).get(30)
    producer.close()
    deleted = python.delete_records({TopicPartition("kp", 1): 3})
    assert deleted[TopicPartition("kp", 1)]["low_watermark"] == 3
    [directory] = python.describe_log_dirs()
    [folder] = directory["log_dirs"]
    sizes = {topic["name"]: topic["partitions"] for topic in folder["topics"]}
    assert [each["partition_size"] > 0 for each in sizes["kp"]] == [False, True, False]
    found = python.describe_producers([TopicPartition("kp", 1)])[TopicPartition("kp", 1)]
    assert [each.last_sequence for each in found.active_producers] == [4]
    python.delete_topics(["kp"])
    assert "kp" not in python.list_topics()
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        python.delete_topics(["kp"])


def test_kafka_python_cluster(python: Any, broker: BrokerProcess) -> None:
    from kafka import errors
    from kafka.admin import (
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ConfigResource,
        ConfigResourceType,
        NewTopic,
        ResourcePatternFilter,
        ResourceType,
    )

    cluster = python.describe_cluster()
    assert (len(cluster["cluster_id"]), cluster["controller_id"]) == (22, 0)
    assert [(each["broker_id"], f"{each['host']}:{each['port']}") for each in cluster["brokers"]] == [(0, broker.kafka)]
    own = python.describe_configs([ConfigResource(ConfigResourceType.BROKER, "0")], config_filter="all")
    assert own["broker"]["0"]["num.partitions"]["value"] == "1"
    refused = ConfigResource(ConfigResourceType.BROKER, "0", {"node.id": "5"})
    assert "InvalidRequest" in str(python.alter_configs([refused], raise_on_unknown=False))
    [quorum] = python.describe_metadata_quorum()["topics"]
    assert quorum["partitions"][0]["leader_id"] == 0
    assert python.list_partition_reassignments() == {}
    assert python.describe_user_scram_credentials() == {}
    assert python.list_transactions() == {0: []}
    assert python.find_hanging_transactions(broker_ids=[0]) == []
    with pytest.raises(errors.TransactionalIdNotFoundError):
        python.describe_transactions(["nobody"])
    anything = ACLFilter(
        None,
        "*",
        ACLOperation.ANY,
        ACLPermissionType.ANY,
        ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
    )
    with pytest.raises(errors.SecurityDisabledError):
        python.describe_acls(anything)
    python.create_topics([NewTopic("kpc", 1, 1)])
    assert python.list_config_resources()["broker"] == ["0"]
    assert "kpc" in python.list_config_resources()["topic"]
    elected = python.elect_leaders(0, {"kpc": [0]}, raise_errors=False)
    assert "error_code=84" in str(elected)


# --- aiokafka


@asynccontextmanager
async def aio(broker: BrokerProcess) -> AsyncIterator[Any]:
    admin = pytest.importorskip("aiokafka.admin", reason="aiokafka is not installed")
    client = admin.AIOKafkaAdminClient(bootstrap_servers=broker.kafka)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def test_aiokafka(broker: BrokerProcess) -> None:
    asyncio.run(_aiokafka(broker))


async def _aiokafka(broker: BrokerProcess) -> None:
    from aiokafka import AIOKafkaProducer, TopicPartition, errors
    from aiokafka.admin import NewPartitions, NewTopic, RecordsToDelete
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    topic = ConfigResource(ConfigResourceType.TOPIC, "aio")
    async with aio(broker) as client:
        made = await client.create_topics([NewTopic("aio", 2, 1, topic_configs={"retention.ms": "100000"})])
        assert [error[:2] for error in made.topic_errors] == [("aio", 0)]
        again = await client.create_topics([NewTopic("aio", 2, 1)])
        assert again.topic_errors[0][1:] == (36, "Topic 'aio' already exists.")
        assert "aio" in await client.list_topics()
        await client.create_partitions({"aio": NewPartitions(3)})
        [described] = await client.describe_topics(["aio"])
        assert len(described["partitions"]) == 3
        assert (await client.describe_cluster())["controller_id"] == 0

        [found] = await client.describe_configs([topic])
        assert {entry[0] for entry in found.resources[0][4]} == SETTINGS.keys()
        [altered] = await client.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, "aio", {"retention.ms": "6000"})]
        )
        assert altered.resources[0][0] == 0
        [found] = await client.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, "aio", {"retention.ms": None})], include_synonyms=True
        )
        assert [entry[:2] for entry in found.resources[0][4]] == [("retention.ms", "6000")]

        async with AIOKafkaProducer(bootstrap_servers=broker.kafka) as producer:
            for _ in range(5):
                await producer.send_and_wait("aio", b"value", key=b"key", partition=0)
        at = TopicPartition("aio", 0)
        assert await client.delete_records({at: RecordsToDelete(2)}) == {at: 2}
        with pytest.raises(errors.OffsetOutOfRangeError):
            await client.delete_records({at: RecordsToDelete(9)})
        assert isinstance(await client.list_consumer_groups(), list)
        assert await client.find_coordinator("anybody") == 0
        gone = await client.delete_topics(["aio"])
        assert gone.topic_error_codes == [("aio", 0)]


# --- confluent-kafka


@pytest.fixture
def confluent(broker: BrokerProcess) -> Any:
    admin = pytest.importorskip("confluent_kafka.admin", reason="confluent-kafka is not installed")
    return admin.AdminClient({"bootstrap.servers": broker.kafka})


def came_of(futures: dict[Any, Any]) -> dict[Any, Any]:
    """By what was asked for: its result, or the name of the error."""
    confluent = pytest.importorskip("confluent_kafka")
    found: dict[Any, Any] = {}
    for key, future in futures.items():
        try:
            found[key] = future.result(30)
        except confluent.KafkaException as error:
            found[key] = error.args[0].name()
    return found


def first(make: Callable[[], dict[Any, Any]]) -> Any:
    [value] = came_of(make()).values()
    return value


def test_confluent_topics(confluent: Any, broker: BrokerProcess) -> None:
    from confluent_kafka import ElectionType, Producer, TopicCollection, TopicPartition

    ck: Any = pytest.importorskip("confluent_kafka.admin")
    news = [
        ck.NewTopic("ck", 2, 1, config={"retention.ms": "100000"}),
        ck.NewTopic("ck3", 1, 3),
        ck.NewTopic("ckm", 2, replica_assignment=[[0], [0]]),
        ck.NewTopic("ck!", 1, 1),
    ]
    assert came_of(confluent.create_topics(news)) == {
        "ck": None,
        "ck3": "INVALID_REPLICATION_FACTOR",
        "ckm": None,
        "ck!": "TOPIC_EXCEPTION",
    }
    assert first(lambda: confluent.create_topics([ck.NewTopic("ckv", 2)], validate_only=True)) is None
    assert first(lambda: confluent.create_partitions([ck.NewPartitions("ck", 4)], validate_only=True)) is None
    assert first(lambda: confluent.create_partitions([ck.NewPartitions("ck", 3)])) is None
    described = came_of(confluent.describe_topics(TopicCollection(["ck", "ckv"]), include_authorized_operations=True))
    assert (len(described["ck"].partitions), len(described["ck"].authorized_operations)) == (3, 8)
    assert described["ckv"] == "UNKNOWN_TOPIC_OR_PART"

    topic = ck.ConfigResource(ck.ResourceType.TOPIC, "ck")
    found = first(lambda: confluent.describe_configs([topic]))
    assert found.keys() == SETTINGS.keys()
    assert (found["retention.ms"].value, found["retention.ms"].source) == ("100000", 1)
    change = ck.ConfigEntry("cleanup.policy", "compact", incremental_operation=ck.AlterConfigOpType.APPEND)
    changed = ck.ConfigResource(ck.ResourceType.TOPIC, "ck", incremental_configs=[change])
    assert first(lambda: confluent.incremental_alter_configs([changed])) is None
    assert first(lambda: confluent.describe_configs([topic]))["cleanup.policy"].value == "compact,delete"
    replaced = ck.ConfigResource(ck.ResourceType.TOPIC, "ck", set_config={"segment.ms": "10000"})
    assert first(lambda: confluent.alter_configs([replaced])) is None
    after = first(lambda: confluent.describe_configs([topic]))
    assert {name for name, entry in after.items() if entry.source == 1} == {"segment.ms"}

    producer = Producer({"bootstrap.servers": broker.kafka})
    for _ in range(5):
        producer.produce("ck", b"value", b"key", partition=1)
    assert producer.flush(30) == 0
    asked = [TopicPartition("ck", 1, 3), TopicPartition("ck", 0, 9)]
    done = {at.partition: came for at, came in came_of(confluent.delete_records(asked)).items()}
    assert (done[1].low_watermark, done[0]) == (3, "OFFSET_OUT_OF_RANGE")
    earliest = first(lambda: confluent.list_offsets({TopicPartition("ck", 1): ck.OffsetSpec.earliest()}))
    assert earliest.offset == 3
    elected = confluent.elect_leaders(ElectionType.PREFERRED, [TopicPartition("ck", 0)])
    assert [error.name() for error in elected.result(30).values()] == ["ELECTION_NOT_NEEDED"]
    assert came_of(confluent.delete_topics(["ck", "ckm", "nope"])) == {
        "ck": None,
        "ckm": None,
        "nope": "UNKNOWN_TOPIC_OR_PART",
    }


def test_confluent_cluster(confluent: Any, broker: BrokerProcess) -> None:
    ck: Any = pytest.importorskip("confluent_kafka.admin")
    cluster = confluent.describe_cluster(include_authorized_operations=True).result(30)
    assert (len(cluster.cluster_id), cluster.controller.id, len(cluster.authorized_operations)) == (22, 0, 7)
    own = first(lambda: confluent.describe_configs([ck.ConfigResource(ck.ResourceType.BROKER, "0")]))
    assert own["advertised.listeners"].value == f"PLAINTEXT://{broker.kafka}"
    assert own["advertised.listeners"].is_read_only
    assert not own["log.retention.ms"].is_read_only
    setting = ck.ConfigEntry("advertised.listeners", "x:1", incremental_operation=ck.AlterConfigOpType.SET)
    changed = ck.ConfigResource(ck.ResourceType.BROKER, "0", incremental_configs=[setting])
    assert first(lambda: confluent.incremental_alter_configs([changed])) == "INVALID_REQUEST"
    assert confluent.describe_user_scram_credentials().result(30) == {}
    assert came_of(confluent.describe_user_scram_credentials(["ada"])) == {"ada": "RESOURCE_NOT_FOUND"}
