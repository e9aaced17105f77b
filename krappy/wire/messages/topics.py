"""Topics: made, changed, described, cut and dropped."""

from __future__ import annotations

from typing import Any

from krappy.wire.schema import U32, Answer, Expect, OffsetList, Positive, Request


class CreateTopic(Request, kind=16):
    topic: str
    partitions: Positive = 1
    config: dict[str, Any] | None = None
    if_absent: bool = False  # an existing topic is no error


class TopicCreated(Answer, kind=16):
    created: bool
    partitions: int


class AlterTopic(Request, kind=17):
    topic: str
    config: dict[str, Any] | None = None  # nil as a value: back to the default
    partitions: Positive | None = None  # the new total; it only grows


class TopicAltered(Answer, kind=17):
    pass


class DeleteTopic(Request, kind=18):
    topic: str


class TopicDeleted(Answer, kind=18):
    pass


class DescribeTopics(Request, kind=19):
    topics: list[str] | None = None  # None: all


class TopicsDescribed(Answer, kind=19):
    """Each: name, id, config (what was set), settings (all, with defaults), partitions: each with partition,
    start, end, high_watermark, last_stable_offset, applied, size, segments."""

    topics: list[dict[str, Any]]


class DeleteRecords(Request, kind=27):
    topic: str
    before: list[tuple[U32, Expect]]  # (partition, offset): events below go; -1: all below the high watermark


class RecordsDeleted(Answer, kind=27):
    starts: OffsetList  # where each partition named begins now
