"""Mangled examples of PROTOCOL.md: bytes that began as right ones. The readers of either side raise only ProtocolError
and InvalidRequest, and whatever they understand can be written again.

`python tests/fuzz/test_fuzz_wire.py --seconds 600` searches for as long as one likes, and prints the bytes that break
the rule.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import krappy.wire
from krappy.clients.conversation import Conversation
from krappy.errors import ConnectionLost, InvalidRequest, ProtocolError
from krappy.wire import messages
from krappy.wire.frames import FrameReader

ROUNDS = 4000
DOCUMENT = (Path(krappy.wire.__file__).parent / "PROTOCOL.md").read_text("utf-8")


def seeds() -> list[bytes]:
    found = []
    for block in re.findall(r"^```(?:frame|error)\n.*?\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL):
        lines = [re.split(r"\s{2,}", line)[0] for line in block.splitlines()]
        found.append(bytes.fromhex(" ".join(lines)))
    return found


SEEDS = seeds()
INTERESTING = [
    b"\x00",
    b"\xff",
    b"\xc0",
    b"\xc1",
    b"\xdd\xff\xff\xff\xff",
    b"\xc6\x7f\xff\xff\xff",
    b"\xd4\xff\x00",
    b"\x91",
]


def mangled(chance: random.Random) -> bytes:
    data = bytearray(b"".join(chance.choices(SEEDS, k=chance.randint(1, 3))))
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(data):
                data[at] = chance.randrange(256)
            case 2:
                data[at:at] = chance.choice(INTERESTING) * chance.randint(1, 3)
            case 3:
                del data[at : at + chance.randint(1, 8)]
            case 4:
                other = chance.choice(SEEDS)
                data[at : at + 8] = other[: chance.randrange(len(other))]
            case 5:
                data[at : at + 4] = (chance.randrange(2**32)).to_bytes(4, "big")
    return bytes(data)


def read(data: bytes) -> int:
    """Reads as a broker and as a client; returns how many requests were understood."""
    understood = 0
    reader = FrameReader(1 << 16)
    reader.feed(data)
    with suppress(ProtocolError):
        for kind, body in reader.frames():
            values = messages.unpack(body)
            messages.take_id(values)
            cls = messages.REQUESTS.get(kind)
            with suppress(InvalidRequest):
                if cls is not None:
                    messages.parse(cls, values).frame(1)
                    understood += 1
    conversation = Conversation(limit=1 << 16)
    for answer_class in messages.ANSWERS.values():
        for _ in range(3):
            conversation.ask(messages.Ping(), answer_class, lambda answer: None)
    with suppress(ProtocolError, ConnectionLost):
        conversation.receive(data)
    return understood


def test_mangled_examples() -> None:
    chance = random.Random(7)
    understood = sum(read(mangled(chance)) for _ in range(ROUNDS))
    assert understood > ROUNDS / 20  # not everything is refused at the first byte


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    options = parser.parse_args()
    chance = random.Random(options.seed)
    end, rounds = time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        data = mangled(chance)
        try:
            read(data)
        except Exception as error:
            sys.stdout.write(f"{error!r} from {data.hex()}\n")
            return 1
        rounds += 1
    sys.stdout.write(f"{rounds} rounds, seed {options.seed}: the rule holds\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
