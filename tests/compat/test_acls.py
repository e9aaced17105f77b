"""ACLs by Kafka's own tool, kafka-acls.sh, and by librdkafka's admin client; and what clients without the right are
told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from krappy.testing.running import RunningBroker, run_broker
from tests.compat import tools
from tests.compat.kafka_tools import KafkaTools

PASSWORDS = {"admin": "admin-secret", "ada": "ada-secret"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with two users; only `admin` may do anything at first."""
    folder = tmp_path_factory.mktemp("acls")
    users = folder / "users"
    users.mkdir()
    for name, password in PASSWORDS.items():
        (users / name).write_text(password)
    settings: dict[str, Any] = {
        "listen_kafka": "SASL_PLAINTEXT://127.0.0.1:0",
        "users_dir": str(users),
        "super_users": "User:admin",
        "durability": "os",
        "group_initial_rebalance_delay_ms": 0,
    }
    with run_broker(folder / "data", **settings) as broker:
        yield broker


def options(broker: RunningBroker, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.kafka_address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
    }


@pytest.fixture
def acls(secured: RunningBroker, tmp_path: Path) -> Any:
    """kafka-acls.sh as the admin: (*arguments, fails=False) -> what it says."""
    try:
        tool = KafkaTools(secured.kafka_address)
    except tools.Missing as reason:
        pytest.skip(str(reason))
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    login = f'{module} required username="admin" password="{PASSWORDS["admin"]}";'
    config = tmp_path / "admin.properties"
    config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={login}\n")

    def run(*arguments: str, fails: bool = False) -> str:
        return tool("acls", "--command-config", str(config), *arguments, fails=fails)

    return run


def test_the_tool_adds_lists_and_removes(acls: Any) -> None:
    said = acls("--add", "--allow-principal", "User:ada", "--consumer", "--topic", "tooled", "--group", "readers")
    assert "ResourcePattern(resourceType=TOPIC, name=tooled, patternType=LITERAL)" in said
    acls(
        *("--add", "--deny-principal", "User:*", "--deny-host", "10.0.0.7", "--operation", "All"),
        *("--topic", "tool", "--resource-pattern-type", "prefixed"),
    )
    listed = acls("--list", "--topic", "tooled", "--resource-pattern-type", "match")
    assert "principal=User:ada, host=*, operation=READ, permissionType=ALLOW" in listed
    assert "principal=User:ada, host=*, operation=DESCRIBE, permissionType=ALLOW" in listed
    assert "principal=User:*, host=10.0.0.7, operation=ALL, permissionType=DENY" in listed
    assert "name=readers" not in listed
    assert "operation=READ" in acls("--list", "--principal", "User:ada", "--group", "readers")
    acls(
        "--remove", "--force", "--allow-principal", "User:ada", "--consumer", "--topic", "tooled", "--group", "readers"
    )
    left = acls("--list")
    assert "User:ada" not in left
    assert "10.0.0.7" in left
    acls("--remove", "--force", "--topic", "tool", "--resource-pattern-type", "prefixed")
    assert "10.0.0.7" not in acls("--list")


def test_a_producer_and_a_consumer_by_the_tools_shorthands(acls: Any, secured: RunningBroker) -> None:
    """What the tool's --producer and --consumer allow is what a producer and a consumer need."""
    with pytest.raises(KafkaException) as refused:
        publish(secured)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    acls("--add", "--allow-principal", "User:ada", "--producer", "--topic", "shorthand", "--transactional-id", "t")
    publish(secured)
    producer = Producer({**options(secured, "ada"), "transactional.id": "t"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("shorthand", b"second")
    producer.commit_transaction(30)
    acls("--add", "--allow-principal", "User:ada", "--consumer", "--topic", "shorthand", "--group", "g")
    consumer = Consumer({**options(secured, "ada"), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["shorthand"])
    found: list[Any] = []
    while len(found) < 2:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None, message.error()
        found.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    assert found == [b"first", b"second"]
    other = Consumer({**options(secured, "ada"), "group.id": "another"})
    other.subscribe(["shorthand"])
    told = other.poll(30)
    assert told is not None
    assert told.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    other.close()


def publish(secured: RunningBroker) -> None:
    """Publishes an event; raises the error that the producer gets."""
    told: list[KafkaError | None] = []
    producer = Producer(options(secured, "ada"))
    producer.produce("shorthand", b"first", on_delivery=lambda error, message: told.append(error))
    assert producer.flush(30) == 0
    [error] = told
    if error is not None:
        raise KafkaException(error)


def test_librdkafkas_admin_client(secured: RunningBroker) -> None:
    admin = AdminClient(options(secured, "admin"))
    binding = AclBinding(
        *(ResourceType.TOPIC, "rd", ResourcePatternType.PREFIXED, "User:bob", "*"),
        *(AclOperation.WRITE, AclPermissionType.ALLOW),
    )
    [made] = admin.create_acls([binding]).values()
    assert made.result(30) is None
    anything = AclBindingFilter(
        *(ResourceType.ANY, None, ResourcePatternType.ANY, "User:bob", None),
        *(AclOperation.ANY, AclPermissionType.ANY),
    )
    assert admin.describe_acls(anything).result(30) == [binding]
    other = AdminClient(options(secured, "ada"))
    assert other.describe_acls(anything).result(30) == []  # librdkafka hides the error that it is answered
    [refused] = other.create_acls([binding]).values()
    with pytest.raises(KafkaException) as why:
        refused.result(30)
    assert why.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    [deleted] = admin.delete_acls([anything]).values()
    assert deleted.result(30) == [binding]
    assert admin.describe_acls(anything).result(30) == []
