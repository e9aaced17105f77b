"""Settings and rights beside those of topics that admin clients ask for: of brokers, groups, compression, ACLs."""

from __future__ import annotations

import warnings

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from tests.compat.admin import Admin, one
from tests.compat.clients.base import Message, Sending
from tests.compat.clients.confluent import Confluent
from tests.compat.conftest import NewTopic
from tests.compat.servers import Server
from tests.compat.test_admin import code
from tests.compat.test_groups import drain, new_group

WRITER = Confluent()
SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE


def alter(admin: Admin, kind: ResourceType, name: str, setting: str, value: str | None) -> None:
    """Sets a setting; None takes it back."""
    entry = ConfigEntry(setting, value, incremental_operation=DELETE if value is None else SET)
    one(admin.client.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])]))


def shown(admin: Admin, kind: ResourceType, name: str, setting: str) -> str:
    return str(one(admin.client.describe_configs([ConfigResource(kind, name)]))[setting].value)


def node(admin: Admin) -> str:
    return str(admin.client.describe_cluster().result(30).nodes[0].id)


@pytest.mark.parametrize("compression", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_that_the_broker_compresses(
    compression: str, admin: Admin, running: Server, new_topic: NewTopic
) -> None:
    topic = new_topic(compression_type=compression)
    assert shown(admin, ResourceType.TOPIC, topic, "compression.type") == compression
    events = [Message(b"k%d" % n, b"a value, as others are %d" % n) for n in range(50)]
    WRITER.produce(running.address, topic, events, Sending())
    assert [message.value for message in WRITER.consume(running.address, topic, 50)] == [each.value for each in events]


def test_a_brokers_settings_are_changed_while_it_runs(admin: Admin, new_topic: NewTopic) -> None:
    topic, broker = new_topic(), node(admin)
    before = shown(admin, ResourceType.BROKER, broker, "log.retention.bytes")
    alter(admin, ResourceType.BROKER, broker, "log.retention.bytes", "4000000")
    try:
        assert shown(admin, ResourceType.BROKER, broker, "log.retention.bytes") == "4000000"
        assert shown(admin, ResourceType.TOPIC, topic, "retention.bytes") == "4000000"
    finally:
        alter(admin, ResourceType.BROKER, broker, "log.retention.bytes", None)
    assert shown(admin, ResourceType.TOPIC, topic, "retention.bytes") == before
    with pytest.raises(KafkaException) as refused:
        alter(admin, ResourceType.BROKER, broker, "num.partitions", "7")
    assert code(refused) == "INVALID_REQUEST"


def test_a_groups_settings(admin: Admin) -> None:
    group, setting = new_group(), "consumer.session.timeout.ms"
    before = shown(admin, ResourceType.GROUP, group, setting)
    alter(admin, ResourceType.GROUP, group, setting, "50000")
    assert shown(admin, ResourceType.GROUP, group, setting) == "50000"
    alter(admin, ResourceType.GROUP, group, setting, None)
    assert shown(admin, ResourceType.GROUP, group, setting) == before


def test_without_an_authorizer_there_are_no_acls(admin: Admin) -> None:
    named = ("t", ResourcePatternType.LITERAL, "User:ada", "*", AclOperation.READ, AclPermissionType.ALLOW)
    for future in (
        *admin.client.create_acls([AclBinding(ResourceType.TOPIC, *named)]).values(),
        *admin.client.delete_acls([AclBindingFilter(ResourceType.TOPIC, *named)]).values(),
    ):
        with pytest.raises(KafkaException) as refused:
            future.result(30)
        assert code(refused) == "SECURITY_DISABLED"


def test_the_topic_of_offsets_is_there_and_internal(admin: Admin, running: Server, new_topic: NewTopic) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.admin import KafkaAdminClient
    topic = new_topic()
    WRITER.produce(running.address, topic, [Message(b"k", b"v")], Sending())
    member = WRITER.member(running.address, topic, new_group())
    drain([member], 1)
    member.close()
    assert admin.topics()["__consumer_offsets"] == 50
    client = KafkaAdminClient(bootstrap_servers=running.address)
    try:
        (described,) = client.describe_topics(["__consumer_offsets"])
        assert described["is_internal"]
    finally:
        client.close()
    with pytest.raises(KafkaException) as refused:
        admin.create("__consumer_offsets", 1)
    assert code(refused) == "TOPIC_ALREADY_EXISTS"
