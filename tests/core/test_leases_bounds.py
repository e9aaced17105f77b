"""What a position takes in memory, and as it is written, however it is acknowledged: it is kept as runs, whose number
is bounded."""

from __future__ import annotations

import msgpack
import pytest

from krappy.core.keyed_leases import KeyedLeases
from krappy.core.leases import MAX_RUNS, WINDOW, Leases, LogSlice
from tests.calls import counted
from tests.long import LONG

LOG = 1_000_000
SINGLE = LOG if LONG else LOG // 5
WRITTEN = 128 << 10  # bytes of a state: the states of groups are written so many at once


@pytest.mark.parametrize("kind", [Leases, KeyedLeases])
def test_many_single_acknowledgements_of_every_second_event(kind: type[Leases]) -> None:
    """The other half of the events is acknowledged late, so a part of them is always open."""
    leases, late = kind(0, max_deliveries=5), 2_000
    most = size = 0
    for first in range(0, SINGLE, 500):
        keys = None if kind is Leases else list(range(first, first + 500))
        got = leases.lease(0, "one", 60_000, LogSlice(first, first + 500, [(first, first + 499)], keys), 500)
        assert [(lease.first, lease.last) for lease in got] == [(first, first + 499)]
        for offset in range(first, first + 500, 2):
            assert not leases.ack("one", offset, offset)
            if offset >= late:
                assert not leases.ack("one", offset + 1 - late, offset + 1 - late)
        most = max(most, leases.size)
        size = max(size, len(msgpack.packb(leases.dump())))
    assert leases.frontier == SINGLE
    assert most <= late / 2 + 1
    assert size < 16 * most


def test_events_that_nobody_settles_hold_up_the_group_and_not_its_memory() -> None:
    """Every second event is given back for later, each until another time, so no two runs are alike."""
    leases, at = Leases(0, max_deliveries=1_000), 0
    while leases.wanted(at) is not None and leases.frontier < LOG:
        first = leases.frontier
        for lease in leases.lease(at, "one", 60_000, LogSlice(first, LOG, [(first, LOG - 1)]), WINDOW):
            for offset in range(lease.first, lease.last + 1, 2):
                assert not leases.ack("one", offset, offset)
                assert not leases.nack(at, "one", offset + 1, offset + 1, 3_600_000 + offset)
    assert leases.frontier < LOG
    assert leases.unsettled <= WINDOW
    assert MAX_RUNS <= leases.size <= WINDOW
    assert len(msgpack.packb(leases.dump())) < WRITTEN


def test_what_an_acknowledgement_costs_does_not_depend_on_how_many_polls_there_were() -> None:
    """Each poll brings one event, with key order: each could be a block of its own."""
    leases = KeyedLeases(0, max_deliveries=5)

    def polls_and_acks() -> None:
        for offset in range(1_000):
            leases.lease(0, "one", 60_000, LogSlice(offset, offset + 1, [(offset, offset)], [offset]), 1)
        for offset in range(0, 1_000, 2):
            leases.ack("one", offset, offset)

    _, calls = counted(polls_and_acks)
    assert leases.unsettled == 500
    assert calls < 200_000
