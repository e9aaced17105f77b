"""Brokers of a cluster under trouble, judged by the histories of their clients (`make chaos`).

    make chaos MINUTES=5 ARGS="--seed 7 --zookeepers 3"

It runs rounds, each with a seed of its own: three brokers and one or three ZooKeepers, each in a network namespace of
its own, clients that write and read, and faults that the seed chooses. After each round everything is healed, all
replicas must get in sync, and what clients were told is compared with what each replica has: nothing acknowledged is
lost, there twice, out of order or unseen; replicas are equal; tables are the folds of their logs; reads and
compare-and-sets of tables are linearizable. The same seed does not make the same run: it decides the faults and their
times, but not what threads and disks do.

A round is a process of its own, so whatever its clients leave behind ends with it. A round that stands still is ended,
and counts as wrong; the stacks of its threads are printed.

Exit status: 0 all is well, 1 something is wrong (the folder of the round is kept), 2 it can't run here.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from krappy.errors import ConfigError
from krappy.spark.session import java_home
from tests.chaos import linearizability, networks
from tests.chaos.faults.base import KINDS
from tests.chaos.machines import CLOCK, Shims
from tests.chaos.round import SETTINGS, Order, Outcome, run
from tests.cluster.zookeeper import Missing, jars
from tests.power.record import build

ROUND_SECONDS = 90.0
STANDS_STILL_S = 600  # a round that takes so much longer than its trouble is ended
CANT = 2  # exit status
CLIENTS_LOG = "clients.log"  # in the folder of a round: librdkafka's debug output
SPARK_SHARE = 0.3  # the share of rounds that have a client with Spark; Spark takes much of a small machine
POWER_SHARE = 0.5  # the share of rounds that record disks, so that power can be lost; such brokers are slower


def parser() -> argparse.ArgumentParser:
    head, _, _ = (__doc__ or "").partition("\nExit")
    found = argparse.ArgumentParser(prog="make chaos", description=head, formatter_class=argparse.RawTextHelpFormatter)
    found.add_argument("--minutes", type=float, default=5, help="rounds begin until so much time is over (5)")
    found.add_argument("--rounds", type=int, help="as many rounds, whatever time they take")
    found.add_argument("--seconds", type=float, default=ROUND_SECONDS, help=f"of trouble in each ({ROUND_SECONDS:.0f})")
    found.add_argument(
        "--seed", type=int, help="of the first round; the next ones have the next numbers (a random one)"
    )
    found.add_argument("--zookeepers", type=int, choices=(1, 3), help="how many (the seed chooses)")
    found.add_argument("--faults", nargs="+", metavar="KIND", help="only these kinds; all of them in each round")
    found.add_argument("--list-faults", action="store_true", help="show the kinds, and what each stands for")
    found.add_argument("--no-namespaces", action="store_true", help="all on 127.0.0.1; nothing can be cut then")
    found.add_argument("--power", choices=("seed", "on", "off"), default="seed", help="whether disks are recorded")
    found.add_argument(
        "--spark", choices=("seed", "on", "off"), default="seed", help="whether there is a Spark session"
    )
    found.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of the brokers")
    found.add_argument("--folder", type=Path, help="where rounds have their folders (a temporary one)")
    found.add_argument("--keep", action="store_true", help="keep the folders of good rounds, too")
    found.add_argument("--of-many", action="store_true", help=argparse.SUPPRESS)  # this process runs one round
    found.add_argument("--json", action="store_true", help="a line of JSON for each round, on standard output")
    return found


class Round:
    """One round, and what this machine can do for it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._network: networks.Network = networks.Loopback() if options.no_namespaces else networks.Namespaces()
        self._folder = options.folder / f"round-{options.seed}"
        self._shims = options.folder / "shims"
        self._disk: Path | None = None
        self._clock: Path | None = None
        self._program: Path | None = None
        self._spark = False
        self._began = time.monotonic()
        self._terminal = os.fdopen(os.dup(2), "w", buffering=1)

    def say(self, text: str) -> None:
        self._terminal.write(f"{time.monotonic() - self._began:7.1f} {text}\n")

    def _prepare(self) -> list[str]:
        """Returns the kinds of faults that are possible here. Prints which are not, and why. Raises Missing."""
        if shutil.which("cc") is None and shutil.which("gcc") is None:
            self.say("no power is lost and no clock jumps: there is no C compiler (Debian's package: gcc)")
        else:
            self._shims.mkdir(exist_ok=True)
            self._clock = build(self._shims, CLOCK)
            self._disk = build(self._shims) if self._options.power != "off" else None
        try:
            self._program = linearizability.build()
        except linearizability.NotBuilt as reason:
            self.say(f"registers are not judged: {reason}")
        if self._options.spark != "off":
            try:
                java_home()
                self._spark = True
            except ConfigError as reason:
                self.say(f"nothing is written by Spark: {reason}")
        if not self._network.cuts:
            self.say("nothing can be cut: all servers are on 127.0.0.1")
        elif self._network.refused:
            self.say(self._network.refused)
        found = {"cuts": self._network.cuts, "power": self._disk is not None, "clock": self._clock is not None}
        can = {"": True, **found}
        asked = self._options.faults or list(KINDS)
        if impossible := [each for each in self._options.faults or [] if not can[KINDS[each].needs]]:
            raise networks.Missing(f"these faults can't be made here: {', '.join(impossible)}")
        return [each for each in asked if can[KINDS[each].needs]]

    def run(self) -> bool:
        """Runs the round; returns whether all was well. Raises Missing."""
        options, kinds = self._options, self._prepare()
        random = Random(options.seed)
        zookeepers = random.choice([1, 3])
        power = random.random() < POWER_SHARE or options.power == "on" or "power" in " ".join(options.faults or [])
        spark = random.random() < SPARK_SHARE or options.spark == "on"
        order = Order(
            seed=options.seed,
            seconds=options.seconds,
            zookeepers=options.zookeepers or zookeepers,
            kinds=kinds,
            swarm=options.faults is None,
            settings={**SETTINGS, **dict(each.split("=", 1) for each in options.set)},
            shims=Shims(self._disk if power else None, self._clock),
            program=self._program,
            spark=spark and self._spark,
        )
        self._folder.mkdir()
        recorded = "recorded" if order.shims.disk else "not recorded"
        with_spark = ", with Spark" if order.spark else ""
        self.say(f"seed {options.seed}: {order.zookeepers} ZooKeepers, disks {recorded}{with_spark}, {self._folder}")
        with (self._folder / CLIENTS_LOG).open("wb") as log:
            os.dup2(log.fileno(), 2)  # librdkafka logs to stderr: so the log has also the lines of clients that hang
        faulthandler.dump_traceback_later(options.seconds + STANDS_STILL_S, file=self._terminal)
        outcome = run(order, self._folder, self._network, lambda text: self.say(f"  {text}"))
        faulthandler.cancel_dump_traceback_later()
        self._tell(outcome)
        if not outcome.violations and not options.keep:
            shutil.rmtree(self._folder)
        return not outcome.violations

    def _tell(self, outcome: Outcome) -> None:
        if self._options.json:
            sys.stdout.write(json.dumps(outcome.as_json()) + "\n")
            sys.stdout.flush()
        for each in outcome.violations:
            self.say(f"seed {outcome.seed}: WRONG: {each}")
        wrong = f"{len(outcome.violations)} things are wrong; kept in {self._folder}"
        verdict = wrong if outcome.violations else "all is well"
        self.say(f"seed {outcome.seed}: {sum(outcome.faults.values())} faults, {verdict}")


def _rounds(options: argparse.Namespace) -> int:
    """Runs each round as a process: this same command with the round's seed. Returns the highest exit status."""
    folder = options.folder or Path(tempfile.mkdtemp(prefix="krappy-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    seed = Random().getrandbits(31) if options.seed is None else options.seed
    began, status, rounds = time.monotonic(), 0, 0
    while rounds < (options.rounds or 1 << 30):
        if rounds and not options.rounds and time.monotonic() - began > options.minutes * 60:
            break
        one = ["--of-many", "--seed", str(seed + rounds), "--folder", str(folder)]
        command = [sys.executable, "-m", "tests.chaos.run", *sys.argv[1:], *one]
        try:
            ended = subprocess.run(command, check=False, timeout=options.seconds + STANDS_STILL_S + 10).returncode
        except subprocess.TimeoutExpired:
            ended = 1
            _tell_still(seed + rounds, options.json)
        status = max(status, abs(ended))
        if ended == CANT:
            break
        rounds += 1
    shutil.rmtree(folder / "shims", ignore_errors=True)
    with contextlib.suppress(OSError):  # it is not empty if a round went wrong: its folder is kept
        folder.rmdir()
    return status


def _tell_still(seed: int, json_too: bool) -> None:
    """Reports a round that had to be ended. Nobody knows whether it went well, so it counts as wrong."""
    why = (
        f"no end {STANDS_STILL_S} s after its trouble; the stacks of its threads are above. A thread that waits in"
        " librdkafka and keeps the interpreter's lock is the client's fault (librdkafka's issue 5476: a lost broker"
        " while a consumer asks for an epoch's end)"
    )
    sys.stderr.write(f"seed {seed}: WRONG: {why}\n")
    if json_too:
        sys.stdout.write(json.dumps({"seed": seed, "violations": [why], "ok": False}) + "\n")
        sys.stdout.flush()


def _download() -> None:
    """Builds and fetches what rounds need, as long as the network can be reached. Raises Missing without a
    ZooKeeper."""
    jars()
    with contextlib.suppress(linearizability.NotBuilt):  # each round reports it
        linearizability.build()


def main() -> int:
    options = parser().parse_args()
    if options.list_faults:
        for kind, made in sorted(KINDS.items()):
            sys.stdout.write(f"{kind:20} {made.shows}\n")
        return 0
    if unknown := [each for each in options.faults or [] if each not in KINDS]:
        parser().error(f"there is no fault {unknown[0]!r}; --list-faults shows all")
    try:
        if not options.of_many:
            if not options.no_namespaces:
                networks.probe()
            _download()
            return _rounds(options)
        if not options.no_namespaces:
            if not networks.inside():
                networks.enter()
            networks.settle()
        return 0 if Round(options).run() else 1
    except (Missing, networks.Missing) as reason:
        hint = "" if options.no_namespaces else "; --no-namespaces runs what needs none"
        sys.stderr.write(f"chaos can't run: {reason}{hint}\n")
        return CANT


if __name__ == "__main__":
    sys.exit(main())
