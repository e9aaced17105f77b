"""The servers that are compared: Krappy and Apache Kafka, each with its default durability and with the other's."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from krappy.wire.kafka import ApiKey, decode_response, encode_request
from tests.compat.admin import Admin
from tests.compat.servers import KafkaServer, KrappyServer, Server
from tests.peers.driver import drive
from tests.peers.report import note
from tests.process import spawned
from tests.security.authority import Authority

PATIENCE = 120.0


Make = Callable[[Path, str], Server]  # makes a server from a folder and a certificate


def _krappy(durability: str) -> Make:
    settings = {"launch": spawned, "durability": durability, "log_level": "warning"}
    return lambda folder, pem: KrappyServer(folder, certificate=pem, **settings)


def _kafka(heap: str = "1g", **settings: Any) -> Make:
    return lambda folder, pem: KafkaServer(folder, heap=heap, certificate=pem, **settings)


# What an operator of Kafka would set for speed on a machine of two cores: fewer threads, which do not push each other
# off the processors, socket buffers for large batches (as in Kafka's example of a production server), and more heap.
TUNED = {
    "num.network.threads": 2,
    "num.io.threads": 4,
    "socket.send.buffer.bytes": 1 << 20,
    "socket.receive.buffer.bytes": 1 << 20,
}


# By default Kafka leaves writing to the disk to the operating system. With an interval of one message it syncs each
# append. Krappy does so by default (one sync serves all appends that wait).
KINDS: dict[str, tuple[Make, str]] = {
    "krappy": (_krappy("fsync"), "Krappy by default: an acknowledged event is on disk"),
    "krappy-os": (_krappy("os"), 'Krappy with durability = "os"'),
    "kafka-fsync": (_kafka(log_flush_interval_messages=1), "Apache Kafka, log.flush.interval.messages=1"),
    "kafka": (_kafka(), "Apache Kafka by default: an acknowledged event is in the page cache"),
    "kafka-tuned": (_kafka("2g", **TUNED), "the same, with the threads, buffers and heap that suit this machine"),
}


@dataclass
class Peer:
    """One running server. `authority`: that of its certificate. `results`: by measure, one value for each round."""

    name: str
    folder: Path
    authority: Authority
    results: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = KINDS[self.name][0](self.folder, self.authority.issue("127.0.0.1", pkcs8=True))
        self._topics = 0

    def start(self) -> None:
        """Starts it; returns once its metadata name a broker. The time until then is the measured start-up."""
        begun = time.monotonic()
        self.server.start()
        self._await_service()
        self.note("start-up (s)", time.monotonic() - begun)
        self.admin = Admin(self.server.address)

    def _await_service(self) -> None:
        end = time.monotonic() + PATIENCE
        while not _serves(self.server.address):
            if time.monotonic() > end:
                raise RuntimeError(f"{self.name} does not serve: {self.server.last_words()}")
            time.sleep(0.005)

    def note(self, measure: str, value: float) -> None:
        note(self.results, measure, value)

    def topic(self, partitions: int, **config: str) -> str:
        """Creates a topic; returns its name. `config`: with _ for the dots of the settings' names."""
        self._topics += 1
        name = f"peers-{self._topics}"
        self.admin.create(name, partitions, {key.replace("_", "."): value for key, value in config.items()})
        return name

    def drive(self, what: str, *arguments: object, tls: bool = False) -> dict[str, float]:
        """Runs the driver on it; returns its figures by name."""
        if tls:
            return drive(what, self.server.tls_address, *arguments, ca=self.authority.ca)
        return drive(what, self.server.address, *arguments)

    def rss(self) -> float:
        """Memory of its process in RAM, in MiB."""
        return rss(self.server.pid)

    def settle(self) -> None:
        """Returns once it answers, and is idle again."""
        self._await_service()
        before = -1.0
        while (now := self.cpu()) - before > 0.02:
            before = now
            time.sleep(1.5)

    def cpu(self) -> float:
        """CPU seconds of its process so far."""
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def has_table(self) -> bool:
        return self.name.startswith("krappy")

    def close(self) -> None:
        self.server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def rss(pid: int) -> float:
    """MiB of RAM that a process has."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"the process {pid} is gone")


def _serves(address: str) -> bool:
    """Whether the server's answer to Metadata has at least one broker."""
    host, _, port = address.partition(":")
    with contextlib.suppress(OSError, EOFError), socket.create_connection((host, int(port)), 1) as sock:
        sock.settimeout(5)
        sock.sendall(encode_request(ApiKey.METADATA, 12, 1, "peers", {"topics": []}))
        (size,) = struct.unpack(">i", _exactly(sock, 4))
        _, found = decode_response(ApiKey.METADATA, 12, memoryview(_exactly(sock, size)))
        return bool(found["brokers"])
    return False


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
