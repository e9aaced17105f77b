"""Clients that connect again and again, or by many connections at once. What a user has read counts for the user, and
not for one of his connections. What one client of a user did silences the user's other clients for a bounded time
only."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from krappy import errors
from krappy.core.security.quota import WINDOW
from krappy.server import throttled
from krappy.testing.running import RunningBroker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from tests.handlers.raw import Raw as Native
from tests.handlers.raw import records
from tests.kafka.raw import Raw, fetch
from tests.quotas.quotas import Quotas

VALUE = 20_000  # bytes; as much as the quota allows in 200 s
RATE = 100.0
TOPIC = "again"


@pytest.fixture(scope="module", autouse=True)
def topics(broker: RunningBroker) -> None:
    with broker.connect() as client:
        client.create_topic(TOPIC)
        client.create_topic("scattered", partitions=2)
        client.create_topic("large")
        with client.producer(TOPIC) as producer:
            for _ in range(3):
                producer.send(bytes(VALUE), key=b"k").result()
    with Raw(broker.kafka_address) as raw:
        for _ in range(5):
            assert raw.produce("large", records(*[(None, bytes(10_000))] * 10))["error_code"] == 0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests over the quota wait only for a moment, and are then refused."""
    monkeypatch.setattr(throttled, "HELD", 0.05)


@pytest.fixture
def poor(quotas: Quotas) -> Quotas:
    """A quota that one answer uses up for longer than any of these tests takes."""
    quotas.set({"user": "ANONYMOUS"}, consumer_byte_rate=RATE)
    return quotas


def get(raw: Native) -> object:
    return raw.call(m.Get(TOPIC, b"k"))


def poll(raw: Native, **more: object) -> object:
    registered = raw.call(m.ConsumerRegistration([TOPIC], start="earliest", **more))  # type: ignore[arg-type]
    return raw.call(m.Poll(registered.handle, max_wait=1000))


READS: dict[str, Callable[[Native], object]] = {
    "Get": get,
    "MultiGet": lambda raw: raw.call(m.MultiGet(TOPIC, [b"k"])),
    "GetColumns": lambda raw: raw.call(m.GetColumns(TOPIC, struct.pack("<2i", 0, 1), b"k")),
    "Poll": poll,
    "Poll of a group": lambda raw: poll(raw, group="again"),
    "Scan": lambda raw: raw.call(m.Scan(TOPIC)),
    "History": lambda raw: raw.call(m.History(TOPIC, b"k")),
    "ReadLog": lambda raw: raw.call(m.ReadLog(TOPIC, 0, 0, 1)),
}


@pytest.mark.usefixtures("impatient", "poor")
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_new_connection_reads_no_more(broker: RunningBroker, read: Callable[[Native], object]) -> None:
    with Native(broker.address) as raw:
        get(raw)
    with Native(broker.address) as raw, pytest.raises(errors.Overloaded, match="consumer_byte_rate") as refused:
        read(raw)
    assert refused.value.seconds > 0


@pytest.mark.usefixtures("impatient", "poor")
@pytest.mark.parametrize("topic", [TOPIC, "scattered"])
def test_many_connections_at_once_read_once(broker: RunningBroker, topic: str) -> None:
    """This is so even if a request waits for other tasks before it is answered."""
    with Native(broker.address) as raw:  # uses up the burst
        handle = raw.producer(topic).handle
        raw.call(m.Batch(handle, 0, records((b"k", bytes(VALUE)))))

    def read(raw: Native) -> bool:
        try:
            raw.call(m.MultiGet(topic, [b"k"] * 20))
        except errors.Overloaded:
            return False
        return True

    with ExitStack() as opened, ThreadPoolExecutor(8) as pool:
        read_by = list(pool.map(read, [opened.enter_context(Native(broker.address)) for _ in range(8)]))
    assert sum(read_by) == 1


@pytest.mark.usefixtures("impatient")
def test_a_poll_brings_what_is_allowed_in_a_second(broker: RunningBroker, quotas: Quotas) -> None:
    quotas.set({"user": "ANONYMOUS"}, consumer_byte_rate=150_000.0)
    for group in (None, "once"):
        with Native(broker.address) as raw:
            registered = raw.call(m.ConsumerRegistration(["large"], start="earliest", group=group))
            polled = raw.call(m.Poll(registered.handle, max_bytes=16 << 20, max_wait=1000))
            assert 0 < sum(len(part[4]) for part in polled.parts) < 300_000
        quotas.alter({"user": "ANONYMOUS"}, consumer_byte_rate=None)
        quotas.alter({"user": "ANONYMOUS"}, consumer_byte_rate=150_000.0)


WRITES: dict[str, Callable[[Native], object]] = {
    "Batch": lambda raw: raw.call(m.Batch(raw.producer(TOPIC).handle, 0, records((b"new", b"v")))),
    "Message": lambda raw: raw.call(m.Message(raw.producer(TOPIC).handle, b"v", b"new")),
    "Stage": lambda raw: raw.call(m.Stage(TOPIC, "j", "0", "0")),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_new_connection_writes_no_more(
    broker: RunningBroker, quotas: Quotas, write: Callable[[Native], object]
) -> None:
    quotas.set({"user": "ANONYMOUS"}, producer_byte_rate=RATE)
    with Native(broker.address) as raw:
        raw.call(m.Batch(raw.producer(TOPIC).handle, 0, records((b"k", bytes(VALUE)))))
    with Native(broker.address) as raw, pytest.raises(errors.Overloaded, match="producer_byte_rate"):
        write(raw)
    with broker.connect() as client:
        quotas.alter({"user": "ANONYMOUS"}, producer_byte_rate=None)
        assert client.table(TOPIC).get("new") is None


def test_producers_that_are_refused_write_all_as_slowly_as_they_may(
    broker: RunningBroker, quotas: Quotas, impatient: None
) -> None:
    """Eight producers write at once, and try again by themselves. Each event is stored once, and in order."""
    topic, writers, size = "refused", 8, 20_000
    with broker.connect() as client:
        client.create_topic(topic)
    quotas.set({"user": "ANONYMOUS"}, producer_byte_rate=500_000.0)

    def write(writer: int) -> None:
        with broker.connect(timeout=120) as client, client.producer(topic) as producer:
            for receipt in [producer.send(b"%d-%d-" % (writer, each) + bytes(size)) for each in range(10)]:
                receipt.result()

    began = time.monotonic()
    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    took = time.monotonic() - began
    with broker.connect() as client, client.consumer(topic, end="now") as consumer:
        found = [tuple(map(int, (event.value or b"").split(b"-")[:2])) for event in consumer]
    for writer in range(writers):
        assert [each for by, each in found if by == writer] == list(range(10))
    assert took > (writers * 10 * size) / 500_000 - 1.5


def test_another_client_of_the_user_is_silent_for_a_bounded_time(broker: RunningBroker, poor: Quotas) -> None:
    with Native(broker.address) as raw:
        get(raw)
    with Raw(broker.kafka_address) as raw:
        answer = raw.ask(ApiKey.FETCH, fetch([(TOPIC, 0, 0)]), 12)
    assert 0 < answer["throttle_time_ms"] < 1000 * (WINDOW + 5)  # the window, and some time for the answer itself


def test_a_quota_that_is_set_again_begins_anew(broker: RunningBroker, poor: Quotas) -> None:
    with Native(broker.address) as raw:
        get(raw)
    poor.alter({"user": "ANONYMOUS"}, consumer_byte_rate=None)
    poor.alter({"user": "ANONYMOUS"}, consumer_byte_rate=RATE)
    with Native(broker.address) as raw:
        assert get(raw)


def test_a_client_that_is_refused_asks_again(broker: RunningBroker, quotas: Quotas, impatient: None) -> None:
    """Its user notices nothing: it gets all events, only more slowly."""
    with broker.connect() as client:
        assert client.table("large") is not None
        quotas.set({"user": "ANONYMOUS"}, consumer_byte_rate=1_000_000.0)
        with client.consumer("large", start="earliest") as consumer:
            got, end = 0, time.monotonic() + 60
            while got < 50 and time.monotonic() < end:
                got += len(consumer.poll(1))
        assert got == 50
