"""A worker process of the demos: it reads events of a group, notes each in a file, and acknowledges them.

    python -m krappy.demos.worker ADDRESS TOPIC GROUP FILE [SECONDS]

A note is (partition, offset, deliveries, process). It is written before the acknowledgement, because a worker must do
its work before it acknowledges it. SECONDS: the time that it works on each event. It ends on SIGTERM, and when its
parent process has ended.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from krappy import blocking
from krappy.clients.events import EventBatch

LEASE_MS = 60_000  # much longer than a worker needs on a busy machine; one that dies gives its leases back at once
NOTE = struct.Struct(">IQII")


class Note(NamedTuple):
    """One event that a worker has done."""

    partition: int
    offset: int
    deliveries: int
    process: int


def start(address: str, topic: str, group: str, file: Path, seconds: float = 0.0) -> subprocess.Popen[bytes]:
    """Starts a worker as a child process."""
    command = [sys.executable, "-m", "krappy.demos.worker", address, topic, group, str(file), str(seconds)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def read_notes(file: Path) -> list[Note]:
    """The notes that a worker has written so far."""
    data = file.read_bytes() if file.exists() else b""
    whole = len(data) // NOTE.size * NOTE.size
    return [Note(*fields) for fields in NOTE.iter_unpack(data[:whole])]


def count_notes(file: Path) -> int:
    return file.stat().st_size // NOTE.size if file.exists() else 0


def work(address: str, topic: str, group: str, file: str, seconds: float) -> None:
    """Runs the worker in this process. `seconds`: per event."""
    parent = os.getppid()
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with (
        blocking.connect(address) as client,
        client.consumer(topic, group=group, max_records=20 if seconds else 500, lease_ms=LEASE_MS) as consumer,
    ):
        for batch in consumer.batches():
            if seconds:
                for row in range(len(batch)):
                    time.sleep(seconds)
                    _note(out, batch.cut(row, row + 1))
                    consumer.ack(batch.cut(row, row + 1), wait=True)  # so a crash can repeat this one alone
            else:
                _note(out, batch)
                consumer.ack(batch)
            if os.getppid() != parent:
                return


def _note(out: int, batch: EventBatch) -> None:
    process = os.getpid()
    os.write(out, b"".join(NOTE.pack(batch.partition, offset, batch.deliveries, process) for offset in batch.offsets))


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], float((sys.argv[5:] or ["0"])[0]))
