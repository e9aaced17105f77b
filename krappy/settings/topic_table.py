"""The settings that a topic may have, by Kafka's names, with Kafka's defaults and limits: one row for each.

One default is not Kafka's: `retention.ms` is -1, so that nothing expires by default. With Kafka's 7 days a topic's
table would lose the keys that nobody has written for a week.

All about a setting is in its row of `SETTINGS`. Source of names, types, defaults and ranges: Kafka's "Topic Configs"
(TopicConfig.java, LogConfig.java, ServerTopicConfigSynonyms.java); `view.enable` and `latest.ahead.enable` are Krappy's
own, also at the broker. Kafka's settings come in three kinds here:

- most are honoured as in Kafka;
- some concern what this broker does not have (tiered storage, preallocated files): harmless values are accepted and
  shown, so that tools that always set them work;
- values that would need what this broker does not have (remote.storage.enable=true) are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from krappy.errors import InvalidConfig
from krappy.settings import units

Given = str | int | float | bool | None
# Changes of settings, None for "back to the default"; or a function of the stored settings and those in force that
# returns the changes. It is called under the settings' lock, so nobody changes them in between.
Held = Mapping[str, str]
Changes = Mapping[str, Given] | Callable[[Held, Held], Mapping[str, Given]]
Reads = Callable[[Given], str]  # turns a given value into Kafka's text for it, or raises ValueError
FOREVER = 2**63 - 1  # how Kafka writes "no limit" where -1 is not allowed
_INT = re.compile(r"[+-]?[0-9]{1,30}")
_THROTTLED = re.compile(r"[0-9]{1,10}:[0-9]{1,10}(,[0-9]{1,10}:[0-9]{1,10})*")


class Setting(NamedTuple):
    """One row of the table. `kind` is Kafka's type of the setting: BOOLEAN, STRING, INT, LONG, DOUBLE or LIST.
    `broker`: Kafka's name of the broker's setting that this one overrides, if there is one."""

    name: str
    default: str
    read: Reads
    kind: str
    doc: str
    broker: str | None = None


def integer(low: int, high: int) -> Reads:
    """Reads a whole number from `low` to `high`, both included."""

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


def choice(*choices: str) -> Reads:
    def read(given: Given) -> str:
        if isinstance(given, str) and given.strip() in choices:
            return given.strip()
        raise ValueError("one of " + ", ".join(choices) + " is needed")

    return read


def boolean(given: Given) -> str:
    text = str(given).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("true or false is needed")
    return text


def _policy(given: Given) -> str:
    words = {word.strip() for word in given.split(",")} if isinstance(given, str) else {""}
    if not words <= {"compact", "delete"}:
        raise ValueError("compact, delete or compact,delete is needed")
    return ",".join(sorted(words))


def _throttled(given: Given) -> str:
    text = given.strip() if isinstance(given, str) else "?"
    if text in ("", "*") or _THROTTLED.fullmatch(text):
        return text
    raise ValueError("*, or a list of partition:broker is needed")


def _only(value: str, why: str, read: Reads | None = None) -> Reads:
    """Reads a setting that can have only one value."""

    def check(given: Given) -> str:
        if given == value or (read is not None and read(given) == value):
            return value
        raise ValueError(f"only '{value}' is possible: {why}")

    return check


_INT32 = 2**31 - 1
_BOOLEAN = "BOOLEAN", boolean


def _int(low: int) -> tuple[str, Reads]:
    return "INT", integer(low, _INT32)


def _long(low: int) -> tuple[str, Reads]:
    return "LONG", integer(low, FOREVER)


def _row(name: str, default: str, kind: tuple[str, Reads], doc: str, broker: str | None = None) -> Setting:
    unit = units.of(name)
    return Setting(name, default, _with_unit(kind[1], unit) if unit else kind[1], kind[0], doc, broker)


def _with_unit(read: Reads, unit: str) -> Reads:
    """As `read`, but also takes a text with a unit of bytes or of time."""

    def converted(given: Given) -> str:
        number = units.read(given, unit)
        if isinstance(number, str) and not _INT.fullmatch(number.strip()):
            raise ValueError(f"{units.needed(unit)} is needed")
        return read(number)

    return converted


_TABLE = (
    _row(
        "cleanup.policy",
        "delete",
        ("LIST", _policy),
        "what is done with old segments: delete (entries of tables go, too), compact or compact,delete (entries stay)",
        "log.cleanup.policy",
    ),
    _row(
        "compression.type",
        "producer",
        ("STRING", choice("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
        "producer: batches are stored as their producer compressed them; else the codec that the broker uses",
        "compression.type",
    ),
    _row(
        "delete.retention.ms",
        "86400000",
        _long(0),
        "ms that a tombstone stays after the first compaction that finds it",
        "log.cleaner.delete.retention.ms",
    ),
    _row(
        "file.delete.delay.ms",
        "60000",
        _long(0),
        "accepted but not used: the files of deleted segments are removed at once",
        "log.segment.delete.delay.ms",
    ),
    _row(
        "flush.messages",
        str(FOREVER),
        _long(1),
        "accepted but not used: the broker's durability says when events are synced; by default before they are acked",
        "log.flush.interval.messages",
    ),
    _row("flush.ms", str(FOREVER), _long(0), "accepted but not used, as flush.messages", "log.flush.interval.ms"),
    _row(
        "follower.replication.throttled.replicas",
        "",
        ("LIST", _throttled),
        "PARTITION:BROKER,… or *: the replicas that are copied no faster than follower.replication.throttled.rate of "
        "their brokers, until they are in sync",
    ),
    _row(
        "index.interval.bytes",
        "4096",
        _int(0),
        "bytes of log between two entries of its index",
        "log.index.interval.bytes",
    ),
    _row(
        "latest.ahead.enable",
        "false",
        _BOOLEAN,
        "whether TOPIC@latest is prepared before anybody reads it, so that the first reader is as fast as later ones",
        "latest.ahead.enable",
    ),
    _row(
        "leader.replication.throttled.replicas",
        "",
        ("LIST", _throttled),
        "PARTITION:BROKER,… or *: the leaders that send to replicas that are not in sync no faster than their brokers' "
        "leader.replication.throttled.rate",
    ),
    _row(
        "local.retention.bytes",
        "-2",
        _long(-2),
        "accepted but not used: it is for topics with remote.storage.enable=true",
        "log.local.retention.bytes",
    ),
    _row(
        "local.retention.ms",
        "-2",
        _long(-2),
        "accepted but not used: it is for topics with remote.storage.enable=true",
        "log.local.retention.ms",
    ),
    _row(
        "max.compaction.lag.ms",
        str(FOREVER),
        _long(1),
        "ms after which an event is compacted, however clean the log is",
        "log.cleaner.max.compaction.lag.ms",
    ),
    _row("max.message.bytes", "1048588", _int(0), "bytes of the largest record batch accepted", "message.max.bytes"),
    _row(
        "message.timestamp.after.max.ms",
        "3600000",
        _long(0),
        "ms by which a producer's timestamp may be ahead of the broker's clock",
        "log.message.timestamp.after.max.ms",
    ),
    _row(
        "message.timestamp.before.max.ms",
        str(FOREVER),
        _long(0),
        "ms by which a producer's timestamp may be behind the broker's clock",
        "log.message.timestamp.before.max.ms",
    ),
    _row(
        "message.timestamp.type",
        "CreateTime",
        ("STRING", choice("CreateTime", "LogAppendTime")),
        "whose clock stamps events: the producer's (CreateTime) or the broker's (LogAppendTime)",
        "log.message.timestamp.type",
    ),
    _row(
        "min.cleanable.dirty.ratio",
        "0.5",
        ("DOUBLE", _ratio),
        "share of the log that is not compacted yet when a compaction starts",
        "log.cleaner.min.cleanable.ratio",
    ),
    _row(
        "min.compaction.lag.ms",
        "0",
        _long(0),
        "ms that an event is safe from compaction",
        "log.cleaner.min.compaction.lag.ms",
    ),
    _row(
        "min.insync.replicas",
        "1",
        ("INT", integer(1, _INT32)),
        "replicas that an event must reach to be acknowledged, at most as many as there are; if nobody sets it, 2 of 3 "
        "or more, else 1",
        "min.insync.replicas",
    ),
    _row(
        "preallocate", "false", _BOOLEAN, "accepted but not used: segments grow as they are written", "log.preallocate"
    ),
    _row(
        "remote.storage.enable",
        "false",
        ("BOOLEAN", _only("false", "there is no tiered storage", boolean)),
        "whether old segments move to remote storage: there is none",
    ),
    _row("retention.bytes", "-1", _long(-1), "bytes that a partition may hold; -1: no limit", "log.retention.bytes"),
    _row("retention.ms", "-1", _long(-1), "ms that an event is kept; -1: forever", "log.retention.ms"),
    _row("segment.bytes", "1073741824", _int(14), "bytes after which a segment is closed", "log.segment.bytes"),
    _row(
        "segment.index.bytes",
        "10485760",
        _int(4),
        "accepted but not used: an index grows with its segment",
        "log.index.size.max.bytes",
    ),
    _row(
        "segment.jitter.ms",
        "0",
        _long(0),
        "accepted but not used: a segment is never closed before its segment.ms",
        "log.roll.jitter.ms",
    ),
    _row("segment.ms", "604800000", _long(1), "ms after which a segment is closed", "log.roll.ms"),
    _row(
        "unclean.leader.election.enable",
        "false",
        _BOOLEAN,
        "whether a replica that may lack acknowledged events leads if no other is alive: then those events are lost",
        "unclean.leader.election.enable",
    ),
    _row("view.enable", "true", _BOOLEAN, "whether the latest value of each key is kept for lookups", "view.enable"),
)
SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _TABLE}
DEFAULTS: dict[str, str] = {setting.name: setting.default for setting in _TABLE}
# The settings of the broker that are topics' defaults, by Kafka's names for them, or by the topic's for Krappy's own.
OF_BROKER: dict[str, Setting] = {setting.broker: setting for setting in _TABLE if setting.broker is not None}
# A topic keeps the defaults that it was created under: the catalog stores the number of their generation. Here
# are, by that number, the defaults that differ from today's. The last generation is today's.
GENERATIONS: tuple[Mapping[str, str], ...] = (
    {"retention.ms": "604800000", "message.timestamp.after.max.ms": str(FOREVER)},
    {},
)
GENERATION = len(GENERATIONS) - 1


def changes_of(wanted: Changes, held: Held, in_force: Held) -> Mapping[str, Given]:
    """The wanted changes, given the stored settings and those in force."""
    return wanted(held, in_force) if callable(wanted) else wanted


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


def inherited(of_broker: Mapping[str, str]) -> dict[str, str]:
    """The broker's settings (by Kafka's names) that are defaults of topics, by the topics' names for them."""
    return {OF_BROKER[name].name: value for name, value in of_broker.items() if name in OF_BROKER}


def effective(held: Mapping[str, str]) -> dict[str, str]:
    """Every setting in force, as Kafka writes it, for a topic with these stored settings."""
    return {**DEFAULTS, **held}


def nearest(name: object, known: Mapping[str, Any], written: Callable[[str], str] = str) -> str:
    """`; the nearest is 'x'` for an unknown name, or nothing when none is near; `written`: how the name is written
    there. Shared with the server's settings."""
    import difflib  # imported only when a name is wrong

    close = difflib.get_close_matches(str(name)[:80].lower(), known, n=1, cutoff=0.5)
    return f"; the nearest is '{written(close[0])}'" if close else ""
