"""`krappy broker ID HOST PORT ZOOKEEPER`: what its arguments stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from krappy.cli.commands import broker
from krappy.settings.server import ServerConfig, load
from tests.cli.conftest import Krappy

Given = dict[str, str | None]


@pytest.fixture
def given(run: Krappy, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The settings with which a command line would run a broker."""
    found: list[Given] = []

    def note(file: Path | None, flags: Given, as_json: bool, until_eof: bool) -> None:
        found.append(flags)

    monkeypatch.setattr(broker, "run_in_foreground", note)

    def call(*arguments: str) -> ServerConfig:
        result = run("broker", *arguments)
        assert result.status == 0, result.err
        return load(found.pop(), {"KRAPPY_DATA": "/elsewhere", "KRAPPY_LOG_LEVEL": "debug"})

    return call


OPEN = ("--insecure-listeners", "allow")


def test_four_arguments_are_a_broker(given: Any) -> None:
    config = given("1", "localhost", "9091", "2181")
    assert config.broker_id == 1
    assert config.listen_kafka == "localhost:9091"
    assert config.listen_native == "localhost:7091"
    assert config.listen_http == "localhost:8091"
    assert config.data == Path("krappy-1")
    assert config.zookeeper == ([("localhost", 2181)], "/krappy")
    assert config.log_level == "debug"  # the arguments do not say it, so it comes from the environment or the file


def test_a_flag_goes_before(given: Any) -> None:
    config = given(
        "3", "10.0.0.1", "9092", "a:2181,b/events", "--data", "/d", "--listen-http", "none", "--rack", "r", *OPEN
    )
    assert (config.broker_id, config.data, config.listen_http, config.rack) == (3, Path("/d"), None, "r")
    assert config.zookeeper == ([("a", 2181), ("b", 2181)], "/events")


def test_an_ipv6_host_gets_brackets(given: Any) -> None:
    config = given("1", "::1", "9091", "2181")
    assert config.listen_kafka == "[::1]:9091"
    assert config.zookeeper == ([("::1", 2181)], "/krappy")


@pytest.mark.parametrize("arguments", [("x", "h", "9091", "2181"), ("1", "h", "2000", "2181"), ("1", "h", "9091")])
def test_wrong_usage_is_told(run: Krappy, arguments: tuple[str, ...]) -> None:
    assert run("broker", *arguments).status == 2
