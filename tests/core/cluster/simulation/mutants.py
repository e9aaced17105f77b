"""The simulated cluster's rules, each left out in turn. The simulation must find every one of these mutants.

    python -m tests.core.cluster.simulation.mutants SEEDS      # for each mutant, the first seed that finds it
    python -m tests.core.cluster.simulation.mutants SEEDS -    # runs the real rules

Some rules have no mutant here:

- A controller demands its controller epoch, and a leader takes a refused write for unknown. Both keep things tidy, but
  each write demands the version of the state, too.
- Whoever comes back into the ISR must be registered as it was when it fetched. This matters only if the leader's write
  arrives between two steps of that broker's registration, which it did in none of 1,500 histories.
- Only replicas come into the ISR. The leader epoch in which replicas go makes the leader forget them, too.
- A change that was told is not trusted until it is read. A broker that is replaced while it lives stays in the ISR for
  longer than its connection with ZooKeeper can lag in these histories.
- A leader does not take what it read before its last change of the ISR for the answer to that change. Earlier histories
  found the mutant; of some hundred with these seeds, none does.
- A broker raises its epoch before it excludes itself. A leader puts no broker back that has not fetched since it left.
- A write demands the lease of a broker that is silent. Seeds found the mutant until a controller that heard nothing
  began to count anew, and now none of 700 does.
- The controller elects only brokers that it has heard of. Seed 10651 found the mutant until a broker that was in the
  ISR stayed a candidate after an election from the ELR.
- A leader whose replicas go leads in a new epoch. Seed 636 found the mutant until the same change, and now none of
  2,500 does.
- Nobody is elected from the ELR before the ISR is empty. None of 2,213 histories finds the mutant; test_elections.py
  does.
- Whom an unclean election takes first: whoever allows one allows the loss.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any, NamedTuple
from unittest import mock

import click

from krappy.core.cluster import decide as deciding
from krappy.core.cluster import elections, reassign, registration
from krappy.core.cluster import isr as changing
from krappy.core.cluster import state as states
from krappy.core.cluster.claims import Cut
from krappy.core.cluster.healing import Deed, LogTrouble, Step, next_step
from krappy.core.cluster.image import Image, PartitionImage, TopicImage
from krappy.core.cluster.presence import Presence, ReadLease
from krappy.core.cluster.replica_set import ReplicaSet
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState
from krappy.core.cluster.tree import Operation, Put
from krappy.core.epochs import Epochs
from tests.core.cluster.simulation import broker
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
    def fetched(self, replica: int, broker_epoch: int, offset: int, end: int, now: float, start: int = 0) -> bool:
        rose = super().fetched(replica, broker_epoch, offset, end, now, start)
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


class TakesAwayTheLeaderAtOnce(Presence):
    def has_reigned(self, partition: tuple[bytes, int], epoch: int) -> bool:
        return True


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


def forgets_others(state: PartitionState, replicas: Any, alive: Any) -> tuple[int, PartitionState]:
    leader, after = states.elected(state, replicas, alive)
    return leader, after if after.isr == state.isr else after._replace(elr=())


def elects_uncleanly_at_once(state: PartitionState, *args: Any) -> int:
    return states.elected_uncleanly(state._replace(isr=()), *args)


def keeps_elr(state: PartitionState, replicas: Any, min_insync: int) -> PartitionState:
    after = states.normalise(state, replicas, min_insync)
    return after._replace(elr=tuple(each for each in state.elr if each not in state.isr))


def moved_out(image: Image, topic: TopicImage, index: int, to: int) -> list[Operation]:
    check, *_, put = _moved(image, topic, index, to)
    assert isinstance(put, Put)
    after = states.read_state(put.data)
    isr = tuple(each for each in after.isr if each != topic.partitions[index].state.leader)
    return [check, *topic.put_state(index, after._replace(isr=isr))]


def ready_at_once(image: Image, topic: TopicImage, partition: PartitionImage, given: Any) -> bool:
    return partition.state.leader != states.NOBODY


def ready_with_too_few(image: Image, topic: TopicImage, partition: PartitionImage, given: Any) -> bool:
    isr = {each for each in partition.state.isr if each in reassign.wanted(partition)}
    return partition.state.leader != states.NOBODY and bool(isr)


def _in_the_same_epoch(deed: Deed) -> Callable[..., Step | None]:
    def step_of(
        image: Image, topic: TopicImage, index: int, broker: int, trouble: LogTrouble, **how: bool
    ) -> Step | None:
        step, before = next_step(image, topic, index, broker, trouble, **how), topic.partitions[index].state
        if step is None or step.deed is not deed:
            return step
        *_, put = step.operations
        assert isinstance(put, Put)
        after = states.read_state(put.data)
        if after.leader == before.leader:
            after = after._replace(leader_epoch=before.leader_epoch)
        return Step(step.deed, topic.put_state(index, after))

    return step_of


def anew_while_a_candidate(
    image: Image, topic: TopicImage, index: int, broker: int, trouble: LogTrouble, **how: bool
) -> Step | None:
    step = next_step(image, topic, index, broker, trouble, **how)
    if step is None or step.deed is not Deed.BEGIN_ANEW:
        return step
    return Step(step.deed, topic.put_state(index, topic.partitions[index].state))


def leaves_although_it_is_the_last(
    image: Image, topic: TopicImage, index: int, broker: int, trouble: LogTrouble, **how: bool
) -> Step | None:
    if trouble is LogTrouble.DAMAGED and topic.partitions[index].state.leader == broker:
        return Step(Deed.LEAVE, registration.exclude(topic, index, broker, emptied=False))
    return next_step(image, topic, index, broker, trouble, **how)


def leaves_as_another_replaces_it(
    image: Image, topic: TopicImage, index: int, broker: int, trouble: LogTrouble, **how: bool
) -> Step | None:
    step = next_step(image, topic, index, broker, trouble, **how)
    if step is None or step.deed is not Deed.HAND_OVER or topic.partitions[index].state.isr != (broker,):
        return step
    return Step(step.deed, registration.exclude(topic, index, broker, emptied=False))


def leads_on_in_its_epoch(topic: TopicImage, index: int, broker: int) -> list[Operation]:
    state = topic.partitions[index].state
    return topic.put_state(index, state) if state.leader == broker else []


_moved = elections.moved


class Mutant(NamedTuple):
    """`seed`: of a history that finds the mutant. `patches`: functions, by the name that they have in the modules of
    `PATCHED`. `moves`, `unclean`, `damages`, `rollbacks`: as for `World`."""

    seed: int
    rules: Rules = Rules()
    min_isr: int = 2
    patches: Mapping[str, Any] = {}
    moves: bool = False
    unclean: bool = False
    damages: bool = False
    rollbacks: bool = False


MUTANTS = {
    "commits with fewer than min.insync.replicas": Mutant(1, Rules(replica_set=CommitsWithTooFew)),
    "goes on to lead in its old epoch after a restart": Mutant(0, Rules(role=leads_again)),
    "does not exclude itself when its disk was replaced": Mutant(1, Rules(excludes=False)),
    "asks for more before what it has is on its disk": Mutant(2, Rules(asks_when_synced=False)),
    "finds no divergence": Mutant(1, Rules(epochs=FindsNoDivergence)),
    "keeps epochs in which it wrote nothing": Mutant(216, Rules(forgets_empty_epochs=False)),
    "has no ELR": Mutant(0, patches={"without": without_elr}),
    "forgets the others as it elects from the ELR": Mutant(100105, min_isr=3, patches={"elected": forgets_others}),
    "elects uncleanly before the ISR is gone": Mutant(
        2008242, min_isr=1, patches={"elected_uncleanly": elects_uncleanly_at_once}, unclean=True
    ),
    "keeps the ELR beside an ISR that is large enough": Mutant(1, min_isr=1, patches={"normalise": keeps_elr}),
    "takes a follower back that lacks committed events": Mutant(9, Rules(replica_set=TakesBackBelowItsHighWatermark)),
    "takes a follower back that lacks what earlier leaders had": Mutant(
        7, Rules(replica_set=TakesBackWhoWasNeverAtTheEnd)
    ),
    "commits by the new ISR before its write is answered": Mutant(3, Rules(replica_set=AsksTheNewIsrOnly)),
    "reads without a lease": Mutant(21, Rules(lease=HoldsForEver)),
    "shrinks the ISR as soon as it leads": Mutant(84, Rules(replica_set=ShrinksAtOnce)),
    "elects without a grace period": Mutant(107, Rules(presence=HasNoGrace)),
    "takes silence for death too soon": Mutant(52, Rules(presence=TakesSilenceForDeathTooSoon)),
    "reads before it knows what earlier leaders acknowledged": Mutant(3, Rules(waits_for_end=False)),
    "takes replicas away before the new ones are in sync": Mutant(
        261, patches={"_is_ready": ready_at_once}, moves=True
    ),
    "takes replicas away when too few are left": Mutant(261, patches={"_is_ready": ready_with_too_few}, moves=True),
    "takes a leader away as soon as another leads": Mutant(
        164, Rules(presence=TakesAwayTheLeaderAtOnce), min_isr=1, moves=True
    ),
    "takes a leader that lives out of the ISR as another replaces it": Mutant(47, patches={"moved": moved_out}),
    "deletes its log before the reassignment has ended": Mutant(0, Rules(keeps_until_certain=False), moves=True),
    "empties a replica in the leader epoch in which it was fetched": Mutant(
        9, Rules(next_step=_in_the_same_epoch(Deed.BEGIN_ANEW), copies_when_whole=False), damages=True
    ),
    "has lost events, and leaves in the leader epoch in which it was fetched": Mutant(
        23001441, Rules(next_step=_in_the_same_epoch(Deed.LEAVE)), min_isr=1, moves=True, damages=True
    ),
    "empties a replica that is a candidate": Mutant(4, Rules(next_step=anew_while_a_candidate), damages=True),
    "empties a replica before that is written": Mutant(5, Rules(empties_when_written=False), damages=True),
    "takes out a damaged leader although it is the last": Mutant(
        24, Rules(next_step=leaves_although_it_is_the_last), min_isr=1, damages=True
    ),
    "takes out a damaged leader as one of the ELR replaces it": Mutant(
        25005725, Rules(next_step=leaves_as_another_replaces_it), min_isr=3, moves=True, damages=True
    ),
    "leads on in its epoch with a log that was opened anew": Mutant(
        25, Rules(lead_anew=leads_on_in_its_epoch), min_isr=1, damages=True
    ),
    "leads in an old epoch with a log that was opened anew": Mutant(
        33, Rules(leads_anew=False), min_isr=1, damages=True
    ),
    "cuts off what it knows to be committed": Mutant(0, patches={"judge": lambda *args: Cut.GO}, rollbacks=True),
    "believes that it knows all that is committed": Mutant(42, Rules(claims=False), rollbacks=True),
    "follows without comparing": Mutant(0, Rules(compares=False), rollbacks=True),
    "elects uncleanly where nobody allows it": Mutant(0, patches={"is_unclean": lambda *args: True}),
}
PATCHED = (changing, deciding, elections, reassign, broker)


@contextmanager
def patched(patches: Mapping[str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, made in patches.items():
            for module in PATCHED:
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, made))
        yield


def first_found(mutant: Mutant, seeds: Iterable[int]) -> tuple[int, Violation] | None:
    with patched(mutant.patches):
        for seed in seeds:
            try:
                how = {"moves": mutant.moves, "unclean": mutant.unclean, "damages": mutant.damages}
                how["rollbacks"] = mutant.rollbacks
                World(seed, mutant.rules, min_isr=mutant.min_isr, **how).run()
            except Violation as error:
                return seed, error
    return None


if __name__ == "__main__":
    seeds, rest = int(sys.argv[1]), sys.argv[2:]
    if rest == ["-"]:
        both = (False, True)
        for min_isr in (2, 3):
            found = first_found(Mutant(0, min_isr=min_isr, rollbacks=True), range(seeds)) or "clean"
            click.echo(f"min.insync.replicas {min_isr}, rollbacks: {found}")
        for min_isr, moves, unclean, damages in product((1, 2, 3), both, both, both):
            real = Mutant(0, min_isr=min_isr, moves=moves, unclean=unclean, damages=damages)
            found = first_found(real, range(seeds)) or "clean"
            click.echo(f"min.insync.replicas {min_isr}, moves {moves}, unclean {unclean}, damages {damages}: {found}")
    else:
        for name, mutant in MUTANTS.items():
            if not rest or name in rest:
                click.echo(f"{name}: {first_found(mutant, range(seeds)) or 'NOT FOUND'}")
