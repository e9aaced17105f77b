"""A server for each module, topics with names of their own, and the clients that this machine has."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from krappy import blocking
from tests.compat import tools
from tests.compat.admin import Admin
from tests.compat.clients.agent import Agent, AgentClient
from tests.compat.clients.base import Client, Codec
from tests.compat.clients.kcat import Kcat
from tests.compat.clients.of_python import OF_PYTHON
from tests.compat.servers import UNDER_TEST, KrappyServer, Server, server
from tests.security.conftest import authority, provider  # noqa: F401

NAMES = ("confluent-kafka", "kafka-python", "aiokafka", "kcat", "kafkajs", "java-3", "java-4", "sarama", "kafka-go")
GetClient = Callable[[str], Client]
NewTopic = Callable[..., str]
_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignores warnings about the sockets that kafka-python leaves open when it can't connect."""
    for item in items:
        if item.path.parent == tools.HERE:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="module", autouse=True)
def _sockets_are_collected_here() -> Iterator[None]:
    """Collects such sockets here, so that no other test warns of them."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server under test, which all tests of a module share."""
    try:
        found = server(tmp_path_factory.mktemp(UNDER_TEST))
    except tools.Missing as reason:
        pytest.skip(str(reason))
    try:
        found.start()
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module")
def broker(running: Server) -> KrappyServer:
    """The server as Krappy's own, for what only Krappy has: tables."""
    if not isinstance(running, KrappyServer):
        pytest.skip("it looks into tables")
    return running


@pytest.fixture(scope="module")
def native(broker: KrappyServer) -> Iterator[blocking.Client]:
    """A client of Krappy's own protocol."""
    with blocking.connect(broker.broker.address) as client:
        yield client


@pytest.fixture(scope="module")
def admin(running: Server) -> Admin:
    return Admin(running.address)


@pytest.fixture
def new_topic(admin: Admin) -> NewTopic:
    """Creates a topic: (partitions=1, **configs with _ for .) -> the topic's name."""

    def create(partitions: int = 1, **config: object) -> str:
        name = f"topic-{next(_numbers)}"
        admin.create(name, partitions, {key.replace("_", "."): str(value) for key, value in config.items()})
        return name

    return create


@pytest.fixture(scope="session")
def get_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GetClient]:
    """Clients by name, each started once. Skips the test if this machine does not have the client."""
    clients: dict[str, Client] = {}
    logs = tmp_path_factory.mktemp("clients")

    def get(name: str) -> Client:
        if name not in clients:
            try:
                clients[name] = _make(name, logs)
            except tools.Missing as reason:
                pytest.skip(str(reason))
        return clients[name]

    yield get
    for client in clients.values():
        client.close()


def _make(name: str, logs: Path) -> Client:
    if name in OF_PYTHON:
        return OF_PYTHON[name]()
    tools.wanted(name)
    if name == "kcat":
        tools.kcat()
        return Kcat()
    if name == "kafkajs":
        program, folder = tools.node()
        os.environ["NODE_PATH"] = str(folder / "node_modules")
        agent = Agent([program, str(tools.HERE / "node" / "agent.js")], folder, logs / "kafkajs.log")
        return AgentClient(name, agent, codecs=("none", "gzip"), static_members=False, protocol848=False)
    codecs: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
    if name == "sarama" or name == "kafka-go":
        agent = Agent(tools.go_agent(name), logs, logs / f"{name}.log")
        found = AgentClient(name, agent, codecs=codecs, static_members=name == "sarama", protocol848=False)
        found.transactions = name == "sarama"
        return found
    profile: tools.Profile = "clients3" if name == "java-3" else "clients4"
    program, path = tools.java_agent(profile)
    level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    command = [program, "-Xmx256m", "-XX:TieredStopAtLevel=1", level, "-cp", path, "Agent"]
    agent = Agent(command, logs, logs / f"{name}.log")
    return AgentClient(name, agent, codecs=codecs, static_members=True, protocol848=name == "java-4")


@pytest.fixture(params=NAMES)
def client(request: pytest.FixtureRequest, get_client: GetClient) -> Client:
    """Every client in turn."""
    return get_client(request.param)
