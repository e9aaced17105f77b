"""The table: by key, by range, as a stream of changes, and one key's past.

A topic's table holds for each key its latest event. An **entry** is an array `[offset, timestamp, value, headers]`:
`value` nil means that the key was deleted at that offset, `headers` nil that there are none. An absent key is nil
instead of an entry: *absent*, *deleted* and *a value* are three answers. Numbers in an entry may be packed in any of
msgpack's forms.

A lookup waits until the table includes everything that was committed when it arrived. Where that takes more than 10 s,
as it may after very much was published at once, the answer is REQUEST_TIMED_OUT, which says how far the table is: ask
again, or look at `applied` of DescribeTopics. A topic with `view.enable=false` has no table: VIEW_DISABLED.

**Strays** are keys in another partition than the one that their murmur2 gives them now: producers with another
partitioner write them (librdkafka's default is CRC32), producers that choose partitions themselves, and who adds
partitions leaves some behind. The broker knows whether a topic has any (`scattered` of DescribeTopics; also while it
is not known yet, as after partitions were added). While it has, a request that names no partition asks all of them,
and each key has one entry: the **newest**, which is the one with the highest timestamp; of equal ones the one in the
key's own partition, else in the highest. Each partition's latest event counts alone, whatever was before it there. A
tombstone that is the newest means deleted. So the timestamps of the producers decide, where order within a partition
can't: a producer with a clock behind loses to one whose clock is right. A request that names a partition is answered
by that partition alone; one that names all of them is about the whole table. Scans and snapshots still come partition
by partition. A watch tells an event only if it is the newest of its key, and sometimes the newest one again, from the
partition where it stands; which of two with equal timestamps that is may change when partitions are added, and no
event tells of that. Compaction keeps a tombstone while another partition has a value of its key; where retention
(`cleanup.policy` with `delete`) takes the newest event of a key before an older one in another partition, that one is
the newest then.
"""

from __future__ import annotations

from krappy.wire.schema import U32, Answer, Offset, OffsetList, Positive, Raw, Request


class Get(Request, kind=12):
    """The entry of one key."""

    topic: str
    key: bytes
    partition: U32 | None = None  # nil: by the key's murmur2; all of them while the topic has strays
    # wait for the table to include this offset of the key's own partition, instead of all that is committed
    # (while the topic has strays: beside it)
    min_offset: Offset | None = None


class Got(Answer, kind=12):
    partition: int  # where the entry stands, or else where the key belongs
    entry: Raw  # [entry]: one item


class MultiGet(Request, kind=13):
    """The entries of many keys."""

    topic: str
    keys: list[bytes]
    partition: U32 | None = None  # nil: each by its murmur2; all of them while the topic has strays


class MultiGot(Answer, kind=13):
    partitions: list[int] | None  # of each key; nil: all in partition 0
    entries: Raw  # [entry, …]: in the order of the keys


class Scan(Request, kind=14):
    """All entries, or those with a prefix or in a range, of a snapshot: page by page, partition by partition, each in
    the order of keys (as bytes). The first request names the topic and has no `cursor`; later ones name the cursor,
    and `max_entries` and `max_bytes` if they like, and nothing else. A scan that nobody asks for its next page for
    two minutes is closed; `Unregister` closes it at once.

    `offsets` says what the snapshot is exact for. To take the table and then follow it: scan, then read the log from
    these offsets.
    """

    topic: str | None = None  # the first page needs it
    prefix: bytes | None = None  # keys that begin so; not together with `start` or `end`
    start: bytes | None = None  # the first key, included
    end: bytes | None = None  # the last key, excluded
    partitions: list[U32] | None = None  # nil: all
    tombstones: bool = False  # deleted keys too
    max_entries: Positive = 1000  # of one page
    max_bytes: Positive = 1 << 20  # of one page
    cursor: U32 | None = None  # nil: the first page


class Scanned(Answer, kind=14):
    partition: int  # of all entries of this page
    cursor: int | None  # names the next page; nil: there is none
    # [[partition, offset], …]: of each partition, the next offset after what the snapshot includes
    offsets: list[tuple[int, int]]
    entries: Raw  # [key, entry, key, entry, …]: may be empty


class Watch(Request, kind=15):
    """The table as it is, then every change to it, without a gap or a duplicate: a stream of answers with the same
    `id`. First come pages of a snapshot (`event` "snapshot"), then one "end_of_snapshot" with the `offsets` it is
    exact for, then "changes" as they happen, until `Unregister` of the watch's `handle`: a last answer has `more`
    false, and nothing else in it counts. A watch whose topic is deleted ends with the error UNKNOWN_TOPIC.

    To resume after a lost connection, send the last `next_offset` of each partition as `offsets` (begin with the
    vector of "end_of_snapshot"): there is no snapshot then, and changes come from there on. Without reading, nothing
    more comes: the broker holds back. The first answer, which comes at once, has the `topic_id`: with another one than
    before the topic was deleted, and the offsets meant nothing in the one that has its name now. So it is with the
    positions of a reader that registers again.

    A watch of all partitions goes on to those that are added to the topic later, from their beginning; their changes
    come as any others, of a partition that "end_of_snapshot" did not name. Who resumes with `partitions` nil and
    leaves some out of `offsets` is given those from their beginning.

    Where events come that do not match, a "changes" without entries tells the `next_offset` about once a second, so
    that who resumes is not taken through them again.
    """

    topic: str
    prefix: bytes | None = None  # as in Scan
    start: bytes | None = None  # as in Scan
    end: bytes | None = None  # as in Scan
    partitions: list[U32] | None = None  # nil: all, also those added later
    tombstones: bool = False  # deleted keys in the snapshot too; changes always have them
    offsets: OffsetList | None = None  # resume: the next offset of each partition watched


class Watched(Answer, kind=15):
    """Lost in the middle of a snapshot, a watch begins anew, with `tombstones` true: what was deleted meanwhile must be
    seen to go. Where the answers say `scattered`, a key's tombstone may come from another partition than its value
    did.
    """

    event: str  # "snapshot", "end_of_snapshot" or "changes"
    handle: U32  # of the watch
    partition: int  # of all entries of this answer
    next_offset: int  # changes: resume here; snapshot: what it is exact for
    more: bool  # false in the last answer
    offsets: list[tuple[int, int]] | None  # [[partition, offset], …]: "end_of_snapshot": the vector
    entries: Raw  # [key, entry, …]: changes: in the order of the log
    scattered: bool = False  # snapshot: a key may have stood in another partition in an earlier one (see Get)
    topic_id: str | None = None  # the first answer: the topic's `id`, as of DescribeTopics


class History(Request, kind=26):
    """The events of one key that the log still has, oldest first, a page at a time. Those of one partition: where
    several have the key (strays), one has to be named, or the answer is INVALID_REQUEST.
    """

    topic: str
    key: bytes
    partition: U32 | None = None  # nil: by the key's murmur2; all of them while the topic has strays
    offset: Offset = 0  # from here on
    max_records: Positive = 1000  # of one page
    max_bytes: Positive = 1 << 20  # of one page


class HistoryFound(Answer, kind=26):
    partition: int  # where the key belongs
    next_offset: int | None  # ask again from here; nil: this was all. A page may be empty and still have one
    entries: Raw  # [entry, …]: oldest first
