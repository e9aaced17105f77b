"""The machine of one broker: its process, its disk and its clock."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.networks import Host
from tests.power.disk import MOODS, Disk
from tests.power.record import Record
from tests.process import BrokerProcess

STOP_SECONDS = 75.0  # after 60 s the broker itself gives up stopping, and says so
CLOCK = Path(__file__).with_name("clock.c")


@dataclass(frozen=True)
class Shims:
    """Libraries that are loaded into brokers. `disk`: records changes of the disk, so that power can be lost
    (tests/power); None: nothing is recorded. `clock`: lets the broker's wall clock jump; None: there is no compiler."""

    disk: Path | None = None
    clock: Path | None = None


class _Launched:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def wait(self, seconds: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None


class PowerDisk:
    """A data folder whose changes are recorded, so that a loss of power can be computed (tests/power)."""

    def __init__(self, root: Path, library: Path) -> None:
        self.root, self._library = root, library
        self._record: Record | None = None
        self._inode = -1

    def begin(self) -> Mapping[str, str]:
        """The environment variables of the next process. If the folder is not in the record yet, its files count as
        synced."""
        self.root.mkdir(parents=True, exist_ok=True)
        if self._record is None or self.root.stat().st_ino != self._inode:
            self._anew()
        assert self._record is not None
        return self._record.environ()

    def _anew(self) -> None:
        self._forget()
        self.root.with_name(f"{self.root.name}.record").unlink(missing_ok=True)
        self._record = Record(self.root, self._library)
        self._disk = Disk.of(self.root)
        self._disk.load(self.root)
        self._inode = self.root.stat().st_ino

    def lose(self, mood: float, random: Random) -> None:
        """Makes the folder as a loss of power may leave it, by the rules of tests/power/disk.py. The process that uses
        it must be gone."""
        assert self._record is not None
        for entry in self._record.entries():
            self._disk.play(entry)
        left = self.root.with_name(f"{self.root.name}.left")
        self._disk.write(left, mood, random)
        shutil.rmtree(self.root)
        left.rename(self.root)
        self._forget()

    def _forget(self) -> None:
        if self._record is not None:
            self._record.__exit__()
            self._record = None


class Machine:
    """`up`: whether the broker is to run. `busy`: the kind of fault that its process or its disk has now. `cut`: the
    kind of fault that its network has now. Empty: it has none."""

    def __init__(self, id: int, folder: Path, host: Host, settings: Mapping[str, Any], shims: Shims) -> None:
        self.id, self.host = id, host
        self.up = self.paused = self._stopping = False
        self.busy = self.cut = ""
        self.clock = folder / f"broker-{id}.clock"
        self.jump(0)
        self._shims = shims
        self.disk = None if shims.disk is None else PowerDisk(folder / f"broker-{id}", shims.disk)
        self.process = BrokerProcess(folder / f"broker-{id}", launch=self._launch, broker_id=id, **settings)

    def _launch(self, arguments: list[str], stdin: int, stdout: int, stderr: int) -> _Launched:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KRAPPY_")}
        more = dict(self.disk.begin()) if self.disk is not None else {}
        if self._shims.clock is not None:
            more["LD_PRELOAD"] = ":".join(filter(None, (more.get("LD_PRELOAD"), str(self._shims.clock))))
            more["CHAOS_CLOCK"] = str(self.clock)
        # The command of the prefix (nsenter) execs the broker, so the pid is the broker's.
        command = [*self.host.prefix, sys.executable, "-m", "krappy", *arguments]
        environ = {**kept, "KRAPPY_DEBUG": "1", **more}
        return _Launched(subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=environ))

    # --- life

    def begin(self) -> None:
        self.up, self.paused = True, False
        if not self.process.running:
            self.process.begin()

    def kill(self) -> None:
        self.up = self.paused = False
        if self.process.running:
            self.process.kill()

    def terminate(self) -> None:
        self.up = False
        self._stopping = self.process.running
        if self._stopping:
            self.process.terminate()

    def ended(self) -> str:
        """Waits until the process has ended after SIGTERM. Returns what was wrong with its end; empty: nothing."""
        if not self._stopping:
            return ""
        self._stopping = False
        try:
            status = self.process.ended(STOP_SECONDS)
        except AssertionError:
            self.process.kill()
            return f"broker {self.id} did not end within {STOP_SECONDS:.0f} s of SIGTERM"
        # A process that has just started has no handler of SIGTERM yet.
        return "" if status in (0, -signal.SIGTERM) else f"broker {self.id} ended with {status} of SIGTERM"

    def pause(self, paused: bool) -> None:
        self.paused = paused
        if self.process.running:
            os.kill(self.process.pid, signal.SIGSTOP if paused else signal.SIGCONT)

    # --- disk and clock

    def replace_disk(self) -> None:
        shutil.rmtree(self.process.data)

    def lose_power(self, random: Random) -> str:
        """Kills the broker. Its disk keeps all that was synced, and some of what was not. Returns a text for the
        report."""
        assert self.disk is not None
        self.kill()
        mood = random.choice(MOODS)
        self.disk.lose(mood, random)
        return f"broker {self.id}, {mood:.0%} of what was not synced is kept"

    def jump(self, seconds: int) -> None:
        """Sets the wall clock this many seconds ahead of the true time, while the broker runs (clock.c)."""
        with self.clock.open("r+b" if self.clock.exists() else "wb", buffering=0) as file:
            file.write((seconds * 10**9).to_bytes(8, sys.byteorder, signed=True))
