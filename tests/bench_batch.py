"""Speed of the record-batch codec: `python tests/bench_batch.py` prints JSON, medians in million records a second.

aiokafka's compiled reader runs in between on the same batches, as a measure of the machine. Not a test: nothing here
asserts a time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch

from krappy.partitioner import murmur2, partition_for
from krappy.records import codecs
from krappy.records.batch import check, decode, encode, keep, validate
from krappy.types import Headers

NOW = 1_700_000_000_000


class Shape(NamedTuple):
    keys: list[bytes | None] | None
    values: list[bytes | None]
    timestamps: int | list[int]
    headers: list[Headers] | None = None


def shapes(count: int) -> dict[str, Shape]:
    chance = random.Random(5)

    def column(shortest: int, longest: int) -> list[bytes | None]:
        return [chance.randbytes(chance.randint(shortest, longest)) for _ in range(count)]

    users: list[bytes | None] = [b"user-%d" % chance.randrange(10 ** chance.randrange(1, 7)) for _ in range(count)]
    rising = [NOW + index // 7 for index in range(count)]
    spread = [NOW + index * 37 for index in range(count)]
    trace: list[Headers] = [(("trace", chance.randbytes(16)), ("kind", b"order")) for _ in range(count)]
    return {
        "100 B, one layout, one time": Shape(column(16, 16), column(84, 84), NOW),
        "100 B, one layout, rising times": Shape(column(16, 16), column(84, 84), rising),
        "1 KB, one layout, rising times": Shape(column(16, 16), column(1000, 1000), rising),
        "100 B, no key, one layout": Shape(None, column(100, 100), rising),
        "mixed lengths, rising times": Shape(users, column(70, 200), rising),
        "mixed lengths, spread times": Shape(users, column(70, 200), spread),
        "short mixed lengths": Shape(users, column(0, 100), rising),
        "no key, mixed lengths": Shape(None, column(70, 200), rising),
        "mixed lengths, two headers": Shape(users, column(70, 200), rising, trace),
    }


def read_by_aiokafka(raw: bytes) -> None:
    for record in AiokafkaBatch(raw):
        _ = record.offset, record.key, record.value


def rate(work: Callable[[], object], count: int, rounds: int) -> float:
    """Median of `rounds`, in millions of `count` for each second of CPU time, which other programs disturb less."""
    work()
    took = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return round(count / median(took) / 1e6, 2)


def measure_records(count: int, rounds: int) -> dict[str, dict[str, float]]:
    found = {}
    for name, shape in shapes(count).items():

        def write(shape: Shape = shape) -> bytes:
            return encode(shape.keys, shape.values, timestamps=shape.timestamps, headers=shape.headers)

        raw = write()
        thinned = keep(raw, range(0, count, 3))
        assert thinned is not None
        found[name] = {
            "decode": rate(lambda raw=raw: decode(raw), count, rounds),  # type: ignore[misc]
            "aiokafka decode": rate(lambda raw=raw: read_by_aiokafka(raw), count, rounds),  # type: ignore[misc]
            "validate": rate(lambda raw=raw: validate(raw), count, rounds),  # type: ignore[misc]
            "encode": rate(write, count, rounds),
            "decode compacted": rate(lambda raw=thinned: decode(raw), (count + 2) // 3, rounds),  # type: ignore[misc]
            "keep every third": rate(lambda raw=raw: keep(raw, range(0, count, 3)), count, rounds),  # type: ignore[misc]
        }
    return found


def measure_rest(count: int, rounds: int) -> dict[str, float]:
    shape = shapes(count)["mixed lengths, rising times"]
    found = {}
    for codec in range(5):
        raw = encode(
            shape.keys, [b'{"id": %d, "state": "open"}' % i for i in range(count)], timestamps=NOW, codec=codec
        )
        found[f"decode {codecs.NAMES[codec]}, one layout or nearly"] = rate(lambda raw=raw: decode(raw), count, rounds)  # type: ignore[misc]
    single = encode([b"key"], [b"v" * 100], timestamps=NOW)
    found["check a batch of one"] = rate(lambda: check(single), 1, rounds * 50)
    found["decode a batch of one"] = rate(lambda: decode(single), 1, rounds * 50)
    found["validate a batch of one"] = rate(lambda: validate(single), 1, rounds * 50)
    found["encode a batch of one"] = rate(lambda: encode([b"key"], [b"v" * 100], timestamps=NOW), 1, rounds * 50)
    keys = [key for key in shape.keys or [] if key is not None]
    found["murmur2"] = rate(lambda: [murmur2(key) for key in keys], count, rounds)
    found["partition_for, keys that repeat"] = rate(lambda: [partition_for(key, 12) for key in keys], count, rounds)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="measure the record-batch codec")
    parser.add_argument("--records", type=int, default=1000, help="in a batch")
    parser.add_argument("--rounds", type=int, default=41)
    arguments = parser.parse_args()
    result = {
        "unit": "million records a second, median",
        "records in a batch": arguments.records,
        "records": measure_records(arguments.records, arguments.rounds),
        "rest": measure_rest(arguments.records, arguments.rounds),
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
