"""A change that is made in several steps. ZooKeeper is lost before a later step, and the error tells what was changed
before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trio.testing import trio_test

from krappy.broker import authorizer
from krappy.broker.topics.cluster_topics import ClusterTopicChanges
from krappy.core.cluster.image import Image
from krappy.core.cluster.tree import Operation
from krappy.core.security.acl import Acl, Pattern, Permission
from krappy.core.security.operations import Op, Resource
from krappy.errors import UNCHANGED, ConnectionLost, StorageError, after_steps
from krappy.settings.topic import TopicConfig
from tests.broker.engine import running

AWAY = "there is no session with ZooKeeper now"


def lost(*, sent: bool) -> ConnectionLost:
    return ConnectionLost(AWAY + UNCHANGED, sent=sent)


def test_an_error_tells_what_the_steps_before_have_changed() -> None:
    with pytest.raises(ConnectionLost) as first, after_steps(""):
        raise lost(sent=False)
    assert (first.value.text, first.value.details) == (f"{AWAY}: nothing was changed", {"sent": False})
    with pytest.raises(ConnectionLost) as later, after_steps("2 of 3 were added"):
        raise lost(sent=False)
    assert (later.value.text, later.value.details) == (
        f"2 of 3 were added, and no more than that: {AWAY}",
        {"sent": True},
    )
    for other in (lost(sent=True), StorageError("the disk is full")):
        with pytest.raises(type(other)) as same, after_steps("2 of 3 were added"):
            raise other
        assert same.value is other


@trio_test
async def test_acls_of_which_some_were_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acls = [Acl(Resource.TOPIC, Pattern.LITERAL, f"t{n}", "User:a", "*", Op.READ, Permission.ALLOW) for n in range(5)]
    monkeypatch.setattr(authorizer, "AT_ONCE", 2)
    async with running(tmp_path, authorizer="acl", super_users="User:a") as broker:
        store = broker.authorizer._runtime.store
        write, left = store.multi, 1

        async def multi(operations: Sequence[Operation]) -> Image:
            nonlocal left
            left -= 1
            if left < 0:
                raise lost(sent=False)
            return await write(operations)

        monkeypatch.setattr(store, "multi", multi)
        with pytest.raises(ConnectionLost, match="2 of 5 ACLs were added, and no more than that: ") as told:
            await broker.authorizer.add(acls)
        assert told.value.details["sent"]
        left = 9
        await broker.authorizer.add(acls)
        left = 2
        with pytest.raises(ConnectionLost, match="4 of 5 ACLs were deleted, and no more than that: "):
            await broker.authorizer.remove(acls)
        with pytest.raises(ConnectionLost, match="nothing was changed") as told:
            await broker.authorizer.remove(acls)
        assert not told.value.details["sent"]


@trio_test
async def test_a_topic_that_got_its_partitions_and_not_its_settings() -> None:
    added: list[int] = []

    async def add_partitions(name: str, total: int, *placed: Any, **more: Any) -> None:
        added.append(total)

    async def alter(*change: Any) -> None:
        raise lost(sent=False)

    async def followed(what: str, done: Any) -> None:
        pass

    image = SimpleNamespace(partitions=[SimpleNamespace(replicas=(1,))], scattered=None)
    topic = SimpleNamespace(given={}, settings=TopicConfig(), inherited={}, count=1, image=image, deleted=False)
    topic.parse = lambda given, inherited: TopicConfig.parse({**inherited, **given})
    topic.strays = SimpleNamespace(mark=None)
    changes: Any = ClusterTopicChanges.__new__(ClusterTopicChanges)
    changes._runtime = SimpleNamespace(
        check_taking=lambda: None,
        topics=SimpleNamespace(find=lambda name: topic),
        catalog=SimpleNamespace(add_partitions=add_partitions, alter=alter),
    )
    changes._until = followed
    with pytest.raises(ConnectionLost, match=r"^partitions were added to 't', and no more than that: ") as told:
        await changes.alter("t", {"retention.ms": "5"}, 2, [(1,)])
    assert (told.value.details["sent"], added) == (True, [2])
    with pytest.raises(ConnectionLost, match="nothing was changed"):
        await changes.alter("t", {"retention.ms": "5"}, None)
