"""One round of chaos: a fresh cluster, trouble by a plan, healing, and the check of everything."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import checker, linearizability, spark
from tests.chaos.checker import Violation
from tests.chaos.faults import anew
from tests.chaos.faults.base import TOPICS, plan
from tests.chaos.faults.moves import reassign_home
from tests.chaos.jobs import COPIED, PUBLISHED
from tests.chaos.machines import Shims
from tests.chaos.networks import Network
from tests.chaos.replicas import check_views, replicas, transactions
from tests.chaos.trouble import Trouble
from tests.chaos.workload import EVENTS, REGISTERS, Workload
from tests.chaos.world import Patience, World, world
from tests.cluster.transfers import ACCOUNTS, ORDERS

HEAL_SECONDS = 90.0  # all replicas must be in sync again within this time, on any machine
WARM_EVENTS, WARM_SECONDS = 500, 60.0  # trouble begins after so many acknowledged events, or after so many seconds
WARM_SPARK_SECONDS = 120.0  # the same with Spark: its session has to start, and to do something
SETTLE_SECONDS = 2.0
SETTINGS: dict[str, Any] = {
    "durability": "fsync",
    "insecure_listeners": "allow",  # the network is the round's own
    "default_replication_factor": 3,
    "log_level": "info",
    "leader_imbalance_check_interval_seconds": 20,
    "retention_check_ms": 5000,
    "cleaner_backoff_ms": 3000,
    "scrub_interval_ms": 2000,
    "group_consumer_session_timeout_ms": 10_000,  # a member is removed after this time if its request to leave was lost
    "group_consumer_heartbeat_interval_ms": 1000,
}


@dataclass
class Outcome:
    """The result of a round."""

    seed: int
    zookeepers: int
    seconds: float
    power: bool
    violations: list[Violation] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("seed", "zookeepers", "seconds", "power")},
            "faults": dict(sorted(self.faults.items())),
            **self.facts,
            "violations": [each._asdict() for each in self.violations],
            "ok": not self.violations,
        }


@dataclass(frozen=True)
class Order:
    """What a round is to be. `kinds`: kinds of faults. `settings`: settings of brokers. `shims`: see machines.py.
    `program`: porcupine; None: it can't be built. `spark`: whether there is a client with Spark."""

    seed: int
    seconds: float
    zookeepers: int
    kinds: Collection[str]
    swarm: bool
    settings: Mapping[str, Any]
    shims: Shims
    program: Path | None
    spark: bool


def run(order: Order, folder: Path, network: Network, tell: Callable[[str], None]) -> Outcome:
    """Runs a round. `tell`: is called with each line of the report. Raises Missing if ZooKeeper can't run."""
    outcome = Outcome(order.seed, order.zookeepers, order.seconds, order.shims.disk is not None)
    kinds = [each for each in order.kinds if order.shims.disk is not None or not each.startswith("power")]
    planned = plan(order.seed, order.seconds, kinds, swarm=order.swarm)
    with world(folder, network, order.zookeepers, order.shims, **order.settings) as made:
        workload = Workload(made, order.seed, spark=order.spark)
        workload.make_topics()
        _, lacking = made.until_in_sync(TOPICS, HEAL_SECONDS)
        if lacking:
            outcome.violations.append(Violation("healing", f"before any trouble: {lacking[:3]}"))
        workload.start()
        warm = time.monotonic() + (WARM_SPARK_SECONDS if order.spark else WARM_SECONDS)
        while not workload.warm(WARM_EVENTS) and time.monotonic() < warm:
            time.sleep(0.1)
        tell(f"trouble begins; {workload.history.acked} events acknowledged")
        trouble = Trouble(made, planned, tell)
        trouble.run(order.seconds)
        outcome.faults = trouble.done
        tell(f"trouble ends; {workload.history.acked} events acknowledged")
        made.heal()
        outcome.violations += _settle(made, outcome, tell)
        outcome.violations += workload.progress()
        outcome.violations += workload.finish()
        outcome.facts |= _facts(workload)
        tell(f"clients have ended: {json.dumps(outcome.facts)}")
        # The first time, the broker that was asked may not have known all reassignments.
        outcome.violations += _settle(made, outcome, tell)
        time.sleep(SETTLE_SECONDS)
        outcome.violations += _stop(made)
        outcome.violations += _of_logs(made)
    for each in _judge(made, workload, order, folder):
        if each.kind == checker.RESENT:
            outcome.facts.setdefault("resent_by_librdkafka", []).append(each.text)
        else:
            outcome.violations.append(each)
    return outcome


def _settle(made: World, outcome: Outcome, tell: Callable[[str], None]) -> list[Violation]:
    patience = Patience(made.machines.values(), HEAL_SECONDS)
    lacking = ["not asked yet"]
    while lacking and not patience.is_over:
        home = reassign_home(made)  # an earlier reassignment may have removed replicas, perhaps only just now
        _, lacking = made.until_in_sync(TOPICS, 2)
        lacking = lacking or ([] if home else ["a reassignment is under way"])
    seconds = patience.passed
    outcome.facts.setdefault("in_sync_s", round(seconds, 1))
    outcome.facts.setdefault("kept_off_s", round(patience.kept_off, 1))
    tell(f"in sync after {seconds:.1f} s" if not lacking else f"not in sync after {seconds:.0f} s: {lacking[:3]}")
    return [Violation("healing", f"{each}, {seconds:.0f} s after all trouble") for each in lacking[:5]]


def _facts(workload: Workload) -> dict[str, Any]:
    return {
        "acked": workload.history.acked,
        "sent": len(workload.history.sent),
        "longest_gap_s": {each.name: round(each.longest_gap, 1) for each in workload.writers},
        "begun_anew": {each.name: each.begun - 1 for each in workload.writers if each.begun > 1},
        "troubles": {each.name: each.troubles[-2:] for each in workload.writers if each.troubles},
        "transactions": workload.transactions,
        "transfers": workload.transfers.mover.done,
        "groups": {each.group: [len(each.began), len(each.deliveries)] for each in workload.groups},
        "members_troubles": {each.history.group: each.troubles[-3:] for each in workload.members if each.troubles},
        "jobs": {each.name: each.done for each in workload.jobs},
        "jobs_troubles": {each.name: each.troubles[-3:] for each in workload.jobs if each.troubles},
        "spark": {each.name: each.done for each in workload.spark},
        "spark_troubles": {each.name: each.troubles[-3:] for each in workload.spark if each.troubles},
        "mover_troubles": workload.transfers.mover.failed[-3:],
        "watches": workload.watcher.begun,
        "consumers_that_did_not_close": workload.left,
        "register_operations": dict(Counter(f"{each.kind} {each.outcome.value}" for each in workload.operations)),
    }


def _stop(made: World) -> list[Violation]:
    found = [Violation("died", text) for text in made.died] + [Violation("wrong", text) for text in made.wrong]
    for machine in made.machines.values():
        machine.terminate()
        if wrong := machine.ended():
            found.append(Violation("died", f"{wrong}, in peace"))
    return found


def _of_logs(made: World) -> list[Violation]:
    """Bugs that brokers have logged."""
    found = []
    for machine in made.machines.values():
        for event in ("internal_error", "log_damaged"):  # no fault damages what was synced
            for each in machine.process.events(event):
                found.append(Violation(event.replace("_", " "), f"broker {machine.id}: {json.dumps(each)[-1500:]}"))
    return checker.shortened(found)


def _judge(made: World, workload: Workload, order: Order, folder: Path) -> Sequence[Violation]:
    folders = {id: machine.process.data for id, machine in made.machines.items()}
    logs, found = replicas(folders, EVENTS, TOPICS[EVENTS])
    found += checker.check(workload.history, logs)
    for topic in (REGISTERS, ORDERS, ACCOUNTS, PUBLISHED, COPIED):
        logs, missing = replicas(folders, topic, TOPICS[topic])
        found += missing + checker.check_equal(logs)
    spans = {index: transactions(next(iter(folders.values())), PUBLISHED, index) for index in range(TOPICS[PUBLISHED])}
    for unseen in (unseen for driver in workload.spark for unseen in driver.unseen):
        found += [Violation(spark.NAME, text) for text in spark.check_unseen(unseen, spans)]
    if made.anew.number:
        logs, missing = replicas(folders, anew.NAME, anew.PARTITIONS)
        found += made.anew.check(logs)
        if made.anew.certain and not made.anew.doubtful:
            found += missing
    if not any(each.text.startswith("broker") and each.kind == "lost" for each in found):
        found += check_views(folders, TOPICS)
    if order.program is not None:
        found += linearizability.judge(order.program, workload.operations, folder)
    return found
