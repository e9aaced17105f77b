"""The settings of one topic, ready for use; and the rule for topic names.

A topic stores only the settings that were given for it; `TopicConfig` holds the effective ones. `topic_table` lists all
settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from krappy.errors import InvalidConfig, InvalidTopic
from krappy.records.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from krappy.settings.topic_table import DEFAULTS, FOREVER, Given, normalise

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"  # Kafka's internal topics
SHARES, JOBS = "__share_group_state", "__staged_jobs"  # the internal topics of native groups and of staged jobs
LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
CODECS = {"uncompressed": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}  # by compression.type
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
MAX_NAME = 249  # a folder is named "<topic>-<partition>", and a name in a folder has at most 255 bytes


def merge(held: Mapping[str, str], changes: Mapping[str, Given]) -> dict[str, str]:
    """A topic's stored settings after a change; None resets a setting to its default. Raises InvalidConfig."""
    kept = {name: value for name, value in held.items() if name not in changes}
    merged = {**kept, **normalise(changes)}
    TopicConfig.parse(merged)
    return merged


class ThrottledReplicas(NamedTuple):
    """The replicas of a topic that are throttled (KIP-73). `everything`: all; else `replicas`, each a partition and a
    broker's id."""

    everything: bool = False
    replicas: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def parse(cls, text: str) -> ThrottledReplicas:
        """The replicas that a setting names; `topic_table` has checked it."""
        if text == "*":
            return cls(True)
        pairs = (each.split(":") for each in text.split(",") if each)
        return cls(False, frozenset((int(partition), int(broker)) for partition, broker in pairs))

    def has(self, partition: int, broker: int) -> bool:
        return self.everything or (partition, broker) in self.replicas


NONE_THROTTLED = ThrottledReplicas()


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The effective settings of a topic. None means "no limit"."""

    compact: bool = False
    delete: bool = True
    retention_ms: int | None = None
    retention_bytes: int | None = None
    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    min_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int | None = None
    delete_retention_ms: int = 86_400_000
    max_message_bytes: int = 1_048_588
    log_append_time: bool = False
    timestamp_after_ms: int | None = 3_600_000  # how far events may be ahead of the broker's clock
    timestamp_before_ms: int | None = None  # how far events may be behind it
    index_interval_bytes: int = 4096
    codec: int | None = None  # as in krappy.records.codecs; None: the producer's
    view: bool = True
    latest_ahead: bool = False
    throttled_leaders: ThrottledReplicas = NONE_THROTTLED
    throttled_followers: ThrottledReplicas = NONE_THROTTLED

    @classmethod
    def parse(cls, given: Mapping[str, Given]) -> TopicConfig:
        """From settings by Kafka's names; those not given, or None, get their defaults. Raises InvalidConfig."""
        of = {**DEFAULTS, **normalise(given)}
        policies = of["cleanup.policy"].split(",")
        config = cls(
            compact="compact" in policies,
            delete="delete" in policies,
            retention_ms=_limit(of["retention.ms"]),
            retention_bytes=_limit(of["retention.bytes"]),
            segment_bytes=int(of["segment.bytes"]),
            segment_ms=int(of["segment.ms"]),
            min_dirty_ratio=float(of["min.cleanable.dirty.ratio"]),
            min_compaction_lag_ms=int(of["min.compaction.lag.ms"]),
            max_compaction_lag_ms=_limit(of["max.compaction.lag.ms"]),
            delete_retention_ms=int(of["delete.retention.ms"]),
            max_message_bytes=int(of["max.message.bytes"]),
            log_append_time=of["message.timestamp.type"] == "LogAppendTime",
            timestamp_after_ms=_limit(of["message.timestamp.after.max.ms"]),
            timestamp_before_ms=_limit(of["message.timestamp.before.max.ms"]),
            index_interval_bytes=int(of["index.interval.bytes"]),
            codec=CODECS.get(of["compression.type"]),
            view=of["view.enable"] == "true",
            latest_ahead=of["latest.ahead.enable"] == "true",
            throttled_leaders=ThrottledReplicas.parse(of[LEADERS]),
            throttled_followers=ThrottledReplicas.parse(of[FOLLOWERS]),
        )
        if config.max_compaction_lag_ms is not None and config.max_compaction_lag_ms < config.min_compaction_lag_ms:
            raise InvalidConfig("max.compaction.lag.ms is below min.compaction.lag.ms", setting="max.compaction.lag.ms")
        if config.compact and not config.view:
            raise InvalidConfig(
                "cleanup.policy=compact needs view.enable=true: the view tells which events are the latest",
                setting="view.enable",
            )
        return config


def _limit(text: str) -> int | None:
    number = int(text)
    return None if number in (-1, FOREVER) else number


def check_topic_name(name: str) -> str:
    """Returns the name, if a topic may have it (Kafka's rule, Topic.java). Raises InvalidTopic that says what is
    wrong."""
    if not name:
        raise InvalidTopic("a topic's name can't be empty")
    if name in (".", ".."):
        raise InvalidTopic(f"a topic can't be named '{name}'")
    if len(name) > MAX_NAME:
        raise InvalidTopic(f"a topic's name has at most {MAX_NAME} characters; this one has {len(name)}")
    if not _NAME.fullmatch(name):
        wrong = next(character for character in name if not _NAME.fullmatch(character))
        raise InvalidTopic(f"'{name}': a topic's name has only letters a-z A-Z, digits and . _ -, not {wrong!r}")
    return name
