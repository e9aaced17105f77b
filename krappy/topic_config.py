"""The settings of one topic, by Kafka's names, with Kafka's defaults and limits; and what a topic may be called.

Everything that is known about a setting stands in one row of `SETTINGS`. A topic stores only the settings that
were given for it; `TopicConfig` holds the effective ones, ready for use. Source of names, defaults and ranges:
Kafka's "Topic Configs" (TopicConfig.java, LogConfig.java); `view.enable` is Krappy's own.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from krappy.errors import InvalidConfig, InvalidTopic

Given = str | int | float | bool | None
FOREVER = 2**63 - 1  # how Kafka writes "no limit" where -1 is not allowed
_INT = re.compile(r"[+-]?[0-9]{1,30}")
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
MAX_NAME = 249  # a folder is named "<topic>-<partition>", and a name in a folder has at most 255 bytes


class Setting(NamedTuple):
    """One row of the table. `read` turns what was given into Kafka's text for it, or raises ValueError."""

    name: str
    default: str
    read: Callable[[Given], str]
    doc: str


def _integer(low: int, high: int) -> Callable[[Given], str]:
    def read(given: Given) -> str:
        if isinstance(given, float) and given.is_integer():
            given = int(given)
        if isinstance(given, str) and _INT.fullmatch(given.strip()):
            given = int(given)
        if type(given) is not int:
            raise ValueError("a whole number is needed")
        if not low <= given <= high:
            raise ValueError(f"at least {low} is needed" if given < low else f"at most {high} is allowed")
        return str(given)

    return read


def _ratio(given: Given) -> str:
    try:
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            raise ValueError
        number = float(given)
    except (OverflowError, ValueError):
        raise ValueError("a number from 0 to 1 is needed") from None
    if not math.isfinite(number) or not 0 <= number <= 1:
        raise ValueError("a number from 0 to 1 is needed")
    return str(number)


def _choice(*choices: str) -> Callable[[Given], str]:
    def read(given: Given) -> str:
        if isinstance(given, str) and given.strip() in choices:
            return given.strip()
        raise ValueError("one of " + ", ".join(choices) + " is needed")

    return read


def _boolean(given: Given) -> str:
    text = str(given).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("true or false is needed")
    return text


def _policy(given: Given) -> str:
    words = {word.strip() for word in given.split(",")} if isinstance(given, str) else {""}
    if not words <= {"compact", "delete"}:
        raise ValueError("compact, delete or compact,delete is needed")
    return ",".join(sorted(words))


def _compression(given: Given) -> str:
    if given != "producer":
        raise ValueError("only 'producer' is possible: batches are stored as their producers compressed them")
    return "producer"


_DURATION = _integer(0, FOREVER)
_INT32 = 2**31 - 1
_TABLE = (
    Setting("cleanup.policy", "delete", _policy, "what becomes of old segments: delete, compact or compact,delete"),
    Setting("compression.type", "producer", _compression, "batches are stored as their producer compressed them"),
    Setting("delete.retention.ms", "86400000", _DURATION, "ms that a tombstone outlives its compaction"),
    Setting("index.interval.bytes", "4096", _integer(0, _INT32), "bytes of log between two entries of its index"),
    Setting(
        "max.compaction.lag.ms",
        str(FOREVER),
        _integer(1, FOREVER),
        "ms after which an event is compacted, however clean the log is",
    ),
    Setting("max.message.bytes", "1048588", _integer(0, _INT32), "bytes of the largest record batch accepted"),
    Setting(
        "message.timestamp.type",
        "CreateTime",
        _choice("CreateTime", "LogAppendTime"),
        "whose clock stamps events: the producer's (CreateTime) or the broker's (LogAppendTime)",
    ),
    Setting("min.cleanable.dirty.ratio", "0.5", _ratio, "share of the log that is uncleaned when a cleaning starts"),
    Setting("min.compaction.lag.ms", "0", _DURATION, "ms that an event is safe from compaction"),
    Setting("retention.bytes", "-1", _integer(-1, FOREVER), "bytes that a partition may hold; -1: no limit"),
    Setting("retention.ms", "604800000", _integer(-1, FOREVER), "ms that an event is kept; -1: forever"),
    Setting("segment.bytes", "1073741824", _integer(14, _INT32), "bytes after which a segment is closed"),
    Setting("segment.ms", "604800000", _integer(1, FOREVER), "ms after which a segment is closed"),
    Setting("view.enable", "true", _boolean, "whether the latest value of each key is kept for lookups"),
)
SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _TABLE}
DOCS: dict[str, str] = {setting.name: setting.doc for setting in _TABLE}
DEFAULTS: dict[str, str] = {setting.name: setting.default for setting in _TABLE}


def normalise(given: Mapping[str, Given]) -> dict[str, str]:
    """The settings given, each checked by itself and written as Kafka writes it.

    None stands for "as if it were not given", as in Kafka's CreateTopics and AlterConfigs. Raises InvalidConfig
    that names the setting, and for an unknown one the nearest that exists.
    """
    found: dict[str, str] = {}
    for name, value in given.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise InvalidConfig(f"there is no topic setting '{name!s:.80}'{nearest(name, SETTINGS)}", setting=name)
        if value is None:
            continue
        try:
            found[name] = setting.read(value)
        except ValueError as error:
            raise InvalidConfig(f"{name} = {value!r:.80}: {error}", setting=name) from None
    return found


def merge(held: Mapping[str, str], changes: Mapping[str, Given]) -> dict[str, str]:
    """A topic's stored settings after a change; None takes a setting back to its default. Raises InvalidConfig."""
    kept = {name: value for name, value in held.items() if name not in changes}
    merged = {**kept, **normalise(changes)}
    TopicConfig.parse(merged)
    return merged


def nearest(name: object, known: Mapping[str, Any]) -> str:
    """`; the nearest is 'x'` for an unknown name, or nothing when none is near. Shared with the server's settings."""
    close = difflib.get_close_matches(str(name)[:80].lower(), known, n=1, cutoff=0.5)
    return f"; the nearest is '{close[0]}'" if close else ""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The effective settings of a topic. None means "no limit"."""

    compact: bool = False
    delete: bool = True
    retention_ms: int | None = 604_800_000
    retention_bytes: int | None = None
    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    min_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int | None = None
    delete_retention_ms: int = 86_400_000
    max_message_bytes: int = 1_048_588
    log_append_time: bool = False
    index_interval_bytes: int = 4096
    view: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, Given]) -> TopicConfig:
        """From settings by Kafka's names; those not given, or None, get Kafka's defaults. Raises InvalidConfig."""
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
            index_interval_bytes=int(of["index.interval.bytes"]),
            view=of["view.enable"] == "true",
        )
        if config.max_compaction_lag_ms is not None and config.max_compaction_lag_ms < config.min_compaction_lag_ms:
            raise InvalidConfig("max.compaction.lag.ms is below min.compaction.lag.ms", setting="max.compaction.lag.ms")
        if config.compact and not config.view:
            raise InvalidConfig(
                "cleanup.policy=compact needs view.enable=true: the view tells which events are the latest",
                setting="view.enable",
            )
        return config

    def settings(self) -> dict[str, str]:
        """Every effective setting by Kafka's name, as Kafka writes it."""
        max_lag = FOREVER if self.max_compaction_lag_ms is None else self.max_compaction_lag_ms
        return {
            "cleanup.policy": ",".join(["compact"] * self.compact + ["delete"] * self.delete),
            "compression.type": "producer",
            "delete.retention.ms": str(self.delete_retention_ms),
            "index.interval.bytes": str(self.index_interval_bytes),
            "max.compaction.lag.ms": str(max_lag),
            "max.message.bytes": str(self.max_message_bytes),
            "message.timestamp.type": "LogAppendTime" if self.log_append_time else "CreateTime",
            "min.cleanable.dirty.ratio": str(self.min_dirty_ratio),
            "min.compaction.lag.ms": str(self.min_compaction_lag_ms),
            "retention.bytes": str(-1 if self.retention_bytes is None else self.retention_bytes),
            "retention.ms": str(-1 if self.retention_ms is None else self.retention_ms),
            "segment.bytes": str(self.segment_bytes),
            "segment.ms": str(self.segment_ms),
            "view.enable": "true" if self.view else "false",
        }


def _limit(text: str) -> int | None:
    number = int(text)
    return None if number in (-1, FOREVER) else number


def check_topic_name(name: str) -> str:
    """The name, if a topic may have it (Kafka's rule, Topic.java). Raises InvalidTopic that says what is wrong."""
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
