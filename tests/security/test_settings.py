"""When there is an authorizer, and who needs no ACL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
        ('super_users = "ada"', "'ada' is not TYPE:NAME"),
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

        assert error() == Code.TOPIC_AUTHORIZATION_FAILED  # the admin's ACL for * concerns it
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
