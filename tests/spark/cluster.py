"""A standalone cluster of Spark on 127.0.0.1, made of PySpark's own jars: a master, two workers, a Connect server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pyspark

from krappy.spark.session import java_home
from tests.process import ROOT, wait_until
from tests.spark.conftest import python_path

STARTS = 300.0  # seconds after which a server that has not started fails the test
LIFETIME = "1800"  # seconds
HOST = "127.0.0.1"
EXECUTOR = "CoarseGrainedExecutorBackend"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


class Server:
    """A process of Spark, whose output goes to a file. It ends with the test, or after `LIFETIME` at the latest."""

    def __init__(self, arguments: list[str], log: Path, environ: dict[str, str]) -> None:
        self._log = log
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                ["timeout", "--signal=KILL", LIFETIME, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environ,
                cwd=log.parent,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self, pattern: str) -> str:
        """Waits until the output matches the pattern; returns its first group."""
        wait_until(lambda: bool(re.search(pattern, self.text())) or self._process.poll() is not None, pattern, STARTS)
        found = re.search(pattern, self.text())
        assert found is not None, self.text()
        return found[1]

    def text(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def end(self) -> None:
        """Ends the process with all that it has started, except for what is in a process group of its own."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)


class Cluster(NamedTuple):
    """`master`: spark://…; `connect`: sc://…; `environ`: for a program that uses it."""

    master: str
    environ: dict[str, str]
    workers: list[Server]
    folder: Path

    def executors(self) -> list[int]:
        """The process ids of the executors that run."""
        return [child for worker in self.workers for child in descendants(worker.pid) if EXECUTOR in command_of(child)]

    @contextmanager
    def connect_server(self) -> Iterator[str]:
        """A Spark Connect server whose tasks run on the cluster: sc://…"""
        settings = {**SETTINGS, "spark.connect.grpc.binding.address": HOST, "spark.connect.grpc.binding.port": "0"}
        settings |= {"spark.sql.warehouse.dir": str(self.folder / "sql")}
        given = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
        name = "org.apache.spark.sql.connect.service.SparkConnectServer"
        started = [spark_class(), "org.apache.spark.deploy.SparkSubmit", "--class", name, "--master", self.master]
        environ = {**self.environ, "SPARK_DAEMON_MEMORY": "600m"}  # a driver needs 450 MB at least
        server = Server([*started, *given, "spark-internal"], self.folder / "connect.log", environ)
        try:
            yield "sc://" + server.said(r"Spark Connect server started at: (\S+:\d+)").replace("0.0.0.0", HOST)
        finally:
            server.end()


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Two workers, each with one core and an address of its own: Spark starts no two attempts of a task on one host."""
    own_java = java_home()
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{ROOT}{os.pathsep}{python_path(folder)}"}
    environ |= {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m"}
    environ |= {} if own_java is None else {"JAVA_HOME": str(own_java)}
    (folder / "log4j2.properties").write_text(LOG)
    environ["SPARK_CONF_DIR"] = str(folder)
    with ExitStack() as stack:

        def started(what: str, name: str, host: str, *more: str) -> Server:
            where = ["--host", host, "--port", "0", "--webui-port", "0"]
            arguments = [spark_class(), f"org.apache.spark.deploy.{what}", *where, *more]
            server = Server(arguments, folder / f"{name}.log", environ)
            stack.callback(server.end)
            return server

        master = started("master.Master", "master", HOST).said(r"Starting Spark master at (spark://\S+)")
        size = ["--cores", "1", "--memory", "600m", "--work-dir"]
        hosts = (HOST, "127.0.0.2")
        workers = [started("worker.Worker", f"at-{host}", host, *size, str(folder / host), master) for host in hosts]
        for worker in workers:
            worker.said("Successfully registered with (master)")
        yield Cluster(master, environ, workers, folder)


def spark_class() -> str:
    return str(Path(pyspark.__file__).parent / "bin" / "spark-class")


def descendants(pid: int) -> list[int]:
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            found += [int(child) for child in thread.read_text().split()]
    return [*found, *(each for child in found for each in descendants(child))]


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


LOG = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
"""
