"""Lets a broker do all its work with files at once, for clients that note when it acknowledged what.

The clients are those of tests/crash, and others for groups, transactions, staged jobs and backups.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from typing import NamedTuple

from krappy.blocking import connect
from krappy.cli import generations
from krappy.errors import KrappyError, LeaseLost, UnknownHandle
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.crash.actors import Actor, Batches, Book, Conditional, Singles, Tailer, Topics
from tests.crash.life import topics
from tests.kafka.raw import Closed, Raw
from tests.kafka.transactional import Transactional
from tests.peer import Peer
from tests.power.record import Record
from tests.process import PATIENCE, BrokerProcess, Launcher, wait_until

NEVER = sys.maxsize
PAUSE = 0.005  # seconds
GROUP = "workers"  # the group of `Members`, on the topic "plain"
PAIR = ("left", "right")  # the topics of transactions
JOBS = "staged"  # the topic of staged jobs
ROWS = 40  # the number of rows of a staged job
ENOUGH = 5  # the workload runs until there are so many transactions and staged jobs
BACKUPS = ("incremental", "folder", "incremental", "tar", "incremental")
DAILY, KEPT = "backups/daily", 2  # folder of the incremental backups, and how many of them are kept
Place = tuple[int, int]  # partition, offset


class Members(Actor):
    """One member of the group. `asked`: by event, the moment when its ack was sent. `acked`: by event, the moment when
    its ack was answered."""

    def __init__(self, book: Book, random: Random) -> None:
        super().__init__(book, random)
        self.asked: dict[Place, int] = {}
        self.acked: dict[Place, int] = {}

    def work(self, peer: Peer) -> None:
        handle = join(peer)
        while True:
            polled = peer.ask(m.Poll(handle, max_records=self.random.choice([1, 7, 50]), max_wait=50), m.Polled)
            for topic, partition, first, last, _ in polled.leases or []:
                places = {(partition, offset) for offset in range(first, last + 1)}
                self.asked |= dict.fromkeys(places - self.asked.keys(), self.book.moment())
                try:
                    peer.ask(m.Ack(handle, [(topic, partition, first, last)]), m.Acked)
                except LeaseLost as error:
                    places -= {(at, offset) for _, at, low, high in error.lost for offset in range(low, high + 1)}
                self.acked |= dict.fromkeys(places, self.book.moment())
                self.acknowledged += len(places)


def join(peer: Peer) -> int:
    request = m.ConsumerRegistration(["plain"], group=GROUP, lease_ms=2_000, max_deliveries=1_000_000)
    return peer.ask(request, m.ConsumerRegistered).handle


class Decision(NamedTuple):
    """The end of a transaction, or of a staged job. `asked`, `answered`: the moments of its request and of the answer,
    or NEVER."""

    name: str
    commit: bool
    asked: int = NEVER
    answered: int = NEVER


class Client(Actor):
    """A client that connects again if it was refused or cut off, until the broker is stopped."""

    def __init__(self, book: Book, random: Random) -> None:
        super().__init__(book, random)
        self.numbers = count()
        self.stopping = threading.Event()

    def _run(self, address: str) -> None:
        while not self.stopping.is_set():
            try:
                self.serve(address)
            except (KrappyError, Closed, OSError):
                time.sleep(PAUSE)
            except BaseException as error:
                self.failure = error
                return

    def serve(self, address: str) -> None:
        raise NotImplementedError


class Transactions(Client):
    """Transactions of one producer over Kafka's protocol: an event in each topic of the pair, and a group's
    position."""

    name = "mover"

    def __init__(self, book: Book, random: Random) -> None:
        super().__init__(book, random)
        self.made: list[Decision] = []

    def serve(self, address: str) -> None:
        with Raw(address) as raw:
            producer = Transactional(raw, self.name)
            told = producer.ask_init()  # aborts the last transaction, if it is open
            _none(Code(told["error_code"]))
            producer.id, producer.epoch = told["producer_id"], told["producer_epoch"]
            for number in self.numbers:
                self._transaction(producer, number)
                self.acknowledged += 1

    def _transaction(self, producer: Transactional, number: int) -> None:
        name, commit = f"{number}", self.random.random() < 0.75
        self.made.append(Decision(name, commit))
        codes = [Code.CONCURRENT_TRANSACTIONS]
        while Code.CONCURRENT_TRANSACTIONS in codes:  # markers of the last transaction are still being written
            codes = producer.add(*((topic, 0) for topic in PAIR))
        _none(*codes)
        for topic in PAIR:
            _none(producer.write(topic, name.encode(), name.encode()))
        _none(producer.add_offsets(self.name), producer.commit_offset(self.name, PAIR[0], number + 1))
        self.made[-1] = Decision(name, commit, asked := self.book.moment())
        _none(producer.end(commit))
        self.made[-1] = Decision(name, commit, asked, self.book.moment())


def _none(*codes: Code) -> None:
    for code in codes:
        if code is not Code.NONE:
            raise Closed(str(code))


class Positions(Client):
    """A Kafka client that commits its position in the topic "plain". `made`: when each commit was sent and answered."""

    name = "reader"

    def __init__(self, book: Book, random: Random) -> None:
        super().__init__(book, random)
        self.made: list[tuple[int, int]] = []

    def serve(self, address: str) -> None:
        with Raw(address) as raw:
            for number in self.numbers:
                partition = {"partition_index": 0, "committed_offset": number}
                topics = [{"name": "plain", "partitions": [partition]}]
                self.made.append((asked := self.book.moment(), NEVER))
                body = {"group_id": self.name, "generation_id_or_member_epoch": -1, "topics": topics}
                answer = raw.ask(ApiKey.OFFSET_COMMIT, body, 8)
                _none(Code(answer["topics"][0]["partitions"][0]["error_code"]))
                self.made[-1] = asked, self.book.moment()


class Jobs(Client):
    """Staged jobs of one task each. `sealed`: by job, (its token, the moment when the broker gave it)."""

    def __init__(self, book: Book, random: Random) -> None:
        super().__init__(book, random)
        self.made: list[Decision] = []
        self.sealed: dict[str, tuple[str, int]] = {}

    def serve(self, address: str) -> None:
        with connect(address, timeout=5) as client:
            for number in self.numbers:
                name, commit = f"job-{number}", self.random.random() < 0.8
                self.made.append(Decision(name, commit))
                with client.stage(JOBS, job=name, task=0, attempt=0, timeout=5) as stage:
                    keys = [f"{name} {row}" for row in range(ROWS)]
                    stage.send_columns(keys, [key + "x" * 100 for key in keys])
                    token = stage.seal()
                self.sealed[name] = token, self.book.moment()
                self.made[-1] = Decision(name, commit, asked := self.book.moment())
                if commit:
                    client.commit_staged(name, [token])
                else:
                    client.abort_staged(name)
                self.made[-1] = Decision(name, commit, asked, self.book.moment())
                self.acknowledged += 1


class Scans(Actor):
    """Reads a snapshot of a table, in small parts, again and again."""

    def work(self, peer: Peer) -> None:
        while True:
            with suppress(UnknownHandle):  # the broker is stopping
                self.acknowledged += len(peer.scan("plain", 0, max_entries=5))
            self.book.moment()


class Backup(NamedTuple):
    """A backup that was reported as complete. `asked`: the moment when it began. `done`: the moment when it was
    complete."""

    incremental: bool
    path: str  # relative to the disk's root
    asked: int
    done: int


class Backups(Actor):
    """Runs `krappy backup`, each kind in turn."""

    def __init__(self, book: Book, random: Random, root: Path, kinds: Sequence[str]) -> None:
        super().__init__(book, random)
        self.root = root
        self.kinds = kinds
        self.made: list[Backup] = []
        self.launch: Launcher | None = None

    def _run(self, address: str) -> None:
        try:
            for number, kind in enumerate(self.kinds):
                target = self.root / {"folder": f"some/{number}", "tar": f"{number}.tar", "incremental": DAILY}[kind]
                more = ["--incremental", "--keep", str(KEPT)] if kind == "incremental" else []
                asked = self.book.moment()
                self._command("backup", str(target), "--address", address, *more)
                done = self.book.moment()
                made = generations.list_all(target)[-1] if more else target
                self.made.append(Backup(bool(more), made.relative_to(self.root).as_posix(), asked, done))
        except BaseException as error:
            self.failure = error

    def _command(self, *arguments: str) -> None:
        assert self.launch is not None
        with open(os.devnull) as nothing, TemporaryFile() as said:
            status = self.launch(list(arguments), nothing.fileno(), said.fileno(), said.fileno()).wait(PATIENCE)
            said.seek(0)
            assert status == 0, f"krappy {arguments[0]} failed: {said.read().decode()}"


class Workload:
    """A broker that is recorded, and its clients, with what it has told them."""

    def __init__(self, record: Record, random: Random, durability: str, backups: Sequence[str] = BACKUPS) -> None:
        self.record = record
        self.durable = durability == "fsync"
        self.book = book = Book(self._moment)

        def fork() -> Random:
            return Random(random.getrandbits(64))

        self.specs = topics(random, sizes=[20_000])
        self.churn = [Topics(book, fork(), prefix) for prefix in ("a", "b")]
        self.members = [Members(book, fork()) for _ in range(2)]
        self.transactions = Transactions(book, fork())
        self.positions = Positions(book, fork())
        self.jobs = Jobs(book, fork())
        self.backups = Backups(book, fork(), record.root, backups)
        self.kafka: list[Client] = [self.transactions, self.positions]
        self.actors: list[Actor] = [*self.churn, *self.members, *self.kafka, self.jobs, self.backups]
        for spec in self.specs:
            book.add(spec)
            for kind in [Conditional] * 2 if spec.name == "conditional" else [Singles, Batches]:
                self.actors.append(kind(book, fork(), spec))
        self.actors += [Tailer(book, fork(), self.specs[0]), Scans(book, fork())]
        self.settings: dict[str, object] = {
            "durability": durability,
            "retention_check_ms": 100,
            "cleaner_backoff_ms": 100,
            "view_memtable_bytes": 64 << 10,
            "view_cache_bytes": 1 << 20,
        }
        self.began = 0

    def _moment(self) -> int:
        """The record's length now. A pause in it limits each client to a few hundred answers a second, so that many
        kinds of work are done, and little of each."""
        now = self.record.moment()
        time.sleep(PAUSE)
        return now

    def run(self) -> None:
        """Runs until enough was done. Then SIGTERM stops the broker under load."""
        record = self.record
        log = record.root.with_name("recorded.log")
        with (
            Launcher(record.environ()) as launch,
            BrokerProcess(record.root / "data", launch=launch, log=log, **self.settings) as broker,
        ):
            self._create(broker)
            self.began = record.moment()
            self.backups.launch = launch
            for actor in self.actors:
                actor.start(broker.kafka if actor in self.kafka else broker.address)
            wait_until(self._enough, "backups, transactions and staged jobs are done", 5 * PATIENCE)
            for failure in (actor.failure for actor in self.actors if actor.failure):
                raise failure
            for client in (*self.kafka, self.jobs):
                client.stopping.set()
            assert broker.stop() == 0, broker.last_words()
            for actor in self.actors:
                actor.join()
            assert not broker.events("internal_error"), broker.last_words()

    def _create(self, broker: BrokerProcess) -> None:
        with Peer(broker.address) as peer:
            for spec in self.specs:
                peer.ask(m.CreateTopic(spec.name, spec.partitions, spec.config), m.TopicCreated)
            for name in (*PAIR, JOBS):
                peer.ask(m.CreateTopic(name, 1, {"segment.bytes": 5_000, "retention.ms": -1}), m.TopicCreated)

    def _enough(self) -> bool:
        if any(actor.failure for actor in self.actors):
            return True
        done = min(self.transactions.acknowledged, self.jobs.acknowledged)
        return len(self.backups.made) == len(self.backups.kinds) and done >= ENOUGH
