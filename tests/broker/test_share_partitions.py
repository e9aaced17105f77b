"""What a broker had of share groups before it joined a cluster stays as it was: a cluster does not serve them yet. And
what share sessions remember is bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from trio.testing import trio_test

from krappy.broker.groups.share_partitions import EACH, MEMORY_SHARE, SharePartitions
from krappy.core.kafka.faults import Refused
from krappy.core.kafka.share import ShareRules
from krappy.store.groups import StoredGroup


def partitions(*, in_cluster: bool) -> tuple[SharePartitions, list[Any]]:
    """And the states that it has deleted. No topic is there."""
    deleted: list[Any] = []
    config = SimpleNamespace(group_share_max_share_sessions=1, memory_bytes=1 << 20)
    runtime = SimpleNamespace(in_cluster=in_cluster, config=config, topics={})
    storage = SimpleNamespace(delete_states=lambda name, lost: deleted.append((name, lost)))
    keeper = SimpleNamespace(held_positions=0, writer=SimpleNamespace(mark_group=lambda group: None))
    made = SharePartitions(*cast(Any, (runtime, keeper, storage, lambda: None)))
    made.take("g", StoredGroup(b"", {("t", 0): b""}))
    return made, deleted


@trio_test
async def test_in_a_cluster_states_stay() -> None:
    shares, deleted = partitions(in_cluster=True)
    assert not deleted
    assert shares.keeps("g")
    with pytest.raises(Refused):
        await shares.delete("g")
    shares.give_up(lambda name: name == "g")
    assert not shares.keeps("g")


def test_alone_the_state_of_a_topic_that_is_gone_goes() -> None:
    shares, deleted = partitions(in_cluster=False)
    assert deleted == [("g", [("t", 0)])]
    assert not shares.keeps("g")


def test_sessions_and_their_partitions_are_bounded() -> None:
    shares, _ = partitions(in_cluster=False)
    shares.is_group, shares.rules_of = lambda name: True, lambda name: ShareRules()
    _, session = shares.begin("g", "one")
    room = (1 << 20) // MEMORY_SHARE // EACH
    session.parts = {(b"", index): cast(Any, None) for index in range(room - 5)}
    shares.check_parts(5)
    with pytest.raises(Refused):
        shares.check_parts(6)
    with pytest.raises(Refused):
        shares.begin("g", "two")
