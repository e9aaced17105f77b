"""Quotas in the native protocol and at the command line."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from krappy import errors
from krappy.cli.main import run
from krappy.clients.acls import AclInfo
from krappy.core.security.quota import DEBT
from krappy.core.security.quota_entities import QuotaKey
from krappy.server import throttled
from krappy.server.connection import Connection
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from tests.kafka.raw import Raw, produce
from tests.peer import Peer
from tests.process import Stopwatch, wait_until
from tests.quotas.quotas import Quotas
from tests.quotas.test_kafka import NAMED, batch_of
from tests.security.test_ends import broker_of

KB = 1000


def test_a_client_sets_shows_and_removes_them(broker: RunningBroker) -> None:
    with broker.connect() as client:
        client.security.alter_quotas({"producer_byte_rate": 1000, "request_percentage": 12.5}, user="n-ada")
        client.security.alter_quotas({"consumer_byte_rate": 7}, user="n-ada", client_id="")
        [plain, both] = client.security.quotas(user="n-ada")
        assert plain == ("n-ada", None, None, {"producer_byte_rate": 1000.0, "request_percentage": 12.5})
        assert both == ("n-ada", "", None, {"consumer_byte_rate": 7.0})
        assert client.security.quotas(ip="10.0.0.1") == []
        client.security.alter_quotas(dict.fromkeys(["producer_byte_rate", "request_percentage"]), user="n-ada")
        client.security.alter_quotas({"consumer_byte_rate": None}, user="n-ada", client_id="")
        assert client.security.quotas(user="n-ada") == []
        for wrong in ({"producer_byte_rate": -1.0}, {"x": 1.0}, {"connection_creation_rate": 1.0}):
            with pytest.raises(errors.InvalidRequest):
                client.security.alter_quotas(wrong, user="n-ada")
        with pytest.raises(errors.InvalidRequest):
            client.security.alter_quotas({"producer_byte_rate": 1.0})


def test_the_command_line(broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> None:
    def krappy(*words: str, status: int = 0) -> str:
        assert run([*words, "--address", broker.address]) == status
        found = capsys.readouterr()
        return found.out + found.err

    made = krappy("quota", "set", "--user", "c-ada", "--client-id", "<default>", "producer_byte_rate=1M")
    assert made.split("\n")[1].split("\t") == ["c-ada", "<default>", "-", "producer_byte_rate", "1048576"]
    krappy("quota", "set", "--ip", "10.0.0.7", "connection_creation_rate=5")
    found = json.loads(krappy("quota", "list", "--json"))
    assert {"user": None, "client_id": None, "ip": "10.0.0.7", "rates": {"connection_creation_rate": 5.0}} in found
    assert "c-ada" in krappy("quota", "list", "--user", "c-ada")
    assert "no such quotas" in krappy("quota", "delete", "--user", "c-ada", status=1)  # another entity has the quota
    assert "1048576" in krappy("quota", "delete", "--user", "c-ada", "--client-id", "<default>", "producer_byte_rate")
    assert "10.0.0.7" in krappy("quota", "delete", "--ip", "10.0.0.7")
    assert "no such quotas" in krappy("quota", "list", "--user", "c-ada")
    krappy("quota", "set", "producer_byte_rate=1", status=2)
    krappy("quota", "set", "--user", "x", "producer_byte_rate=fast", status=2)
    assert "greater than 0" in krappy("quota", "set", "--user", "x", "producer_byte_rate=0", status=1)


def test_a_producer_is_silenced_and_a_pong_tells_it(broker: RunningBroker, quotas: Quotas) -> None:
    with Peer(broker.address) as raw:
        raw.ask(m.CreateTopic("n-written"), m.TopicCreated)
        handle = raw.ask(m.ProducerRegistration("n-written"), m.ProducerRegistered).handle
        assert raw.ask(m.Ping(), m.Pong).throttled == 0
        quotas.set({"user": "ANONYMOUS"}, producer_byte_rate=100.0 * KB)
        before, watch = time.monotonic(), Stopwatch()
        raw.ask(m.Message(handle, bytes(350 * KB)), m.MessageStored)
        assert watch.seconds < 2
        pong = raw.ask(m.Ping(), m.Pong)
        assert time.monotonic() - before > 2.3
        assert watch.seconds < 20  # the connection goes on; the pong says how long it was silenced
        assert 2300 < pong.throttled < 2700
        assert raw.signs  # else the client would take its connection for dead


def test_reads_are_counted_and_polls_wait(broker: RunningBroker, quotas: Quotas) -> None:
    with Peer(broker.address) as raw:
        raw.ask(m.CreateTopic("n-read"), m.TopicCreated)
        producer = raw.ask(m.ProducerRegistration("n-read"), m.ProducerRegistered).handle
        for _ in range(2):
            raw.ask(m.Message(producer, bytes(350 * KB)), m.MessageStored)
        reader = raw.ask(m.ConsumerRegistration(["n-read"], start="earliest"), m.ConsumerRegistered).handle
        quotas.set({"user": "ANONYMOUS"}, consumer_byte_rate=100.0 * KB)
        before, watch = time.monotonic(), Stopwatch()
        raw.ask(m.Poll(reader, max_records=1, max_wait=0), m.Polled)
        assert watch.seconds < 2
        raw.ask(m.Poll(reader, max_records=1, max_wait=0), m.Polled)
        assert time.monotonic() - before > 2.3
        assert watch.seconds < 20  # the connection goes on


LONG_S = 8.0  # seconds: much longer than the one second for which request_percentage may silence a connection


def slowest(ask: Callable[[], object], times: int = 4) -> float:
    found = []
    for _ in range(times):
        begun = time.monotonic()
        ask()
        found.append(time.monotonic() - begun)
    return max(found)


def test_time_silences_for_a_second_at_most(broker: RunningBroker, quotas: Quotas) -> None:
    """The second is Kafka's quota window. If the silence lasted longer, other clients who share the quota would be
    taken for dead, too."""
    quotas.set({"user": "ANONYMOUS"}, request_percentage=0.0001)
    with Peer(broker.address) as peer, Raw(broker.kafka_address) as kafka:
        assert slowest(lambda: peer.ask(m.Ping(), m.Pong)) < LONG_S
        assert slowest(lambda: kafka.ask(ApiKey.DESCRIBE_CLUSTER)) < LONG_S
        with Peer(broker.address) as other:
            assert slowest(lambda: other.ask(m.Ping(), m.Pong), 1) < LONG_S
        assert peer.ask(m.Ping(), m.Pong).throttled > 100


def busy(broker: RunningBroker, topic: str, done: threading.Event) -> None:
    """Writes until `done` is set, over connections of its own."""
    with ExitStack() as open_now:
        raws = [open_now.enter_context(Raw(broker.kafka_address)) for _ in range(8)]
        while not done.is_set():
            for raw in raws:
                raw.ask(ApiKey.PRODUCE, produce(topic, batch_of(bytes(2 * KB))), NAMED)


def test_what_streams_use_does_not_silence_for_ever(broker: RunningBroker, quotas: Quotas) -> None:
    """Streams go on, and use more of the quota, while the next request waits. If the request waited for that, too, it
    would never begin."""
    topic, done = "n-streams", threading.Event()
    with broker.connect() as client:
        client.create_topic(topic)
    writer = threading.Thread(target=busy, args=(broker, topic, done))
    with Peer(broker.address, timeout=60) as peer:
        peer.send(*[m.Watch(topic)] * 30)
        writer.start()
        try:
            quotas.set({"user": "ANONYMOUS"}, request_percentage=0.001)
            for _ in range(4):
                [id] = peer.send(m.Ping())
                begun = time.monotonic()
                while peer.receive()[0] != id:
                    pass
                assert time.monotonic() - begun < LONG_S
        finally:
            done.set()
            quotas.alter({"user": "ANONYMOUS"}, request_percentage=None)
            writer.join(60)


def test_watches_keep_to_the_rate_however_large_their_parts_are(
    broker: RunningBroker, quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part is as large as what several seconds allow: more than the debt that other clients may be in, and longer
    than a connection may be silenced. Pings are answered meanwhile."""
    monkeypatch.setitem(DEBT, QuotaKey.CONSUME, 1.0)
    monkeypatch.setattr(Connection, "_longest", 0.05)
    rate, part = 100.0 * KB, 256 * 1024
    with broker.connect() as client:
        client.create_topic("n-watched")
        with client.producer("n-watched") as producer:
            for number in range(400):
                producer.send(bytes(20 * KB), key=str(number))
    quotas.set({"user": "ANONYMOUS"}, consumer_byte_rate=rate)
    with Peer(broker.address, timeout=60) as peer:
        began, got, pongs = time.monotonic(), 0, 0
        peer.send(*[m.Watch("n-watched")] * 3)
        while time.monotonic() - began < 3 or not got:
            [ping] = peer.send(m.Ping())
            while (found := peer.receive())[0] != ping:
                assert isinstance(found[1], m.Watched)
                got += sum(len(entry[2] or b"") for entry in found[1].entries[1::2])
            pongs += 1
        took = time.monotonic() - began
    assert part - 20 * KB < got <= rate * (took + 1) + part
    assert pongs > 5


def test_a_watch_that_waits_for_its_quota_ends_with_its_right(tmp_path: Path) -> None:
    """The watch gets none of the entries that it waited for."""
    with broker_of(tmp_path) as (broker, client):
        client.create_topic("n-ends")
        client.add_acls([AclInfo("topic", "n-ends", "User:bob", "read")])
        with client.producer("n-ends") as producer:
            producer.send(bytes(20 * KB), key="k").result()
        client.security.alter_quotas({"consumer_byte_rate": 10.0}, user="bob")
        with Peer(broker.address, timeout=60) as peer:
            peer.ask(m.Authenticate("PLAIN", b"\0bob\0b"), m.Authenticated)
            [watch] = peer.send(m.Watch("n-ends"))
            begun = time.monotonic()
            [ping] = peer.send(m.Ping())
            assert peer.receive()[0] == ping
            client.delete_acls(resource="topic", name="n-ends")
            answer = peer.receive()
        assert answer[0] == watch
        assert isinstance(answer[1], errors.TopicAuthorizationFailed)
        assert time.monotonic() - begun < 60  # its part would come only after half an hour


def test_a_watch_that_waits_for_its_quota_ends_with_its_topic(broker: RunningBroker, quotas: Quotas) -> None:
    with broker.connect() as client, Peer(broker.address, timeout=60) as peer:
        client.create_topic("n-deleted")
        with client.producer("n-deleted") as producer:
            producer.send(bytes(20 * KB), key="k").result()
        quotas.set({"user": "ANONYMOUS"}, consumer_byte_rate=100.0)
        begun = time.monotonic()
        watches = peer.send(m.Watch("n-deleted"), m.Watch("n-deleted"))
        [ping] = peer.send(m.Ping())
        assert peer.receive()[0] == ping
        client.delete_topic("n-deleted")
        answers = [peer.receive() for _ in watches]
        assert {id for id, _ in answers} == set(watches)
        assert all(isinstance(error, errors.UnknownTopic) for _, error in answers)
        assert time.monotonic() - begun < 60  # a part would come only after minutes


def test_a_watch_of_one_who_is_over_his_quota_waits(
    broker: RunningBroker, quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch is not refused, and later requests on its connection do not wait."""
    monkeypatch.setattr(throttled, "HELD", 0.2)
    with broker.connect() as client, Peer(broker.address) as other, Peer(broker.address) as peer:
        client.create_topic("n-owed")
        with client.producer("n-owed") as producer:
            producer.send(bytes(20 * KB), key="k").result()
        quotas.set({"user": "ANONYMOUS"}, consumer_byte_rate=1.0 * KB)
        other.ask(m.Get("n-owed", b"k"), m.Got)
        watch, ping = peer.send(m.Watch("n-owed"), m.Ping())
        assert peer.receive()[0] == ping
        quotas.alter({"user": "ANONYMOUS"}, consumer_byte_rate=None)
        id, part = peer.receive()
        assert id == watch
        assert isinstance(part, m.Watched)
        assert part.entries


def test_topics_are_refused_beyond_their_rate(broker: RunningBroker, quotas: Quotas) -> None:
    """The error tells a client when to try again. Krappy's client does so by itself."""
    quotas.set({"user": "ANONYMOUS"}, controller_mutation_rate=0.5)
    with Peer(broker.address) as raw:
        raw.ask(m.CreateTopic("n-made-0", 7), m.TopicCreated)
        with pytest.raises(errors.Overloaded, match="controller_mutation_rate") as refused:
            raw.ask(m.CreateTopic("n-made-1"), m.TopicCreated)
        assert 0.5 < refused.value.seconds < 3.1
    with broker.connect() as client:
        client.create_topic("n-made-1")


def test_an_address_opens_connections_at_its_rate(broker: RunningBroker, quotas: Quotas) -> None:
    quotas.set({"ip": "127.0.0.9"}, connection_creation_rate=2.0)
    host, _, port = broker.address.rpartition(":")
    answered = []
    for _ in range(5):
        with socket.create_connection((host, int(port)), 30, ("127.0.0.9", 0)) as sock:
            sock.sendall(m.Ping().frame(1))
            kind = int.from_bytes(sock.recv(1 << 16)[4:8], "big")
            answered.append(kind == m.Pong.kind | 1 << 31)
    assert answered == [True, True, True, False, False]
    with broker.connect() as client:  # from another address
        assert client.topics() is not None


def test_a_topic_for_dead_letters_counts_as_a_mutation(tmp_path: Path) -> None:
    """It counts for the user who has joined the group. While his quota has no room, the event stays dead, and is not
    lost."""
    said: list[str] = []
    with (
        run_broker(
            tmp_path,
            durability="os",
            report=lambda event, **facts: said.append(str(facts)) if event == "dead_letter_failed" else None,
        ) as broker,
        broker.connect() as client,
    ):
        client.create_topic("work")
        with client.producer("work") as producer:
            producer.send("poison").result()
        client.security.alter_quotas({"controller_mutation_rate": 1e-5}, user="ANONYMOUS")
        client.create_topic("uses-up-the-burst")
        with client.consumer("work", group="g", max_deliveries=1) as consumer:
            [event] = consumer.poll(30)
            consumer.nack(event)
            wait_until(lambda: len(said) > 0, "it can't be buried")
            assert "controller_mutation_rate" in said[0]
            assert "work.g.dead" not in [each.name for each in client.topics()]
            client.security.alter_quotas({"controller_mutation_rate": None}, user="ANONYMOUS")
            wait_until(lambda: "work.g.dead" in [each.name for each in client.topics()], "it is buried")
