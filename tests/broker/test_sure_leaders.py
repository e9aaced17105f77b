"""Who may tell what is true now: a leader by all that it was told, with a read lease. And who may tell of less."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from trio.testing import trio_test

from krappy.broker.replication.replication import Replication
from krappy.core.cluster.image import Image, PartitionImage, TopicImage
from krappy.core.cluster.state import PartitionState
from krappy.errors import KrappyError, NotLeader, OffsetOutOfRange
from tests.broker.engine import publish, running

SELF, OTHER = 1, 2


@pytest.mark.parametrize(
    ("leader", "epoch", "lease", "may"),
    [(SELF, 5, True, True), (SELF, 5, False, False), (OTHER, 6, True, False), (SELF, 6, True, False)],
)
def test_a_renewed_lease_is_not_enough_for_one_that_was_deposed(
    leader: int, epoch: int, lease: bool, may: bool
) -> None:
    """A broker that was stopped renews its lease, and takes its new role a moment later."""
    state = PartitionState(leader, epoch, 0, (SELF, OTHER))
    topic = TopicImage("t", b"t" * 16, (PartitionImage((SELF, OTHER), state, 1),))
    cluster: Any = SimpleNamespace(image=Image(topics={"t": topic}), may_read=lambda: lease)
    runtime: Any = MagicMock(id=SELF)
    nothing: Any = MagicMock()
    replication = Replication(runtime, nothing, cluster, nothing, nothing)
    assert replication.may_read("t", 0, 5) is may
    assert not replication.may_read("t", 1, 5), "there is no such partition"
    assert not replication.may_read("gone", 0, 5)


@pytest.mark.parametrize(
    ("id", "count", "isr", "lease", "may"),
    [
        (b"t" * 16, 1, (OTHER, SELF), True, True),
        (b"t" * 16, 1, (OTHER, SELF), False, False),
        (b"t" * 16, 1, (OTHER,), True, False),
        (b"a" * 16, 1, (OTHER, SELF), True, False),
        (b"t" * 16, 2, (OTHER, SELF), True, False),
    ],
    ids=["in sync", "not told since", "not in sync", "made anew", "more partitions"],
)
def test_a_replica_in_sync_knows_its_topic(id: bytes, count: int, isr: tuple[int, ...], lease: bool, may: bool) -> None:
    partition = PartitionImage((OTHER, SELF), PartitionState(OTHER, 5, 0, isr), 1)
    found = TopicImage("t", id, (partition,) * count)
    cluster: Any = SimpleNamespace(image=Image(topics={"t": found}), may_read=lambda: lease)
    runtime: Any = MagicMock(id=SELF)
    nothing: Any = MagicMock()
    topic: Any = SimpleNamespace(name="t", id=b"t" * 16, count=1)
    assert Replication(runtime, nothing, cluster, nothing, nothing).in_sync(topic, 0) is may


@trio_test
@pytest.mark.parametrize(("sure", "error"), [(True, OffsetOutOfRange), (False, NotLeader)])
async def test_what_is_behind_the_end_of_a_deposed_leader_may_be_at_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sure: bool, error: type[KrappyError]
) -> None:
    """A reader that was beyond that end comes to the leader, which was stopped and does not know that it is deposed.
    The reader's position is right."""
    async with running(tmp_path) as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        await publish(partition, 3)
        monkeypatch.setattr(partition._lent, "may_read", lambda *_: sure)
        partition.check_readable(3)
        with pytest.raises(error):
            partition.check_readable(4)
