"""What a fault is, and the plan of a round: which faults, when, for how long. The plan depends on the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, NamedTuple, TypeVar

from tests.chaos.jobs import COPIED, PUBLISHED
from tests.chaos.machines import Machine
from tests.chaos.world import World
from tests.cluster.transfers import ACCOUNTS, ORDERS
from tests.cluster.transfers import PARTITIONS as MOVED

# The topics that are judged, and how many partitions each has.
TOPICS = {"events": 6, "registers": 3, ORDERS: MOVED, ACCOUNTS: MOVED, PUBLISHED: 3, COPIED: 2}
PAUSE_MEAN, PAUSE_MOST = 5.0, 15.0  # seconds between the beginnings of two faults
# A round has this share of all kinds of faults. A round with few kinds tests each of them more deeply (swarm testing,
# Groce et al. 2012).
CHOSEN = 0.6


@dataclass
class Fault:
    """One fault of a plan. `random`: its own source of chance. `machines`: the machines that it has taken."""

    kind: ClassVar[str]
    shows: ClassVar[str]  # a description of the fault
    lengths: ClassVar[tuple[float, ...]]  # seconds; the plan draws one of them
    needs: ClassVar[str] = ""  # what not every run has: cuts, power or clock
    weight: ClassVar[int] = 2

    random: Random
    machines: list[Machine] = field(default_factory=list)

    def begin(self, world: World) -> str:
        """Causes the fault; returns what it did. An empty text: the fault is not possible now, and nothing was done."""
        raise NotImplementedError

    def end(self, world: World) -> str:
        """Undoes the fault; returns a text for the report."""
        raise NotImplementedError

    def start_again(self) -> str:
        """Starts its machines, in any order."""
        self.random.shuffle(self.machines)
        for machine in self.machines:
            machine.begin()
        self.free()
        return f"brokers {[each.id for each in self.machines]} are started"

    # --- victims

    def take(self, world: World, machines: Collection[Machine], what: str = "busy") -> list[Machine]:
        """Marks the machines as taken by this fault, and returns them. If one of them already has a fault, it marks and
        returns none."""
        if any(getattr(each, what) for each in machines):
            return []
        for each in machines:
            setattr(each, what, self.kind)
        self.machines = list(machines)
        return self.machines

    def victim(self, world: World) -> Machine:
        """The machine of a leader, of the controller, or any machine."""
        role = self.random.choice(["leader", "controller", "any"])
        some = self.random.choice(sorted(world.machines))
        topic = self.random.choice(sorted(TOPICS))
        partition = self.random.randrange(TOPICS[topic])
        found = -1
        if role == "leader":
            found = world.leader(topic, partition)
        elif role == "controller":
            found = world.controller()
        return world.machines.get(found) or world.machines[some]

    def free(self, what: str = "busy") -> None:
        for each in self.machines:
            setattr(each, what, "")


F = TypeVar("F", bound=Fault)
KINDS: dict[str, type[Fault]] = {}


def fault(
    kind: str, shows: str, lengths: tuple[float, ...], needs: str = "", weight: int = 2
) -> Callable[[type[F]], type[F]]:
    """Registers a kind of fault."""

    def register(made: type[F]) -> type[F]:
        made.kind, made.shows, made.lengths, made.needs, made.weight = kind, shows, lengths, needs, weight
        KINDS[kind] = made
        return made

    return register


class Planned(NamedTuple):
    at: float  # seconds after the beginning of the trouble
    length: float
    kind: str
    seed: int


def plan(seed: int, seconds: float, kinds: Collection[str], *, swarm: bool = True) -> list[Planned]:
    """The faults of a round, by the time of their beginning. `swarm`: only some of the kinds; the seed chooses."""
    random = Random(seed)
    there = sorted(kinds)
    chosen = [kind for kind in there if random.random() < CHOSEN] if swarm else there
    chosen = chosen or there
    found = []
    at = 1.0
    while at < seconds and chosen:
        kind = random.choices(chosen, [KINDS[each].weight for each in chosen])[0]
        length = random.choice(KINDS[kind].lengths) * random.uniform(0.7, 1.3)
        found.append(Planned(round(at, 2), round(length, 2), kind, random.getrandbits(32)))
        at += 0.3 + min(PAUSE_MOST, random.expovariate(1 / PAUSE_MEAN))
    return found
