"""Memory that a broker holds beyond what it uses is given back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from krappy import memory, trimming
from tests.process import child

MIB = 1 << 20

# Buffers that are freed lie between small ones that stay, so the heap does not end earlier.
HOLES = """
from krappy import memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

memory.keep_freed_memory()
held = [(bytearray(b"x") * (1 << 20), bytearray(20_000)) for _ in range(64)]
full = memory.allocated()
held = [small for _, small in held]
freed = resident()
print(full - memory.allocated())
memory.give_back()
print(freed - resident())
"""

SERVED = """
import sys
from pathlib import Path
import trio
from krappy import app, memory, trimming
from krappy.settings import server as config

def give_back():
    print("given back", flush=True)
    if sys.argv[2] == "fails":
        raise RuntimeError("can't start new thread")

trimming.EVERY_SECONDS, trimming.WORTH, trimming.BUSY = 0.01, -(1 << 40), 1000
memory.give_back = give_back
listen = {"listen_native": "127.0.0.1:0", "listen_kafka": "none", "listen_http": "none"}
settings = config.load({"data": Path(sys.argv[1]), "ballast_bytes": 0, **listen}, {})
trio.run(lambda: app.serve(settings, report=lambda event, **facts: print(event, flush=True)))
"""


def test_pages_between_what_is_in_use_are_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, timeout=60, check=True)
    freed, given = map(int, done.stdout.split())
    if not freed:
        pytest.skip("this C library does not tell what is allocated")
    assert freed > 60 * MIB
    assert given > 60 * MIB


class Process:
    """The figures of a process, in MiB and CPU seconds, and how often it has given memory back. After that, 40 MiB stay
    resident beside what is allocated."""

    def __init__(self) -> None:
        self.resident = self.allocated = self.trims = 0
        self.cpu = 0.0

    def trim(self) -> None:
        self.resident = 40 + self.allocated
        self.trims += 1


async def at_once(work: Callable[[], None]) -> None:
    work()


def trims(monkeypatch: pytest.MonkeyPatch, *looks: tuple[int, int, float]) -> list[int]:
    """How often a process has given memory back after each look. `looks`: for each look, what is resident and what is
    allocated (MiB), and the CPU seconds since the look before. The first is the state at the start, and is no look."""
    process, found = Process(), []
    monkeypatch.setattr(memory, "allocated", lambda: process.allocated * MIB)
    monkeypatch.setattr(memory, "give_back", process.trim)
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)  # the clock would go on while a thread waits for its turn

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number, (resident, allocated, cpu) in enumerate(looks):
                process.resident, process.allocated = resident, allocated
                process.cpu += cpu
                if not number:
                    nursery.start_soon(trimming.give_back, lambda: process.resident * MIB, lambda: process.cpu)
                    await trio.sleep(trimming.EVERY_SECONDS / 2)  # so that each change comes between two looks
                else:
                    await trio.sleep(trimming.EVERY_SECONDS)
                    found.append(process.trims)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return found


@pytest.mark.parametrize(
    ("looks", "found"),
    [
        ([(55, 15, 0), (62, 15, 0)], [0]),  # little is not worth it
        ([(55, 15, 0), (95, 55, 0)], [0]),  # all that came is in use
        ([(55, 15, 0), (95, 15, 0), (55, 15, 0)], [1, 1]),
        ([(55, 15, 0), (95, 15, 1.5), (95, 15, 1.5), (95, 15, 0.1)], [0, 0, 1]),  # not while it works hard
        ([(55, 15, 0), (95, 35, 0), (75, 15, 0)], [1, 2]),  # half was in use when the rest was given back
        ([(55, 15, 0), (75, 50, 0), (75, 15, 0)], [0, 1]),  # it had taken the place of what was given back elsewhere
    ],
)
def test_what_is_not_used_is_given_back(
    monkeypatch: pytest.MonkeyPatch, looks: list[tuple[int, int, float]], found: list[int]
) -> None:
    assert trims(monkeypatch, *looks) == found


@pytest.mark.parametrize(
    ("outcome", "said"), [("works", ["given back"] * 2), ("fails", ["given back", "internal_error"])]
)
def test_a_broker_does_so_while_it_serves(tmp_path: Path, outcome: str, said: list[str]) -> None:
    """Where giving back fails, it goes on serving."""
    command = [sys.executable, "-c", SERVED, str(tmp_path / "data"), outcome]
    with child(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().strip() for _ in range(3)] == ["broker_ready", *said]
        process.terminate()
        rest = process.communicate(timeout=60)[0]
    assert rest.endswith("broker_stopped\n")
    assert process.returncode == 0
