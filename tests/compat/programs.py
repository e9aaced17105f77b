"""Programs that were written for Kafka, as krappy/docs/compatibility.md shows them, beside a broker of the
test's own."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.compat import tools
from tests.compat.servers import KrappyServer
from tests.documents import DOCS, Block, Place, blocks
from tests.process import LIFETIME

PAGE = DOCS / "compatibility.md"
ADDRESS = "localhost:9092"  # the address that the page has
MADE = pytest.mark.skipif(not tools.WANTED, reason="what was written for Kafka is tested by: make compat")
LONG_S = 240.0  # seconds that a program of several threads and JVMs may take for a step: no statement about speed
HEAP = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


class Program:
    """A process that runs until it is ended; its output goes into `folder/NAME.log`. A context manager, which kills the
    process at the end. A watchdog kills it after `LIFETIME` seconds."""

    def __init__(
        self,
        command: Sequence[str | Path],
        folder: Path,
        name: str,
        environ: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        self._command = [str(each) for each in command]
        self._folder = folder
        self.log = folder / f"{name}.log"
        self._environ = {**os.environ, **(environ or {})}
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: threading.Timer | None = None

    def __enter__(self) -> Program:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        assert self._process is None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
            )
        self._watchdog = threading.Timer(LIFETIME, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def kill(self) -> None:
        """Sends SIGKILL. Does nothing if the process has ended."""
        self._end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Sends the signal, and waits until the process has ended."""
        self._end(number)

    def ended(self) -> int:
        """The exit status of the process, once it has ended by itself."""
        assert self._process is not None
        assert self._watchdog is not None
        try:
            return self._process.wait(LONG_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._watchdog.cancel()
            self._process = None

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self.ended()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition. Raises AssertionError with the program's last words after `LONG_S` seconds, or if the
        program ends."""
        end = time.monotonic() + LONG_S
        while not condition():
            assert self._process is None or self._process.poll() is None, (
                f"it has ended, not so: {what}\n{self.last_words()}"
            )
            assert time.monotonic() < end, f"still not so after {LONG_S:.0f} s: {what}\n{self.last_words()}"
            time.sleep(0.2)

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:]) if self.log.exists() else ""


def block(note: str, page: Path = PAGE) -> str:
    """The block of a page with this note."""
    [found] = [each.text for each in blocks(page) if each.note == note]
    return f"{found}\n"


def shown(note: str, broker: KrappyServer, page: Path = PAGE) -> str:
    """The block of a page with this note; it has the broker's address."""
    found = block(note, page)
    assert ADDRESS in found
    return found.replace(ADDRESS, broker.address)


def saved(note: str, broker: KrappyServer, folder: Path, more: str = "") -> Path:
    """Saves the block with this note, which is a file's name, in `folder`; it has the broker's address. `more`: lines
    that follow it."""
    file = folder / note
    file.write_text(shown(note, broker) + more)
    return file


def commands(heading: str, page: Path = PAGE) -> list[Block]:
    """The blocks for a shell in a chapter of a page, which `do` runs."""
    _, _, chapter = page.read_text("utf-8").partition(f"\n## {heading}\n")
    chapter = chapter.partition("\n## ")[0]
    found = [block for block in blocks(page) if block.language == "sh" and block.text in chapter]
    assert found, f"no chapter {heading} with commands"
    return [Block("sh", "", block.text) for block in found]


def do(block: Block, broker: KrappyServer, folder: Path) -> str:
    """Runs a block at the broker; returns what it shows. Raises AssertionError if it fails."""
    ports = {"native": broker.broker.address, "kafka": broker.address, "http": ":0"}
    with Place(
        folder, {name: int(each.rpartition(":")[2]) for name, each in ports.items()}, runs_broker=False
    ) as place:
        return place.said_by(f"set -eo pipefail\n{block.text}")


def jvm(
    profile: tools.Profile, main: str, *arguments: str | Path, options: Sequence[str] = (), path: str = ""
) -> list[str]:
    """The command that runs a class. `path`: more of the class path. Skips the test without its jars."""
    try:
        program, jars = tools.java(profile)
    except tools.Missing as reason:
        pytest.skip(str(reason))
    return [program, *HEAP, *options, "-cp", f"{jars}:{path}", main, *map(str, arguments)]


def python(packages: tools.Packages) -> Path:
    """The Python of a virtual environment with these packages. Skips the test without them."""
    try:
        return tools.python(packages)
    except tools.Missing as reason:
        pytest.skip(str(reason))
