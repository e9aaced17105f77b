"""Does what a document says, as its reader would: in one folder, at a terminal, from the top to the end.

A fenced block of a document is one of these:

    ```sh                a shell runs it; it must end with status 0
    ```sh background     a program that goes on: it is started, and ended after the document
    ```sh not run        it needs what the tests don't have; the words around it say what was tried
    ```python            a program, run by itself
    ```python NAME       a file that the reader saves under this name
    ```ini NAME          the same; tests/compat runs what uses the file, and the blocks of java
    ```text              what the block before it shows; `…` stands for anything within a line

The program runs where the tests want it: KRAPPY_… variables move the broker's listeners, and in the text the default
addresses are replaced.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.process import readable, wait_until

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "krappy" / "docs"
SECONDS = 120.0  # that one block may take
# Not run here: they set up what the tests have already, run for long, or have tests of their own.
ELSEWHERE = ("make ", "pip install", "source ", "krappy bench", "krappy demo", "krappy pipeline")
DEFAULTS = {"native": 7092, "kafka": 9092, "http": 8092}
HOSTS = ("127.0.0.1", "localhost")
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    note: str  # what stands behind the language
    text: str


def blocks(document: Path) -> list[Block]:
    return [Block(*(part.strip("\n ") for part in found)) for found in _FENCE.findall(document.read_text("utf-8"))]


def documents() -> list[Path]:
    """All documents of the folder docs."""
    return sorted(DOCS.rglob("*.md"))


class Place:
    """A folder and three ports, where a reader does what documents say."""

    def __init__(self, folder: Path, ports: Mapping[str, int], *, runs_broker: bool = True) -> None:
        """`runs_broker`: the documents' own `krappy serve` listens at these ports; else a broker does already."""
        self._folder, self._ports, self._runs_broker = folder, dict(ports), runs_broker
        self._background: list[subprocess.Popen[bytes]] = []
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KRAPPY_")}
        self._environ = {
            **inherited,
            **{f"KRAPPY_LISTEN_{name.upper()}": f"127.0.0.1:{port}" for name, port in ports.items()},
            "KRAPPY_ADDRESS": f"127.0.0.1:{ports['native']}",
            "KRAPPY_CONSOLE_URL": f"http://127.0.0.1:{ports['http']}",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TERM": "dumb",
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error: object) -> None:
        for process in reversed(self._background):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._background:
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def do(self, wanted: Sequence[Block]) -> None:
        """Does all blocks, in their order."""
        said = ""
        for block in wanted:
            if block.language == "text":
                assert_shown(block.text, said)
            elif block.language == "python":
                if block.note:
                    (self._folder / block.note).write_text(self._here(block.text) + "\n")
                else:
                    said = self._run([sys.executable, "-W", "error", "-c", self._here(block.text)], block.text)
            elif block.language == "sh" and block.note == "background":
                self._start(block.text)
            elif block.language == "sh" and not block.note:
                script = "\n".join(line for line in block.text.splitlines() if not line.startswith(ELSEWHERE))
                # Without pipefail, which a reader's shell does not set either: it would change what `||` does.
                said = self._run(["bash", "-e", "-c", self._here(script)], script)
            elif block.language not in ("yaml", "toml", "json", "mermaid", "java", "sql", "ini"):
                assert block == ("sh", "not run", block.text), f"a block of an unknown kind: {block}"

    def said_by(self, command: str) -> str:
        """What a command of the shell shows."""
        return self._run(["bash", "-c", self._here(command)], command)

    def _here(self, text: str) -> str:
        for name, port in DEFAULTS.items():
            for host in HOSTS:
                text = text.replace(f"{host}:{port}", f"127.0.0.1:{self._ports[name]}")
        return text

    def _start(self, text: str) -> None:
        serves = text.startswith("krappy serve")
        if serves and not self._runs_broker:
            return
        if serves:
            for process in self._background:
                process.wait(SECONDS)  # the document has ended the broker that it started before
        process = subprocess.Popen(
            ["bash", "-c", self._here(text)],
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._background.append(process)
        if serves:
            wait_until(self._answers, "the broker answers", SECONDS)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._ports["native"]), 1):
                return True
        except OSError:
            return False

    def _run(self, command: list[str], text: str) -> str:
        """Runs a command at a terminal; returns what the terminal shows. `text`: the block, for errors."""
        ours, theirs = pty.openpty()
        shown, end = b"", time.monotonic() + SECONDS
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            while True:
                assert time.monotonic() < end, f"it has not ended:\n{text}\n{shown.decode()}"
                if not readable(ours, 1):
                    continue
                try:
                    shown += os.read(ours, 65536)
                except OSError:  # EIO: nobody has the terminal open any more
                    break
            status = process.wait(SECONDS)
        finally:
            os.close(ours)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said = shown.decode().replace("\r\n", "\n")
        assert status == 0, f"status {status}:\n{text}\n{said}"
        return said


def assert_shown(promised: str, said: str) -> None:
    """Asserts that `said` has the lines of `promised`; `…` stands for anything within a line."""
    found = [line.rstrip() for line in said.strip("\n").splitlines()]
    lines = [line.rstrip() for line in promised.splitlines()]
    pattern = "\n".join(re.escape(line).replace("…", "[^\n]*") for line in lines)
    assert re.fullmatch(pattern, "\n".join(found)), f"the document shows\n{promised}\nand this was shown\n{said}"
