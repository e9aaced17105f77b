"""Groups from outside: what they are, and where they go on from."""

from __future__ import annotations

from typing import Any

from krappy.wire.schema import I64, U32, Answer, PositionList, Request, Start


class Commit(Request, kind=9):
    """Sets a group's floor by hand: every event below `offset` counts as acknowledged."""

    group: str
    offsets: PositionList


class Committed(Answer, kind=9):
    pass


class Positions(Request, kind=10):
    """A group's committed floors (the design's `Committed`)."""

    group: str


class PositionsFound(Answer, kind=10):
    offsets: PositionList


class Groups(Request, kind=20):
    group: str | None = None  # None: list all, without members


class GroupsFound(Answer, kind=20):
    """Each: group, kind, order, topics, members (name, client, leased), partitions: each with topic, partition,
    floor, end, lag, leased, redelivering, dead."""

    groups: list[dict[str, Any]]


class DeleteGroup(Request, kind=21):
    group: str


class GroupDeleted(Answer, kind=21):
    pass


class ResetGroup(Request, kind=24):
    group: str
    topic: str | None = None  # None: every topic of the group
    partitions: list[U32] | None = None
    start: Start = "earliest"
    start_at: I64 | None = None
    dry_run: bool = False


class GroupReset(Answer, kind=24):
    positions: list[tuple[str, int, int, int]]  # topic, partition, old floor, new floor
