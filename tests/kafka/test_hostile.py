"""Bad input over Kafka's protocol costs only its sender: other clients are served, and memory is bounded."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from random import Random

import pytest

from krappy.records import batch
from krappy.wire.kafka import RANGES, ApiKey, encode_request
from tests.kafka.raw import Raw, fetch, produce
from tests.neighbour import Neighbour, undisturbed
from tests.process import BrokerProcess, Launcher, broker_process

MEMORY = 16 << 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("hostile") / "data"
    with broker_process(data, launch=launcher, memory_bytes=MEMORY, durability="os") as running:
        yield running
        assert not running.events("internal_error"), running.last_words()
        assert running.stop() == 0


@pytest.fixture(autouse=True)
def beside(broker: BrokerProcess) -> Iterator[Neighbour]:
    """A well-behaved client. At the end of each test it must still be served, and all sockets of the test must be
    closed."""
    with undisturbed(broker, rounds=3) as client:
        yield client


def header(key: int, version: int, more: bytes = b"") -> bytes:
    """A frame with this request header, an empty client id, and these bytes."""
    inner = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff" + more
    return len(inner).to_bytes(4, "big") + inner


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\x7f\xff\xff\xff", b"\x10\0\0\0", b"\0\0\0\0"])
def test_impossible_sizes_close_the_connection(raw: Raw, size: bytes) -> None:
    raw.send_bytes(size + b"\0" * 20)
    assert raw.closed()


@pytest.mark.parametrize(
    "frame",
    [
        header(4, 0),  # an API between brokers
        header(7, 3),
        header(-1 & 0xFFFF, 0),
        header(9999, 0),
        header(ApiKey.METADATA, 99),
        header(ApiKey.METADATA, 0xFFFF),
        header(ApiKey.FETCH, 3),
        header(ApiKey.PRODUCE, 2),
        header(ApiKey.PRODUCE, 14),
        header(ApiKey.METADATA, 12, b"\0\5" + b"\0" * 38),  # it claims four topics and has two
        header(ApiKey.FETCH, 4, b"\0\0"),
        b"\0\0\0\x0c" + b"\0\3\0\1\0\0\0\1\0\xff" + b"ab",  # the client id ends behind the frame
        b"\0\0\0\x03abc",
    ],
)
def test_what_is_not_served_or_not_readable_closes_the_connection(raw: Raw, frame: bytes) -> None:
    raw.send_bytes(frame)
    assert raw.closed()


def test_what_was_asked_before_it_is_answered(raw: Raw) -> None:
    raw.make("before")
    for _ in range(10):
        raw.send(ApiKey.PRODUCE, produce("before", batch.encode(None, [b"x"], timestamps=1)), 9)
    raw.send_bytes(header(9999, 0))
    for number in range(10):
        assert raw.receive()["responses"][0]["partition_responses"][0]["base_offset"] == number
    assert raw.closed()


def test_random_bytes(broker: BrokerProcess) -> None:
    random = Random(3)
    for _ in range(200):
        with Raw(broker.kafka) as raw:
            raw.send_bytes(random.randbytes(random.randrange(1, 300)))
            raw.socket.shutdown(socket.SHUT_WR)
            assert raw.closed()


def test_random_bodies_under_good_headers(broker: BrokerProcess) -> None:
    random = Random(4)
    for key, (low, high) in RANGES.items():
        for version in range(low, high + 1):
            with Raw(broker.kafka) as raw:
                raw.send_bytes(header(key, version, random.randbytes(random.randrange(0, 60))))
                raw.socket.shutdown(socket.SHUT_WR)
                raw.closed()


def test_requests_cut_and_changed_at_every_byte(broker: BrokerProcess) -> None:
    records = batch.encode([b"k"], [b"v"], timestamps=1)
    for whole in (
        encode_request(ApiKey.PRODUCE, 9, 1, "c", produce("cut", records)),
        encode_request(ApiKey.FETCH, 12, 1, "c", fetch([("cut", 0, 0)])),
        encode_request(ApiKey.METADATA, 12, 1, "c", {"topics": [{"name": "cut"}]}),
    ):
        for at in range(4, len(whole)):
            for value in (0, 0x7F, 0xFF):
                changed = bytearray(whole)
                changed[at] = value
                with Raw(broker.kafka) as raw:
                    raw.send_bytes(bytes(changed))
                    raw.socket.shutdown(socket.SHUT_WR)
                    raw.closed()


def test_many_elements_in_a_small_frame(broker: BrokerProcess, raw: Raw) -> None:
    """The number of elements that a frame claims is compared with its bytes before anything is made of it."""
    before = broker.rss()
    raw.send_bytes(header(ApiKey.METADATA, 1, b"\x7f\xff\xff\xff"))
    assert raw.closed()
    with Raw(broker.kafka) as other:
        other.send_bytes(header(ApiKey.METADATA, 1, (3_000_000).to_bytes(4, "big") + b"\0\0" * 3_000_000))
        assert other.closed()
    assert broker.rss() < before + (64 << 20)


@pytest.mark.parametrize("length", [32_000, 32_767])
def test_a_long_name_is_not_repeated_for_each_thing_that_is_wrong_with_it(raw: Raw, length: int) -> None:
    """A reason that repeats the name would be longer than a string may be; and there may be thousands of reasons."""
    partitions = list(range(500))
    body = {"topics": [{"name": "t" * length, "partition_indexes": partitions}]}
    raw.send_bytes(encode_request(ApiKey.DESCRIBE_PRODUCERS, 0, 1, "x", body))
    assert len(raw.receive_frame()) < 2000 * len(partitions)


def test_a_consumer_that_never_reads(broker: BrokerProcess, beside: Neighbour) -> None:
    with Raw(broker.kafka) as raw:
        raw.make("unread")
        for _ in range(20):
            raw.produce("unread", batch.encode(None, [b"x" * 1000] * 1000, timestamps=1))
    broker.reset_peak()
    before = broker.rss()
    deaf = []
    try:
        for _ in range(20):
            raw = Raw(broker.kafka)
            deaf.append(raw)
            ask = [encode_request(ApiKey.FETCH, 12, n, "deaf", fetch([("unread", 0, n)])) for n in range(300)]
            raw.send_bytes(b"".join(ask))
        beside(20)
        assert broker.peak_rss() < before + 4 * MEMORY
    finally:
        for raw in deaf:
            raw.close()


def test_thousands_of_pipelined_requests_that_nobody_waits_for(broker: BrokerProcess, beside: Neighbour) -> None:
    with Raw(broker.kafka) as raw:
        raw.make("flood")
    broker.reset_peak()
    before = broker.rss()
    records = batch.encode(None, [b"x" * 1000] * 10, timestamps=1)
    ask = encode_request(ApiKey.PRODUCE, 9, 1, "flood", produce("flood", records)) * 50
    everything = encode_request(ApiKey.METADATA, 12, 1, "flood", {"topics": None}) * 500
    senders = []
    try:
        for number in range(10):
            raw = Raw(broker.kafka)
            senders.append(raw)
            raw.socket.settimeout(0.2)
            try:
                for _ in range(50):
                    raw.send_bytes(ask if number % 2 else everything)
            except TimeoutError:
                pass  # the broker does not read from it any more
        beside(20)
        assert broker.peak_rss() < before + 4 * MEMORY
    finally:
        for raw in senders:
            raw.close()


def test_half_frames_of_large_size_take_no_memory(broker: BrokerProcess, beside: Neighbour) -> None:
    broker.reset_peak()
    before = broker.rss()
    halves = []
    try:
        for _ in range(30):
            raw = Raw(broker.kafka)
            halves.append(raw)
            raw.send_bytes((7 << 20).to_bytes(4, "big") + b"\0\0\0\x09\0\0\0\1\xff\xff")
        beside(10)
        assert broker.peak_rss() < before + 2 * MEMORY
    finally:
        for raw in halves:
            raw.close()
