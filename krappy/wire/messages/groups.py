"""Groups from outside: what they are, and where they go on from."""

from __future__ import annotations

from typing import Any

from krappy.wire.schema import I64, U32, Answer, PositionList, Request, Start


class Commit(Request, kind=9):
    """Sets the floor of a group by hand: every event below counts as acknowledged, no event from there on."""

    group: str
    offsets: PositionList  # a floor for each partition named


class Committed(Answer, kind=9):
    pass


class Positions(Request, kind=10):
    """The floors of a group: below them everything is acknowledged."""

    group: str


class PositionsFound(Answer, kind=10):
    offsets: PositionList  # a floor for each partition


class Groups(Request, kind=20):
    """What groups there are, or all about one. Each is a map: `group`, `kind`, `order`, `topics`, `members` (maps of
    `name`, `client`, `leased`) and `partitions` (maps of `topic`, `partition`, `floor`, `end`, `lag`, `leased`,
    `redelivering`, `dead`). A broker may add names; ignore those that you do not know. `kind` is `shared` or
    `positions` for native groups, `classic` or `consumer` for groups of Kafka clients, which can be described, reset
    and deleted too, but not joined.
    """

    group: str | None = None  # nil: all groups, without their members


class GroupsFound(Answer, kind=20):
    groups: list[dict[str, Any]]


class DeleteGroup(Request, kind=21):
    """Forgets a group. NON_EMPTY_GROUP while it has members."""

    group: str


class GroupDeleted(Answer, kind=21):
    pass


class ResetGroup(Request, kind=24):
    """Moves a group's floors. What is leased or acknowledged beyond is forgotten."""

    group: str
    topic: str | None = None  # nil: all its topics
    partitions: list[U32] | None = None  # nil: all
    start: Start = "earliest"  # where to
    start_at: I64 | None = None  # the number that `start` needs
    dry_run: bool = False  # only tells what it would do


class GroupReset(Answer, kind=24):
    positions: list[tuple[str, int, int, int]]  # [[topic, partition, old, new], …]: what was moved
