"""Administration of topics."""

from __future__ import annotations

from typing import Annotated, Any

from krappy.wire.schema import U32, Answer, Expect, Names, OffsetList, Once, Positive, Request


class CreateTopic(Request, kind=16):
    """Creates a topic. Names have up to 249 of the characters a-z A-Z 0-9 . _ -. `config` has Kafka's settings
    (`cleanup.policy`, `retention.ms`, …) and `view.enable`; values are strings, numbers or booleans. Defaults are
    Kafka's, but `retention.ms` is -1 (nothing expires), and `min.insync.replicas` 2 if there are three replicas or
    more. The broker can be given other defaults for all topics.
    """

    topic: str  # the name
    partitions: Positive | None = None  # how many; nil: the broker's default
    config: dict[str, Any] | None = None  # settings
    if_absent: bool = False  # an existing topic is no error
    replication_factor: Positive | None = None  # replicas of each partition; nil: the broker's default


class TopicCreated(Answer, kind=16):
    created: bool  # whether it was created now
    partitions: int  # how many it has; 0: it existed already, and the client may not describe it


class AlterTopic(Request, kind=17):
    """Changes settings, or adds partitions. With more partitions, later events of a key may go to another partition
    than its earlier events.
    """

    topic: str
    config: dict[str, Any] | None = None  # settings; a value of nil resets one to its default
    partitions: Positive | None = None  # the new total; it only grows


class TopicAltered(Answer, kind=17):
    pass


class DeleteTopic(Request, kind=18):
    """Deletes a topic, its events, its table, and the positions of groups in it. The answer comes when the deletion is
    durable; the disk space is freed soon after. A topic of the same name can be created at once.
    """

    topic: str


class TopicDeleted(Answer, kind=18):
    pass


class DescribeTopics(Request, kind=19):
    """Describes topics. Each is a map: `name`, `id`, `config` (what was set), `settings` (everything in force),
    `scattered` (whether the topic may have strays) and `partitions`, which are maps of

    - `partition`, `leader` (the broker that leads it, or -1), `replicas` and `isr` as in Metadata. Each partition that
      the topic has in the cluster has a map; a partition that this broker does not have is described by these alone;
    - `size` in bytes, `segments`;
    - the offsets `start`, `end`, `high_watermark`, `last_stable_offset` (up to which events can be read) and `applied`
      (up to which the table includes events);
    - `sure`: whether this broker leads the partition, and knows that no other one leads it by now. Then everything that
      was acknowledged before the request is below `high_watermark`;
    - `failed`: nil, or why the partition takes no more events or is out of service;
    - `view_failed`: nil, or why its table takes no more events.

    All values of a topic are of one moment. A topic that is deleted and created again has another id. A newer broker
    may add names; ignore those that you do not know.
    """

    topics: Names | None = None  # nil: all


class TopicsDescribed(Answer, kind=19):
    topics: list[dict[str, Any]]


class DeleteRecords(Request, kind=27):
    """Deletes the events of a topic before an offset, for good, and the entries that they made in the table. With
    cleanup.policy=compact,delete the table keeps these entries. Then the broker waits for the end of an open
    transaction before the offset, whose events are not in the table yet; CONCURRENT_TRANSACTIONS means that it did not
    end in time.

    All partitions are checked before any is changed: UNKNOWN_PARTITION; OFFSET_OUT_OF_RANGE beyond the high watermark;
    POLICY_VIOLATION for a topic with cleanup.policy=compact. A partition that starts at a higher offset already is not
    changed, so the request may be repeated.
    """

    topic: str
    # [[partition, offset], …]: events before the offset are deleted; -1: all before the high watermark
    before: Annotated[list[tuple[U32, Expect]], Once(1)]


class RecordsDeleted(Answer, kind=27):
    starts: OffsetList  # the log start of each partition named, which is on disk
