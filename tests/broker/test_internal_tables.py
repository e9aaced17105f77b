"""When a broker knows of all groups which broker coordinates them, so that lists of groups lack none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from krappy.broker.coordinated.internal_table import InternalTable
from krappy.broker.coordinated.internal_tables import InternalTables, Rows
from krappy.core.cluster.state import NOBODY, PartitionState
from krappy.errors import CoordinatorLoading, CoordinatorNotAvailable

OWN = 1


class Tables(InternalTables[None]):
    async def read(self, index: int, table: InternalTable, rows: Rows) -> None:
        raise NotImplementedError

    def take(self, index: int, table: InternalTable, kept: None) -> None:
        raise NotImplementedError

    def give_up(self, is_in: Any) -> None:
        raise NotImplementedError


def epoch(leaders: list[int], registered: set[int]) -> int:
    """The epoch as broker OWN sees it, which has loaded nothing."""
    partitions = [SimpleNamespace(state=PartitionState(leader, leader_epoch=7)) for leader in leaders]
    image = SimpleNamespace(topics={"t": SimpleNamespace(partitions=partitions)}, brokers=dict.fromkeys(registered))
    runtime = SimpleNamespace(id=OWN, image=image, topics={})
    return Tables(cast("Any", runtime), "t", cast("Any", None)).epoch


def test_the_brokers_have_all_groups_between_them_only_if_all_leaders_are_there() -> None:
    assert epoch([2, 3], {OWN, 2, 3}) == 16
    for leaders in ([2, NOBODY], [2, 4]):  # the session of 4 is over, and nobody was elected in its place yet
        with pytest.raises(CoordinatorNotAvailable):
            epoch(leaders, {OWN, 2, 3})
    with pytest.raises(CoordinatorLoading):
        epoch([2, OWN], {OWN, 2, 3})
