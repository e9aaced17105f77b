"""Topics: made, changed, described, cut and dropped."""

from __future__ import annotations

from typing import Any

from krappy.wire.schema import U32, Answer, Expect, OffsetList, Positive, Request


class CreateTopic(Request, kind=16):
    """Makes a topic. Names have up to 249 of the characters a-z A-Z 0-9 . _ -. `config` has Kafka's names and meanings
    (`cleanup.policy`, `retention.ms`, …) and `view.enable`; values are strings, numbers or booleans. Their defaults
    are Kafka's, but for `retention.ms`, which is -1 (nothing expires), and whatever the broker was told for all
    topics.
    """

    topic: str  # the name
    partitions: Positive = 1  # how many
    config: dict[str, Any] | None = None  # settings
    if_absent: bool = False  # an existing topic is no error


class TopicCreated(Answer, kind=16):
    created: bool  # whether it was made now
    partitions: int  # how many it has


class AlterTopic(Request, kind=17):
    """Changes settings, or adds partitions. More partitions move keys: what is written later may go to another
    partition than what was written before.
    """

    topic: str
    config: dict[str, Any] | None = None  # settings; nil as a value: back to the default
    partitions: Positive | None = None  # the new total; it only grows


class TopicAltered(Answer, kind=17):
    pass


class DeleteTopic(Request, kind=18):
    """Deletes a topic, its events and its table. The answer comes when it is gone for good and groups have no positions
    in it; what its files took on the disk is given back soon after. A topic of the same name can be made at once.
    """

    topic: str


class TopicDeleted(Answer, kind=18):
    pass


class DescribeTopics(Request, kind=19):
    """What topics there are, and all about them. Each is a map: `name`, `id`, `config` (what was set), `settings`
    (everything in force), `scattered` (whether keys may stand in other partitions than their own) and `partitions`
    (maps of `partition`, `start`, `end`, `high_watermark`, `last_stable_offset`: up to where events can be read,
    `applied`, `size` in bytes, `segments`, `failed`: nil, or why it takes no more events or is out of service, and
    `view_failed`: nil, or why its table does not go on). Of a topic, all of it is of one moment. A topic that is
    deleted and made anew has another id. A broker may add names; ignore those that you do not know.
    """

    topics: list[str] | None = None  # nil: all


class TopicsDescribed(Answer, kind=19):
    topics: list[dict[str, Any]]


class DeleteRecords(Request, kind=27):
    """Deletes the events of a topic below an offset, for good, and the entries of the table that they made (with
    cleanup.policy=compact,delete the table keeps these; what stands behind an open transaction is not in it yet, so
    its end is waited for, and CONCURRENT_TRANSACTIONS says that it did not come). All partitions are checked before
    any is changed: UNKNOWN_PARTITION, OFFSET_OUT_OF_RANGE beyond the high watermark, POLICY_VIOLATION for a topic
    with cleanup.policy=compact. A partition that begins later already stays as it is, so the request may be
    repeated.
    """

    topic: str
    # [[partition, offset], …]: events below the offset go; -1: all below the high watermark
    before: list[tuple[U32, Expect]]


class RecordsDeleted(Answer, kind=27):
    starts: OffsetList  # where each partition named begins now; this is on disk
