"""Any file of a data folder is damaged in some way: a bit is flipped, the end is cut off, or the file is removed.

Two small folders are made once; one broker was stopped, the other one killed. Then one file of each kind is damaged,
and a broker is started on it. The rules:

- damage in the catalog (meta/): the broker starts with all topics, or refuses to start and says what to do;
- damage elsewhere: it starts, and the topics whose files were not damaged are whole, with their tables;
- no reader gets an event that was not published with this offset and key;
- if an acknowledged event is lost, that is reported: by an error for its reader, or in the broker's log;
- an offset of an event is not used for another one;
- a table is the fold of the readable log, or refuses lookups.

KRAPPY_LONG=1 tries many more positions.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from krappy.errors import KrappyError
from krappy.records import batch
from krappy.wire import messages as m
from tests.crash.ledger import fold
from tests.long import LONG, some
from tests.peer import Peer, Stored
from tests.process import PATIENCE, BrokerProcess, Died, Launcher, broker_process, wait_until

TOPICS: dict[str, tuple[int, dict[str, object]]] = {
    "plain": (2, {}),
    "rolled": (1, {"segment.bytes": 600}),
    "cleaned": (1, {"cleanup.policy": "compact", "segment.bytes": 900, "min.cleanable.dirty.ratio": 0.01}),
    "shortened": (1, {"segment.bytes": 700}),
}
SHORTENED_TO = 17
QUIET = {"cleaner_backoff_ms": 10**7, "retention_check_ms": 10**7}
ROUNDS = int(os.environ.get("KRAPPY_DAMAGE_ROUNDS", 30 if LONG else 1))
HOW = ("flipped", "flipped in a head", "cut", "removed")
# Every second case, which a short run takes, has each kind of damage once, and brokers that were stopped and killed.
CASES = [(how, (number + second) % 2 == 0) for number, how in enumerate(HOW) for second in range(2)]
TOLD = {"log_recovered", "events_lost", "partition_offline", "views_damaged", "view_failed", "folder_unclaimed"}
LEFT_OUT = ("staging", "lock", "ballast")  # other tests damage them, or they have no content
HEAD = 16  # bytes of a batch that its checksum does not cover: base offset, length, leader epoch

Place = tuple[str, int]


class Folder(NamedTuple):
    path: Path
    before: dict[Place, list[Stored]]
    ends: dict[Place, int]


def fill(broker: BrokerProcess) -> None:
    with Peer(broker.address) as peer:
        for name, (partitions, config) in TOPICS.items():
            peer.ask(m.CreateTopic(name, partitions, dict(config)), m.TopicCreated)
            handle = peer.producer(name).handle
            for partition in range(partitions):
                for number in range(40):
                    keys: list[bytes | None] = [b"k%d" % (number % 7), b"often"]
                    values: list[bytes | None] = [
                        b"%d-%d" % (partition, number),
                        None if number % 5 == 0 else b"v%d" % number,
                    ]
                    data = batch.encode(keys, values, timestamps=1_000 + number, codec=number % 2)
                    peer.ask(m.Batch(handle, partition, data), m.BatchStored)
        peer.ask(m.DeleteRecords("shortened", [(0, SHORTENED_TO)]), m.RecordsDeleted)
        wait_until(lambda: bool(broker.events("log_cleaned")), "the cleaner has been there")
        for name in TOPICS:
            peer.scan(name)


def snapshot(broker: BrokerProcess) -> tuple[dict[Place, list[Stored]], dict[Place, int]]:
    before, ends = {}, {}
    with Peer(broker.address) as peer:
        for name, (partitions, _) in TOPICS.items():
            for partition in range(partitions):
                before[name, partition], _, ends[name, partition] = peer.read_log(name, partition)
    return before, ends


@pytest.fixture(scope="module")
def folders(launch: Launcher, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Folder]:
    """The two folders: at True the one whose broker was stopped, at False the one whose broker was killed."""
    made = {}
    for stopped in (True, False):
        data = tmp_path_factory.mktemp("made") / "data"
        with broker_process(data, launch=launch, cleaner_backoff_ms=100, retention_check_ms=100) as broker:
            fill(broker)
            assert broker.stop() == 0  # so that the views' files have content, and the cleaner does nothing
            broker.settings |= QUIET
            broker.start()
            if not stopped:
                with Peer(broker.address) as peer:
                    for name in TOPICS:
                        data_ = batch.encode([b"late"], [b"late"], timestamps=2_000)
                        for _ in range(3):
                            peer.ask(m.Batch(peer.producer(name).handle, 0, data_), m.BatchStored)
            before, ends = snapshot(broker)
            if stopped:
                assert broker.stop() == 0
            else:
                broker.kill()
        made[stopped] = Folder(data, before, ends)
    return made


def kind_of(data: Path, file: Path) -> str:
    """The kind of a file, such as `topics/plain/*.log` or `views/*.sst`."""
    path = file.relative_to(data)
    name = re.sub(r"\d+", "#", path.name)
    return "/".join([*(re.sub(r"-\d+$", "", part) for part in path.parts[:-1]), name])


def kinds(data: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for file in sorted(data.rglob("*")):
        if file.is_file() and file.relative_to(data).parts[0] not in LEFT_OUT:
            found.setdefault(kind_of(data, file), []).append(file)
    return found


def damage(file: Path, how: str, chance: random.Random) -> bool:
    """Damages a file; returns False if it can't be damaged in this way."""
    content = file.read_bytes()
    if how == "removed":
        file.unlink()
        return True
    if not content:
        return False
    if how == "cut":
        file.write_bytes(content[: chance.randrange(len(content))])
        return True
    position = chance.randrange(len(content))
    if how == "flipped in a head":
        position = chance.choice(heads(content)) + chance.randrange(HEAD)
    changed = bytearray(content)
    changed[position] ^= 1 << chance.randrange(8)
    file.write_bytes(changed)
    return True


def heads(content: bytes) -> list[int]:
    """The position of each batch."""
    found = [0]
    while (following := found[-1] + batch.read_header(content, found[-1]).size) < len(content):
        found.append(following)
    return found


def read_what_can_be(peer: Peer, place: Place) -> tuple[dict[int, Stored], int | None, bool]:
    """(the readable events by offset, the log end if the broker gives it, whether it refused anything)."""
    topic, partition = place
    try:
        consumer = peer.ask(m.ConsumerRegistration([topic], partitions=[partition]), m.ConsumerRegistered)
    except KrappyError:
        return {}, None, True
    ((_, _, first),), ((_, _, end),) = consumer.positions, consumer.ends
    peer.ask(m.Unregister(consumer.handle), m.Unregistered)
    found: dict[int, Stored] = {}
    refused = False
    position = first
    while position < end:
        try:
            events, _, _ = peer.read_log(topic, partition, start="offset", start_at=position)
        except KrappyError:
            refused = True
            position += 1
            continue
        found.update((event.offset, event) for event in events)
        break
    return found, end, refused


def table_of(peer: Peer, place: Place, patient: bool) -> dict[bytes, int] | None:
    """The offset of each key's entry; None if the broker refuses lookups. `patient`: it tries for a while before it
    returns None."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return {key: entry[0] for key, entry in peer.scan(*place, tombstones=True).items()}
        except KrappyError:
            if not patient or time.monotonic() > deadline:
                return None
        time.sleep(0.05)


def check(broker: BrokerProcess, folder: Folder, damaged: str | None, said: set[str]) -> None:
    """Checks the rules above. `damaged`: the topic of the damaged file; None: it belongs to no topic."""
    with Peer(broker.address) as peer:
        for place, before in folder.before.items():
            topic, partition = place
            known = {event.offset: event for event in before}
            found, end, refused = read_what_can_be(peer, place)
            wrong = {offset: event for offset, event in found.items() if known.get(offset) != event}
            assert not wrong, f"{place} gives what nobody published: {wrong}"
            missing = known.keys() - found.keys()
            if topic != damaged:
                assert not missing, f"{place} was left alone, and lacks {sorted(missing)}"
                assert not refused
            assert not missing or refused or said & TOLD, f"{place} lacks {sorted(missing)}, and nobody was told"
            table = table_of(peer, place, patient=damaged is None)
            if table is None:
                assert topic == damaged, f"the table of {place} refuses"
            else:
                latest = {key: stored.offset for key, stored in fold([found[at] for at in sorted(found)]).items()}
                if refused:  # the view has folded events that can't be read any more
                    latest = {key: stored.offset for key, stored in fold(before).items()}
                live = {key: at for key, at in table.items() if at in found or refused}
                assert latest.items() <= table.items(), f"the table of {place} is not the fold of its log"
                assert live == table or topic == "cleaned"
            try:
                data = batch.encode([b"new"], [b"new"], timestamps=3_000)
                offset = peer.ask(m.Batch(peer.producer(topic).handle, partition, data), m.BatchStored).offset
            except KrappyError:
                assert topic == damaged
            else:
                assert offset >= folder.ends[place], f"{place} gave offset {offset} again"
                assert end is not None


def starts(broker: BrokerProcess) -> bool:
    """Whether the broker starts. If it refuses, it must say what to do."""
    broker.begin()
    with suppress(Died):
        broker.ready()
        broker.kill()
        return True
    assert not broker.running, "it neither starts nor ends"
    assert "Restore a backup" in broker.last_words()
    return False


@pytest.mark.parametrize(("how", "stopped"), some(CASES, 2))
def test_damage_to_any_file(
    launch: Launcher, folders: dict[bool, Folder], tmp_path: Path, how: str, stopped: bool
) -> None:
    folder = folders[stopped]
    every = kinds(folder.path)
    assert {
        "topics/plain/#.log",
        "topics/rolled/#.index",
        "topics/cleaned/#.sums",
        "topics/shortened/checkpoint",
        "views/CURRENT",
    } <= every.keys()
    for number in range(ROUNDS):
        chance = random.Random(f"{how} {stopped} {number}")
        for files in every.values():
            file = chance.choice(files).relative_to(folder.path)
            parts = file.parts
            if how == "flipped in a head" and (parts[0], file.suffix) != ("topics", ".log"):
                continue
            topic = parts[1].rpartition("-")[0] if parts[0] == "topics" else None
            if not stopped and how == "cut" and file.suffix == ".log":
                continue  # a kill may leave the same bytes, so it is no damage to the broker (test_damage.py)
            data = tmp_path / "data"
            shutil.copytree(folder.path, data)
            if damage(data / file, how, chance):
                broker = BrokerProcess(data, launch=launch, log=tmp_path / "log", **QUIET)
                try:
                    if parts[0] != "meta" or starts(broker):
                        with broker:
                            check(broker, folder, topic, {name for name in TOLD if broker.events(name)})
                except AssertionError as error:
                    raise AssertionError(f"round {number}: {file} {how}: {error}") from error
            shutil.rmtree(data)
            (tmp_path / "log").unlink(missing_ok=True)
