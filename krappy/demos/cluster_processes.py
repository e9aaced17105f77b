"""The processes of `krappy demo cluster`: a ZooKeeper and brokers, on 127.0.0.1, each of which ends with its `with`."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import krappy
from krappy.cli.errors import Failure

HOST = "127.0.0.1"
SECONDS = 60.0  # for a process to start or to end
# Where ZooKeeper's jars may be: where a checkout's tests put them, and where Debian and most guides do.
JARS = (
    Path(krappy.__file__).parent.parent / ".cache" / "zookeeper",
    Path("/opt/zookeeper/lib"),
    Path("/usr/share/java"),
)
JAVA = "-Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
NONE = (
    "this demo needs a ZooKeeper: give --zookeeper HOST:PORT of one that runs, or --jars FOLDER with ZooKeeper's jars, "
    "where java is installed (on Debian: apt-get install zookeeper)"
)


class OwnProcess:
    """A process that can be killed and started again. `log`: the file for what it says."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KRAPPY_")}
        with self.log.open("ab") as log:
            # Its stdin is a pipe that only this process holds, so that it can end when this process dies.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environ
            )
        return self._process

    @property
    def runs(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        """SIGKILL, by its pid."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def stop(self) -> None:
        """SIGTERM. Raises Failure if it does not end."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failure(f"a process did not end within {SECONDS:.0f} s: {self.last_words()}") from None
        self._end()

    def _end(self) -> None:
        assert self._process is not None
        with self._process:  # closes its pipes, and waits
            self._process = None

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class DemoBroker(OwnProcess):
    """`ports`: of the native protocol, Kafka's and the console."""

    def __init__(self, id: int, folder: Path, zookeeper: str, ports: tuple[int, int, int]) -> None:
        super().__init__(folder / f"broker-{id}.log")
        self.id, self.data = id, folder / f"broker-{id}"
        self.address, self.kafka, self.http = (f"{HOST}:{port}" for port in ports)
        self._zookeeper = zookeeper

    def start(self) -> None:
        """Raises Failure when it does not start."""
        settings = {
            "broker-id": str(self.id),
            "zookeeper-connect": self._zookeeper,
            "data": str(self.data),
            "listen-native": self.address,
            "listen-kafka": self.kafka,
            "listen-http": self.http,
            "ballast-bytes": "0",
        }
        flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
        process = self._run([sys.executable, "-m", "krappy", "serve", "--json", "--until-eof", *flags])
        assert process.stdout is not None
        if not process.stdout.readline():
            raise Failure(f"broker {self.id} did not start: {self.last_words()}")


class DemoZooKeeper(OwnProcess):
    """Keeps its data and its port when it is killed and started again."""

    def __init__(self, folder: Path, port: int, jars: Path) -> None:
        folder.mkdir()
        super().__init__(folder / "log")
        self.address = f"{HOST}:{port}"
        self._port, self._jars, self._file = port, jars, folder / "zoo.cfg"
        self._file.write_text(
            f"dataDir={folder}\nclientPort={port}\nclientPortAddress={HOST}\ntickTime=500\nminSessionTimeout=1000\n"
            "maxSessionTimeout=10000\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n"
        )

    def start(self) -> None:
        """Raises Failure when it does not start."""
        java = shutil.which("java")
        assert java is not None
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        process = self._run([java, *JAVA.split(), "-cp", f"{self._jars}/*", main, str(self._file)])
        end = time.monotonic() + SECONDS
        while not self._serves():
            if process.poll() is not None or time.monotonic() > end:
                raise Failure(f"ZooKeeper did not start: {self.last_words()}")
            time.sleep(0.1)

    def _serves(self) -> bool:
        try:
            with socket.create_connection((HOST, self._port), timeout=2) as asked:
                asked.sendall(b"srvr")
                return b"Mode: " in b"".join(iter(lambda: asked.recv(1 << 16), b""))
        except OSError:
            return False


def find_jars(given: Path | None) -> Path:
    """The folder of ZooKeeper's jars. Raises Failure if there is none, or no java."""
    for folder in [given] if given else JARS:
        if any(folder.glob("zookeeper*.jar")) and shutil.which("java"):
            return folder
    raise Failure(NONE)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, below those that systems give to outgoing connections."""
    found: list[int] = []
    with ExitStack() as stack:
        for port in random.sample(range(10_000, 20_000), 1000):
            if len(found) < count:
                with suppress(OSError):
                    stack.enter_context(socket.socket()).bind((HOST, port))
                    found.append(port)
    return found
