"""Measures NATS JetStream KV beside Krappy, in one run on one machine: `make peers-kv`. Needs Go, to build the server.

It measures how tables are used: values are put, got, and all sent to a new reader. Each server is measured by the
client that its makers use: NATS by a program in Go (nats/main.go), Krappy by `krappy bench`, whose client is in Python.
Each put is acknowledged; a key and its value have 100 bytes together. The servers run all the time and take turns; only
one of them works at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from krappy import blocking
from tests.compat.tools import CACHE, Missing
from tests.peers.command import compare, parser
from tests.peers.report import note, summary
from tests.process import ROOT, BrokerProcess, spawned

SOURCE = Path(__file__).with_name("nats")
BUILT = CACHE.parent / "peers"
SIZE, KEYS = 100, 10_000
PATIENCE = 120.0
PAIRS = (("krappy", "nats-sync"), ("krappy-os", "nats"), ("krappy", "nats"))


class Server(Protocol):
    """A server on a data folder of its own."""

    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def put(self, count: int) -> dict[str, float]: ...
    def put_one(self, count: int, clients: int) -> dict[str, float]: ...
    def get(self, count: int, clients: int, window: int) -> dict[str, float]: ...
    def all(self, keys: int) -> dict[str, float]: ...


class Krappy:
    def __init__(self, folder: Path, durability: str) -> None:
        self._process = BrokerProcess(folder / "data", launch=spawned, durability=durability, log_level="warning")
        self.start, self.kill = self._process.start, self._process.kill

    @property
    def pid(self) -> int:
        return self._process.pid

    def _bench(self, what: str, *flags: str, **options: int) -> dict[str, float]:
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "krappy", "bench", what, *flags, *arguments]
        command += ["--size", str(SIZE), "--rounds", "1"]
        found = json.loads(_output([*command, "--address", self._process.address, "--json"]))["results"][0]
        seconds = found["count"] / found["per_second"]
        return {
            "seconds": seconds,
            "done": found["count"],
            "p50": found.get("p50_ms", 0),
            "p99": found.get("p99_ms", 0),
        }

    def put(self, count: int) -> dict[str, float]:
        return self._bench("produce", count=count, keys=KEYS)

    def put_one(self, count: int, clients: int) -> dict[str, float]:
        return self._bench("produce", "--single", count=count, keys=KEYS, connections=clients, window=1)

    def get(self, count: int, clients: int, window: int) -> dict[str, float]:
        return self._bench("get", count=count, keys=KEYS, clients=clients, window=window)

    def all(self, keys: int) -> dict[str, float]:
        found = self._bench("scan", count=keys)
        with blocking.connect(self._process.address) as client:  # data for the measure of the next start
            client.create_topic("kept", config={"cleanup.policy": "compact"}, if_absent=True)
            with client.producer("kept") as producer:
                producer.send_many([(b"k%011d" % number, bytes(SIZE - 12)) for number in range(keys)])
        return found


class Nats:
    def __init__(self, folder: Path, sync: str, share: int = 1) -> None:
        """`share`: the number of puts is divided by it, for a slow server."""
        self._share = share
        folder.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._config = folder / "nats.conf"
        store = f'jetstream {{ store_dir: "{folder / "data"}", sync_interval: {sync} }}\n'
        self._config.write_text(f'listen: "127.0.0.1:{self._port}"\nlog_file: "{folder / "log"}"\n{store}')
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns once it answers a ping; it recovers its data before it listens."""
        self._process = subprocess.Popen([BUILT / "nats-server", "-c", self._config], stdin=subprocess.DEVNULL)
        end = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"nats-server does not serve: {self._config.parent / 'log'}")
            time.sleep(0.005)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1) as sock, sock.makefile("rb") as lines:
                sock.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
                return lines.readline().startswith(b"INFO ") and lines.readline() == b"PONG\r\n"
        except OSError:
            return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _drive(self, what: str, *arguments: int) -> dict[str, float]:
        command = [str(BUILT / "nats-driver"), f"127.0.0.1:{self._port}", what, *map(str, arguments)]
        found: dict[str, float] = json.loads(_output(command))
        return found

    def put(self, count: int) -> dict[str, float]:
        return self._drive("put", count // self._share, KEYS, SIZE)

    def put_one(self, count: int, clients: int) -> dict[str, float]:
        return self._drive("put-one", count // self._share, KEYS, SIZE, clients)

    def get(self, count: int, clients: int, window: int) -> dict[str, float]:
        return self._drive("get", count, KEYS, SIZE, clients, window)

    def all(self, keys: int) -> dict[str, float]:
        return self._drive("all", keys, SIZE)


KINDS: dict[str, tuple[Callable[[Path], Server], str]] = {
    "krappy": (lambda folder: Krappy(folder, "fsync"), "Krappy by default: an acknowledged event is on disk"),
    "krappy-os": (lambda folder: Krappy(folder, "os"), 'Krappy with durability = "os"'),
    "nats-sync": (lambda folder: Nats(folder, "always", share=10), "NATS JetStream KV, sync_interval: always"),
    "nats": (lambda folder: Nats(folder, '"2m"'), "NATS JetStream KV by default: synced every two minutes"),
}


@dataclass
class Peer:
    """One running server. `results`: by measure, one value for each round."""

    name: str
    server: Server
    results: dict[str, list[float]] = field(default_factory=dict)

    def note(self, measure: str, value: float) -> None:
        note(self.results, measure, value)

    def start(self, measure: str) -> None:
        began = time.monotonic()
        self.server.start()
        self.note(measure, time.monotonic() - began)

    def rss(self) -> float:
        """Memory of its process in RAM, in MiB."""
        [line] = [line for line in self._proc("status").splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) / 1024

    def cpu(self) -> float:
        """CPU seconds of its process so far."""
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self.server.pid}/{name}").read_text()

    def measure(self, scale: float) -> None:
        """Takes all measures, once."""
        server = self.server
        before = self.cpu()
        found = server.put(int(500_000 * scale))
        self.note("put, pipelined, a second", found["done"] / found["seconds"])
        self.note("CPU of the server for a put (µs)", (self.cpu() - before) / found["done"] * 1e6)
        found = server.put_one(int(50_000 * scale), 16)
        self.note("put, 16 clients, one at a time, a second", found["done"] / found["seconds"])
        found = server.get(int(100_000 * scale), 16, 1)
        self.note("get, 16 clients, one at a time, a second", found["done"] / found["seconds"])
        found = server.get(int(200_000 * scale), 16, 16)
        self.note("get, 16 clients, 16 at a time, a second", found["done"] / found["seconds"])
        found = server.get(int(20_000 * scale), 1, 1)
        self.note("latency of a lone get, p50 (ms)", found["p50"])
        self.note("latency of a lone get, p99 (ms)", found["p99"])
        found = server.all(int(100_000 * scale))
        self.note("all entries of a table, a second", found["done"] / found["seconds"])
        self.note("memory loaded (MiB)", self.rss())
        server.kill()
        self.start("start-up after SIGKILL (s)")


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def build() -> None:
    """Builds NATS's server and the driver, in the versions of nats/go.mod. Raises Missing."""
    if shutil.which("go") is None:
        raise Missing("no go on the PATH (Debian's package is called golang; 1.24 or newer)")
    BUILT.mkdir(parents=True, exist_ok=True)
    for name, what in (("nats-server", "github.com/nats-io/nats-server/v2"), ("nats-driver", ".")):
        sys.stderr.write(f"building {name}\n")
        command = ["go", "build", "-o", str(BUILT / name), what]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=SOURCE, check=False)
        if done.returncode:
            raise Missing(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")


def run(names: list[str], rounds: int, scale: float, folder: Path) -> dict[str, Any]:
    """Runs all rounds on all servers; returns the summary."""
    peers = [Peer(name, KINDS[name][0](folder / name)) for name in names]
    try:
        for peer in peers:
            peer.start("start-up, empty (s)")
            peer.note("memory idle (MiB)", peer.rss())
        for number in range(rounds):
            for peer in peers if number % 2 == 0 else reversed(peers):
                sys.stderr.write(f"round {number + 1}: {peer.name}\n")
                peer.measure(scale)
        meanings = {name: text for name, (_, text) in KINDS.items()}
        return summary({peer.name: peer.results for peer in peers}, meanings, PAIRS)
    finally:
        for peer in peers:
            peer.server.kill()


def main(arguments: list[str] | None = None) -> int:
    asked = parser("peers-kv", __doc__, KINDS, "of the number of puts and gets").parse_args(arguments)
    return compare(asked, build, lambda folder: run(asked.servers, asked.rounds, asked.scale, folder))


if __name__ == "__main__":
    sys.exit(main())
