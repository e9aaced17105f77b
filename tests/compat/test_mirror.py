"""MirrorMaker 2: topics with their settings to Krappy, from another Krappy and from Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy import blocking
from krappy.blocking import Client
from krappy.errors import UnknownTopic
from tests.compat import tools
from tests.compat.admin import Admin
from tests.compat.clients.base import Message, Sending
from tests.compat.clients.confluent import Confluent
from tests.compat.programs import LONG_S, MADE, Program, jvm, shown
from tests.compat.servers import KafkaServer, KrappyServer, Server

pytestmark = [MADE, pytest.mark.timeout(4 * LONG_S)]
ELSEWHERE = "kafka.example:9092"


@pytest.fixture(params=["krappy", "kafka"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    try:
        found: Server = (
            KrappyServer(tmp_path / "other") if request.param == "krappy" else KafkaServer(tmp_path / "other")
        )
    except tools.Missing as reason:
        pytest.skip(str(reason))
    found.start()
    yield found
    found.kill()


@pytest.fixture
def broker(source: Server, tmp_path: Path) -> Iterator[KrappyServer]:
    """The target: a broker that has nothing yet. The module's own broker would have topics of other tests."""
    found = KrappyServer(tmp_path / "target")
    found.start()
    yield found
    found.kill()


@pytest.fixture
def target(broker: KrappyServer) -> Iterator[Client]:
    with blocking.connect(broker.broker.address) as client:
        yield client


def test_topics_with_their_settings(source: Server, broker: KrappyServer, target: Client, tmp_path: Path) -> None:
    admin, writer = Admin(source.address), Confluent()
    admin.create("words", 2, {"retention.ms": "123456789"})
    admin.create("counts", 1, {"cleanup.policy": "compact"})
    words = [Message(b"k%d" % n, b"%d" % n, (("h", b"x"),), 1_700_000_000_000 + n, n % 2) for n in range(1000)]
    writer.produce(source.address, "words", words, Sending(codec="lz4"))
    counts = [Message(b"a", b"1"), Message(b"b", b"1"), Message(b"a", b"2"), Message(b"b", None)]
    writer.produce(source.address, "counts", counts, Sending())

    file = tmp_path / "mirror.properties"
    text = shown("mirror.properties", broker)
    assert ELSEWHERE in text
    file.write_text(text.replace(ELSEWHERE, source.address) + "refresh.topics.interval.seconds=2\n")
    command = jvm("connect", "org.apache.kafka.connect.mirror.MirrorMaker", file)

    def there(topic: str) -> int:
        try:
            return sum(target.offsets(topic).values())
        except UnknownTopic:
            return 0

    with Program(command, tmp_path, "mirror") as program:
        program.until(lambda: there("source.words") >= 1000 and there("source.counts") >= 4, "all events are there")
        writer.produce(source.address, "counts", [Message(b"c", b"1")], Sending())
        program.until(lambda: there("source.counts") >= 5, "later ones, too")
        table = {entry.key: entry.value for entry in target.table("source.counts").scan()}
        assert table == {b"a": b"2", b"c": b"1"}
        with target.consumer("source.words", end="now") as consumer:
            found = [(event.partition, event.key, event.value, event.timestamp, event.headers) for event in consumer]
        sent = [(each.partition, each.key, each.value, each.timestamp, each.headers) for each in words]
        assert sorted(found) == sorted(sent)
        ours = Admin(broker.address)
        program.until(lambda: ours.config("source.words")["retention.ms"].value == "123456789", "the settings of words")
        program.until(
            lambda: ours.config("source.counts")["cleanup.policy"].value == "compact", "the settings of counts"
        )
