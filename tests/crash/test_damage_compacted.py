"""A flipped bit changes the base offset of a batch in a compacted segment: no reader gets an event with a wrong offset.

Kafka's checksum does not cover a batch's base offset. And because the cleaner leaves holes between batches, another
base offset may look just as right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from krappy.errors import CorruptBatch
from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.kafka import Code
from tests.kafka.raw import Raw
from tests.peer import Peer, Stored, unfold
from tests.process import BrokerProcess, Launcher, broker_process, krappy, wait_until

TOPIC = "t"
HOLE = 8  # so many events stand before each event that stays; the cleaner removes them
KEYS = 700
CLEANED = {"cleanup.policy": "compact", "segment.bytes": 400_000, "min.cleanable.dirty.ratio": 0.01}
BUSY: dict[str, Any] = {"retention_check_ms": 100, "cleaner_backoff_ms": 100}
QUIET: dict[str, Any] = dict.fromkeys(BUSY, 10**7)
SENDFILE = 16 << 10  # bytes; larger answers are sent to Kafka's consumers by sendfile


class Made(NamedTuple):
    broker: BrokerProcess
    file: Path
    events: list[Stored]
    sent: bytes  # the bytes that a Kafka consumer gets
    position: int  # where in the file the changed batch begins
    offset: int  # the right base offset of that batch


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Launcher, Path, list[Stored], bytes]]:
    data = tmp_path_factory.mktemp("made") / "data"
    with Launcher() as launch:
        with broker_process(data, launch=launch, **QUIET) as broker:
            with Peer(broker.address) as peer:
                peer.ask(m.CreateTopic(TOPIC, 1, dict(CLEANED)), m.TopicCreated)
                handle = peer.producer(TOPIC).handle
                for number in range(KEYS):
                    often = batch.encode([b"often"] * HOLE, [b"x" * 50] * HOLE, timestamps=number)
                    seldom = batch.encode([b"k%d" % number], [b"v%d" % number + b"x" * 100], timestamps=number)
                    for data_ in (often, seldom):
                        peer.ask(m.Batch(handle, 0, data_), m.BatchStored)
                peer.scan(TOPIC)
            assert broker.stop() == 0
            broker.settings |= BUSY
            broker.start()
            wait_until(lambda: bool(broker.events("log_cleaned")), "the cleaner has been there")
            assert broker.stop() == 0
            broker.settings |= QUIET
            broker.start()
            with Peer(broker.address) as peer, Raw(broker.kafka) as raw:
                events, _, _ = peer.read_log(TOPIC)
                sent = bytes(raw.fetch(TOPIC, 0)["records"])
            assert broker.stop() == 0
        yield launch, data, events, sent


@pytest.fixture
def made(original: tuple[Launcher, Path, list[Stored], bytes], tmp_path: Path) -> Iterator[Made]:
    """Changes the base offset of one batch, far from the beginning, to another offset of the hole around it."""
    launch, source, events, sent = original
    data = Path(shutil.copytree(source, tmp_path / "data"))
    file = min((data / "topics" / f"{TOPIC}-0").glob("*.log"))
    content = bytearray(file.read_bytes())
    headers = [(at, batch.read_header(content, at)) for at in places(content)]
    assert len(content) > 3 * SENDFILE
    (_, before), (position, header), (_, after) = next(
        some for some in zip(headers, headers[1:], headers[2:], strict=False) if some[1][0] > 2 * SENDFILE
    )
    other = next(
        header.base_offset ^ 1 << bit
        for bit in range(4)
        if before.next_offset <= header.base_offset ^ 1 << bit < after.base_offset
    )
    content[position : position + 8] = other.to_bytes(8, "big")
    file.write_bytes(content)
    with broker_process(data, launch=launch, **BUSY) as broker:
        yield Made(broker, file, events, sent, position, header.base_offset)


def places(content: bytes | bytearray) -> Iterator[int]:
    at = 0
    while at < len(content):
        yield at
        at += batch.read_header(content, at).size


def test_readers_get_what_is_before_it_and_a_clear_error(made: Made) -> None:
    found, at = [], 0
    with Peer(made.broker.address) as peer:
        while True:
            try:
                events = polled(peer, at)
            except CorruptBatch as error:
                named = error.file
                break
            found += events
            at = events[-1].offset + 1
        assert named == str(made.file)
        assert found == made.events[: len(found)]
        assert made.offset - 50 * HOLE < at <= made.offset
        assert polled(peer, made.offset + 50 * HOLE)[0] in made.events, "what is behind it is in reach"
        table = peer.scan(TOPIC)
        assert {key: entry[0] for key, entry in table.items() if key != b"often"} == {
            event.key: event.offset for event in made.events if event.key != b"often"
        }
    with Raw(made.broker.kafka) as raw:
        for _ in range(2):
            records = bytes(raw.fetch(TOPIC, 0)["records"])
            assert SENDFILE < len(records) <= made.position
            assert made.sent.startswith(records)
        answer = raw.fetch(TOPIC, made.offset)
        assert answer["error_code"] in (Code.CORRUPT_MESSAGE, Code.KAFKA_STORAGE_ERROR)
        assert not answer["records"]


def polled(peer: Peer, start: int) -> list[Stored]:
    """The events of one Poll. Raises the broker's error."""
    registration = m.ConsumerRegistration([TOPIC], partitions=[0], start="offset", start_at=start)
    handle = peer.ask(registration, m.ConsumerRegistered).handle
    parts = peer.ask(m.Poll(handle, max_records=10_000, max_bytes=1 << 20), m.Polled).parts
    peer.ask(m.Unregister(handle), m.Unregistered)
    return [event for _, _, wanted, _, data in parts for event in unfold(data, wanted)[0]]


def test_compaction_leaves_it_as_it_is(made: Made) -> None:
    broker = made.broker
    folder = made.file.parent
    damaged = {path: path.read_bytes() for path in (made.file, made.file.with_suffix(".sums"))}
    with Peer(broker.address) as peer:
        handle = peer.producer(TOPIC).handle
        for number in range(40):  # fills a segment for the cleaner
            data = batch.encode([b"often"] * 100, [b"y" * 100] * 100, timestamps=number)
            peer.ask(m.Batch(handle, 0, data), m.BatchStored)
    wait_until(lambda: any(str(made.file) in str(said) for said in broker.events("housekeeping_failed")), "it is met")
    assert {path: path.read_bytes() for path in damaged} == damaged
    assert not list(folder.glob("*.cleaned"))


def test_a_view_is_not_folded_from_it(made: Made) -> None:
    broker = made.broker
    assert broker.stop() == 0
    shutil.rmtree(broker.data / "views")
    broker.start()
    with Peer(broker.address) as peer:
        for request in (m.Get(TOPIC, b"often"), m.Scan(TOPIC)):
            with pytest.raises(CorruptBatch) as caught:
                peer.ask(request, object)
            assert caught.value.file == str(made.file)


def test_doctor_names_it_and_repairs_nothing_from_it(made: Made) -> None:
    assert made.broker.stop() == 0
    for options in ((), ("--repair",), ()):
        done = krappy("doctor", "--data", made.broker.data, *options)
        assert done.returncode == 1, done.stdout + done.stderr
        assert str(made.file) in done.stdout.decode()
    made.broker.settings |= QUIET
    made.broker.start()
    with Peer(made.broker.address) as peer:
        assert {key: entry[0] for key, entry in peer.scan(TOPIC).items() if key != b"often"} == {
            event.key: event.offset for event in made.events if event.key != b"often"
        }
