"""Kafka's clients while leaders are killed: everything that is acknowledged is read once, and in order."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, brokers
from tests.cluster.scattered_transactions import coordinator_of
from tests.cluster.zookeeper import Missing
from tests.compat import tools
from tests.compat.clients.agent import Agent, AgentClient
from tests.compat.clients.base import PATIENCE, Message, Sending
from tests.compat.clients.of_python import OF_PYTHON
from tests.compat.servers import UNDER_TEST
from tests.process import wait_until

pytestmark = pytest.mark.skipif(UNDER_TEST != "krappy", reason="the cluster is one of Krappy's")
PARTITIONS = 6
COUNT, PER_SECOND = 8_000, 400
Streams = Callable[[str, str], None]  # (address, topic): writes 0 to COUNT - 1 to the partitions in turn; all acked
Reads = Callable[[str, str, int], list[Message]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    try:
        tools.wanted("Kafka's clients with a cluster")
        with brokers(tmp_path_factory.mktemp("cluster")) as made:
            yield made
    except (Missing, tools.Missing) as reason:
        pytest.skip(str(reason))


def paces() -> Iterator[tuple[int, float]]:
    """Numbers, and the seconds to wait before each."""
    begun = time.monotonic()
    for number in range(COUNT):
        yield number, max(0.0, begun + number / PER_SECOND - time.monotonic())


def by_confluent(address: str, topic: str) -> None:
    failed: list[str] = []
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5})
    for number, pause in paces():
        time.sleep(pause)
        told = lambda error, _: failed.append(str(error)) if error else None  # noqa: E731
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=told)
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0
    assert not failed


def by_kafka_python(address: str, topic: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import KafkaProducer
    producer = KafkaProducer(bootstrap_servers=address.split(","), enable_idempotence=True, linger_ms=5)
    try:
        futures = []
        for number, pause in paces():
            time.sleep(pause)
            futures.append(producer.send(topic, b"%d" % number, partition=number % PARTITIONS))
        producer.flush(PATIENCE)
        for future in futures:
            future.get(PATIENCE)
    finally:
        producer.close(PATIENCE)


def by_aiokafka(address: str, topic: str) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True, linger_ms=5)
        await producer.start()
        try:
            futures = []
            for number, pause in paces():
                await asyncio.sleep(pause)
                futures.append(await producer.send(topic, b"%d" % number, partition=number % PARTITIONS))
            await asyncio.wait_for(asyncio.gather(*futures), PATIENCE)
        finally:
            await producer.stop()

    asyncio.run(run())


def agent(name: str, logs: Path) -> AgentClient:
    """A process that runs the client. Raises Missing."""
    if name in ("franz-go", "sarama"):
        command = tools.go_agent(name)
    else:
        java, path = tools.java_agent("clients3" if name == "java-3" else "clients4")
        level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", level, "-cp", path, "Agent"]
    process = Agent(command, logs, logs / f"{name}.log")
    return AgentClient(name, process, codecs=("none",), static_members=False, protocol848=False)


@pytest.fixture
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Streams, Reads]]:
    """A client that writes, and one that reads at the same time."""
    if request.param in PYTHON:
        reader = OF_PYTHON[request.param]()
        yield PYTHON[request.param], reader.consume
        reader.close()
        return
    try:
        agents = [agent(request.param, tmp_path) for _ in range(2)]
    except tools.Missing as reason:
        pytest.skip(str(reason))
    stream = {"partitions": PARTITIONS, "count": COUNT, "perSecond": PER_SECOND}
    yield (
        lambda address, topic: agents[0].agent.ask("stream", address=address, topic=topic, **stream),
        agents[1].consume,
    )
    for each in agents:
        each.close()


PYTHON: dict[str, Streams] = {
    "confluent-kafka": by_confluent,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
}


def is_made(cluster: ClusterProcesses, topic: str) -> bool:
    """Creates a topic. Returns False if the broker that is asked does not know all other brokers yet."""
    [made] = cluster.admin.create_topics([NewTopic(topic, PARTITIONS, 3)]).values()
    try:
        made.result(30)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR:
            return False
        raise
    return True


class Written:
    """Counts the events of a topic."""

    def __init__(self, address: str, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "none"})
        self._topic = topic

    def at_least(self, count: int) -> bool:
        ends = 0
        try:
            for index in range(PARTITIONS):
                ends += int(self._consumer.get_watermark_offsets(TopicPartition(self._topic, index), 30)[1])
        except KafkaException:  # a leader is being replaced
            return False
        return ends >= count


@pytest.mark.parametrize("client", [*PYTHON, "java-3", "java-4", "franz-go", "sarama"], indirect=True)
def test_leaders_are_killed_under_load(
    client: tuple[Streams, Reads], cluster: ClusterProcesses, request: pytest.FixtureRequest
) -> None:
    streams, reads = client
    for each in cluster.brokers.values():  # a test that failed may have left one dead
        if not each.running:
            each.start()
    topic = "t-" + "".join(letter for letter in request.node.name if letter.isalnum())[-20:]
    wait_until(partial(is_made, cluster, topic), "every broker is registered")
    cluster.until_in_sync(topic)
    written = Written(cluster.kafka, topic)
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(streams, cluster.kafka, topic)
        reading = pool.submit(reads, cluster.kafka, topic, COUNT)
        for victim, count in ((1, COUNT // 5), (2, COUNT // 2)):
            wait_until(lambda count=count: writing.done() or written.at_least(count), f"{count} are written")  # type: ignore[misc]
            if writing.done():
                writing.result()  # raises why it ended
            cluster.brokers[victim].kill()
            wait_until(
                lambda victim=victim: all(
                    each.leader not in (victim, -1) for each in cluster.partitions(topic).values()
                ),  # type: ignore[misc]
                f"others lead what broker {victim} led",
            )
            assert victim == 2 or not writing.done(), "all was written before a leader was killed"
            cluster.brokers[victim].start()
            cluster.until_in_sync(topic)
        writing.result(2 * PATIENCE)
        found = reading.result(2 * PATIENCE)
    read: dict[int, list[int]] = defaultdict(list)
    offsets: dict[int, list[int]] = defaultdict(list)
    for message in found:
        read[message.partition].append(int(message.value or b""))
        offsets[message.partition].append(message.offset or 0)
    for partition in range(PARTITIONS):
        assert offsets[partition] == sorted(set(offsets[partition])), f"partition {partition} was read twice"
        assert read[partition] == list(range(partition, COUNT, PARTITIONS)), f"partition {partition}"


@pytest.mark.parametrize(("name", "epoch"), [("java-4", 9), ("java-3", 4)])
def test_transactions_go_on_when_their_coordinator_is_killed(
    name: str, epoch: int, cluster: ClusterProcesses, tmp_path: Path
) -> None:
    """Java's client 4 gets the next epoch with each end (KIP-890), and its batches add their partitions to the
    transaction."""
    topic, ours = f"paid-{name}", f"payer-{name}"
    wait_until(partial(is_made, cluster, topic), "every broker is registered")
    try:
        client = agent(name, tmp_path)
    except tools.Missing as reason:
        pytest.skip(str(reason))
    committed: list[bytes] = []
    for number in range(5):
        aborts = number % 2 == 1
        some = [Message(b"k", b"%d-%d" % (number, index), (), None, index) for index in range(PARTITIONS)]
        client.produce(cluster.kafka, topic, some, Sending(transactional_id=ours, abort=aborts))
        committed += [] if aborts else [each.value or b"" for each in some]
        if number == 2:
            killed = cluster.brokers[coordinator_of(cluster, ours)]
            killed.kill()
    killed.start()
    found = client.consume(cluster.kafka, topic, len(committed), "read_committed")
    assert sorted(each.value or b"" for each in found) == sorted(committed)
    with cluster.asked(coordinator_of(cluster, ours)) as raw:
        [told] = raw.ask(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [ours]})["transaction_states"]
    assert told["producer_epoch"] == epoch
    client.close()
