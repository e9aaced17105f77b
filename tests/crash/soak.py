"""A long test (`make soak`): opens and closes connections to one broker for minutes, puts a mixed load on one for as
long, then kills brokers under load.

    python tests/crash/soak.py --minutes 10 [--seed N]

Prints one line of JSON for each part. Exit status 1: memory or file descriptors grew, or a kill lost something.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from krappy.records import batch
from krappy.wire import messages as m
from tests.crash.life import Life
from tests.crash.mixed import middle, mixed
from tests.peer import Peer
from tests.process import BrokerProcess, Launcher

WARM_UP = 0.25  # the first part of the time, in which caches and allocators settle, does not count
GROWTH_MIB = 8.0  # after the warm-up memory may grow by so much, from the first third of the time to the last third
GROWTH_FDS = 8
TOPICS = 5
CYCLES = 20


def visit(address: str, random: Random) -> None:
    """Opens a connection for some registrations, publishes, reads and lookups, and then just closes it."""
    topic = f"t{random.randrange(TOPICS)}"
    with Peer(address) as peer:
        producer = peer.ask(m.ProducerRegistration(topic), m.ProducerRegistered)
        keys: list[bytes | None] = [b"k%d" % random.randrange(500) for _ in range(random.randrange(1, 60))]
        data = batch.encode(keys, [b"v" * random.randrange(200)] * len(keys), timestamps=1_700_000_000_000)
        peer.ask(m.Batch(producer.handle, 0, data), m.BatchStored)
        consumer = peer.ask(m.ConsumerRegistration([topic], start="latest"), m.ConsumerRegistered)
        group = peer.ask(m.ConsumerRegistration([topic], group="soak", start="latest"), m.ConsumerRegistered)
        peer.ask(m.Message(producer.handle, b"last", keys[0]), m.MessageStored)
        peer.ask(m.Get(topic, keys[0] or b""), m.Got)
        peer.ask(m.Scan(topic, max_entries=10), m.Scanned)
        peer.ask(m.Poll(consumer.handle, max_wait=10), m.Polled)
        peer.ask(m.Poll(group.handle, max_wait=10), m.Polled)
        peer.send(m.Watch(topic))
        peer.send(m.Poll(consumer.handle, max_wait=60_000))


def churn(folder: Path, launch: Launcher, seconds: float, random: Random) -> dict[str, object]:
    """Opens connections one after another; returns how the broker's memory and descriptors changed meanwhile."""
    samples: list[tuple[float, float, int]] = []
    visits = 0
    settings: dict[str, Any] = {"durability": "os", "view_memtable_bytes": 4 << 20, "retention_check_ms": 1000}
    settings["view_cache_bytes"] = 1 << 20  # a larger cache would grow all the time, and hide a leak
    with BrokerProcess(folder / "data", launch=launch, **settings) as broker:
        with Peer(broker.address) as peer:
            for number in range(TOPICS):
                limits = {"retention.bytes": 1 << 20, "segment.bytes": 256 << 10}
                peer.ask(m.CreateTopic(f"t{number}", config=limits), m.TopicCreated)
        began = next_sample = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            visit(broker.address, random)
            visits += 1
            if now >= next_sample:
                samples.append((now - began, broker.rss() / 2**20, sum(broker.fds().values())))
                next_sample = now + max(1.0, seconds / 200)
        status = broker.stop()
    settled = [sample for sample in samples if sample[0] >= seconds * WARM_UP]
    third = max(1, len(settled) // 3)
    grown = middle([rss for _, rss, _ in settled[-third:]]) - middle([rss for _, rss, _ in settled[:third]])
    fds = middle([fds for *_, fds in settled[-third:]]) - middle([fds for *_, fds in settled[:third]])
    return {
        "part": "churn",
        "seconds": round(seconds),
        "connections": visits,
        "rss_mib_first": round(settled[0][1], 1),
        "rss_mib_last": round(settled[-1][1], 1),
        "rss_mib_grown": round(grown, 1),
        "fds_grown": fds,
        "stopped_with": status,
        "ok": grown <= GROWTH_MIB and fds <= GROWTH_FDS and status == 0,
    }


def kills(folder: Path, launch: Launcher, seconds: float, random: Random) -> dict[str, object]:
    """Runs lives of `CYCLES` kills each until the time is over. Raises AssertionError, which names the seed."""
    lives = killed = acknowledged = 0
    end = time.monotonic() + seconds
    while not lives or time.monotonic() < end:
        life = Life(folder / str(lives), random.getrandbits(32), launch)
        life.run(CYCLES)
        lives, killed, acknowledged = lives + 1, killed + life.kills, acknowledged + life.acknowledged
    return {"part": "kills", "lives": lives, "kills": killed, "acknowledged": acknowledged, "ok": True}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="for each of the three parts")
    parser.add_argument("--seed", type=int, default=Random().getrandbits(32))
    options = parser.parse_args()
    print(json.dumps({"seed": options.seed}), flush=True)  # noqa: T201
    failed = False
    with tempfile.TemporaryDirectory() as folder, Launcher() as launch:
        for part in (churn, mixed, kills):
            found = part(Path(folder) / part.__name__, launch, options.minutes * 60, Random(options.seed))
            print(json.dumps(found), flush=True)  # noqa: T201
            failed = failed or not found["ok"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
