"""When a broker has an authorizer, and which clients need no ACL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from krappy.broker.settings import broker_settings
from krappy.core.security.operations import Op, Resource
from krappy.errors import ConfigError
from krappy.settings.server import ServerConfig, load
from krappy.testing.running import run_broker
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw
from tests.security.guarded import filtered, guarded_broker, rule


def read(tmp_path: Path, text: str) -> ServerConfig:
    file = tmp_path / "krappy.toml"
    file.write_text(text)
    return load({}, {}, file)


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ("", False),
        ('authorizer = "acl"', True),
        ('authorizer = "none"\nlisten_kafka = "SASL_PLAINTEXT://127.0.0.1:9092"', False),
        ('listen_kafka = "SASL_PLAINTEXT://127.0.0.1:9092"', True),
        ('listen_native = "SASL_PLAINTEXT://127.0.0.1:7092"', True),
        ('authorizer.class.name = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"', True),
        ('authorizer.class.name = ""', False),
    ],
)
def test_when_there_is_an_authorizer(tmp_path: Path, text: str, on: bool) -> None:
    assert read(tmp_path, text).authorizes == on


def test_kafkas_names(tmp_path: Path) -> None:
    config = read(tmp_path, 'super.users = "User:ada; User:CN=bob,O=x"\nallow.everyone.if.no.acl.found = true')
    assert config.super_user_names == ["User:ada", "User:CN=bob,O=x"]
    assert config.allow_everyone_if_no_acl_found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('authorizer = "acls"', "one of auto, acl, none is needed"),
        ('super_users = "ada"', "'ada' is not User:NAME or Group:NAME"),
        ('super_users = "User:bob;user:ada"', "'user:ada' is not User:NAME or Group:NAME"),
        ('authorizer.class.name = "com.example.Mine"', "one of auto, acl, none is needed"),
    ],
)
def test_settings_that_can_not_be(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read(tmp_path, text)


def test_what_no_acl_concerns_may_be_open(tmp_path: Path) -> None:
    settings = guarded_broker(tmp_path / "data", allow_everyone_if_no_acl_found=True)
    with settings as guarded, guarded.kafka() as raw:

        def error() -> int:
            [topic] = raw.ask(ApiKey.METADATA, {"topics": [{"name": "t"}]})["topics"]
            return int(topic["error_code"])

        assert error() == Code.TOPIC_AUTHORIZATION_FAILED  # the admin's ACL for * matches this topic
        guarded.admin.ask(ApiKey.DELETE_ACLS, {"filters": [filtered(resource_type_filter=Resource.TOPIC)]})
        assert error() == 0
        guarded.allow(rule(Resource.TOPIC, "t", Op.READ, "10.0.0.1"))
        assert error() == Code.TOPIC_AUTHORIZATION_FAILED


def test_that_nobody_may_do_anything_is_reported(tmp_path: Path) -> None:
    events: list[Any] = []
    for more in ({}, {"super_users": "User:ada"}):
        with (
            run_broker(
                tmp_path / "data", authorizer="acl", report=lambda event, **_: events.append(event), **more
            ) as broker,
            Raw(broker.kafka_address) as raw,
        ):
            assert raw.ask(ApiKey.METADATA, {"topics": None})["topics"] == []
    assert events.count("nobody_is_allowed") == 1


# --- how brokers of a cluster reach each other

CLUSTER = """
zookeeper_connect = "127.0.0.1:2181"
inter_broker_user = "broker"
inter_broker_password = "not-shown-12"
"""
SASL = 'listen_kafka = "OUT://127.0.0.1:1,IN://127.0.0.1:2"\nlistener_security_protocol_map = "IN:SASL_SSL"\n'
KNOWN = 'inter.broker.listener.name = "IN"\n'


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('super_users = "User:ANONYMOUS"', "OUT"),
        (KNOWN, "IN"),
        ('inter_broker_listener_name = "in"', "IN"),
        ('security.inter.broker.protocol = "SASL_SSL"', "IN"),
    ],
)
def test_the_listener_of_brokers(tmp_path: Path, text: str, name: str) -> None:
    assert read(tmp_path, CLUSTER + SASL + text).inter_broker_listener.name == name


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        (SASL, "inter_broker_listener_name"),  # brokers would not log in at this listener, and ACLs are in force
        (SASL + 'inter_broker_listener_name = "X"', "inter_broker_listener_name"),
        (SASL + KNOWN + 'security_inter_broker_protocol = "SASL_SSL"', "inter_broker_listener_name"),
        (SASL + 'security_inter_broker_protocol = "SSL"', "security_inter_broker_protocol"),
        (SASL + KNOWN + 'sasl.mechanism.inter.broker.protocol = "PLAIN"', "sasl_mechanism_inter_broker_protocol"),
        # There is the password itself, too.
        (SASL + KNOWN + 'inter_broker_password_file = "x"', "inter_broker_password_file"),
        ('listen_kafka = "SSL://127.0.0.1:1"\nauthorizer = "acl"', "inter_broker_listener_name"),
    ],
)
def test_brokers_that_could_not_reach_each_other(tmp_path: Path, text: str, setting: str) -> None:
    with pytest.raises(ConfigError, match=f"^{setting}") as error:
        read(tmp_path, CLUSTER + text)
    assert error.value.details["setting"] == setting


def test_a_broker_that_can_not_log_in(tmp_path: Path) -> None:
    cluster = 'zookeeper_connect = "127.0.0.1:2181"\n' + SASL + KNOWN
    with pytest.raises(ConfigError, match=r"^inter_broker_user"):
        read(tmp_path, cluster)
    with pytest.raises(ConfigError, match=r"^inter_broker_password_file"):
        read(tmp_path, cluster + 'inter_broker_user = "broker"')
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        read(tmp_path, cluster + 'inter_broker_user = "broker"\ninter_broker_password_file = "none"')


def test_a_broker_that_can_not_log_in_with_a_token(tmp_path: Path) -> None:
    cluster = 'zookeeper_connect = "127.0.0.1:2181"\n' + SASL + KNOWN
    provider = 'oauth_issuer = "https://idp.example"\noauth_audience = "krappy"\n'
    by_token = cluster + provider + 'sasl.mechanism.inter.broker.protocol = "OAUTHBEARER"\n'
    with pytest.raises(ConfigError, match=r"^sasl_mechanism_inter_broker_protocol"):
        read(tmp_path, by_token)
    by_token += 'sasl_enabled_mechanisms = "OAUTHBEARER"\n'
    file = tmp_path / "token"
    file.write_text(" \n")
    given = f'inter_broker_token_file = "{file}"\n'
    with pytest.raises(ConfigError, match=r"^inter_broker_token_file: OAUTHBEARER .* needs it"):
        read(tmp_path, by_token)
    with pytest.raises(ConfigError, match=r"^inter_broker_token_file: .* is empty"):
        read(tmp_path, by_token + given)
    with pytest.raises(ConfigError, match=r"^inter_broker_token_file: .*: No such file"):
        read(tmp_path, by_token + 'inter_broker_token_file = "none"')
    with pytest.raises(ConfigError, match=r"^inter_broker_token_file: .* no other mechanism"):
        read(tmp_path, cluster + given)
    file.write_text("x.y.z\n")
    assert read(tmp_path, by_token + given).inter_broker_listener.name == "IN"


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    secret = "not-shown-12"
    config = read(tmp_path, CLUSTER + SASL + KNOWN)
    assert secret not in repr(config)
    assert secret not in repr(broker_settings(config, "127.0.0.1:1"))
    with pytest.raises(ConfigError) as error:
        read(tmp_path, "inter_broker_password = 12345678")
    assert "12345678" not in str(error.value)


# --- ZooKeeper


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ('zookeeper_user = "k"', "zookeeper_password_file"),
        ('zookeeper_user = "k:l"\nzookeeper_password = "p"', "zookeeper_user"),
        ("zookeeper.set.acl = true", "zookeeper_set_acl"),
        ('zookeeper_connect = "zk.example"\nzookeeper_user = "k"\nzookeeper_password = "p"', "zookeeper_user"),
        ('zookeeper_user = "k"\nzookeeper_password_file = "none"', "zookeeper_password_file"),
    ],
)
def test_a_zookeeper_that_would_not_be_safe(tmp_path: Path, text: str, setting: str) -> None:
    if "zookeeper_connect" not in text:
        text += '\nzookeeper_connect = "127.0.0.1"'
    with pytest.raises(ConfigError, match=f"^{setting}: "):
        read(tmp_path, text)


def test_a_password_for_zookeeper_goes_over_tls(tmp_path: Path) -> None:
    far = 'zookeeper.connect = "zk.example"\nzookeeper_user = "k"\nzookeeper_password = "p"\n'
    assert read(tmp_path, far + "zookeeper.ssl.client.enable = true").zookeeper_ssl_client_enable
    read(tmp_path, far + 'insecure_listeners = "allow"')
