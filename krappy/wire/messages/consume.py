"""Readers and the members of groups: their positions, polls and acknowledgements."""

from __future__ import annotations

from krappy.wire.schema import (
    I31,
    I64,
    U32,
    Answer,
    Indexes,
    Millis,
    Names,
    OffsetList,
    Order,
    PositionList,
    Positive,
    RangeList,
    Request,
    Start,
)


class ConsumerRegistration(Request, kind=2):
    """Registers a consumer of topics, which must exist. Without `group` it is a reader: it has its own position in each
    partition, and may name `partitions`. With `group` it is a member, which shares the group's events with the other
    members. The first member creates the group, with its `start` and `order`. For `max_deliveries` and `dead_letter`,
    the member that has registered for a topic last decides how they are for this topic in the group. With an authorizer
    a member needs WRITE on each of its dead-letter topics, and CREATE of those that do not exist.

    If the dead-letter topic refuses an event, for example because it is too large, the event stays `dead` in the group,
    and the broker tries again each minute.
    """

    topics: Names  # one or more
    group: str | None = None  # nil: a reader
    partitions: Indexes | None = None  # readers: which partitions of every topic; nil: all
    start: Start = "earliest"  # where a reader begins, or a new group
    start_at: I64 | None = None  # the number that `start` needs
    positions: PositionList | None = None  # readers: exact offsets for some partitions, instead of `start`
    # [[topic, partition, leader epoch], …]: readers: the epoch of the batch that was read last before a position. The
    # answer is OFFSET_OUT_OF_RANGE if the log was cut below that position since; its `end` says where
    epochs: PositionList | None = None
    # readers: the answer is NOT_LEADER_OR_FOLLOWER unless each leader knows that no other one leads by now: then all
    # that was acknowledged before is below the `ends`
    sure: bool = False
    order: Order = "none"  # groups: "key" never leases events of one key to two members at a time
    lease_ms: Positive = 30_000  # groups: how long an event is leased
    max_deliveries: Positive = 10  # groups: after so many deliveries an event goes to the dead-letter topic
    dead_letter: str | None = None  # groups: the dead-letter topic; nil: "<topic>.<group>.dead"


class ConsumerRegistered(Answer, kind=2):
    handle: U32  # names this registration in later messages
    member: str | None  # the name in the group: the first free of `<group>_0` to `<group>_999`; nil for a reader
    positions: PositionList  # for each partition the offset to read next; for a member the group's floor
    # each partition's last stable offset now: a reader that wants only what is there now stops here. Members: a
    # partition that another broker leads is left out while that broker does not tell its offset
    ends: PositionList
    # [[topic, id], …]: the `id` of each topic, as in DescribeTopics
    topic_ids: list[tuple[str, str]] | None = None
    # members: whether an Ack may have `epochs`; brokers of earlier versions refuse them
    takes_epochs: bool = False


class Poll(Request, kind=4):
    """Asks for the next events of a consumer. Several polls of one consumer may wait at a time; each gets other events.

    A reader gets whole record batches, so a batch may begin before its position: leave out the events before `first`.
    Each poll moves the position on.

    A member gets events that are leased to it for `lease_ms`. `leases` says which records are its own; leave out the
    other records of the batches in `parts`.
    """

    handle: U32  # of a consumer
    # how many events: a member gets so many at most. A reader gets whole batches until there are so many, and at least
    # one batch
    max_records: I31 = 500
    max_bytes: I31 = 1 << 20  # at least one batch comes, however large
    # how long to wait for events; then an answer without parts comes. More than 600000 counts as 600000
    max_wait: Millis = 0


class Polled(Answer, kind=4):
    # [[topic, partition, first, end, records], …]: `first`: the offset of the first event to deliver; `end`: the last
    # stable offset; `records`: one or more record batches, one after the other
    parts: list[tuple[str, int, int, int, bytes]]
    # [[topic, partition, first, last, deliveries], …]: members: the offsets that are leased to it, and how often these
    # events have been delivered, this time included
    leases: list[tuple[str, int, int, int, int]] | None = None
    # members: ms from the request's arrival until these events were leased. However late the answer comes, they are the
    # client's for at least this time and `lease_ms`, counted from when it sent the request
    waited: int = 0


class Seek(Request, kind=11):
    """Moves a reader's position in one partition. A poll that began earlier may still bring events of the old position.
    So compare the `first` of each part with the position that you expect: if it is higher, drop the part; otherwise
    leave out the events before your position. Events that such a poll brought from the new position on come again.
    """

    handle: U32  # of a reader
    topic: str  # one of its topics
    partition: U32  # one of its partitions
    start: Start  # where to read next
    start_at: I64 | None = None  # the number that `start` needs


class Sought(Answer, kind=11):
    offset: int  # the new position


class Ack(Request, kind=6):
    """Acknowledges events: they are delivered no more. To acknowledge one twice is no error. An event whose lease has
    run out may still be acknowledged, unless another member has got it. LEASE_LOST means that some of the events are
    now leased to others, went to the dead-letter topic, or are gone; the rest is acknowledged. The coordinator knows
    the last 100 runs that went to the dead-letter topic, until it is restarted or another broker takes its place: of
    others the acknowledgement does nothing.
    """

    handle: U32  # of a member
    ranges: RangeList  # offsets `first` to `last`, both included; offsets without an event may be inside
    # [leader epoch, …]: of the batch that the events of each range came in; -1: not known. An unclean election may have
    # given their offsets to other events: those are not acknowledged (LEASE_LOST)
    epochs: list[I64] | None = None


class Acked(Answer, kind=6):
    pass


class Nack(Request, kind=7):
    """Gives events back, to be delivered again, to this member or another. Their delivery counts."""

    handle: U32  # of a member
    ranges: RangeList  # as in Ack
    delay_ms: Millis = 0  # how long they are not delivered


class Nacked(Answer, kind=7):
    pass


class Extend(Request, kind=8):
    """Extends leases: they end `lease_ms` from now. LEASE_LOST as for Ack."""

    handle: U32  # of a member
    ranges: RangeList  # as in Ack
    lease_ms: Positive  # how long from now


class Extended(Answer, kind=8):
    pass


class Offsets(Request, kind=25):
    """Asks for an offset in each partition of a topic. Needs no registration."""

    topic: str
    start: Start  # which offset
    start_at: I64 | None = None  # the number that `start` needs


class OffsetsFound(Answer, kind=25):
    offsets: OffsetList  # of each partition; the last stable offset, if no event is as late as a timestamp
