"""Every (API, version, direction) that is spoken, and random messages that other implementations can hold, too."""

from __future__ import annotations

import random
import struct
from typing import Any, NamedTuple

from krappy.wire.kafka import (
    RANGES,
    ApiKey,
    Code,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from krappy.wire.kafka.notation import FIXED, Field, at, read
from krappy.wire.kafka.schema import FIRST_FLEXIBLE, TABLE

LARGEST_TIME = 1 << 40  # ms; other implementations make a date of times


class Kind(NamedTuple):
    key: ApiKey
    version: int
    response: bool

    def fields(self) -> tuple[Field, ...]:
        shape = TABLE[self.key]
        return at(read(shape.response if self.response else shape.request), self.version)

    def encode(self, message: dict[str, Any]) -> bytes:
        """The message's body only."""
        if self.response:
            whole = b"".join(bytes(part) for part in encode_response(self.key, self.version, 0, message))
            return whole[len(frame_of_nothing(self)) :]
        return encode_request(self.key, self.version, 0, None, message)[len(frame_of_nothing(self)) :]

    def decode(self, body: bytes) -> dict[str, Any]:
        if self.response:
            return decode_response(self.key, self.version, memoryview(frame_of_nothing(self)[4:] + body))[1]
        return decode_request(self.key, self.version, memoryview(body))

    def __str__(self) -> str:
        return f"{self.key.name}-{self.version}-{'response' if self.response else 'request'}"


def frame_of_nothing(kind: Kind) -> bytes:
    """A size and a header without a body, both as long as in every message of this kind."""
    flexible = kind.version >= FIRST_FLEXIBLE[kind.key]
    if kind.response:
        return bytes(8 + (flexible and kind.key is not ApiKey.API_VERSIONS))
    return bytes(14 + flexible)


KINDS = [
    Kind(key, version, response)
    for key, (low, high) in RANGES.items()
    for version in range(low, high + 1)
    for response in (False, True)
]


def message(chance: random.Random, fields: tuple[Field, ...]) -> dict[str, Any]:
    """A message with a value for every field that the version has."""
    return {field.name: value(chance, field) for field in fields if field.present}


def value(chance: random.Random, field: Field) -> Any:
    if field.nullable and chance.random() < 0.3:
        return None
    if field.array:
        return [
            single(chance, field) for _ in range(chance.choice((0, 1, 1, 2, 3, 130 if field.kind != "struct" else 4)))
        ]
    return single(chance, field)


def single(chance: random.Random, field: Field) -> Any:
    match field.kind:
        case "struct":
            return message(chance, field.fields)
        case "string":
            return chance.choice(("", "a", "topic-1", "thé", "x" * 127, "y" * 128, "z" * chance.choice((300, 16400))))
        case "bytes" | "records":
            return chance.randbytes(chance.choice((0, 1, 61, 126, 127, 128, 5000)))
        case "uuid":
            return chance.randbytes(16)
        case "bool":
            return chance.random() < 0.5
        case "float64":
            return chance.choice((0.0, -1.5, 1e300))
    return number(chance, field)


def number(chance: random.Random, field: Field) -> int:
    if field.name.endswith("error_code"):
        return int(chance.choice(list(Code)))
    bits = 8 * struct.calcsize(">" + FIXED[field.kind])
    if "timestamp" in field.name or field.name.endswith("_ms"):
        return chance.randrange(min(LARGEST_TIME, 1 << bits - 1))
    low, high = (0, (1 << bits) - 1) if field.kind.startswith("u") else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return chance.choice((0, 1, -1 if low else 1, low, high, chance.randint(low, high)))


def leanest(fields: tuple[Field, ...]) -> dict[str, Any]:
    """A message of the fewest bytes that it can have with one element in each array of structs."""
    found: dict[str, Any] = {}
    for field in fields:
        if field.present and field.kind == "struct":
            inner = leanest(field.fields)
            found[field.name] = [inner] if field.array else None if field.nullable else inner
        elif field.present:
            least = [] if field.array else "" if field.kind == "string" else eval(field.fresh())
            found[field.name] = None if field.nullable else least
    return found


def plain(found: Any) -> Any:
    """A decoded message with its memoryviews as bytes, so that it can be compared."""
    if isinstance(found, dict):
        return {key: plain(inner) for key, inner in found.items()}
    if isinstance(found, list):
        return [plain(inner) for inner in found]
    return bytes(found) if isinstance(found, memoryview) else found


def expected(given: Any, fields: tuple[Field, ...]) -> dict[str, Any]:
    """What reading `given` back must find: with the defaults of fields that the version lacks."""
    return {field.name: _expected(given, field) for field in fields}


def _expected(given: Any, field: Field) -> Any:
    if not field.present:
        return eval(field.fresh())
    inner = given[field.name]
    if inner is None:
        return inner
    if field.kind == "struct":
        inner = [expected(one, field.fields) for one in inner] if field.array else expected(inner, field.fields)
    return inner if field.once is None else once(inner, field)


def once(elements: list[Any], field: Field) -> list[Any]:
    """What a reader of an array that is a set makes of its elements: each key once, at the place of its
    first element."""
    kept: list[Any] = []
    for element in elements:
        if not field.once:
            kept += [element] if element not in kept else []
            continue
        at = next((at for at, one in enumerate(kept) if all(one[name] == element[name] for name in field.once)), None)
        if at is None:
            kept.append(element)
            continue
        joined = dict(element)
        for inner in field.fields:
            if inner.present and inner.once is not None:
                both = (kept[at][inner.name], element[inner.name])
                joined[inner.name] = None if None in both else once([*both[0], *both[1]], inner)
        kept[at] = joined
    return kept
