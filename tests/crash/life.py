"""The life of a data folder: its broker is killed again and again under load, and checked after each restart.

All choices come from one seed, which a failure names. But the moments of the kills differ from run to run: the checks
must hold at any moment.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from krappy.errors import OffsetOutOfRange
from krappy.types import ABSENT
from krappy.wire import messages as m
from tests.crash.actors import Actor, Batches, Book, Conditional, Singles, Tailer, Topics, TopicSpec
from tests.crash.ledger import MARK, PartitionLedger, fold
from tests.peer import Peer, Stored
from tests.process import BrokerProcess, Launch, wait_until

FOREVER = 86_400_000
ENOUGH = 101


def topics(random: Random, sizes: Sequence[int] = (600, 3_000, 20_000)) -> list[TopicSpec]:
    """Topics with small segments, of one of `sizes` (bytes), so that kills happen during rolls, deletions and swaps."""
    small = random.choice(sizes)
    cleaned = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "segment.bytes": small}
    return [
        TopicSpec("plain", {"segment.bytes": small}, partitions=3, keyless=0.1, tombstones=0.1),
        TopicSpec("conditional", {"segment.bytes": 50_000}, partitions=2, keys=6),
        TopicSpec("compacted", {**cleaned, "delete.retention.ms": FOREVER}, keys=15, tombstones=0.2),
        TopicSpec("forgetful", {**cleaned, "delete.retention.ms": 20}, partitions=2, keys=15, tombstones=0.4),
        TopicSpec("retained", {"segment.bytes": small, "retention.bytes": 10 * small}, tombstones=0.1),
        TopicSpec("unviewed", {"segment.bytes": small, "view.enable": "false"}, keyless=0.3),
    ]


class Life:
    """`folder`: a new one. `kills`: how many there were; `acknowledged`: how many events and changes were."""

    def __init__(self, folder: Path, seed: int, launch: Launch) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.book = Book()
        self.kills = 0
        self._specs = topics(random)
        self._churn = [Topics(self.book, self._fork(), prefix) for prefix in ("a", "b")]
        self._actors: list[Actor] = list(self._churn)
        self.durability = random.choice(["fsync", "fsync", "os"])
        self.broker = BrokerProcess(
            folder / "data",
            launch=launch,
            durability=self.durability,
            retention_check_ms=random.choice([5, 50]),
            view_memtable_bytes=64 << 10,
            view_cache_bytes=1 << 20,
        )

    @property
    def acknowledged(self) -> int:
        return sum(actor.acknowledged for actor in self._actors)

    def _fork(self) -> Random:
        return Random(self.random.getrandbits(64))

    def run(self, cycles: int) -> None:
        """Kills the broker `cycles` times, and checks it after the last restart. Raises AssertionError, which names the
        seed.

        Before the last kill it waits until ENOUGH was acknowledged, even if the machine is slow.
        """
        try:
            with self.broker:
                self._create()
                for number in range(cycles):
                    self.cycle(ENOUGH if number == cycles - 1 else 0)
                self.check()
                assert not self.broker.events("internal_error"), "the broker met a bug of its own"
                assert self.broker.stop() == 0
        except BaseException as error:
            error.add_note(f"seed {self.seed}, {self.kills} kills, durability {self.durability}")
            error.add_note("the broker's last words:\n" + self.broker.last_words())
            raise

    def _create(self) -> None:
        with Peer(self.broker.address) as peer:
            for spec in self._specs:
                peer.ask(m.CreateTopic(spec.name, spec.partitions, spec.config), m.TopicCreated)
                self.book.add(spec)
        for spec in self._specs:
            for kind in [Conditional] * 3 if spec.name == "conditional" else [Singles, Batches]:
                self._actors.append(kind(self.book, self._fork(), spec))
            self._actors.append(Tailer(self.book, self._fork(), spec))

    def cycle(self, least: int = 0) -> None:
        """Load, a kill, perhaps damage to derived files, a start (which may be killed, too), and a check.

        The kill waits until `least` events of this life are acknowledged.
        """
        random = self.random
        for actor in self._actors:
            actor.start(self.broker.address)
        wait_until(lambda: self.acknowledged >= least, f"{least} events are acknowledged")
        time.sleep(random.choice([0.0, random.uniform(0, 0.05), random.uniform(0, 0.4)]))
        if random.random() < 0.15:  # in the middle of a graceful stop
            self.broker.terminate()
            time.sleep(random.uniform(0, 0.1))
        self.broker.kill()
        self.kills += 1
        for actor in self._actors:
            actor.join()
        if random.random() < 0.15:
            shutil.rmtree(self.broker.data / "views")
        if random.random() < 0.15:
            for index in self.broker.data.glob("topics/*/*index"):
                if random.random() < 0.5:
                    index.unlink()
        while random.random() < 0.3:  # killed while it recovers
            self.broker.begin()
            time.sleep(random.uniform(0, 0.12))
            self.broker.kill()
            self.kills += 1
        self.broker.start()
        self.check()

    # --- after a restart

    def check(self) -> None:
        """Checks that the broker agrees with all that this life's clients know."""
        with Peer(self.broker.address) as peer:
            for churn in self._churn:
                churn.check(peer)
            for (topic, partition), ledger in self.book.partitions.items():
                check_partition(peer, self.book, topic, partition, ledger, self.random)


def check_partition(
    peer: Peer, book: Book, topic: str, partition: int, ledger: PartitionLedger, random: Random
) -> None:
    """Checks that the log keeps the ledger's rules, and that the view is its fold."""
    log, start, end = read_still(peer, topic, partition)
    ledger.check(log, start, end)
    ledger.settle(log, book.open_lanes)
    if topic == "conditional":
        check_conditions(ledger, log)
    if topic == "unviewed":
        return
    for attempt in range(20):
        try:
            check_table(peer, topic, partition, ledger, log, random)
        except AssertionError:
            if not ledger.forgets or attempt == 19:
                raise
            # A slow reader may get a value and miss its tombstone: the cleaner removes the tombstone before the value.
            log, _, _ = read_still(peer, topic, partition)
        else:
            return


def read_still(peer: Peer, topic: str, partition: int) -> tuple[list[Stored], int, int]:
    """(events, start, end) of a partition's whole log, read again if retention moved its start meanwhile."""
    while True:
        try:
            log, start, end = peer.read_log(topic, partition)
        except OffsetOutOfRange:
            continue
        if peer.describe(topic)["partitions"][partition]["start"] == start:
            return log, start, end


def check_table(
    peer: Peer, topic: str, partition: int, ledger: PartitionLedger, log: Sequence[Stored], random: Random
) -> None:
    """Checks that the view is the fold of the log."""
    name = ledger.name
    table = peer.scan(topic, partition, tombstones=True, max_entries=random.choice([1, 7, 1000]))
    start = peer.describe(topic)["partitions"][partition]["start"]
    latest = {key: stored for key, stored in fold(log).items() if stored.offset >= start}
    for key, stored in latest.items():
        entry = table.get(key)
        if stored.value is None and ledger.forgets and entry is None:
            continue  # the cleaner has removed it since the log was read
        assert entry is not None, f"{name}: the table has no {key!r}; the log has it at {stored.offset}"
        headers = [list(header) for header in stored.headers] or None
        assert entry == [stored.offset, stored.timestamp, stored.value, headers], (
            f"{name}: the table has {key!r} as {entry}, the log as {stored}"
        )
    for key, entry in table.items():
        # The kill may have come after the log was cleaned, and before the view was.
        forgotten = ledger.forgets and entry[2] is None
        assert key in latest or entry[0] < start or forgotten, f"{name}: the log has no {key!r}; the table has {entry}"
    for key in [*random.sample(sorted(table), min(5, len(table))), b"never written"]:
        entry, scanned = peer.get(topic, key, partition), table.get(key)
        if entry is None and scanned is not None:
            if ledger.forgets:
                continue  # the cleaner has removed it since the scan
            if ledger.expires and scanned[0] < peer.describe(topic)["partitions"][partition]["start"]:
                continue  # retention has removed it
        assert entry == scanned, f"{name}: get and scan differ for {key!r}"


def check_conditions(ledger: PartitionLedger, log: Sequence[Stored]) -> None:
    """Checks that each conditional event was written only when its key stood at the expected offset."""
    last: dict[bytes | None, Stored] = {}
    for stored in log:
        data = dict(stored.headers)["mark"] if stored.value is None else stored.value
        assert data is not None
        lane, place = MARK.unpack_from(data)
        expected = ledger.lanes[lane].events[place].expected
        before = last.get(stored.key)
        if expected == ABSENT:
            fits = before is None or before.value is None
        else:
            fits = before is not None and before.offset == expected
        assert fits, f"{ledger.name}: {stored} was to follow offset {expected}, and follows {before}"
        last[stored.key] = stored
