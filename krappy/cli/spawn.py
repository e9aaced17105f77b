"""Starts a temporary broker: `krappy serve` as a child process, on a free port, in a temporary folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from krappy.cli.errors import Failure

STOP_SECONDS = 30.0


class Spawned(NamedTuple):
    """A running broker. `address`: HOST:PORT of the native protocol. `data`: its folder."""

    address: str
    data: Path
    process: subprocess.Popen[bytes]
    http: str = ""  # HOST:PORT of its console, when `settings` ask for one

    @property
    def pid(self) -> int:
        return self.process.pid


@contextmanager
def spawn_broker(data: Path | None = None, settings: Mapping[str, object] | None = None) -> Iterator[Spawned]:
    """Starts a broker and stops it at the end. Its folder is `data`, or a temporary one, which is removed.

    `settings`: by their names in the configuration. The broker also stops when this process dies, however it dies: its
    stdin is a pipe that only this process holds. Raises Failure when it does not start, or stops with an error.
    """
    with tempfile.TemporaryDirectory(prefix="krappy-") as temporary:
        folder = data or Path(temporary) / "data"
        command = [sys.executable, "-m", "krappy", "serve", "--json", "--until-eof", "--data", str(folder)]
        for name, value in {
            "listen_native": "127.0.0.1:0",
            "listen_kafka": "none",
            "listen_http": "none",
            "log_level": "warning",
            **(settings or {}),
        }.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        log = Path(temporary) / "log"
        # Without the caller's settings: a KRAPPY_DATA or KRAPPY_CONFIG of the shell must not apply to this broker.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KRAPPY_")}
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environ
            )
        try:
            told = _addresses(process, log)
            yield Spawned(told["native"], folder, process, told["http"] or "")
        finally:
            _stop(process, log)


def _addresses(process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    """Reads the broker's first line, which says where it listens. Raises Failure when it ends without one."""
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        told: dict[str, Any] = json.loads(line)
        return {name: told[name] for name in ("native", "http")}
    except (ValueError, KeyError):
        raise Failure(f"the broker did not start: {_last_words(log)}") from None


def _stop(process: subprocess.Popen[bytes], log: Path) -> None:
    with process:  # closes its pipes
        if process.poll() is not None:
            return  # the caller killed it
        process.terminate()
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failure(f"the broker did not stop within {STOP_SECONDS:.0f} s: {_last_words(log)}") from None
    if status:
        raise Failure(f"the broker ended with status {status}: {_last_words(log)}")


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
