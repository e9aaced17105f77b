"""The server under test: Krappy, or Apache Kafka itself.

Every scenario is first known to be right: `KRAPPY_COMPAT_SERVER=kafka` runs them all against one Kafka node (KRaft,
from Maven's jars). Both keep their address over a restart.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.compat.clients.base import PATIENCE
from tests.compat.tools import java
from tests.process import LIFETIME, BrokerProcess, free_ports

UNDER_TEST = os.environ.get("KRAPPY_COMPAT_SERVER", "krappy")
CLUSTER = "a29tcGF0LXRlc3RzLTAwMQ"  # 16 bytes in base64url, as Kafka wants
REBALANCE_DELAY_MS = 200
RETENTION_MS = "604800000" if UNDER_TEST == "kafka" else "-1"  # the default for topics: with Krappy nothing expires


class Server(Protocol):
    address: str  # of the Kafka listener
    tls_address: str  # of a listener with TLS, if the server has a certificate
    data: Path

    def start(self) -> None: ...

    def stop(self) -> None:
        """Stops the server gracefully."""

    def kill(self) -> None:
        """Sends SIGKILL."""

    @property
    def pid(self) -> int: ...

    def segments(self, topic: str, partition: int) -> list[Path]:
        """The log files of a partition, in the order of their offsets."""

    def last_words(self) -> str: ...


class KrappyServer:
    """Krappy. `certificate`: PEM file with a certificate and its key, for a second listener."""

    def __init__(self, folder: Path, *, certificate: str = "", **settings: Any) -> None:
        self.address, self.tls_address = (f"127.0.0.1:{port}" for port in free_ports(2))
        self.data = folder / "data"
        listeners = self.address
        if certificate:
            listeners, settings["tls_certificate"] = f"PLAINTEXT://{listeners},SSL://{self.tls_address}", certificate
        self.broker = BrokerProcess(
            self.data,
            listen_kafka=listeners,
            group_initial_rebalance_delay_ms=REBALANCE_DELAY_MS,
            group_consumer_heartbeat_interval_ms=300,
            group_share_heartbeat_interval_ms=300,
            **settings,
        )

    def start(self) -> None:
        self.broker.start()

    def stop(self) -> None:
        assert self.broker.stop() == 0, self.last_words()

    def kill(self) -> None:
        self.broker.kill()

    @property
    def pid(self) -> int:
        return self.broker.pid

    def segments(self, topic: str, partition: int) -> list[Path]:
        return sorted((self.data / "topics").glob(f"{topic}-{partition}/*.log"))

    def last_words(self) -> str:
        return self.broker.last_words()


class KafkaServer:
    """Apache Kafka: broker and controller in one process, with little memory. Raises Missing without its jars."""

    def __init__(
        self,
        folder: Path,
        *,
        heap: str = "512m",
        node: int = 1,
        controllers: Sequence[int] = (),
        certificate: str = "",
        **settings: object,
    ) -> None:
        """`controllers`: the ports of a cluster's controllers, of which this is number `node`; empty: it is alone.
        `certificate`: PEM file with a certificate and its key, in PKCS 8, for a second listener."""
        folder.mkdir(parents=True, exist_ok=True)
        self._java, self._path = java("kafka")
        controllers = controllers or free_ports(1)
        controller, copies = controllers[node - 1], len(controllers)
        self.address, self.tls_address = (f"127.0.0.1:{port}" for port in free_ports(2))
        listeners = f"PLAINTEXT://{self.address}" + f",SSL://{self.tls_address}" * bool(certificate)
        self.data = folder / "kafka"
        self.log = folder / "kafka.log"
        self._heap = heap
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: threading.Timer | None = None
        self._file = folder / "server.properties"
        config = {
            "process.roles": "broker,controller",
            "node.id": node,
            "controller.quorum.voters": ",".join(f"{id}@127.0.0.1:{each}" for id, each in enumerate(controllers, 1)),
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.data,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": max(1, copies - 1),
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": max(1, copies - 1),
            "group.share.min.heartbeat.interval.ms": 300,
            "group.share.heartbeat.interval.ms": 300,
            "group.initial.rebalance.delay.ms": REBALANCE_DELAY_MS,
            "group.consumer.min.heartbeat.interval.ms": 300,
            "group.consumer.heartbeat.interval.ms": 300,
            "log.cleaner.dedupe.buffer.size": 16 << 20,
            "log.cleaner.backoff.ms": 200,
            "log.initial.task.delay.ms": 500,
            **({"ssl.keystore.type": "PEM", "ssl.keystore.location": certificate} if certificate else {}),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self._file.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
        self._call("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._file))

    def _command(self, *arguments: str) -> list[str]:
        level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [self._java, f"-Xmx{self._heap}", level, "-cp", self._path, *arguments]

    def _call(self, *arguments: str) -> None:
        done = subprocess.run(self._command(*arguments), capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        self.begin()
        self.ready()

    def begin(self) -> None:
        """Starts it; returns at once."""
        assert self._process is None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", str(self._file)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._watchdog = threading.Timer(LIFETIME, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def ready(self) -> None:
        """Returns once it listens."""
        host, _, port = self.address.partition(":")
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return
            assert self._process is not None
            assert self._process.poll() is None, self.last_words()
            assert time.monotonic() < end, self.last_words()
            time.sleep(0.02)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        assert self._watchdog is not None
        self._watchdog.cancel()
        self._process.send_signal(number)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def segments(self, topic: str, partition: int) -> list[Path]:
        return sorted(self.data.glob(f"{topic}-{partition}/*.log"))

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:]) if self.log.exists() else ""


def server(folder: Path, **settings: Any) -> Server:
    """The server under test, not started. `settings`: for Krappy only."""
    if UNDER_TEST == "kafka":
        return KafkaServer(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return KrappyServer(folder, **settings)
