"""Bad input costs only its sender (promise 6): whatever a peer sends, it gets a precise error or a closed connection,
the broker stays up, what it stores stays whole, and a well-behaved client beside it is served all the time.

What many or slow peers do to memory is tried in test_hostile_load.py.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from random import Random
from typing import Any

import msgpack
import pytest
from crc32c import crc32c

from krappy.errors import CorruptBatch, InvalidRecord, InvalidRequest, KrappyError, ProtocolError, UnknownHandle
from krappy.records import batch, codecs
from krappy.wire import messages as m
from krappy.wire.frames import HEADER, frame
from krappy.wire.messages import REQUESTS
from tests.neighbour import Neighbour, undisturbed
from tests.peer import Gone, Peer
from tests.process import BrokerProcess, broker_process

BUG = KrappyError.name  # what an error of the broker's own is called on the wire


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("hostile") / "data", memory_bytes=16 << 20) as running:
        yield running
        assert not running.events("internal_error"), running.last_words()
        assert running.stop() == 0


@pytest.fixture
def beside(broker: BrokerProcess) -> Iterator[Neighbour]:
    """The well-behaved client; at the end of each test it must still be served, and every file be closed again."""
    with undisturbed(broker) as client:
        yield client


@pytest.fixture
def peer(broker: BrokerProcess, beside: Neighbour) -> Iterator[Peer]:
    with Peer(broker.address) as client:
        yield client


def alive(peer: Peer) -> None:
    """The connection goes on."""
    peer.ask(m.Ping(), m.Pong)


def ended(peer: Peer) -> list[KrappyError]:
    """Reads until the broker closes the connection; the errors that it sent before."""
    errors: list[KrappyError] = []
    while True:
        try:
            _, answer = peer.receive()
        except Gone:
            return errors
        assert isinstance(answer, KrappyError), answer
        errors.append(answer)


# --- bytes that are no frames


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_a_frame_too_small_for_its_type_closes_the_connection(peer: Peer, size: int) -> None:
    peer.post(struct.pack(">I", size) + bytes(12))
    (error,) = ended(peer)
    assert isinstance(error, ProtocolError)
    assert str(size) in error.text


@pytest.mark.parametrize("size", [(8 << 20) + 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_frame_over_the_limit_closes_the_connection(peer: Peer, size: int) -> None:
    peer.post(struct.pack(">I", size))
    (error,) = ended(peer)
    assert error.name == "FRAME_TOO_LARGE"
    assert error.limit == 8 << 20  # half of memory_bytes


def test_random_bytes(broker: BrokerProcess, beside: Neighbour) -> None:
    random = Random(1)
    for _ in range(150):
        with Peer(broker.address) as peer:
            try:
                peer.post(random.randbytes(random.choice([1, 7, 8, 100, 10_000])))
                peer.socket.shutdown(socket.SHUT_WR)
            except (Gone, OSError):
                continue
            assert all(isinstance(error, ProtocolError) for error in ended(peer))


def test_random_bytes_in_frames(peer: Peer) -> None:
    random = Random(2)
    for _ in range(3000):
        kind = random.choice([*REQUESTS, random.getrandbits(32)])
        peer.post(frame(kind, random.randbytes(random.choice([0, 1, 5, 40]))))
        _, answer = peer.receive()
        assert isinstance(answer, ProtocolError | InvalidRequest), answer
    alive(peer)


def test_a_frame_byte_by_byte_is_a_frame(peer: Peer) -> None:
    for byte in m.Ping().frame(7):
        peer.post(bytes([byte]))
    id, answer = peer.receive()
    assert id == 7
    assert isinstance(answer, m.Pong)


@pytest.mark.parametrize("sent", [1, 4, 7, 8, 20, 300_000])
def test_half_a_frame(broker: BrokerProcess, beside: Neighbour, sent: int) -> None:
    whole = frame(m.Message.kind, bytes(1 << 20))
    with Peer(broker.address) as silent, Peer(broker.address) as leaving, Peer(broker.address) as resetting:
        for peer in (silent, leaving, resetting):
            peer.post(whole[:sent])
        leaving.socket.shutdown(socket.SHUT_WR)
        (error,) = ended(leaving)
        assert isinstance(error, ProtocolError)
        resetting.reset()
        beside(5)


# --- frames that are no messages


def packed(**values: Any) -> bytes:
    return bytes(msgpack.packb(values))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",  # the one byte that msgpack never uses
        b"\xc0",
        b"\x90",
        b"\x01",
        b"\x81",  # a map without its pair
        b"\x80\x80",  # something behind the map
        b"\x81\xc4\x01x\x01",  # a key of bytes
        b"\x81\x01\x01",  # of a number
        b"\x81\xa1\xff\x01",  # of no UTF-8
        b"\xdf\xff\xff\xff\xff",  # four billion pairs
        b"\xdd\xff\xff\xff\xff",
        b"\x81\xa2id\xdb\xff\xff\xff\xff",
        b"\x81\xa2id\xc6\xff\xff\xff\xff",
        b"\x81\xa2id\xc9\xff\xff\xff\xff\x01",
        b"\x81\xa1x" + b"\x91" * 100_000,  # nested arrays
        b"\x81\xa1x" + b"\x81\xa1x" * 100_000,  # and maps
        packed(),
        packed(id=None),
        packed(id="1"),
        packed(id=-1),
        packed(id=2**64 - 1),
        packed(id=1.0),
        packed(id=True),
        packed(id=[]),
    ],
    ids=lambda body: f"{body[:12].hex()}-{len(body)}",
)
def test_what_is_no_message_gets_an_error_and_the_connection_goes_on(peer: Peer, body: bytes) -> None:
    peer.post(frame(m.Ping.kind, body))
    id, error = peer.receive()
    assert id == 0
    assert isinstance(error, ProtocolError)
    alive(peer)


@pytest.mark.parametrize("kind", [0, 27, 99, 0x7FFFFFFF, 0x80000001, 0xFFFFFFFF])
def test_unknown_types(peer: Peer, kind: int) -> None:
    peer.post(frame(kind, packed(id=5)))
    id, error = peer.receive()
    assert id == 5
    assert isinstance(error, InvalidRequest)
    alive(peer)


@pytest.mark.parametrize("entries", [500_000, 4 << 20])
def test_arrays_that_claim_much_and_hold_nothing(peer: Peer, beside: Neighbour, entries: int) -> None:
    """Each of 500 nested arrays claims as many entries as its frame has bytes."""
    for _ in range(3):
        body = b"\x82\xa2id\x01\xa1x" + (b"\xdd" + struct.pack(">I", entries)) * 500
        peer.post(frame(m.Ping.kind, body + bytes(entries - len(body))))
        _, error = peer.receive()
        assert isinstance(error, ProtocolError | InvalidRequest)
    beside(5)
    alive(peer)


WRONG: list[Any] = [
    None, True, 0, 1, -1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 1.5, float("nan"), "", "x", "\0", "x" * 300, "..",
    "../../etc", b"", b"x", b"\xff" * 20, [], [None], [[]], [[[]]], [0], ["x"], [b"x"], [["x", 0, 0]], [["x", 0, 1, 2]],
    [["x", -1, 2**64 - 1]], [[0, 0]], [[2**32 - 1, 2**63 - 1]], [0] * 1000, {}, {"x": 1}, {"": None}, {"x": {"x": []}},
    {"cleanup.policy": []}, {"segment.bytes": -5}, msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 5),
]  # fmt: skip
PLAUSIBLE: dict[str, Any] = {
    "topic": "mangled", "topics": ["mangled"], "handle": 1, "payload": b"p", "key": b"k", "partition": 0,
    "records": b"r", "group": "g", "ranges": [], "offsets": [], "epochs": [], "start": "earliest", "max_wait": 0,
    "lease_ms": 1, "keys": [b"k"], "name": "n", "offset": 0, "size": 1,
}  # fmt: skip


@pytest.mark.parametrize("request_type", REQUESTS.values(), ids=lambda cls: cls.__name__)
def test_any_field_may_be_anything(
    broker: BrokerProcess, peer: Peer, request_type: type[m.Request], beside: Neighbour
) -> None:
    """Every message with every field wrong in every way: an answer or an error that the protocol knows."""
    peer.ask(m.CreateTopic("mangled", if_absent=True), m.TopicCreated)
    bugs = len(broker.events("internal_error"))
    names = [row[0] for row in request_type.table]
    bodies = []
    for name in [*names, "no_such_field"]:
        for value in WRONG:
            if name in ("min_offset", "max_wait") and type(value) is int and value >= 0:
                continue  # a right value: the broker waits before it answers
            values = {name: PLAUSIBLE[name] for name in names if name in PLAUSIBLE}
            values[name] = value
            bodies.append(values)
        bodies.append({known: value for known, value in PLAUSIBLE.items() if known in names and known != name})
    for number, values in enumerate(bodies):
        try:
            peer.post(frame(request_type.kind, msgpack.packb({"id": number + 1, **values})))
        except OverflowError:
            continue
        _, answer = peer.receive()
        while isinstance(answer, m.Watched) and answer.more:
            peer.send(m.Unregister(answer.handle))  # a watch that was begun
            _, answer = peer.receive()
            while isinstance(answer, m.Unregistered) or (isinstance(answer, m.Watched) and answer.more):
                _, answer = peer.receive()
        if isinstance(answer, KrappyError):
            assert answer.name != BUG, f"{request_type.__name__}({values}): {answer}"
    alive(peer)
    assert len(broker.events("internal_error")) == bugs, broker.last_words()


HANDLED = [cls for cls in REQUESTS.values() if any(row[0] == "handle" for row in cls.table)]


@pytest.mark.parametrize("request_type", HANDLED, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("handle", [0, 1, 2**32 - 1, "producer", "consumer", "scan"])
def test_handles_that_do_not_exist_or_are_something_else(
    peer: Peer, request_type: type[m.Request], handle: int | str
) -> None:
    topic = "handles"
    if isinstance(handle, str):
        peer.ask(m.CreateTopic(topic, if_absent=True), m.TopicCreated)
        producer = peer.producer(topic).handle
        for number in range(3):
            peer.ask(m.Message(producer, b"v", b"k%d" % number), m.MessageStored)
        if handle == "producer" and request_type not in (m.Message, m.Batch, m.Unregister):
            number = producer
        elif handle == "consumer" and request_type in (m.Message, m.Batch, m.Ack, m.Nack, m.Extend):
            number = peer.ask(m.ConsumerRegistration([topic]), m.ConsumerRegistered).handle
        elif handle == "scan" and request_type is not m.Unregister:
            cursor = peer.ask(m.Scan(topic, max_entries=1), m.Scanned).cursor
            assert cursor is not None
            number = cursor
        else:
            return
    else:
        number = handle
    values = {name: PLAUSIBLE[name] for name, _, _, default in request_type.table if name in PLAUSIBLE}
    peer.post(frame(request_type.kind, msgpack.packb({"id": 77, **values, "handle": number})))
    id, error = peer.receive()
    while id != 77:
        id, error = peer.receive()
    assert isinstance(error, UnknownHandle), error
    alive(peer)


# --- batches


def resealed(data: bytes, **changes: int) -> bytes:
    """A batch with some fields of its header changed, and the CRC right again."""
    names = (
        "base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta", "base_timestamp",
        "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "count",
    )  # fmt: skip
    layout = struct.Struct(">qiibIhiqqqhii")
    values = dict(zip(names, layout.unpack_from(data), strict=True)) | changes
    whole = bytearray(layout.pack(*values.values()) + data[61:])
    if "crc" not in changes:
        whole[17:21] = struct.pack(">I", crc32c(whole[21:]))
    return bytes(whole)


GOOD = batch.encode([b"k1", b"k2", None], [b"v", None, b"w"], timestamps=[5, 6, 7])
ONE = batch.encode([b"k"], [b"v"], timestamps=5)


def raw_batch(records: bytes, count: int, attributes: int = 0, **changes: int) -> bytes:
    """A batch around any bytes as its records."""
    head = ONE[:61]
    return resealed(
        head + records,
        length=49 + len(records), count=count, last_offset_delta=count - 1, attributes=attributes, **changes,
    )  # fmt: skip


BAD_BATCHES = {
    "empty": b"",
    "short": GOOD[:30],
    "cut": GOOD[:-1],
    "trailing": GOOD + b"\0",
    "two": GOOD + GOOD,
    "zeros": bytes(200),
    "crc": resealed(GOOD, crc=1),
    "magic 1": resealed(GOOD, magic=1),
    "magic 3": resealed(GOOD, magic=3),
    "length 0": resealed(GOOD, length=0),
    "length less": resealed(GOOD, length=48),
    "length negative": resealed(GOOD, length=-1),
    "length more": resealed(GOOD, length=2**31 - 1),
    "count 0": resealed(GOOD, count=0),
    "count less": resealed(GOOD, count=2, last_offset_delta=1),
    "count more": resealed(GOOD, count=4, last_offset_delta=3),
    "count negative": resealed(GOOD, count=-1),
    "count huge": resealed(GOOD, count=2**31 - 1, last_offset_delta=2**31 - 2),
    "deltas less": resealed(GOOD, last_offset_delta=1),
    "deltas more": resealed(GOOD, last_offset_delta=1000),
    "deltas huge": resealed(GOOD, last_offset_delta=2**31 - 1),
    "deltas negative": resealed(GOOD, last_offset_delta=-1),
    "offset negative": resealed(GOOD, base_offset=-5),
    "offset huge": resealed(GOOD, base_offset=2**63 - 1),
    "control": resealed(GOOD, attributes=0x20),
    "codec 5": resealed(GOOD, attributes=5),
    "codec 7": resealed(GOOD, attributes=7),
    "not gzip": resealed(GOOD, attributes=1),
    "not snappy": resealed(GOOD, attributes=2),
    "not lz4": resealed(GOOD, attributes=3),
    "not zstd": resealed(GOOD, attributes=4),
    "time overflows": resealed(batch.encode([b"k"] * 2, [b"v"] * 2, timestamps=[0, 9]), base_timestamp=2**63 - 1),
    "time underflows": resealed(batch.encode([b"k"] * 2, [b"v"] * 2, timestamps=[9, 0]), base_timestamp=-(2**63)),
    "records empty": raw_batch(b"", 1),
    "record cut": raw_batch(b"\x10\0\0\0", 1),
    "record too long": raw_batch(b"\xfe\xff\xff\xff\x0f" + bytes(30), 1),
    "record varint endless": raw_batch(b"\xff" * 40, 1),
    "key too long": raw_batch(b"\x14\0\0\0\xfe\xff\xff\xff\x0f" + bytes(10), 1),
    "key of length -2": raw_batch(b"\x0e\0\0\0\x03\x01\0\0", 1),
    "headers negative": raw_batch(b"\x0c\0\0\0\x01\x01\x01", 1),
    "headers huge": raw_batch(b"\x14\0\0\0\x01\x01\xfe\xff\xff\xff\x0f", 1),
    "gzip cut": raw_batch(codecs.compress(1, GOOD[61:])[:-3], 3, 1),
    "lz4 cut": raw_batch(codecs.compress(3, GOOD[61:])[:-3], 3, 3),
    "snappy claims 4 GiB": raw_batch(b"\xff\xff\xff\xff\x0f" + bytes(20), 3, 2),
    "zstd claims 1 EiB": raw_batch(b"\x28\xb5\x2f\xfd\xe0" + b"\0" * 7 + b"\x10" + bytes(20), 3, 4),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_invalid_batches(peer: Peer, name: str) -> None:
    topic = "bad-batches"
    peer.ask(m.CreateTopic(topic, if_absent=True), m.TopicCreated)
    handle = peer.producer(topic).handle
    before = peer.describe(topic)["partitions"][0]["end"]
    with pytest.raises(KrappyError) as caught:
        peer.ask(m.Batch(handle, 0, BAD_BATCHES[name]), m.BatchStored)
    assert caught.value.name in ("CORRUPT_BATCH", "INVALID_RECORD", "UNSUPPORTED_COMPRESSION_TYPE"), caught.value
    assert peer.describe(topic)["partitions"][0]["end"] == before
    assert peer.ask(m.Batch(handle, 0, GOOD), m.BatchStored).offset == before
    assert peer.get(topic, b"k1") == [before, 5, b"v", None]


def test_a_flipped_bit_anywhere_is_refused_or_changes_only_the_batch(peer: Peer) -> None:
    """The CRC covers all but the first 21 bytes; those the broker gives itself, or checks."""
    topic = "flipped"
    peer.ask(m.CreateTopic(topic, if_absent=True), m.TopicCreated)
    handle = peer.producer(topic).handle
    stored = 0
    for position in range(len(GOOD)):
        data = bytearray(GOOD)
        data[position] ^= 1 << position % 8
        try:
            peer.ask(m.Batch(handle, 0, bytes(data)), m.BatchStored)
        except (CorruptBatch, InvalidRecord):
            continue
        stored += 1
    log, _, end = peer.read_log(topic)
    assert end == 3 * stored
    assert [(event.key, event.value) for event in log] == [(b"k1", b"v"), (b"k2", None), (None, b"w")] * stored
    assert stored < 16, "more than the first bytes may be anything"


def test_a_header_name_that_is_no_utf8_harms_nobody(peer: Peer) -> None:
    """Kafka stores such a name unseen, and so do we; who reads it gets a replacement character."""
    handle = peer.producer("not-utf8").handle
    data = raw_batch(b"\x14\0\0\0\x02k\x01\x02\x02\xff\x01", 1)
    offset = peer.ask(m.Batch(handle, 0, data), m.BatchStored).offset
    entry = peer.get("not-utf8", b"k")
    assert entry is not None
    assert entry[3] == [["\ufffd", None]]
    assert peer.scan("not-utf8") == {b"k": [offset, *entry[1:]]} or entry[2] is None


def test_a_batch_larger_than_allowed(peer: Peer) -> None:
    handle = peer.producer("too-large").handle
    for data in (batch.encode([b"k"], [bytes(2 << 20)], timestamps=1), bytes(2 << 20)):
        with pytest.raises(KrappyError) as caught:
            peer.ask(m.Batch(handle, 0, data), m.BatchStored)
        assert caught.value.name == "MESSAGE_TOO_LARGE"
    with pytest.raises(KrappyError) as caught:
        peer.ask(m.Message(handle, bytes(2 << 20), b"k"), m.MessageStored)
    assert caught.value.name == "MESSAGE_TOO_LARGE"
    alive(peer)


@pytest.mark.parametrize("where", [HEADER.size, 100])
def test_a_request_that_ends_with_its_connection(broker: BrokerProcess, beside: Neighbour, where: int) -> None:
    """Peers that leave in the middle of everything: nothing of theirs stays open."""
    for _ in range(50):
        with Peer(broker.address) as peer:
            handle = peer.producer("leavers").handle
            peer.ask(m.ConsumerRegistration(["leavers"]), m.ConsumerRegistered)
            peer.send(*[m.Message(handle, b"v" * 50, b"k") for _ in range(20)], m.Poll(2, max_wait=100_000))
            peer.post(m.Message(handle, b"v" * 200, b"k").frame(9)[:where])
            peer.reset()
