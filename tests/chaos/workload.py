"""All clients of a round: who writes and reads what, and how they come to an end."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from krappy import blocking
from krappy.errors import KrappyError
from krappy.types import Entry
from tests.chaos.checker import Violation
from tests.chaos.faults.base import TOPICS
from tests.chaos.groups import GroupHistory, check_group
from tests.chaos.histories import History, Operation
from tests.chaos.jobs import COPIED, PUBLISHED, JobDriver
from tests.chaos.members import KafkaMember, Member, NativeMember
from tests.chaos.readers import NativeReader, RdkafkaReader, Reader
from tests.chaos.registers import RegisterClient
from tests.chaos.sharing import ShareMember, configure
from tests.chaos.spark import SparkDriver
from tests.chaos.transfers import Transfers
from tests.chaos.watchers import Watcher
from tests.chaos.world import Patience, World
from tests.chaos.writers import NativeWriter, RdkafkaWriter, TransactionalWriter, Writer
from tests.cluster.transfers import ACCOUNTS, ORDERS
from tests.process import wait_until

EVENTS, REGISTERS, *_ = TOPICS
RATE = 60.0  # events a second, of each writer
KEYS = [f"k{number}" for number in range(6)]
REGISTER_CLIENTS = 5
MEMBERS = 2  # of each group
DRIVERS = 2  # of staged jobs
PROGRESS_SECONDS = 40.0
STACKS_SECONDS = 60.0
FOR_EVER = str(2**63 - 1)


class Workload:
    def __init__(self, world: World, seed: int, *, spark: bool) -> None:
        random = Random(seed)
        self.world, self.history = world, History()
        where = (self.history, EVENTS, TOPICS[EVENTS])
        self.writers: list[Writer] = [
            RdkafkaWriter("a", world.kafka, *where, RATE, idempotent=True, log=world.folder / "a.log"),
            RdkafkaWriter("b", world.kafka, *where, RATE, idempotent=False, log=world.folder / "b.log"),
            NativeWriter("c", world.native, *where, RATE),
        ]
        self.steady = tuple(self.writers)  # these must get on in peace
        self.writers.append(TransactionalWriter("t", world.kafka, *where, RATE, random=self._chance(random)))
        self.readers: list[Reader] = [
            RdkafkaReader("librdkafka's reader", world.kafka, *where),
            NativeReader("the native reader", world.native, *where),
        ]
        known: dict[str, Entry | None] = {}
        self.registers = [
            RegisterClient(number, world.native, REGISTERS, KEYS, self._chance(random), known)
            for number in range(REGISTER_CLIENTS)
        ]
        self.watcher = Watcher(world.native, REGISTERS)
        self.transfers = Transfers(world)
        self.jobs = [JobDriver(f"job{number}", world.native, self._chance(random)) for number in range(DRIVERS)]
        self.groups = [GroupHistory(name) for name in ("shared", "share", "classic", "consumer")]
        shared, share, *kafka = self.groups
        self.members: list[Member] = [
            NativeMember(world.native, shared, EVENTS, self._chance(random)) for _ in range(MEMBERS)
        ]
        self.members += [ShareMember(world.kafka, share, EVENTS, self._chance(random)) for _ in range(MEMBERS)]
        for group in kafka:
            self.members += [
                KafkaMember(world.kafka, group.group, group, EVENTS, self._chance(random)) for _ in range(MEMBERS)
            ]
        self.spark = [SparkDriver(world.native, world.folder, self._chance(random))] if spark else []
        self.drivers: list[JobDriver | SparkDriver] = [*self.jobs, *self.spark]

    @staticmethod
    def _chance(random: Random) -> Random:
        return Random(random.getrandbits(32))

    def make_topics(self) -> None:
        # Wall clocks jump by a day, so retention and the limits of timestamps must not depend on them.
        config = {"min.insync.replicas": "2", "retention.ms": "-1", "message.timestamp.after.max.ms": FOR_EVER}
        made = [
            NewTopic(EVENTS, TOPICS[EVENTS], 3, config=config),
            NewTopic(REGISTERS, TOPICS[REGISTERS], 3, config={**config, "cleanup.policy": "compact"}),
            *(NewTopic(name, TOPICS[name], 3, config=config) for name in (ORDERS, ACCOUNTS, PUBLISHED, COPIED)),
        ]
        until = time.monotonic() + PROGRESS_SECONDS
        for topic in made:
            while True:  # the broker that gets the request may not know the other brokers yet
                try:
                    self.world.admin.create_topics([topic])[topic.topic].result(30)
                    break
                except KafkaException as error:
                    if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:  # the answer to the last try was lost
                        break
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.2)
        wait_until(lambda: configure(self.world, "share"), "the share group has its settings", PROGRESS_SECONDS)

    def start(self) -> None:
        for writer in self.writers:
            writer.start()
        for reader in self.readers:
            reader.start()
        for client in self.registers:
            client.start()
        for member in self.members:
            member.start()
        self.watcher.start()
        self.transfers.start()
        for driver in self.drivers:
            driver.start()

    def warm(self, events: int) -> bool:
        """Whether so many events are acknowledged, and Spark has done something, too."""
        return self.history.acked >= events and all(each.done for each in self.spark)

    def progress(self) -> list[Violation]:
        """Checks after the trouble that each writer, and each client of the registers, gets answers again."""
        began, patience = time.monotonic(), Patience(self.world.machines.values(), PROGRESS_SECONDS)
        done = {client.name: len(client.operations) for client in self.registers}

        def waiting() -> list[str]:
            writers = [
                f"{each.name} in partitions {held} ({each.state()})"
                for each in self.steady
                if (held := each.waiting(began))
            ]
            return writers + [each.name for each in self.registers if len(each.operations) <= done[each.name]]

        while waiting() and not patience.is_over:
            time.sleep(0.1)
        if waiting():
            tell_stacks(self.world.folder / "stacks.log")
        told = f"for {patience.passed:.0f} s of peace, {patience.kept_off:.0f} s of which a broker had no processor"
        return [Violation("stuck", f"{name} got no answer {told}") for name in waiting()]

    def finish(self) -> list[Violation]:
        """Ends the writers; then ends the readers, once they have read everything."""
        found = _ended([*self.writers, *self.registers, *self.drivers])
        for driver in self.drivers:  # Spark's stream reads what the others have published
            found += driver.finish(self._patience())
        found += self.watcher.finish(self._patience())
        try:
            self.transfers.stop()
        except AssertionError as error:
            found.append(Violation("stuck", str(error)))
        found += self.transfers.finish(self._patience)
        is_over, sent = self._patience(), list(self.history.sent.values())
        while any(group.missing(sent) for group in self.groups) and not is_over():
            time.sleep(0.2)
        found += _ended(self.members)
        for group in self.groups:
            found += check_group(group, sent)
        ends = self._ends()
        if ends is None:
            return [*found, Violation("stuck", "the ends of the logs are not told in peace")]
        for reader in self.readers:
            reader.finish(ends)
        return found

    def _patience(self) -> Callable[[], bool]:
        patience = Patience(self.world.machines.values(), PROGRESS_SECONDS)
        return lambda: patience.is_over

    def _ends(self) -> dict[int, int] | None:
        until = time.monotonic() + PROGRESS_SECONDS
        while time.monotonic() < until:
            try:
                with blocking.connect(self.world.native, timeout=10) as client:
                    return client.offsets(EVENTS, "latest")
            except KrappyError:
                time.sleep(0.5)
        return None

    @property
    def operations(self) -> list[Operation]:
        return [each for client in self.registers for each in client.operations]

    @property
    def left(self) -> int:
        """How many of librdkafka's consumers did not close."""
        return (
            self.transfers.mover.left
            + sum(each.left for each in self.readers)
            + sum(each.left for each in self.members)
        )

    @property
    def transactions(self) -> dict[str, int]:
        """How many transactions have each end."""
        return {
            fate.value: count
            for writer in self.writers
            if isinstance(writer, TransactionalWriter)
            for fate, count in writer.ended.items()
        }


def tell_stacks(file: Path) -> None:
    """Writes the stacks of all threads of the clients: Python's, and librdkafka's if there is a gdb."""
    with file.open("ab") as log:
        faulthandler.dump_traceback(log, all_threads=True)
        if gdb := shutil.which("gdb"):
            command = [gdb, "-p", str(os.getpid()), "-batch", "-ex", "thread apply all bt 20"]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=STACKS_SECONDS, check=False
                )


def _ended(actors: Sequence[Writer | RegisterClient | Member | JobDriver | SparkDriver]) -> list[Violation]:
    """Ends all actors; returns a violation for each that does not end."""
    found = []
    for each in actors:
        each.stop()
    for each in actors:
        try:
            each.join()
        except AssertionError as error:
            found.append(Violation("stuck", str(error)))
    return found
