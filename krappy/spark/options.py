"""The options of the data source (`option_table.py`), read once into typed values.

Options that Spark's Kafka source has, too, have the same names, values and defaults as there ("Structured Streaming +
Kafka Integration Guide"). If several are given, the same one wins: timestamp, then offsets by timestamp, then offsets.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, TypeVar, get_args

from krappy.errors import ConfigError
from krappy.spark.broker_at import BrokerAt, broker_at, plain_names
from krappy.spark.keys import Keys
from krappy.spark.option_table import AS_THEY_ARE, KEY_OPTIONS, Use, check, check_names
from krappy.spark.places import BATCH_END, BATCH_START, STREAM_START, StartPlace, ending, starting, whole
from krappy.spark.schema import COLUMNS, LOG_COLUMNS, SNAPSHOT_COLUMNS, TABLE_COLUMNS
from krappy.spark.topics import TopicChoice, topics
from krappy.types import Compression

Mode = Literal["log", "table", "snapshot"]
KeyType = Literal["binary", "string"]
MODES: tuple[Mode, ...] = get_args(Mode)
KEY_TYPES: tuple[KeyType, ...] = get_args(KeyType)
COMPRESSIONS: tuple[Literal["none"] | Compression, ...] = ("none", *get_args(Compression))
T = TypeVar("T", bound=str)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d{1,18})\s*(ms|s|m|min|h|d)?", re.ASCII)
MOST = 2**63 - 1  # of any number: Spark's long
MOST_PARTITIONS = 2**31 - 1
MOST_SNAPSHOT_TTL, MOST_STAGING_TTL = 86_400.0, 24 * 86_400.0  # seconds; the broker takes a day, and 2**31 ms


@dataclass(frozen=True)
class Options:
    """The options in their types. Durations are in seconds; None: the option was not given and has no default."""

    broker: BrokerAt
    mode: Mode
    topics: TopicChoice | None
    start: StartPlace
    end: StartPlace
    timestamp_strategy: str
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    key_type: KeyType
    min_partitions: int | None
    max_records: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay: float
    tombstones: bool
    keys: Keys
    limit: int | None
    pushdown: bool
    snapshot: str | None
    snapshot_ttl: float
    topic: str | None
    job_id: str | None
    await_table: bool
    staging_ttl: float
    compression: Compression | None


def parse(given: Mapping[str, str], use: Use) -> Options:
    """Checks options and gives them their types. `use` "any": a read that may be a batch or a stream.

    Raises ConfigError, which names the option and says what to give instead.
    """
    texts = {name.lower(): str(value) for name, value in given.items()}
    texts = plain_names({name: value if name in AS_THEY_ARE else value.strip() for name, value in texts.items()})
    check_names(texts)
    read = _Reader(texts)
    keyed = [name for name in KEY_OPTIONS if name.lower() in texts]
    usual: Mode = "table" if keyed or "snapshot" in texts else "log"
    mode = read.choice("mode", MODES, usual)
    check(texts, use, mode)
    compression = read.choice("compression", COMPRESSIONS, "none")
    return Options(
        broker=broker_at(texts),
        mode=mode,
        topics=None if use in ("write", "writeStream") or "snapshot" in texts else topics(texts),
        start=starting(texts, STREAM_START if use == "stream" else BATCH_START, use),
        end=ending(texts, BATCH_END),
        timestamp_strategy=read.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error"),
        fail_on_data_loss=read.boolean("failOnDataLoss", True),
        columns=_columns(read, mode),
        key_type=read.choice("keyType", KEY_TYPES, "binary"),
        min_partitions=read.count("minPartitions", MOST_PARTITIONS),
        max_records=read.count("maxRecordsPerPartition"),
        max_offsets_per_trigger=read.count("maxOffsetsPerTrigger"),
        min_offsets_per_trigger=read.count("minOffsetsPerTrigger"),
        max_trigger_delay=read.seconds("maxTriggerDelay", 900.0),
        tombstones=read.boolean("tombstones", False),
        keys=_keys(read, keyed),
        limit=read.count("limit"),
        pushdown=read.boolean("pushdown", False),
        snapshot=texts.get("snapshot") or None,
        snapshot_ttl=read.seconds("snapshotTtl", 600.0, MOST_SNAPSHOT_TTL),
        topic=texts.get("topic") or None,
        job_id=texts.get("jobid") or None,
        await_table=read.boolean("awaitTable", False),
        staging_ttl=read.seconds("stagingTtl", 21_600.0, MOST_STAGING_TTL),
        compression=None if compression == "none" else compression,
    )


class _Reader:
    """Reads options (names in lower case) as numbers, choices and so on. Raises ConfigError."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def text(self, name: str) -> str | None:
        return self.texts.get(name.lower())

    def wrong(self, name: str, wanted: str) -> ConfigError:
        return ConfigError(f"option {name}={self.text(name)!r:.80}: {wanted}", option=name)

    def choice(self, name: str, choices: Sequence[T], default: T) -> T:
        text = (self.text(name) or default).lower()
        for choice in choices:
            if text == choice:
                return choice
        raise self.wrong(name, "give " + " or ".join(choices))

    def boolean(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def count(self, name: str, most: int = MOST) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        found = whole(text)
        if found is None or not 1 <= found <= most:
            raise self.wrong(name, f"a whole number from 1 to {most} is needed")
        return found

    def seconds(self, name: str, default: float, most: float = inf) -> float:
        text = self.text(name)
        if text is None:
            return default
        match = _DURATION.fullmatch(text.lower())
        found = int(match[1]) * _SECONDS[match[2] or "s"] if match else 0
        if not 0 < found <= most:
            limit = "" if most == inf else f", and no more than {most / 86_400:g}d"
            raise self.wrong(name, f"a duration is needed, such as 30s, 10m or 2h{limit}")
        return found


def _columns(read: _Reader, mode: str) -> tuple[str, ...]:
    if mode == "snapshot":
        return SNAPSHOT_COLUMNS
    possible = TABLE_COLUMNS if mode == "table" else LOG_COLUMNS
    text = read.text("columns")
    if text is None:
        left_out = {"headers"} - ({"headers"} if read.boolean("includeHeaders", False) else set())
        left_out |= {"deleted"} - ({"deleted"} if read.boolean("tombstones", False) else set())
        return tuple(name for name in possible if name not in left_out)
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in possible:
            known = f"{', '.join(possible)}" if name not in COLUMNS else f"mode={mode} has {', '.join(possible)}"
            raise read.wrong("columns", f"there is no column '{name}'; there are {known}")
    if len(set(names)) < len(names):
        raise read.wrong("columns", "a column is named twice")
    return names


def _keys(read: _Reader, given: Sequence[str]) -> Keys:
    if not given:
        return Keys()
    if len(given) > 1 and set(given) != {"keyFrom", "keyTo"}:
        raise ConfigError(f"options {' and '.join(given)}: give one of key, keys, keyPrefix, or keyFrom and/or keyTo")
    decode = DECODERS[read.choice("keyEncoding", tuple(DECODERS), "utf8")]

    def one(name: str) -> bytes | None:
        text = read.text(name)
        return None if text is None else _decoded(read, name, decode, text)

    key, many = one("key"), read.text("keys")
    exact: tuple[bytes, ...] | None = None if key is None else (key,)
    if many is not None:
        try:
            found = json.loads(many)
        except ValueError:
            found = None
        if type(found) is not list or not all(type(each) is str for each in found):
            raise read.wrong("keys", 'a JSON list of texts is needed, such as ["u1","u2"]')
        exact = tuple(dict.fromkeys(_decoded(read, "keys", decode, each) for each in found))
    return Keys(exact, one("keyPrefix"), one("keyFrom"), one("keyTo"))


def _decoded(read: _Reader, name: str, decode: Callable[[str], bytes], text: str) -> bytes:
    try:
        return decode(text)
    except (ValueError, binascii.Error):
        raise read.wrong(
            name, f"{text!r:.40} is not written as keyEncoding={read.text('keyEncoding') or 'utf8'}"
        ) from None


DECODERS: dict[str, Callable[[str], bytes]] = {
    "utf8": str.encode,
    "hex": bytes.fromhex,
    "base64": lambda text: base64.b64decode(text, validate=True),
}


def texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Options of a Python program as text, for Spark: "true" for True, JSON for a mapping and for a list of keys,
    commas between the items of any other list. Leaves out options that are None. Raises ConfigError for bytes."""
    return {name: _text(name, value) for name, value in options.items() if value is not None}


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return json.dumps(value)
    if any(isinstance(each, bytes | bytearray) for each in (value if isinstance(value, list | tuple) else [value])):
        raise ConfigError(f"option {name}={value!r:.80}: an option is text: write bytes with keyEncoding=hex or base64")
    if isinstance(value, list | tuple):
        return json.dumps(value) if name.lower() == "keys" else ",".join(map(str, value))
    return str(value)
