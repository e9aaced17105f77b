"""Kafka's messages, mangled: the readers raise only ProtocolError, and whatever they understand can be written again.

`python -m tests.fuzz.test_fuzz_kafka --seconds 600` searches for as long as one likes, and prints the bytes that break
the rule.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from contextlib import suppress
from functools import cache

from krappy.errors import ProtocolError
from krappy.wire.kafka import parse_header
from tests.wire.kafka.samples import KINDS, Kind, message

ROUNDS = 6000
INTERESTING = [
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\xff",
    b"\x00\x00",
    b"\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x80\x00",
    b"\xed\xa0\x80",
]


@cache
def seed(kind: Kind) -> bytes:
    """The body of a message, short enough that changes hit the fields that matter."""
    chance = random.Random(str(kind))
    return min((kind.encode(message(chance, kind.fields())) for _ in range(6)), key=lambda body: abs(len(body) - 150))


def mangled(chance: random.Random, data: bytearray) -> bytes:
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(data):
                data[at] = chance.randrange(256)
            case 2:
                data[at:at] = chance.choice(INTERESTING)
            case 3:
                piece = chance.choice(INTERESTING)
                data[at : at + len(piece)] = piece
            case 4:
                del data[at : at + chance.randint(1, 8)]
            case 5:
                data[at : at + chance.randint(0, 4)] = chance.randbytes(chance.randint(1, 8))
    return bytes(data)


def understood(kind: Kind, body: bytes) -> bool:
    """Reads a body, and writes what was read. The bytes may differ then (unknown tags are dropped), but not what they
    say."""
    try:
        found = kind.decode(body)
    except ProtocolError:
        return False
    again = kind.decode(kind.encode(found))
    assert again == found or "nan" in repr(found)
    return True


def test_mangled_messages() -> None:
    chance = random.Random(7)
    found = 0
    for number in range(ROUNDS):
        kind = KINDS[number % len(KINDS)]
        found += understood(kind, mangled(chance, bytearray(seed(kind))))
    assert ROUNDS / 20 < found < ROUNDS * 0.9  # not all is refused at once, and not too little is mangled


def test_chance_bytes() -> None:
    chance = random.Random(8)
    for kind in KINDS:
        for size in (0, 1, 7, 40):
            understood(kind, chance.randbytes(size))
            understood(kind, bytes(size))


def test_chance_headers() -> None:
    chance = random.Random(9)
    frame = bytes.fromhex("0003 0009 00000007 0002 6d65 01 00 02 aabb")
    for _ in range(ROUNDS // 2):
        with suppress(ProtocolError):
            parse_header(memoryview(mangled(chance, bytearray(frame))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    options = parser.parse_args()
    chance = random.Random(options.seed)
    end, rounds = time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        kind = chance.choice(KINDS)
        body = mangled(chance, bytearray(seed(kind)))
        try:
            understood(kind, body)
        except Exception as error:
            sys.stdout.write(f"{error!r} from {kind} {body.hex()}\n")
            return 1
        rounds += 1
    sys.stdout.write(f"{rounds} rounds, seed {options.seed}: the rule holds\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
