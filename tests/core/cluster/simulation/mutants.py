"""The simulated cluster's rules, each left out in turn. The simulation must find every one of these mutants.

    python -m tests.core.cluster.simulation.mutants SEEDS      # for each mutant, the first seed that finds it
    python -m tests.core.cluster.simulation.mutants SEEDS -    # runs the real rules

Three rules are not here. That a controller demands its controller epoch, and that a leader takes a refused write for
unknown: both keep things tidy, but each write demands the version of the state, too. That who comes back into the ISR
must be registered as it was when it fetched: it matters only if the leader's write arrives between two steps of that
broker's registration, which none of 1,500 histories did.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import click

from krappy.core.cluster import decide as deciding
from krappy.core.cluster import isr as changing
from krappy.core.cluster import state as states
from krappy.core.cluster.presence import Presence, ReadLease
from krappy.core.cluster.replica_set import ReplicaSet
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState
from krappy.core.epochs import Epochs
from tests.core.cluster.simulation.rules import Rules, Violation
from tests.core.cluster.simulation.world import World


class CommitsWithTooFew(ReplicaSet):
    @property
    def enough(self) -> bool:
        return True


class AsksTheNewIsrOnly(ReplicaSet):
    def _members(self) -> Any:
        return self.isr if self.proposed is None else self.proposed.isr


class TakesBackBelowItsHighWatermark(ReplicaSet):
    def propose(self, alive: Mapping[int, int], now: float, lag_ms: float = 0) -> Any:
        end, self.high_watermark = self.high_watermark, 0
        try:
            return super().propose(alive, now, lag_ms)
        finally:
            self.high_watermark = end


class TakesBackWhoWasNeverAtTheEnd(ReplicaSet):
    def fetched(self, replica: int, broker_epoch: int, offset: int, end: int, now: float) -> bool:
        rose = super().fetched(replica, broker_epoch, offset, end, now)
        self._followers[replica] = self._followers[replica]._replace(caught_up=now)
        return rose


class ShrinksAtOnce(ReplicaSet):
    def _lags(self, replica: int, now: float, lag_ms: float) -> bool:
        found = self._followers.get(replica)
        return found is None or now - found.caught_up > lag_ms


class HasNoGrace(Presence):
    def __init__(self) -> None:
        super().__init__(grace_ms=0)


class TakesSilenceForDeathTooSoon(Presence):
    def __init__(self) -> None:
        super().__init__(silence_ms=900)


class DoesNotFence(Presence):
    def fence(self, broker: int) -> Any:
        return []


class HoldsForEver(ReadLease):
    def holds(self, now: float) -> bool:
        return True


class FindsNoDivergence(Epochs):
    def diverging(self, epoch: int, offset: int, end: int) -> None:
        return None


def leads_again(state: PartitionState, broker: int, broker_epoch: int) -> Role:
    return Role.LEADER if state.leader == broker else Role.FOLLOWER


def without_elr(state: PartitionState, gone: Any) -> PartitionState:
    return states.without(state, gone)._replace(elr=state.elr)


def keeps_elr(state: PartitionState, replicas: Any, min_insync: int) -> PartitionState:
    after = states.normalise(state, replicas, min_insync)
    return after._replace(elr=tuple(each for each in state.elr if each not in state.isr))


class Mutant(NamedTuple):
    """`seed`: of a history that finds it. `patches`: of functions, by the name under which `decide` and `isr` have
    them."""

    seed: int
    rules: Rules = Rules()
    min_isr: int = 2
    patches: Mapping[str, Any] = {}


MUTANTS = {
    "commits with fewer than min.insync.replicas": Mutant(1, Rules(replica_set=CommitsWithTooFew)),
    "goes on to lead in its old epoch after a restart": Mutant(2, Rules(role=leads_again)),
    "does not exclude itself when its disk was replaced": Mutant(1, Rules(excludes=False)),
    "excludes itself before it raises its broker epoch": Mutant(187, Rules(bumps_first=False)),
    "asks for more before what it has is on its disk": Mutant(1, Rules(asks_when_synced=False)),
    "finds no divergence": Mutant(3, Rules(epochs=FindsNoDivergence)),
    "keeps epochs in which it wrote nothing": Mutant(52, Rules(forgets_empty_epochs=False)),
    "has no ELR": Mutant(0, patches={"without": without_elr}),
    "keeps the ELR beside an ISR that is large enough": Mutant(0, min_isr=1, patches={"normalise": keeps_elr}),
    "takes a follower back that lacks committed events": Mutant(1, Rules(replica_set=TakesBackBelowItsHighWatermark)),
    "takes a follower back that lacks what earlier leaders had": Mutant(
        8, Rules(replica_set=TakesBackWhoWasNeverAtTheEnd)
    ),
    "commits by the new ISR before its write is answered": Mutant(2, Rules(replica_set=AsksTheNewIsrOnly)),
    "reads without a lease": Mutant(11, Rules(lease=HoldsForEver)),
    "trusts what was told to have changed": Mutant(932, Rules(suspects=False)),
    "shrinks the ISR as soon as it leads": Mutant(42, Rules(replica_set=ShrinksAtOnce)),
    "elects without a grace period": Mutant(170, Rules(presence=HasNoGrace)),
    "takes silence for death too soon": Mutant(39, Rules(presence=TakesSilenceForDeathTooSoon)),
    "does not demand the lease that it saw": Mutant(63, Rules(presence=DoesNotFence)),
    "reads before it knows what earlier leaders acknowledged": Mutant(1, Rules(waits_for_end=False)),
}


@contextmanager
def patched(patches: Mapping[str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, made in patches.items():
            for module in (deciding, changing):
                stack.enter_context(mock.patch.object(module, name, made))
        yield


def first_found(mutant: Mutant, seeds: Iterable[int]) -> tuple[int, Violation] | None:
    with patched(mutant.patches):
        for seed in seeds:
            try:
                World(seed, mutant.rules, min_isr=mutant.min_isr).run()
            except Violation as error:
                return seed, error
    return None


if __name__ == "__main__":
    seeds, rest = int(sys.argv[1]), sys.argv[2:]
    if rest == ["-"]:
        for min_isr in (1, 2, 3):
            found = first_found(Mutant(0, min_isr=min_isr), range(seeds)) or "clean"
            click.echo(f"min.insync.replicas {min_isr}: {found}")
    else:
        for name, mutant in MUTANTS.items():
            if not rest or name in rest:
                click.echo(f"{name}: {first_found(mutant, range(seeds)) or 'NOT FOUND'}")
