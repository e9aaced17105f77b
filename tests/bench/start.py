"""How long a broker takes from its start to its first answer, and its memory then.

Timed: from the start of the process, on data that was closed cleanly or left by a SIGKILL, until it listens, and until
a client has connected and looked up a key. The answer waits until the view has folded the events that it still lacks.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from krappy.bench import load
from krappy.blocking import Client, connect
from krappy.cli.errors import Failure
from krappy.cli.progress import progress
from krappy.cli.spawn import Spawned, spawn_broker

TOPIC, KEYS, RECORD_BYTES, CHUNK = "krappy-bench-start", 100_000, 1024, 5_000
ANSWER_S = 600.0  # a lookup waits until the view has all events again
LINGER_MS = 200  # with less, each of a thousand partitions would get batches of a few events
SETTLE_S = 1.0  # from its first answer until its memory is measured
TAIL = (
    256_000_000  # bytes written before each kill but the first: as much as the logs may have beyond their checkpoints
)


def start(
    megabytes: int, durability: str, rounds: int, *, partitions: int = 4, kill: bool = False, refold: bool = False
) -> dict[str, Any]:
    """Fills a broker of its own with `megabytes` of events, then starts it `rounds` times.

    `kill`: each time it is ended by SIGKILL as soon as its last event is acknowledged; raises Failure if an
    acknowledged event is lost by that. `refold`: its tables are deleted before each start.
    """
    run = _Run(megabytes, durability, kill)
    ready: list[float] = []
    seconds: list[float] = []
    idle: list[float] = []
    with tempfile.TemporaryDirectory(prefix="krappy-") as folder:
        data = Path(folder) / "data"
        with run.broker(data) as broker, connect(broker.address, timeout=ANSWER_S) as client:
            client.create_topic(TOPIC, partitions=partitions, config={"retention.ms": -1})
            run.fill(client, megabytes * 1_000_000)
        for number in range(rounds):
            if refold:
                shutil.rmtree(data / "views")
            began = time.perf_counter()
            with run.broker(data, kill=number < rounds - 1) as broker:
                listening = time.perf_counter()
                with connect(broker.address, timeout=ANSWER_S) as client:
                    if client.table(TOPIC).get(run.events.keys[0]) is None:
                        raise Failure("a key that was stored was not found: this broker has lost an event")
                    seconds.append(time.perf_counter() - began)
                    ready.append(listening - began)
                    run.check(client)
                    time.sleep(SETTLE_S)
                    idle.append(_resident(broker.pid))
                    if kill and number < rounds - 1:
                        run.fill(client, min(TAIL, megabytes * 1_000_000))
    return {
        "bench": "start",
        "megabytes": round(run.written / 1e6),
        "partitions": partitions,
        "killed": kill,
        "refolded": refold,
        "rounds": rounds,
        "ready_seconds": round(statistics.median(ready), 3),
        "seconds": round(statistics.median(seconds), 3),
        "seconds_min": round(min(seconds), 3),
        "seconds_max": round(max(seconds), 3),
        "idle_megabytes": round(statistics.median(idle), 1),
    }


class _Run:
    def __init__(self, megabytes: int, durability: str, kill: bool) -> None:
        self.events = load.make(min(megabytes * 1000, KEYS), RECORD_BYTES, KEYS)
        self.written = 0  # bytes
        self._settings = {"durability": durability}
        self._kill = kill
        self._acknowledged = 0

    @contextmanager
    def broker(self, data: Path, *, kill: bool = True) -> Iterator[Spawned]:
        with spawn_broker(data, self._settings) as broker:
            yield broker
            if self._kill and kill:
                broker.process.kill()
                broker.process.wait()

    def fill(self, client: Client, size: int) -> None:
        """Writes `size` bytes; returns when all of them are acknowledged."""
        wanted = self.written + size
        with progress(size) as tell:
            while self.written < wanted:
                with client.producer(TOPIC, linger_ms=LINGER_MS, timeout=ANSWER_S) as producer:
                    for keys, values in self.events.batches(CHUNK):
                        producer.post_columns(keys, values)
                        tell("writing", RECORD_BYTES * len(keys))
                self.written += self.events.size
                self._acknowledged += len(self.events)

    def check(self, client: Client) -> None:
        """Raises Failure unless every acknowledged event is there."""
        found = sum(client.offsets(TOPIC).values())
        if found < self._acknowledged:
            raise Failure(f"{self._acknowledged} events were acknowledged and {found} are there: this broker lost some")


def _resident(pid: int) -> float:
    """Memory of a process in RAM, in MB (proc(5))."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise Failure(f"/proc/{pid}/status names no VmRSS")
