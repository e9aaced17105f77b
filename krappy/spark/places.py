"""Where a read begins and ends: earliest, latest, offsets or times, written as for Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, NamedTuple

from krappy.errors import ConfigError
from krappy.spark.topics import by_topic
from krappy.types import EARLIEST, LATEST

MARKS = ("$start", "$first", "$ids")  # keys beside the topics in a stream's own offsets
Kind = Literal["earliest", "latest", "snapshot", "offsets", "timestamp", "timestamps"]


class StartPlace(NamedTuple):
    """Where a read begins or ends. `by_topic`: offsets, or times in ms since the epoch, by topic and partition.
    `timestamp`: one time for all partitions, in ms. Offsets -2 and -1 stand for earliest and latest.
    """

    kind: Kind
    by_topic: Mapping[str, Mapping[int, int]] = {}
    timestamp: int = 0


BATCH_START = StartPlace("earliest")
STREAM_START = StartPlace("latest")
BATCH_END = StartPlace("latest")


def starting(texts: Mapping[str, str], default: StartPlace, use: str) -> StartPlace:
    """Reads the options for the start (names in lower case). Raises ConfigError."""
    found = _place(texts, "starting", default)
    if found.kind == "snapshot" and use not in ("any", "stream"):
        raise ConfigError("option startingOffsets=snapshot is for readStream; a batch reads a snapshot with mode=table")
    if use == "log" and (found.kind == "latest" or _has(found, LATEST)):
        raise ConfigError("option startingOffsets: a batch can't start at latest (-1): nothing would be read")
    return found


def ending(texts: Mapping[str, str], default: StartPlace) -> StartPlace:
    """Reads the options for the end. Raises ConfigError."""
    found = _place(texts, "ending", default)
    if found.kind in ("earliest", "snapshot") or _has(found, EARLIEST):
        raise ConfigError("option endingOffsets: a read can't end at earliest (-2): give latest, or offsets")
    return found


def offsets_text(by_topic: Mapping[str, Mapping[int, int]]) -> str:
    """Offsets by topic and partition as the options take them."""
    return json.dumps({topic: {str(each): at for each, at in found.items()} for topic, found in by_topic.items()})


def whole(text: str) -> int | None:
    """A decimal number without a sign; None if the text is anything else, or has more than 30 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 30 else None


def _has(place: StartPlace, offset: int) -> bool:
    return place.kind == "offsets" and any(offset in some.values() for some in place.by_topic.values())


def _place(texts: Mapping[str, str], which: str, default: StartPlace) -> StartPlace:
    time, by_time, by_offset = f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets"
    if time.lower() in texts:
        text = texts[time.lower()]
        moment = whole(text)
        if moment is None:
            raise ConfigError(f"option {time}={text!r:.80}: ms since the epoch are needed, such as 1735689600000")
        return StartPlace("timestamp", timestamp=moment)
    if by_time.lower() in texts:
        return StartPlace("timestamps", _by_topic(by_time, texts[by_time.lower()], 0))
    text = texts.get(by_offset.lower(), "")
    word = text.lower()
    if not word:
        return default
    if word == "earliest":
        return StartPlace("earliest")
    if word == "latest":
        return StartPlace("latest")
    if word == "snapshot":
        return StartPlace("snapshot")
    return StartPlace("offsets", _by_topic(by_offset, text, EARLIEST))


def _by_topic(name: str, text: str, least: int) -> dict[str, dict[int, int]]:
    words = "earliest, latest or offsets" if least < 0 else "times in ms"
    wrong = ConfigError(
        f'option {name}={text!r:.80}: {words} by topic and partition are needed, such as {{"t":{{"0":5}}}}'
    )
    found = {topic: some for topic, some in by_topic(text, wrong).items() if topic not in MARKS}
    for some in found.values():
        if type(some) is not dict:
            raise wrong
        for partition, at in some.items():
            if not (partition.isascii() and partition.isdigit()) or type(at) is not int or at < least:
                raise wrong
    return {topic: {int(partition): at for partition, at in some.items()} for topic, some in found.items()}
