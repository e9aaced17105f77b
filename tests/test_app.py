"""The broker put together: how it fails to start, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import krappy
from krappy.errors import ConfigError, StorageError, Unavailable
from krappy.store import tail, walk
from krappy.testing.running import run_broker
from tests.process import child

STUCK = """
import sys
from pathlib import Path
import trio
from krappy import app, endings
from krappy.settings import server as config
from krappy.server.server import Server

async def finish(self):
    await trio.sleep_forever()

Server.finish = finish
endings.STOP_LIMIT_S = 0.3
settings = config.load({"data": Path(sys.argv[1]), "listen_native": "127.0.0.1:0"}, {})
report = lambda event, **facts: print(event, flush=True)
trio.run(lambda: app.serve(settings, report=report))
"""

# Recovery of the log meets the signal at its tenth batch, and waits there until the broker says that it stops.
RECOVERING = """
import os, sys, threading
from pathlib import Path
import trio
from krappy import app
from krappy.settings import server as config
from krappy.store import tail

stopping, real = threading.Event(), tail.batches

def batches(*args, **kwargs):
    for number, found in enumerate(real(*args, **kwargs)):
        if number == 10:
            os.kill(os.getpid(), int(sys.argv[2]))
            assert stopping.wait(60), "the signal changed nothing"
        print("batch", flush=True)
        yield found

def report(event, **facts):
    print(event, flush=True)
    if event == "broker_stopping":
        stopping.set()

tail.batches = batches
settings = config.load({"data": Path(sys.argv[1]), "listen_native": "127.0.0.1:0", "listen_http": "none"}, {})
trio.run(lambda: app.serve(settings, report=report))
"""
BATCHES = 40


def leave_unclean(data: Path) -> None:
    """A log whose every batch the next start has to read: its broker's checkpoint is gone."""
    with run_broker(data) as broker, broker.connect() as client:
        client.create_topic("t")
        with client.producer("t") as producer:
            for number in range(BATCHES):
                producer.send(b"%d" % number, key=b"k").result()
    for name in ("checkpoint", "checkpoint.copy"):
        (data / "topics" / "t-0" / name).unlink()


@pytest.mark.parametrize("listener", ["native", "kafka", "http"])
def test_a_port_that_is_taken_is_one_plain_error_that_names_the_setting(tmp_path: Path, listener: str) -> None:
    async def main() -> None:
        taken = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings: dict[str, Any] = {f"listen_{listener}": address}
        names = f"another program has that port: choose another one by --listen-{listener} HOST:PORT"
        with taken, pytest.raises(Unavailable, match=names):
            async with krappy.Broker(tmp_path, **settings):
                pytest.fail("it started")

    trio.run(main)


def test_a_folder_that_is_held_is_one_plain_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with krappy.Broker(tmp_path):
            with pytest.raises(StorageError):
                async with krappy.Broker(tmp_path):
                    pytest.fail("it started")

    trio.run(main)


def test_another_event_loop_is_one_plain_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with krappy.Broker(tmp_path):
            pytest.fail("it started")

    with pytest.raises(Unavailable, match="runs under trio"):
        asyncio.run(main())


def test_a_relative_folder_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the program changes its own folder afterwards; and a backup may be taken from another one."""
    monkeypatch.chdir(tmp_path)
    broker = krappy.Broker("data")
    monkeypatch.chdir("/")
    assert broker.config.data == tmp_path / "data"


def test_what_the_program_raises_inside_comes_out_as_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            async with krappy.Broker(tmp_path):
                _ = 1 // 0

    trio.run(main)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_recovery_and_the_next_start_recovers_again(tmp_path: Path, number: int) -> None:
    leave_unclean(tmp_path)
    command = [sys.executable, "-c", RECOVERING, str(tmp_path), str(int(number))]
    stopped = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = stopped.stdout.split()
    assert stopped.returncode == 0, stopped.stderr
    assert "broker_ready" not in said
    assert said.count("batch") < BATCHES, "it did not read on"
    assert said[-1] == "broker_stopped"
    assert not stopped.stderr
    assert not list((tmp_path / "topics" / "t-0").glob("checkpoint*")), "nothing is believed that was not read"
    with run_broker(tmp_path) as broker, broker.connect() as client:
        assert client.describe("t").partitions[0].end == BATCHES
        entry = client.table("t").get("k")
        assert entry is not None
        assert entry.value == b"%d" % (BATCHES - 1)


def test_a_program_that_gives_up_ends_the_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by trio.move_on_after: it gets its own Cancelled, and waits for no log to be read."""
    leave_unclean(tmp_path)
    met = threading.Event()
    go_on = threading.Event()
    read = 0
    real = walk.batches

    def batches(*args: Any, **more: Any) -> Any:
        nonlocal read
        for found in real(*args, **more):
            met.set()
            assert go_on.wait(60)
            read += 1
            yield found

    monkeypatch.setattr(tail, "batches", batches)

    async def main() -> bool:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def start() -> None:
                    async with krappy.Broker(tmp_path):
                        pytest.fail("it started")

                nursery.start_soon(start)
                await trio.to_thread.run_sync(met.wait)
                scope.cancel()
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()  # the broker was told
                go_on.set()
        return scope.cancelled_caught

    assert trio.run(main)
    assert read < BATCHES


def test_a_stop_that_hangs_ends_all_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STUCK, str(tmp_path / "data")]
    with child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "broker_ready":
                break
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "stop_timed_out" in out
    assert "Thread" in err, "where it hung is told"


def test_the_cluster_is_told_of_every_listener(tmp_path: Path) -> None:
    async def main() -> None:
        async with krappy.Broker(
            tmp_path,
            durability="os",
            ballast_bytes=0,
            listen_kafka="IN://127.0.0.1:0,OUT://0.0.0.0:0",
            listen_native="0.0.0.0:0",
            insecure_listeners="allow",
            listen_http="127.0.0.1:0",
            advertised_listeners="IN://krappy.example:9092,HTTP://console.example:80",
        ) as broker:
            native, out = (int(each.rpartition(":")[2]) for each in (broker.address, broker.kafka_addresses["OUT"]))
            assert broker.engine.endpoints == {
                "IN": ("krappy.example", 9092),
                "OUT": ("krappy.example", out),  # bound to all addresses: with the host that another one advertises
                "NATIVE": ("krappy.example", native),
                "HTTP": ("console.example", 80),
            }

    trio.run(main)


def test_a_listener_of_kafka_can_not_have_the_name_of_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="NATIVE"), run_broker(tmp_path, listen_kafka="NATIVE://127.0.0.1:0"):
        pass
