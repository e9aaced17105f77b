"""Two peers change the same settings at once, in every order. A change that depends on the settings counts as of when
it is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.broker.broker import LocalBroker
from krappy.handlers.kafka.configs import ConfigOperation, alter_configs, incremental_alter_configs
from tests.broker.schedules import Scenario, explore

TOPIC, BROKER, GROUP = 2, 4, 32
THROTTLED = "leader.replication.throttled.replicas"


class Peer:
    """As much of a connection as these requests need."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.access = broker.access()
        self.state: dict[str, Any] = {}

    async def pause(self) -> None:
        await trio.lowlevel.checkpoint()

    async def change(
        self, kind: int, name: str, settings: dict[str, str], operation: ConfigOperation | None = None
    ) -> None:
        """`operation` None: by AlterConfigs, which replaces all settings."""
        configs = [{"name": key, "value": value, "config_operation": operation} for key, value in settings.items()]
        resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
        request: dict[str, Any] = {"resources": resources, "validate_only": False}
        alter = alter_configs if operation is None else incremental_alter_configs
        [answer] = (await alter(self, request, 1))["responses"]  # type: ignore[arg-type]
        assert answer["error_code"] == 0, answer


def test_two_who_append_to_one_list(tmp_path: Path) -> None:
    async def scenario(broker: LocalBroker, name: str) -> Scenario:
        topic, _ = await broker.create_topic(name, 1, {THROTTLED: "9:9"})
        done: list[str] = []

        async def append(item: str) -> None:
            await Peer(broker).change(TOPIC, name, {THROTTLED: item}, ConfigOperation.APPEND)
            done.append(item)

        async def subtract() -> None:
            await Peer(broker).change(TOPIC, name, {THROTTLED: "9:9"}, ConfigOperation.SUBTRACT)
            done.append("-")

        def check() -> None:
            held = topic.given.get(THROTTLED, "").split(",")
            assert {item for item in done if item != "-"} <= set(held), f"{held} after {done}"
            assert "-" not in done or "9:9" not in held

        return Scenario({"one": lambda: append("0:0"), "other": lambda: append("0:1"), "less": subtract}, check)

    assert explore(tmp_path, scenario, limit=150) > 50


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (TOPIC, ("retention.ms", "77777"), ("segment.ms", "88888")),
        (BROKER, ("log.retention.ms", "77777"), ("log.roll.ms", "88888")),
        (GROUP, ("consumer.session.timeout.ms", "50000"), ("consumer.heartbeat.interval.ms", "6000")),
    ],
)
def test_who_replaces_all_settings_leaves_none_of_another(
    tmp_path: Path, kind: int, first: tuple[str, str], second: tuple[str, str]
) -> None:
    """After both have replaced everything, the settings are those of one of them, and nothing else."""

    async def scenario(broker: LocalBroker, name: str) -> Scenario:
        topic, _ = await broker.create_topic(name, 1, {})
        await broker.dynamic.alter("", {"log.retention.ms": None, "log.roll.ms": None})
        of = name if kind != BROKER else ""
        left = 2

        async def replace(setting: tuple[str, str]) -> None:
            nonlocal left
            await Peer(broker).change(kind, of, dict([setting]))
            left -= 1

        def check() -> None:
            settings = broker.dynamic if kind == BROKER else broker.kafka_groups.settings
            held = dict(topic.given if kind == TOPIC else settings.held(of))
            assert left or held in (dict([first]), dict([second])), held

        return Scenario({"one": lambda: replace(first), "other": lambda: replace(second)}, check)

    assert explore(tmp_path, scenario, limit=60) > 3
