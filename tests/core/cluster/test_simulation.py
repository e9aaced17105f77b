"""The cluster's rules hold through simulated histories with every kind of trouble (simulation/world.py), and each rule
is needed: the histories find the mutants that leave one out (simulation/mutants.py)."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

import pytest

from krappy.core.cluster.state import PartitionState, elected_uncleanly
from tests.core.cluster.simulation.mutants import MUTANTS, first_found, patched
from tests.core.cluster.simulation.world import World

KEPT_DAMAGED = (79, 1000094, 1000297, 5000241)
EXPLORE = bool(os.environ.get("KRAPPY_EXPLORE"))
# From each of these seeds on, so many seeds are tried for each of four kinds of histories: 108 in all in `make test`,
# the same ones each time. What these tests must find are mutants, which have seeds of their own.
FIRST = range(0, 300, 25 if EXPLORE else 100)
TOGETHER = 25 if EXPLORE else 9
# Histories that failed once, most of them by a fault of the simulated world itself.
KEPT = [  # (seed, whether replicas change, whether elections may be unclean)
    *((seed, True, False) for seed in (2, 6, 766, 886, 1927, 2163, 2282, 2542, 171)),
    (210, True, True),
    (2008242, False, True),
    (2013903, True, True),
]


@pytest.mark.parametrize("first", FIRST)
def test_nothing_acknowledged_is_lost_and_no_read_is_stale(first: int) -> None:
    counts: dict[str, int] = {}
    for seed in range(first, first + TOGETHER):
        for what, count in World(seed, min_isr=1 + seed % 3).run().counts.items():
            counts[what] = counts.get(what, 0) + count
    # The histories are worth something only if the cluster works in them, and if much happens.
    assert {"acks", "reads", "leaders", "kills", "disks", "cuts", "expanded", "shrunk"} <= counts.keys()
    assert counts["acks"] > TOGETHER * 30


@pytest.mark.parametrize("first", FIRST)
def test_nothing_is_lost_while_replicas_change(first: int) -> None:
    counts: dict[str, int] = {}
    for seed in range(first, first + TOGETHER):
        for what, count in World(seed, min_isr=1 + seed % 3, moves=True).run().counts.items():
            counts[what] = counts.get(what, 0) + count
    assert {"acks", "reads", "left", "kills", "disks"} <= counts.keys()
    assert counts["left"] > TOGETHER / 3


@pytest.mark.parametrize("first", FIRST)
def test_after_an_unclean_election_the_logs_become_the_same(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        World(seed, min_isr=1 + seed % 3, moves=seed % 2 == 0, unclean=True).run()


@pytest.mark.parametrize("first", FIRST)
def test_logs_that_fail_become_whole_again(first: int) -> None:
    counts: dict[str, int] = {}
    for seed in range(first, first + TOGETHER):
        for what, count in World(seed, min_isr=1 + seed % 3, moves=seed % 5 == 0, damages=True).run().counts.items():
            counts[what] = counts.get(what, 0) + count
    assert {"failed syncs", "damages", "hand over", "leave", "made anew", "opened anew"} <= counts.keys()
    assert counts["acks"] > TOGETHER * 20


@pytest.mark.parametrize("first", FIRST)
def test_nothing_is_lost_when_zookeeper_is_given_older_data(first: int) -> None:
    counts: dict[str, int] = {}
    for seed in range(first, first + TOGETHER):
        for what, count in World(seed, min_isr=2 + seed % 2, rollbacks=True).run().counts.items():
            counts[what] = counts.get(what, 0) + count
    assert {"acks", "rollbacks", "claims", "taken over", "kills"} <= counts.keys()
    assert counts["acks"] > TOGETHER * 20


def test_some_of_these_logs_lose_events() -> None:
    """Few logs lose events, so not each of the tests above has one."""
    runs = (World(seed, min_isr=1 + seed % 3, moves=seed % 5 == 0, damages=True).run() for seed in range(TOGETHER))
    assert any(run.counts.get("losses") for run in runs)


@pytest.mark.parametrize("seed", KEPT_DAMAGED)
def test_a_history_of_failed_logs_that_was_wrong_once(seed: int) -> None:
    World(seed, min_isr=1 + seed % 3, damages=True).run()


@pytest.mark.parametrize(("seed", "moves", "unclean"), KEPT)
def test_a_history_that_was_wrong_once(seed: int, moves: bool, unclean: bool) -> None:
    World(seed, min_isr=1 + seed % 3, moves=moves, unclean=unclean).run()


def test_a_replica_that_is_back_before_it_heard_that_it_left_may_be_elected_uncleanly() -> None:
    """It then deletes its log before it leads. Here the election takes the first replica; else it would take another
    one."""

    def first(state: PartitionState, replicas: Sequence[int], alive: Collection[int], adding: object) -> int:
        return elected_uncleanly(state, replicas, alive)

    with patched({"elected_uncleanly": first}):
        World(2013903, min_isr=1, moves=True, unclean=True).run()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_left_out_is_missed(name: str) -> None:
    mutant = MUTANTS[name]
    found = first_found(mutant, [mutant.seed])
    assert found, "the history has changed: `python -m tests.core.cluster.simulation.mutants 1000` finds another seed"


def test_a_history_can_be_had_again() -> None:
    assert World(7).run().counts == World(7).run().counts
