"""Share groups (KIP-932): Kafka's own share consumer, and Kafka's tools for them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat import tools
from tests.compat.clients.agent import Agent
from tests.compat.clients.base import PATIENCE, Message, Sending
from tests.compat.clients.confluent import Confluent
from tests.compat.conftest import NewTopic
from tests.compat.kafka_tools import KafkaTools
from tests.compat.servers import Server

WRITER = Confluent()
_numbers = itertools.count()
Record = tuple[int, int, int]  # partition, offset, deliveries


class ShareMember:
    """A KafkaShareConsumer."""

    def __init__(self, agent: Agent, running: Server, group: str, topic: str, **more: Any) -> None:
        self._agent, self.name = agent, f"member-{next(_numbers)}"
        settings = {"mode": "explicit", "most": 500, "acquire": "batch_optimized"} | more
        agent.ask("join", member=self.name, address=running.address, group=group, topic=topic, **settings)

    def poll(self, ms: int = 1000) -> list[Record]:
        return [tuple(each) for each in self._agent.ask("poll", member=self.name, ms=ms)]

    def gather(self, count: int) -> list[Record]:
        """Polls until it has `count` records."""
        end, found = time.monotonic() + PATIENCE, list[Record]()
        while len(found) < count:
            assert time.monotonic() < end, found
            found += self.poll()
        return found

    def acknowledge(self, record: Record, kind: str = "ACCEPT") -> None:
        self._agent.ask("acknowledge", member=self.name, partition=record[0], offset=record[1], type=kind)

    def commit(self) -> list[str]:
        """Commits; returns the names of the errors."""
        failed: list[str] = self._agent.ask("commit", member=self.name)
        return failed

    def leave(self) -> None:
        self._agent.ask("leave", member=self.name)


@pytest.fixture(scope="module")
def new_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Agent]]:
    """Starts processes in which share consumers run."""
    folder = tmp_path_factory.mktemp("shares")
    try:
        tools.wanted("Kafka's share consumer")
        program, path = tools.java("clients4")
        tools.javac("clients4", tools.HERE / "java" / "Shares.java", folder)
    except tools.Missing as reason:
        pytest.skip(str(reason))
    begun: list[Agent] = []

    def begin() -> Agent:
        level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        command = [program, "-Xmx256m", "-XX:TieredStopAtLevel=1", level, "-cp", f"{path}:{folder}", "Shares"]
        begun.append(Agent(command, folder, folder / f"agent-{len(begun)}.log"))
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


@pytest.fixture(scope="module")
def agent(new_agent: Callable[[], Agent]) -> Agent:
    return new_agent()


@pytest.fixture
def tool(running: Server) -> KafkaTools:
    try:
        return KafkaTools(running.address)
    except tools.Missing as reason:
        pytest.skip(str(reason))


NewGroup = Callable[..., str]


@pytest.fixture
def new_group(tool: KafkaTools) -> NewGroup:
    """Makes a group's name, and sets how the group reads: (settings with _ for .) -> the name."""

    def name(**settings: object) -> str:
        group = f"shares-{next(_numbers)}"
        told = ",".join(f"{key.replace('_', '.')}={value}" for key, value in settings.items())
        settings_of = ("--entity-type", "groups", "--entity-name", group)
        tool("configs", "--alter", *settings_of, "--add-config", f"share.auto.offset.reset=earliest,{told}".rstrip(","))
        return group

    return name


def write(running: Server, topic: str, count: int, partitions: int = 1) -> None:
    sent = [Message(b"k", b"%d" % n, (), 1_700_000_000_000 + n, n % partitions) for n in range(count)]
    WRITER.produce(running.address, topic, sent, Sending())


def test_two_members_share_a_topic(
    agent: Agent, new_agent: Callable[[], Agent], running: Server, new_topic: NewTopic, new_group: NewGroup
) -> None:
    topic, group = new_topic(partitions=2), new_group()
    one = ShareMember(agent, running, group, topic, most=10, acquire="record_limit")
    two = ShareMember(new_agent(), running, group, topic, most=10, acquire="record_limit")
    write(running, topic, 200, 2)
    seen: list[Record] = []
    end, by = time.monotonic() + PATIENCE, {one.name: 0, two.name: 0}
    while len(seen) < 200:
        assert time.monotonic() < end, (len(seen), by)
        for member in (one, two):
            got = member.poll()
            for record in got:
                member.acknowledge(record)
            assert member.commit() == []
            seen += got
            by[member.name] += len(got)
    assert sorted(seen) == sorted((n % 2, n // 2, 1) for n in range(200))
    assert min(by.values()) > 0, by
    one.leave()
    two.leave()


def test_release_reject_and_the_limit_of_deliveries(
    agent: Agent, running: Server, new_topic: NewTopic, new_group: NewGroup
) -> None:
    topic, group = new_topic(), new_group(share_delivery_count_limit=3)
    write(running, topic, 3)
    member = ShareMember(agent, running, group, topic)
    first = member.gather(3)
    assert [each[1:] for each in first] == [(0, 1), (1, 1), (2, 1)]
    for record, kind in zip(first, ("ACCEPT", "RELEASE", "REJECT"), strict=True):
        member.acknowledge(record, kind)
    for count in (2, 3):
        (record,) = member.gather(1)
        assert record == (0, 1, count)
        member.acknowledge(record, "RELEASE")
    assert member.commit() == []
    write(running, topic, 1)
    assert member.gather(1) == [(0, 3, 1)]
    member.leave()


def test_what_is_renewed_stays_and_what_is_not_goes_to_others(
    agent: Agent, running: Server, new_topic: NewTopic, new_group: NewGroup
) -> None:
    lock = 15_000 if running.__class__.__name__ == "KafkaServer" else 2_000
    topic, group = new_topic(), new_group(share_record_lock_duration_ms=lock)
    write(running, topic, 2)
    one, idle, two = (ShareMember(agent, running, group, topic, most=1, acquire="record_limit") for _ in range(3))
    (kept,), (lost,) = one.gather(1), idle.gather(1)
    end = time.monotonic() + lock / 1000 * 1.5
    while time.monotonic() < end:
        one.acknowledge(kept, "RENEW")
        assert one.commit() == []
        one.poll(int(lock / 5))
    assert two.gather(1) == [(*lost[:2], 2)]
    one.acknowledge(kept)
    assert one.commit() == []
    two.acknowledge(lost)
    assert two.commit() == []
    idle.acknowledge(lost)
    assert idle.commit() in ([], ["InvalidRecordStateException"])  # the consumer may have dropped it
    for member in (one, idle, two):
        member.leave()


def test_implicit_acknowledgement_and_a_member_that_dies(
    agent: Agent, new_agent: Callable[[], Agent], running: Server, new_topic: NewTopic, new_group: NewGroup
) -> None:
    topic, group = new_topic(), new_group()
    write(running, topic, 10)
    dying = new_agent()
    dead = ShareMember(dying, running, group, topic, mode="implicit", most=4, acquire="record_limit")
    assert [each[1] for each in dead.gather(4)] == [0, 1, 2, 3]
    assert [each[1] for each in dead.gather(4)] == [4, 5, 6, 7]  # acknowledges the first four
    dying.kill()
    alive = ShareMember(agent, running, group, topic, mode="implicit")
    found = alive.gather(6)
    assert sorted(each[1] for each in found) == [4, 5, 6, 7, 8, 9]
    alive.leave()


def test_the_tools(agent: Agent, tool: KafkaTools, running: Server, new_topic: NewTopic, new_group: NewGroup) -> None:
    topic, group = new_topic(), new_group()
    write(running, topic, 12)
    told = tool("console-share-consumer", "--topic", topic, "--group", group, "--max-messages", "5")
    assert told.split() == ["0", "1", "2", "3", "4"]
    assert group in tool("share-groups", "--list").split()
    assert group in tool("groups", "--list", "--share")

    def row(*arguments: str) -> dict[str, str]:
        lines = [line.split() for line in tool("share-groups", *arguments).splitlines() if line.strip()]
        return dict(zip(lines[0], lines[1], strict=False))

    describe = ("--describe", "--group", group)
    assert row(*describe, "--offsets") | {"START-OFFSET": "5", "LAG": "7"} == row(*describe, "--offsets")
    member = ShareMember(agent, running, group, topic)
    assert [each[1] for each in member.gather(7)] == [5, 6, 7, 8, 9, 10, 11]
    assert row(*describe, "--members")["#PARTITIONS"] == "1"
    assert "Stable" in tool("share-groups", *describe, "--state")
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert "is not empty" in tool("share-groups", *reset, fails=True)
    member.leave()
    tool("share-groups", *reset)
    assert row(*describe, "--offsets")["START-OFFSET"] == "0"
    tool("share-groups", "--delete-offsets", "--group", group, "--topic", topic)
    assert topic not in tool("share-groups", *describe, "--offsets")
    tool("share-groups", "--delete", "--group", group)
    assert group not in tool("share-groups", "--list").split()


def test_a_restart_of_the_server(
    agent: Agent, running: Server, new_topic: NewTopic, new_group: NewGroup, tmp_path: Path
) -> None:
    topic, group = new_topic(), new_group()
    write(running, topic, 6)
    member = ShareMember(agent, running, group, topic, most=3, acquire="record_limit")
    for record in member.gather(3):
        member.acknowledge(record)
    assert member.commit() == []
    running.kill()
    running.start()
    assert sorted(each[1] for each in member.gather(3)) == [3, 4, 5]
    member.leave()
