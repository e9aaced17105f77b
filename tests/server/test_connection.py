"""A connection's life: order, back-pressure, idling, being refused, and a broker that stops gracefully."""

from __future__ import annotations

import errno
import itertools
import random
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

import krappy
from krappy import errors
from krappy.records import batch
from krappy.server import inbound
from krappy.server.connection import Connection, Native
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from krappy.wire import mistaken
from krappy.wire.frames import ERROR, HEADER, FrameReader
from krappy.wire.messages import read_error, take_id, unpack
from tests.handlers.raw import Raw


def test_a_silent_connection_is_closed_and_says_why(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os", idle_timeout_ms=1500) as broker, Raw(broker.address) as raw:
        raw.call(m.Ping())
        with pytest.raises(errors.RequestTimeout):
            raw.receive(0)
        with pytest.raises(EOFError):
            raw.receive(0)


def test_a_connection_that_stops_in_the_middle_of_a_frame_is_closed_and_says_why(tmp_path: Path) -> None:
    settings = {"durability": "os", "idle_timeout_ms": 1500}
    with run_broker(tmp_path, **settings) as broker, Raw(broker.address) as small, Raw(broker.address) as large:
        small.socket.sendall(m.Message(1, bytes(1_000)).frame(1)[:-1])
        large.socket.sendall(m.Message(1, bytes(1_000_000)).frame(1)[:-1])
        for raw in (small, large):
            with pytest.raises(errors.RequestTimeout, match="silent in the middle of a frame"):
                raw.receive(0)


def test_every_message_extends_the_idle_timeout(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os", idle_timeout_ms=3000) as broker, Raw(broker.address) as raw:
        raw.producer("t")
        consumer = raw.call(m.ConsumerRegistration(["t"]))
        for _ in range(20):
            raw.call(m.Poll(consumer.handle, max_wait=200))
        assert raw.call(m.Ping()).cluster


def test_connections_beyond_the_limit_are_told_so(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os", max_connections=2) as broker:
        with Raw(broker.address) as one, Raw(broker.address) as two:
            one.call(m.Ping())
            two.call(m.Ping())
            with Raw(broker.address) as three, pytest.raises(errors.Overloaded):
                three.receive(0)
        for _ in range(200):
            with Raw(broker.address) as again:
                try:
                    again.call(m.Ping())
                    break
                except (errors.Overloaded, OSError, EOFError):
                    continue
        else:
            pytest.fail("closed connections still count")


@pytest.mark.parametrize("size", [0, 3])
def test_an_impossible_size_ends_the_connection(tmp_path: Path, size: int) -> None:
    with run_broker(tmp_path, durability="os") as broker, Raw(broker.address) as raw:
        raw.socket.sendall(size.to_bytes(4, "big") + b"\0\0\0\0")
        with pytest.raises(errors.ProtocolError):
            raw.receive(0)
        with pytest.raises(EOFError):
            raw.receive(0)


def test_a_frame_over_the_limit_ends_the_connection_before_it_is_read(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os", max_frame_bytes=100_000) as broker, Raw(broker.address) as raw:
        raw.socket.sendall(HEADER.pack(2**31, 3))
        with pytest.raises(errors.FrameTooLarge):
            raw.receive(0)
        with pytest.raises(EOFError):
            raw.receive(0)


def test_a_connection_that_ends_inside_a_frame_is_told_so(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os") as broker, Raw(broker.address) as raw:
        raw.socket.sendall(HEADER.pack(100, 22) + b"half")
        raw.socket.shutdown(socket.SHUT_WR)
        with pytest.raises(errors.ProtocolError, match="inside a frame"):
            raw.receive(0)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (22, b"\xc1"),
        (22, b"\x93\x01\x02\x03"),
        (22, b"\x80"),
        (22, b"\x81\xa2id\xa1x"),
        (99, b"\x81\xa2id\x07"),
        (0x80000001, b"\x81\xa2id\x07"),
        (22, b"\x82\xa2id\x07\xa4more\x01"),
        (4, b"\x81\xa2id\x07"),
        (22, b"\x91" * 5000),
    ],
)
def test_a_bad_body_gets_an_error_and_the_connection_lives(tmp_path: Path, kind: int, body: bytes) -> None:
    with run_broker(tmp_path, durability="os") as broker, Raw(broker.address) as raw:
        raw.socket.sendall(HEADER.pack(len(body) + 4, kind) + body)
        reader = FrameReader()
        while True:
            reader.feed(raw.socket.recv(65536))
            if frames := list(reader.frames()):
                break
        ((answered, text),) = frames
        assert answered == ERROR
        values = unpack(text)
        take_id(values)
        assert isinstance(read_error(values), errors.ProtocolError | errors.InvalidRequest)
        assert raw.call(m.Ping()).cluster


def test_a_large_frame_arrives_in_any_pieces(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os") as broker, Raw(broker.address) as raw:
        handle = raw.producer("t").handle
        data = batch.encode([None], [b"x" * 900_000], timestamps=1)
        frames = b"".join(m.Batch(handle, 0, data).frame(1000 + n) for n in range(3))
        raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        cuts = [0, 3, 7, 8, 9, 100, 65_000, 300_000, 899_999, 900_080, 900_200, 1_900_000, len(frames)]
        for start, stop in itertools.pairwise(cuts):
            raw.socket.sendall(frames[start:stop])
        assert [raw.receive(1000 + n).offset for n in range(3)] == [0, 1, 2]


def test_the_buffer_of_a_large_frame_grows_with_its_bytes(tmp_path: Path) -> None:
    size, part = 9_000_000, 100_000

    async def main() -> None:
        async with krappy.Broker(tmp_path, max_frame_bytes=size) as broker:
            host, _, port = broker.address.rpartition(":")
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                frame = m.Message(1, b"x" * (size - 200)).frame(7)
                await stream.send_all(frame[:part])
                while not broker.server.budget.used:
                    await trio.sleep(0.001)
                [connection] = broker.server.connections
                assert isinstance(connection, Connection)
                assert connection._large is not None
                assert len(connection._large) == inbound.BEGIN
                assert connection.held == broker.server.budget.used == len(frame)
                await stream.send_all(frame[part:])
                reader = FrameReader()
                while not (frames := list(reader.frames())):
                    reader.feed(await stream.receive_some())
                values = unpack(frames[0][1])
                assert take_id(values) == 7
                assert isinstance(read_error(values), errors.UnknownHandle)
                assert not connection._large

    trio.run(main)


def test_large_frames_are_whole_whatever_their_size(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os") as broker, Raw(broker.address) as raw:
        raw.call(m.CreateTopic("t", 1, {"max.message.bytes": 16_000_000}))
        handle = raw.producer("t").handle
        values = [random.Random(size).randbytes(size) for size in (130_000, inbound.BEGIN, 2_500_000, 8_388_608)]
        for value in values:
            raw.call(m.Message(handle, value))
        with broker.connect() as client, client.consumer("t", end="now") as consumer:
            assert [event.value for event in consumer] == values


def test_a_stopping_broker_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    count, acknowledged = 300, 0
    with Stopped(tmp_path / "data") as stopped, Raw(stopped.broker.address) as raw:
        handle = raw.producer("t").handle
        ids = [raw.send(m.Message(handle, b"%d" % n)) for n in range(count)]
        for id in ids:
            try:
                raw.receive(id)
            except (errors.ShuttingDown, EOFError, ConnectionResetError):
                break
            acknowledged += 1
            if acknowledged == 1:
                stopped.stop()
    assert acknowledged >= 1
    with run_broker(tmp_path / "data") as broker, Raw(broker.address) as raw:
        ((_, end),) = raw.call(m.Offsets("t", "latest")).offsets
        assert acknowledged <= end <= count


def test_a_stopping_broker_ends_a_waiting_poll_at_once(tmp_path: Path) -> None:
    with Stopped(tmp_path / "data") as stopped, Raw(stopped.broker.address) as raw:
        raw.producer("t")
        consumer = raw.call(m.ConsumerRegistration(["t"]))
        waiting = raw.send(m.Poll(consumer.handle, max_wait=60_000))
        raw.call(m.Ping())  # the poll was taken before this was
        stopped.stop()
        assert raw.receive(waiting).parts == []


def test_a_stopping_broker_ends_a_members_waiting_poll_at_once(tmp_path: Path) -> None:
    with Stopped(tmp_path / "data") as stopped, Raw(stopped.broker.address) as raw:
        raw.producer("t")
        members = [raw.call(m.ConsumerRegistration(["t"], group="g")) for _ in range(5)]
        waiting = [raw.send(m.Poll(member.handle, max_wait=60_000)) for member in members]
        raw.call(m.Ping())  # the polls were taken before this was
        stopped.stop()
        assert [raw.receive(each).parts for each in waiting] == [[]] * 5


class Stopped:
    """A broker that can be stopped while its clients are still connected."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop = threading.Event()
        self._ready = threading.Event()
        self.broker: RunningBroker

    def _run(self) -> None:
        with run_broker(self._folder) as self.broker:
            self._ready.set()
            self._stop.wait(60)

    def __enter__(self) -> Stopped:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def stop(self) -> None:
        self._stop.set()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_a_peer_that_never_reads_stops_being_read(tmp_path: Path) -> None:
    """Answers pile up to a bound, then the broker takes no more requests of that peer; another one is served."""
    with run_broker(tmp_path, durability="os") as broker, Raw(broker.address) as good, Raw(broker.address) as greedy:
        handle = good.producer("t").handle
        for _ in range(8):
            good.call(m.Batch(handle, 0, batch.encode([None], [b"x" * 1_000_000], timestamps=1)))
        consumer = greedy.call(m.ConsumerRegistration(["t"]))
        greedy.socket.settimeout(2)
        request = m.Seek(consumer.handle, "t", 0, "earliest").frame(1) + m.Poll(consumer.handle).frame(2)
        with pytest.raises(TimeoutError):
            greedy.socket.sendall(request * 500_000)
        assert good.call(m.Ping()).cluster
        assert good.call(m.Offsets("t", "latest")).offsets == [[0, 8]]


def test_many_requests_at_once_let_others_have_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "TURN", -1.0)  # each request is a turn of its own
    begin = Connection._dispatch
    passes = 0
    begun: list[int] = []

    def note(connection: Connection, frame: memoryview, size: int, lent: bool) -> None:
        begun.append(passes)
        begin(connection, frame, size, lent)

    async def count() -> None:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async def main() -> None:
        async with krappy.Broker(tmp_path) as broker, trio.open_nursery() as nursery:
            host, _, port = broker.address.rpartition(":")
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                nursery.start_soon(count)
                await stream.send_all(b"".join(m.Ping().frame(n) for n in range(1, 101)))
                reader = FrameReader()
                answered = 0
                while answered < 100:
                    reader.feed(await stream.receive_some())
                    answered += len(list(reader.frames()))
            nursery.cancel_scope.cancel()

    monkeypatch.setattr(Connection, "_dispatch", note)
    trio.run(main)
    assert len(set(begun)) >= 50  # trio shuffles turns that are due together, so two turns may see the same count


@pytest.mark.parametrize(
    ("sent", "spoken"), [(b"\x16\x03\x01\x02\x00\x01", "TLS"), (b"GET / HTTP/1.1\r\n\r\n", "HTTP"), (b"\x7f" * 8, None)]
)
def test_another_protocol_is_told_by_its_name(tmp_path: Path, sent: bytes, spoken: str | None) -> None:
    with run_broker(tmp_path, durability="os") as broker, Raw(broker.address) as raw:
        raw.socket.sendall(sent)
        with pytest.raises(errors.FrameTooLarge) as refused:
            raw.receive(0)
    assert ("it looks like" in str(refused.value)) == (spoken is not None)
    assert spoken is None or f"like {spoken}," in str(refused.value)


KAFKA_HELLO = bytes.fromhex("00000013 0012 0000 00000001 0009") + b"kcat-test"
NATIVE_HELLO = m.Ping().frame(1)
HTTP_HELLO = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest.mark.parametrize("port", ["native", "kafka", "http"])
@pytest.mark.parametrize(
    ("sent", "name"),
    [(KAFKA_HELLO, "Kafka's"), (NATIVE_HELLO, "Krappy's"), (HTTP_HELLO, "HTTP"), (TLS_HELLO, "TLS")],
    ids=["kafka", "native", "http", "tls"],
)
def test_whoever_comes_to_the_wrong_port_is_named_in_the_log_and_over_http_in_the_answer(
    tmp_path: Path, port: str, sent: bytes, name: str
) -> None:
    reported: list[str] = []

    def report(event: str, **facts: Any) -> None:
        reported.append(f"{event} {facts.get('reason')}")

    with run_broker(tmp_path, durability="os", listen_http="127.0.0.1:0", report=report) as broker:
        addresses = {"native": broker.address, "kafka": broker.kafka_address, "http": broker.http_address}
        host, _, number = addresses[port].rpartition(":")
        with socket.create_connection((host, int(number)), 10) as peer:
            peer.sendall(sent)
            if {"kafka": "Kafka's", "native": "Krappy's", "http": "HTTP"}[port] == name:
                assert peer.recv(10_000)
                return
            got = b""
            while more := peer.recv(10_000):  # until the broker ends the connection
                got += more
    if name == "HTTP":
        assert got.startswith(b"HTTP/1.1 400 ")
        assert b"listen_http" in got
    if name == "TLS":
        assert got == mistaken.TLS_ALERT
    assert f"it looks like {name}" in " ".join(reported)


@pytest.mark.parametrize("port", ["native", "kafka", "http"])
def test_a_tls_client_is_told_at_once(tmp_path: Path, port: str) -> None:
    """The error is in OpenSSL's words. Before, the client waited for an answer, or said that the connection
    was closed."""
    context = ssl.create_default_context()
    with run_broker(tmp_path, durability="os", listen_http="127.0.0.1:0") as broker:
        addresses = {"native": broker.address, "kafka": broker.kafka_address, "http": broker.http_address}
        host, _, number = addresses[port].rpartition(":")
        with (
            socket.create_connection((host, int(number)), 10) as plain,
            pytest.raises(ssl.SSLError, match=r"(?i)handshake.failure"),
        ):
            context.wrap_socket(plain, server_hostname="localhost")


def test_a_native_client_at_kafkas_port_is_asked_about_it(tmp_path: Path) -> None:
    with (
        run_broker(tmp_path, durability="os") as broker,
        pytest.raises(errors.ConnectionLost, match="native protocol"),
        krappy.blocking.connect(broker.kafka_address),
    ):
        pass


def test_a_peer_that_leaves_while_it_is_accepted_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = Native.connect
    left = iter([True])

    def gone(*arguments: Any) -> Connection:
        if next(left, False):
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return connect(*arguments)

    monkeypatch.setattr(Native, "connect", gone)
    with run_broker(tmp_path, durability="os") as broker:
        with Raw(broker.address) as raw, pytest.raises((EOFError, ConnectionResetError)):
            raw.call(m.Ping())
        with Raw(broker.address) as raw:
            assert raw.call(m.Ping()).cluster
