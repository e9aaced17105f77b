"""Administration of groups: their positions and members.

The **floor** of a group in a partition is the offset before which every event is acknowledged or in the dead-letter
topic.
"""

from __future__ import annotations

from typing import Any

from krappy.wire.schema import I64, Answer, Indexes, PositionList, Request, Start


class Commit(Request, kind=9):
    """Sets the floors of a group by hand: every event before them counts as acknowledged, no event after them does."""

    group: str
    offsets: PositionList  # a floor for each partition named


class Committed(Answer, kind=9):
    pass


class Positions(Request, kind=10):
    """Asks for the floors of a group."""

    group: str


class PositionsFound(Answer, kind=10):
    offsets: PositionList  # a floor for each partition


class Groups(Request, kind=20):
    """Describes one group, or all. Each is a map: `group`, `kind`, `order`, `topics`, `members` (maps of `name`,
    `client`, `leased`, `leases`) and `partitions` (maps of `topic`, `partition`, `floor`, `end`, `lag`, `leased`,
    `redelivering`, `dead`). `leases` are a member's first hundred runs of offsets: [[topic, partition, first, last,
    when the lease ends in ms], …]. If the client may not describe all topics of the group, a member's `leased` counts
    only the events of these `leases`. A newer broker may add names; ignore those that you do not know. `kind` is
    `shared` or `positions` for native groups, `classic`, `consumer` or `share` for groups of Kafka clients, which
    can be described, reset and deleted, but not joined. `end` and `lag` are -1 for a partition that the broker does
    not have: ask its leader.

    A list of all groups has only those that the asked broker coordinates: in a cluster, ask each broker. The list is
    refused with COORDINATOR_NOT_AVAILABLE or COORDINATOR_LOAD_IN_PROGRESS while it would leave out some groups, because
    a new coordinator loads them, or nobody coordinates them: ask again. If the answers of all brokers have the same
    `epoch`, they have every group once; if not, ask all again. A broker answers UNKNOWN_GROUP also for a group of Kafka
    clients that another broker coordinates. To find that broker, or to know that there is no such group, ask all
    brokers for a list with `only`.
    """

    group: str | None = None  # nil: all groups, without their members
    only: str | None = None  # of such a list, only this group, if the broker has it; nil: all


class GroupsFound(Answer, kind=20):
    groups: list[dict[str, Any]]
    epoch: I64 | None = None  # rises whenever some groups get another coordinator; nil: one group was asked for


class DeleteGroup(Request, kind=21):
    """Deletes a group. NON_EMPTY_GROUP while it has members."""

    group: str


class GroupDeleted(Answer, kind=21):
    pass


class ResetGroup(Request, kind=24):
    """Moves a group's floors. Leases and acknowledgements of events after them are forgotten."""

    group: str
    topic: str | None = None  # nil: all its topics
    partitions: Indexes | None = None  # nil: all
    start: Start = "earliest"  # the new floor
    start_at: I64 | None = None  # the number that `start` needs
    dry_run: bool = False  # answers what it would do, and changes nothing
    # if a broker of the cluster asks: the user for whom, in whose limits it counts. An older broker refuses the field
    # as unknown (INVALID_REQUEST with `field` "owner"): ask without it
    owner: str | None = None


class GroupReset(Answer, kind=24):
    positions: list[tuple[str, int, int, int]]  # [[topic, partition, old, new], …]: the floors that were moved
