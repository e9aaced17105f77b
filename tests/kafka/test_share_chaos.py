"""Members of a share group come, work, and die in all ways, while the broker is killed. A record that was accepted or
rejected never comes again, no two members have the same record, none comes too often, and in the end all are settled.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from krappy.wire.kafka import ApiKey
from tests.kafka.raw import Closed, Raw, create
from tests.kafka.shares import ACCEPT, REJECT, RELEASE, Batch, Member, beat, earliest, fill, position
from tests.process import BrokerProcess, Launcher, broker_process, wait_until

LOCK_S, LIMIT, COUNT, PARTITIONS, MEMBERS = 4.0, 4, 300, 2, 6
SLACK_S = 1.5  # seconds between the broker's clock and what a member knows of it
At = tuple[int, int]  # partition, offset


class Ledger:
    """What all members know. `held`: by whom each record is held, since when, and in which life of the broker."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.settled: dict[At, float] = {}  # when the answer came that settled it
        self.held: dict[At, tuple[str, float, int]] = {}
        self.life = 0
        self.faults: list[str] = []
        self.stop = threading.Event()

    def acquired(self, at: At, member: str, deliveries: int, sent: float, life: int) -> None:
        if self.settled.get(at, sent) < sent:
            self.faults.append(f"{at} was settled, and comes again to {member}")
        if deliveries > LIMIT:
            self.faults.append(f"{at} comes for the {deliveries}th time")
        who, since, when = self.held.get(at, (member, 0.0, life))
        if who != member and when == self.life == life and time.monotonic() - since < LOCK_S - SLACK_S:
            self.faults.append(f"{at} is with {who} and with {member}")
        self.held[at] = member, sent, life

    def gone(self, at: At, member: str) -> None:
        if at in self.held and self.held[at][0] == member:
            del self.held[at]


class Worker:
    """Runs one member after the other; each ends in its own way."""

    def __init__(self, broker: BrokerProcess, ledger: Ledger, seed: int) -> None:
        self.broker, self.ledger, self.rng = broker, ledger, random.Random(seed)
        self.name = f"worker-{seed}"

    def run(self) -> None:
        while not self.ledger.stop.is_set():
            life = self.ledger.life
            try:
                with Raw(self.broker.kafka, timeout=20) as raw:
                    self.live(raw, life)
            except (Closed, OSError):  # the broker is down
                time.sleep(0.1)
            except Exception as fault:  # else the thread would end, and nobody would know why
                with self.ledger.lock:
                    self.ledger.faults.append(f"{self.name} ends: {fault!r}")
                raise

    def live(self, raw: Raw, life: int) -> None:
        index, rng, ledger = self.rng.randrange(PARTITIONS), self.rng, self.ledger
        member = Member(raw, "g", f"{self.name}-{rng.random()}", "t", index)
        mine: dict[int, float] = {}  # since when it has each record
        for _ in range(rng.randrange(2, 15)):
            took = {
                at: rng.choices((ACCEPT, RELEASE, REJECT), (8, 3, 1))[0] for at in sorted(mine) if rng.random() < 0.7
            }
            sent = time.monotonic()
            fresh = all(sent - mine[at] < LOCK_S - SLACK_S for at in took)
            with ledger.lock:
                for at in took:
                    ledger.gone((index, at), member.member)
            wait = rng.choice((0, 50, 300))
            got = member.fetch(*batches(took), max_records=rng.choice((1, 3, 20)), max_wait_ms=wait)
            with ledger.lock:
                if got.get("acknowledge_error_code", 0) == 0:
                    for at in took:
                        if took[at] != RELEASE:
                            ledger.settled[index, at] = time.monotonic()
                elif fresh:
                    ledger.faults.append(f"{member.member} may not acknowledge {sorted(took)}")
                for at in took:
                    del mine[at]
                for run in got.get("acquired_records", []):
                    for at in range(run["first_offset"], run["last_offset"] + 1):
                        ledger.acquired((index, at), member.member, run["delivery_count"], sent, life)
                        mine[at] = sent
            if rng.random() < 0.03:
                time.sleep(LOCK_S)  # all its locks end meanwhile
        with ledger.lock:
            for at in mine:
                ledger.gone((index, at), member.member)
        if rng.random() < 0.5:  # else it dies
            raw.ask(ApiKey.SHARE_ACKNOWLEDGE, member.body([], epoch=-1))
            beat(raw, "g", member.member, -1)


def batches(took: dict[int, int]) -> list[Batch]:
    found: list[Batch] = []
    for at, kind in took.items():
        if found and found[-1][1] + 1 == at:
            first, _, kinds = found.pop()
            found.append((first, at, [*kinds, kind]))
        else:
            found.append((at, at, [kind]))
    return found


def test_members_and_the_broker_die(tmp_path: Path, launcher: Launcher) -> None:
    ledger = Ledger()
    with broker_process(tmp_path / "data", launch=launcher, durability="fsync") as broker:
        create(broker, "t", PARTITIONS)
        with Raw(broker.kafka) as raw:
            limits = {
                "share_record_lock_duration_ms": str(int(1000 * LOCK_S)),
                "share_delivery_count_limit": str(LIMIT),
            }
            earliest(raw, "g", **limits)
            for index in range(PARTITIONS):
                fill(raw, "t", COUNT, index)
        workers = [threading.Thread(target=Worker(broker, ledger, seed).run) for seed in range(MEMBERS)]
        for each in workers:
            each.start()
        for _ in range(2):
            time.sleep(2)
            broker.kill()
            with ledger.lock:
                ledger.life += 1
                ledger.held.clear()
            broker.start()

        def lag() -> int:
            with Raw(broker.kafka) as raw:
                return sum(position(raw, "g", "t", index)[1] for index in range(PARTITIONS))

        try:
            wait_until(lambda: bool(ledger.faults) or lag() == 0, "all records are settled", 60)
        finally:
            ledger.stop.set()
            for each in workers:
                each.join()
        assert not ledger.faults, ledger.faults[:10]
        assert len(ledger.settled) > COUNT
        assert not broker.events("internal_error"), broker.last_words()
        assert broker.stop() == 0
