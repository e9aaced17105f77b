"""The table: by key, by range, as a stream of changes; and the history of a key.

A topic's table holds the latest event of each key. An **entry** is an array `[offset, timestamp, value, headers]`. A
`value` of nil means that the key was deleted at that offset; `headers` of nil means that there are none. An absent key
has nil instead of an entry: so *absent*, *deleted* and *a value* are three answers. Numbers in an entry may have any of
msgpack's forms.

A lookup waits until the table includes everything that was committed when the lookup came. If that takes more than
10 s, as it may after very much was published at once, the answer is REQUEST_TIMED_OUT, which says how far the table is:
ask again, or look at `applied` of DescribeTopics. A topic with `view.enable=false` has no table: VIEW_DISABLED.

**Strays** are keys in another partition than their murmur2 gives. They come from producers with another partitioner
(librdkafka's default is CRC32) or that choose partitions themselves, and from adding partitions to a topic. The broker
knows whether a topic has strays: `scattered` of DescribeTopics, which is also true while it is not known yet, as after
partitions were added. In a cluster all brokers know it before the first stray is stored, and the topic counts as one
that has strays from then on. While a topic has strays:

- A request that names no partition asks all partitions. Each key has one entry, the **newest** of its latest events in
  all partitions: the one with the highest timestamp; of equal timestamps the one in the key's own partition, or else in
  the highest partition. If the newest is a tombstone, the key is deleted. So the producers' timestamps decide between
  partitions: a producer whose clock is slow loses to one whose clock is right.
- A request that names a partition is answered by that partition alone. One that names all partitions is about the
  whole table.
- Scans and snapshots still come partition by partition.
- Conditions are refused by a broker that does not lead all partitions.
- A watch sends an event only if it is the newest of its key. It may send the newest one again, from its partition.
  Adding partitions may change which of two events with equal timestamps is the newest; a watch does not send that.
- Compaction keeps a tombstone while another partition has a value of its key. But retention (`cleanup.policy` with
  `delete`) may delete the newest event of a key before an older one in another partition; then the older one is the
  newest.

**The number of partitions** may change: they are added, or the topic is deleted and made anew. A request that names no
partition is answered by the number that the broker knows, and a broker that may know an old one does not answer. But a
client that asks all partitions, one by one, or their leaders, has to know how many there are now. It sends what it
takes for the number as `among`; a broker that knows another one answers NOT_LEADER_OR_FOLLOWER with `partition` -1 and
its number as `partitions` in the details. Then ask Metadata, and begin anew. If one partition's leader agrees, all
events that were acknowledged before are in these partitions. An older broker refuses the field as unknown
(INVALID_REQUEST with `field` "among"): ask without it.
"""

from __future__ import annotations

from krappy.wire.schema import U32, Answer, Indexes, Least, Offset, OffsetList, Positive, Raw, Request


class Get(Request, kind=12):
    """Looks up the entry of one key."""

    topic: str
    key: bytes
    partition: U32 | None = None  # nil: by the key's murmur2, or all while the topic has strays
    # waits until the table includes this offset of the key's own partition, instead of everything committed (-1: takes
    # the table as it is). While the topic has strays, it waits for everything committed as well. With `min_offset` any
    # replica in sync answers; without it only the leader
    min_offset: Least | None = None
    among: U32 | None = None  # how many partitions the topic has, as far as the client knows; nil: it does not tell


class Got(Answer, kind=12):
    partition: int  # the entry's partition; without an entry the key's own
    entry: Raw  # [entry]: one item


class MultiGet(Request, kind=13):
    """Looks up the entries of many keys."""

    topic: str
    keys: list[bytes]
    partition: U32 | None = None  # nil: each by its murmur2, or all while the topic has strays
    # waits until the table includes these offsets, instead of everything committed; takes other partitions as they are.
    # Then any broker that has replicas in sync of the keys' partitions answers; else only their leader. Must be nil
    # while the topic has strays
    min_offsets: OffsetList | None = None
    among: U32 | None = None  # as for Get


class MultiGot(Answer, kind=13):
    partitions: list[int] | None  # of each key; nil: all in partition 0
    entries: Raw  # [entry, …]: in the order of the keys


class Scan(Request, kind=14):
    """Reads all entries of a snapshot, or those with a prefix or in a range: page by page, partition by partition, each
    partition in the order of keys (as bytes). The first request names the topic and has no `cursor`. Later ones have
    the `cursor`, and may have `max_entries` and `max_bytes`, and nothing else. A scan is closed when no page was asked
    for in two minutes; `Unregister` closes it at once.

    To read the table and then follow it: scan, then read the log from the `offsets` of the answers.
    """

    topic: str | None = None  # the first page needs it
    prefix: bytes | None = None  # only keys with this prefix; not together with `start` or `end`
    start: bytes | None = None  # the first key, included
    end: bytes | None = None  # the last key, excluded
    partitions: Indexes | None = None  # nil: all
    tombstones: bool = False  # deleted keys too
    max_entries: Positive = 1000  # of one page
    max_bytes: Positive = 1 << 20  # of one page
    cursor: U32 | None = None  # nil: the first page
    min_offsets: OffsetList | None = None  # as for MultiGet, of the partitions to be scanned
    among: U32 | None = None  # as for Get


class Scanned(Answer, kind=14):
    partition: int  # of all entries of this page
    cursor: int | None  # names the next page; nil: there is none
    # [[partition, offset], …]: for each partition, the first offset that the snapshot does not include
    offsets: list[tuple[int, int]]
    entries: Raw  # [key, entry, key, entry, …]: may be empty


class Watch(Request, kind=15):
    """Sends the table as it is, then every change to it, without a gap or a duplicate: a stream of answers with the
    same `id`. First come pages of a snapshot (`event` "snapshot"), then one "end_of_snapshot" with the `offsets` where
    the changes begin, then "changes" as they happen. `Unregister` of the watch's `handle` ends it: `more` is false in
    the last answer, whose other fields mean nothing. A watch whose topic is deleted ends with the error UNKNOWN_TOPIC.
    While the client does not read, the broker sends no more.

    To resume after a lost connection, send as `offsets` the last `next_offset` of each partition, or the offset of
    "end_of_snapshot" if no change has come since. Then there is no snapshot, and changes come from these offsets on.
    The first answer, which comes at once, has the `topic_id`. If it is not the same as before, the topic was deleted,
    and the offsets mean nothing in the new topic of its name. The same holds for the positions of a reader that
    registers again. OFFSET_OUT_OF_RANGE ends a watch if the log starts behind one of its offsets, or ends before it:
    as after an unclean election, when the table may have lost what the watch has told. With `epochs` that is noticed in
    any case, also when the log has grown longer since. Then watch anew, without `offsets`.

    A watch of all partitions (`partitions` nil) includes those that are added to the topic later, from their beginning;
    "end_of_snapshot" does not name these. If a watch that resumes leaves partitions out of `offsets`, they come from
    their beginning, too.

    While events come that do not match the prefix or range, a "changes" without entries brings the `next_offset` about
    once a second, so that a watch that resumes need not read them again.
    """

    topic: str
    prefix: bytes | None = None  # as in Scan
    start: bytes | None = None  # as in Scan
    end: bytes | None = None  # as in Scan
    partitions: Indexes | None = None  # nil: all, also those added later
    tombstones: bool = False  # deleted keys in the snapshot too; changes always have them
    offsets: OffsetList | None = None  # resume: the next offset of each partition watched
    # [[partition, leader epoch], …]: resume: those that came with these offsets
    epochs: OffsetList | None = None


class Watched(Answer, kind=15):
    """If the connection is lost during the snapshot, begin a new watch with `tombstones` true: it shows which keys were
    deleted meanwhile. If the answers have `scattered`, a key's tombstone may come from another partition than its
    value.

    A broker that leads all partitions sends no event that is older than what it has sent of the key from another
    partition. Where several brokers lead them, each sends what its own have: once an answer had `scattered`, or
    partitions were added, the client looks up the key of each event in all partitions, to see which is the newest.
    """

    event: str  # "snapshot", "end_of_snapshot" or "changes"
    handle: U32  # of the watch
    partition: int  # of all entries of this answer
    next_offset: int  # changes: resume here; snapshot: the first offset that it does not include
    more: bool  # false in the last answer
    offsets: list[tuple[int, int]] | None  # [[partition, offset], …]: "end_of_snapshot": where the changes begin
    entries: Raw  # [key, entry, …]: changes: in the order of the log
    scattered: bool = False  # a key may stand, or have stood in an earlier snapshot, in another partition (see Get)
    topic_id: str | None = None  # the first answer: the topic's `id`, as in DescribeTopics
    # [[partition, leader epoch], …]: the epoch of the last event before each offset told; nil: it is not known
    epochs: list[tuple[int, int]] | None = None


class History(Request, kind=26):
    """Reads the events of one key that the log still has in one partition, oldest first, a page at a time. If several
    partitions have the key (strays), the request must name one; otherwise the answer is INVALID_REQUEST.
    """

    topic: str
    key: bytes
    partition: U32 | None = None  # nil: by the key's murmur2, or the only one with the key while the topic has strays
    offset: Offset = 0  # from here on
    max_records: Positive = 1000  # of one page
    max_bytes: Positive = 1 << 20  # of one page


class HistoryFound(Answer, kind=26):
    partition: int  # the partition of these events
    next_offset: int | None  # ask again from here; nil: this was all. A page may be empty and still have one
    entries: Raw  # [entry, …]: oldest first
