"""Starts several workers of one group, and collects what they have done."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from krappy.cli.errors import Failure
from krappy.demos import worker
from krappy.demos.worker import Note


class Workers:
    """Worker processes, which write their notes to files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.killed: int | None = None

    def start(self, address: str, topic: str, group: str, seconds: float = 0.0) -> None:
        file = self._file(len(self.processes))
        self.processes.append(worker.start(address, topic, group, file, seconds))

    def _file(self, index: int) -> Path:
        return self._folder / f"worker-{index}"

    def counts(self) -> list[int]:
        """How many events each worker has done."""
        return [worker.count_notes(self._file(index)) for index in range(len(self.processes))]

    def busiest(self) -> int:
        """The index of the worker that has done most events."""
        counts = self.counts()
        return counts.index(max(counts))

    def notes(self) -> list[list[Note]]:
        return [worker.read_notes(self._file(index)) for index in range(len(self.processes))]

    def kill(self, index: int) -> None:
        """Kills a worker by SIGKILL, so that it can't clean up."""
        self.processes[index].kill()
        self.processes[index].wait()
        self.killed = index

    def wait(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Waits until `done()`. Raises Failure after `seconds`, or when a worker ended by itself. `what` names the wait
        in the error."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise Failure(f"{what} took longer than {seconds:.0f} s; the workers have done {self.counts()}")
            for index, process in enumerate(self.processes):
                if index != self.killed and process.poll() is not None:
                    raise Failure(f"worker {index} ended with status {process.returncode}")
            time.sleep(0.02)

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait()


@contextmanager
def team() -> Iterator[Workers]:
    """Workers whose processes are stopped and whose files are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="krappy-demo-") as folder:
        workers = Workers(Path(folder))
        try:
            yield workers
        finally:
            workers.stop()


def done_twice(notes: list[list[Note]]) -> Counter[tuple[int, int]]:
    """The events (partition, offset) that were done more than once, and how often."""
    times = Counter((note.partition, note.offset) for some in notes for note in some)
    return Counter({event: count for event, count in times.items() if count > 1})
