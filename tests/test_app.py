"""The broker put together: how it fails to start, and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import krappy
from krappy.errors import ConfigError, StorageError

STUCK = """
import sys
from pathlib import Path
import trio
from krappy import app, config
from krappy.server.server import Server

async def finish(self):
    await trio.sleep_forever()

Server.finish = finish
app.STOP_LIMIT_S = 0.3
settings = config.load({"data": Path(sys.argv[1]), "listen_native": "127.0.0.1:0"}, {})
report = lambda event, **facts: print(event, flush=True)
trio.run(lambda: app.serve(settings, report=report))
"""


def test_a_port_that_is_taken_is_one_plain_error(tmp_path: Path) -> None:
    async def main() -> None:
        taken = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with taken, pytest.raises(ConfigError, match="another program has that port"):
            async with krappy.Broker(tmp_path, listen_native=address):
                pytest.fail("it started")

    trio.run(main)


def test_a_folder_that_is_held_is_one_plain_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with krappy.Broker(tmp_path):
            with pytest.raises(StorageError):
                async with krappy.Broker(tmp_path):
                    pytest.fail("it started")

    trio.run(main)


def test_what_the_program_raises_inside_comes_out_as_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            async with krappy.Broker(tmp_path):
                _ = 1 // 0

    trio.run(main)


def test_a_stop_that_hangs_ends_all_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STUCK, str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() == "broker_ready":
                    break
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "stop_timed_out" in out
    assert "Thread" in err, "where it hung is told"
