"""`krappy bench start`: how long a broker takes from its start to its first answer, and what it holds in memory then.

Timed: from starting the process on data that was closed cleanly until a client has connected and looked up a key.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from krappy.bench import load
from krappy.blocking import connect
from krappy.cli.errors import Failure
from krappy.cli.spawn import spawn_broker

TOPIC, PARTITIONS, KEYS, RECORD_BYTES, CHUNK = "krappy-bench-start", 4, 100_000, 1024, 5_000
SETTLE_S = 1.0  # after its first answer, before its memory is looked at


def start(megabytes: int, durability: str, rounds: int) -> dict[str, Any]:
    """Fills a broker of its own with `megabytes` of events, then starts it `rounds` times."""
    settings = {"durability": durability}
    events = load.make(min(megabytes * 1000, KEYS), RECORD_BYTES, KEYS)
    seconds: list[float] = []
    idle: list[float] = []
    with tempfile.TemporaryDirectory(prefix="krappy-") as folder:
        data = Path(folder) / "data"
        with spawn_broker(data, settings) as broker, connect(broker.address) as client:
            client.create_topic(TOPIC, partitions=PARTITIONS, config={"retention.ms": -1})
            written = 0
            while written < megabytes * 1_000_000:
                with client.producer(TOPIC) as producer:
                    for keys, values in events.batches(CHUNK):
                        producer.post_columns(keys, values)
                written += events.size
        for _ in range(rounds):
            began = time.perf_counter()
            with spawn_broker(data, settings) as broker, connect(broker.address) as client:
                if client.table(TOPIC).get(events.keys[0]) is None:
                    raise Failure("a key that was stored was not found: this broker has lost an event")
                seconds.append(time.perf_counter() - began)
                time.sleep(SETTLE_S)
                idle.append(_resident(broker.pid))
    return {
        "bench": "start",
        "megabytes": round(written / 1e6),
        "rounds": rounds,
        "seconds": round(statistics.median(seconds), 3),
        "seconds_min": round(min(seconds), 3),
        "seconds_max": round(max(seconds), 3),
        "idle_megabytes": round(statistics.median(idle), 1),
    }


def _resident(pid: int) -> float:
    """Memory of a process in MB (proc(5))."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise Failure(f"/proc/{pid}/status names no VmRSS")
