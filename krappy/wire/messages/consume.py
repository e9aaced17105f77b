"""Readers and the members of groups: where they stand, what they fetch, what they have done with it."""

from __future__ import annotations

from krappy.wire.schema import (
    I31,
    I64,
    U32,
    Answer,
    Millis,
    OffsetList,
    Order,
    PositionList,
    Positive,
    RangeList,
    Request,
    Start,
)


class ConsumerRegistration(Request, kind=2):
    """Says that this connection will consume topics, which must exist. Without `group` it is a reader, which has a
    position of its own in each partition and may name `partitions`. With `group` it becomes a member, which shares
    the group's position with the other members; the group is made by its first member, whose `start`, `order`,
    `max_deliveries` and `dead_letter` it takes.

    An event that the dead-letter topic refuses, since it is too large for it say, stays `dead` in the group, and is
    tried again each minute.
    """

    topics: list[str]  # one or more
    group: str | None = None  # nil: a reader
    partitions: list[U32] | None = None  # readers: these of every topic named; nil: all
    start: Start = "earliest"  # where a reader begins, or a group that is new
    start_at: I64 | None = None  # the number that `start` needs
    positions: PositionList | None = None  # readers: exact offsets for some partitions; they win over `start`
    order: Order = "none"  # groups: "key" never leases events of one key to two members at a time
    lease_ms: Positive = 30_000  # groups: how long an event is leased
    max_deliveries: Positive = 10  # groups: an event that comes back as often goes to the dead-letter topic
    dead_letter: str | None = None  # groups: that topic; nil: "<topic>.<group>.dead"


class ConsumerRegistered(Answer, kind=2):
    handle: U32  # names this registration in later messages
    member: str | None  # the name in the group: the first free of `<group>_0` to `<group>_999`; nil for a reader
    positions: PositionList  # where each partition's next event is
    ends: PositionList  # each partition's end now: reading up to here and stopping reads what there is
    # [[topic, id], …]: readers: the `id` of each topic, as of DescribeTopics
    topic_ids: list[tuple[str, str]] | None = None


class Poll(Request, kind=4):
    """Asks for the next events of a consumer. Several polls of one consumer may be under way; each gets other events.

    A reader gets whole record batches, so a batch may begin before the offset asked for: leave out what is below
    `first`. Its position moves on with each poll.

    A member gets events leased to it, for `lease_ms`. `leases` says which of the records are its own: only these,
    though the batches in `parts` hold others.
    """

    handle: U32  # of a consumer
    max_records: I31 = 500  # readers: reached by whole batches; at least one comes. Members: exact
    max_bytes: I31 = 1 << 20  # at least one batch comes, however large
    # how many ms to wait when there is nothing; an answer without parts comes then. More than 600000 counts as
    # that
    max_wait: Millis = 0


class Polled(Answer, kind=4):
    # [[topic, partition, first, high watermark, records], …]: `first`: the first offset to deliver; `records`:
    # one or more record batches, one after the other
    parts: list[tuple[str, int, int, int, bytes]]
    # [[topic, partition, first, last, deliveries], …]: members: the events that are theirs, and how often these
    # have been delivered, with this time
    leases: list[tuple[str, int, int, int, int]] | None = None


class Seek(Request, kind=11):
    """Moves a reader's position in one partition. A poll that is under way may still bring events from before: compare
    the `first` of each part with the position that you expect, drop the part if it is beyond, and leave out what is
    before. What such a poll has brought from just that position on comes again.
    """

    handle: U32  # of a reader
    topic: str  # one of its topics
    partition: U32  # one of its partitions
    start: Start  # where to go on
    start_at: I64 | None = None  # the number that `start` needs


class Sought(Answer, kind=11):
    offset: int  # the position now


class Ack(Request, kind=6):
    """Says that events are done with: they are delivered no more. Saying it twice is no error. An event whose lease has
    run out, but that nobody was given since, may still be acknowledged. LEASE_LOST means that some of the events are
    another member's by now; the others count.
    """

    handle: U32  # of a member
    ranges: RangeList  # offsets `first` to `last`, both included; offsets without an event may be inside


class Acked(Answer, kind=6):
    pass


class Nack(Request, kind=7):
    """Gives events back, to be delivered again, to this member or another. It counts as a delivery."""

    handle: U32  # of a member
    ranges: RangeList  # as in Ack
    delay_ms: Millis = 0  # not before this time has passed


class Nacked(Answer, kind=7):
    pass


class Extend(Request, kind=8):
    """Asks for more time: the leases end `lease_ms` from now. LEASE_LOST as for Ack."""

    handle: U32  # of a member
    ranges: RangeList  # as in Ack
    lease_ms: Positive  # how long from now


class Extended(Answer, kind=8):
    pass


class Offsets(Request, kind=25):
    """Where a topic's partitions stand. Needs no registration."""

    topic: str
    start: Start  # which place is asked for
    start_at: I64 | None = None  # the number that `start` needs


class OffsetsFound(Answer, kind=25):
    offsets: OffsetList  # an offset for each partition; for a timestamp later than every event, the high watermark
