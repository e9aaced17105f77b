"""Converts what users give into what the protocol takes: text, times, start positions, headers, addresses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal, NamedTuple, TypedDict

from krappy.errors import ConfigError, InvalidRecord, InvalidRequest, InvalidTimestamp
from krappy.types import ABSENT, NO_TIMESTAMP, Headers

Text = str | bytes | bytearray | memoryview  # str is sent as UTF-8
Time = int | datetime  # ms since the epoch, or an aware datetime
StartAt = Literal["earliest", "latest"] | int | datetime  # an int is an offset
Consistency = Literal["strong", "session"]
Expected = int | Literal["absent"]
Addresses = str | Iterable[str]  # HOST:PORT, several with commas between them, or as a list
HeadersIn = Mapping[str, Text | None] | Iterable[tuple[str, Text | None]]

DEFAULT_PORT = 7092
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
LONGEST = 1_000_000_000  # seconds, the longest timeout: sockets and locks accept only about nine times that
MAX_I64 = 2**63 - 1  # the largest offset and timestamp
ADDRESS_VARIABLE = "KRAPPY_ADDRESS"


class EventOptions(TypedDict, total=False):
    """As `TopicProducer.post` explains them."""

    headers: HeadersIn | None
    timestamp: Time | None
    partition: int | None
    expect: Expected | None


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses(given: Addresses | None) -> list[Address]:
    """Parses one address or several: a text with commas between them, or a list of texts. None: $KRAPPY_ADDRESS, else
    127.0.0.1:7092. Raises ConfigError."""
    told = given if given is not None else os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    if isinstance(told, str):
        told = told.split(",")
    elif isinstance(told, bytes) or not isinstance(told, Iterable):
        raise ConfigError(f"{told!r} is no address; give text such as {DEFAULT_ADDRESS!r}")
    found = list(dict.fromkeys(map(address, told)))
    if not found:
        raise ConfigError(f"a list without an address; give at least one, such as {DEFAULT_ADDRESS!r}")
    return found


def address(text: str) -> Address:
    """Parses `host:port`, `host` or `[v6]:port`. Raises ConfigError."""
    if not isinstance(text, str):
        raise ConfigError(f"{text!r} is no address; give text such as {DEFAULT_ADDRESS!r}")
    text = text.removeprefix("krappy://").strip().rstrip("/")
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not host or "/" in text or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise ConfigError(f"{text!r} is no address; give host:port, such as {DEFAULT_ADDRESS}")
    return Address(host, int(port) if port else DEFAULT_PORT)


def seconds(given: float, what: str) -> float:
    """The given duration, checked; `what` names it in the error. Raises ConfigError."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= LONGEST:
        raise ConfigError(f"{what}={given!r}: give seconds, more than 0 and at most {LONGEST:,}")
    return given


def encoded(value: Text | None, what: str) -> bytes | None:
    """A str as UTF-8, bytes-like objects as bytes, None as None. Raises InvalidRecord for anything else."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"a {what} that is not UTF-8: {error.reason}") from None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidRecord(f"a {what} is str, bytes or None, not {type(value).__name__}")


def key_bytes(key: Text) -> bytes:
    """A table's key, as bytes. Raises InvalidRecord, for None too."""
    found = encoded(key, "key")
    if found is None:
        raise InvalidRecord("a table needs a key: str or bytes, not None")
    return found


def headers(given: HeadersIn | None) -> Headers:
    """Pairs of (name, bytes or None), in order. Raises InvalidRecord."""
    if not given:
        return ()
    try:
        pairs = list(given.items() if isinstance(given, Mapping) else given)
        found = tuple((name, encoded(value, "header")) for name, value in pairs)
    except (TypeError, ValueError):
        raise InvalidRecord("headers are a mapping or pairs of name and value") from None
    for name, _ in found:
        if type(name) is not str:
            raise InvalidRecord("a header's name is a str")
        encoded(name, "header's name")
    return found


def milliseconds(time: Time, what: str = "timestamp") -> int:
    """Ms since the epoch. Raises InvalidRecord for a datetime without a time zone."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise InvalidRecord(f"a {what} needs a time zone: {time!r} has none (datetime.now(timezone.utc) has)")
        return round(time.timestamp() * 1000)
    if type(time) is not int:
        raise InvalidRecord(f"a {what} is an int of ms or an aware datetime, not {type(time).__name__}")
    return time


def event_time(time: Time) -> int:
    """As `milliseconds`, for an event; -1: no timestamp. Raises InvalidTimestamp for a time before 1970, and for one
    that does not fit 64 bits."""
    found = milliseconds(time)
    if found < NO_TIMESTAMP:
        raise InvalidTimestamp(f"the timestamp {found} is before 1970; -1 stands for no timestamp")
    if found > MAX_I64:
        raise InvalidTimestamp(f"the timestamp {found} is not in ms: the largest is 2^63 - 1")
    return found


def start(given: StartAt) -> tuple[str, int | None]:
    """The values of a request's fields `start` and `start_at`. Raises InvalidRequest."""
    if isinstance(given, datetime):
        return "timestamp", milliseconds(given, "start")
    if type(given) is int:
        if given < 0:
            raise InvalidRequest(f"start={given}: an offset is not negative; there are 'earliest' and 'latest'")
        return "offset", given
    if given == "earliest" or given == "latest":
        return given, None
    raise InvalidRequest(f"start={given!r}: give 'earliest', 'latest', an offset (int) or an aware datetime")


def expected(given: Expected | None) -> int | None:
    """The protocol's number for an expected offset: -1 for "absent". Raises InvalidRequest."""
    if given is None:
        return None
    if given == "absent":
        return ABSENT
    if type(given) is int and 0 <= given <= MAX_I64:
        return given
    raise InvalidRequest(f"expect={given!r}: give the key's current offset, or 'absent'")


def names(given: str | Iterable[str]) -> list[str]:
    """The names of one topic or several, as a list."""
    return [given] if isinstance(given, str) else list(given)
