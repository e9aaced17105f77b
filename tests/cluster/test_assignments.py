"""What the cluster decides of topics, while the disk hangs at one of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, trio_test

from krappy.broker.name_locks import NameLocks
from krappy.broker.replication.assignments import Assignments
from krappy.waiting import HANGS_S, Signal


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0.0)


class Topics(dict[str, Any]):
    changed = Signal()


class Changes:
    def __init__(self, topics: Topics) -> None:
        self.locks, self.topics, self.closed = NameLocks(), topics, list[str]()

    async def close(self, topic: Any, *, is_deleted: bool) -> None:
        del self.topics[topic.name]
        self.closed.append(topic.name)


def image(*topics: Any) -> Any:
    return SimpleNamespace(
        topics={each.name: each.image for each in topics},
        names={each.id: each.name for each in topics},
        deleted=set(),
        config=lambda kind, name: {},
    )


@trio_test
async def test_topics_are_deleted_while_others_have_work_under_way(clock: MockClock) -> None:
    """The deletion of the one that hung ends while that of the other is waited for."""
    a, b = (
        SimpleNamespace(name=name, id=name.encode(), image=SimpleNamespace(name=name), given={}, local={})
        for name in "ab"
    )
    topics = Topics(a=a, b=b)
    runtime: Any = SimpleNamespace(topics=topics, id=1, report=lambda *_, **__: None)
    cluster: Any = SimpleNamespace(image=image(a), epoch=1, changed=Signal())
    changes: Any = Changes(topics)
    logs: Any = SimpleNamespace(replicas=SimpleNamespace(all=lambda: []))
    internal: Any = SimpleNamespace(see=lambda found: None)
    assignments = Assignments(runtime, cluster, changes, logs, internal, lambda followers: None, None)  # type: ignore[arg-type]

    async def hang(name: str, seconds: float) -> None:
        """As where its log is opened anew."""
        async with changes.locks.of(name):
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang, "b", 2.25 * HANGS_S)
        nursery.start_soon(hang, "a", 2.5 * HANGS_S)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(assignments.run)
        await trio.sleep(1.75 * HANGS_S)
        cluster.image = image()
        cluster.changed.fire()
        await trio.sleep(2 * HANGS_S)
        assert changes.closed == ["b", "a"]
        nursery.cancel_scope.cancel()
