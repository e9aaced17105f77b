"""How much readers of live views in the console slow a producer down that runs at full speed.

Rounds without and with readers take turns on one broker, each on a new topic, so that a machine that becomes slower
slows down both. Compared are the rate (from the first event's send until the last is acknowledged) and the broker's CPU
time for each event (user and system, until its table has all of them, by proc(5)), which other programs on the machine
disturb less. A tail must show every event, or report it as skipped.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from krappy.bench import load
from krappy.bench.produce import batches
from krappy.bench.settings import BenchSettings
from krappy.bench.topics import own_topic
from krappy.cli.errors import Failure

if TYPE_CHECKING:
    from krappy.blocking import Client

PATIENCE = 60.0  # seconds that a reader waits for anything
SLOW_BYTES, SLOW_SECONDS = 2048, 0.1  # what a slow reader takes, and how often


class Case(NamedTuple):
    """`path`: of the live view, after the topic's; `slow`: readers take about 20 kB a second; `reads`: they decode."""

    name: str
    readers: int
    path: str
    query: dict[str, str]
    reads: bool = True
    slow: bool = False


# "tail" reads as the browser's page does: with the same rate, and it decodes the JSON of every event.
CASES = (
    Case("tail", 1, "tail", {}),
    Case("fast tail", 1, "tail", {"rate": "1000"}),
    Case("filtered tail", 1, "tail", {"text": "no event has this"}),
    Case("slow tail", 1, "tail", {"rate": "1000"}, reads=False, slow=True),
    Case("10 tails", 10, "tail", {}),
    Case("watch", 1, "watch", {"snapshot": "false"}),
    Case("slow watch", 1, "watch", {"snapshot": "false"}, reads=False, slow=True),
    Case("10 watches", 10, "watch", {"snapshot": "false"}),
)


class Seen(NamedTuple):
    """The results of one round. `shown`, `skipped`: events of the first reader; 0 if it does not decode."""

    seconds: float
    processor: float  # seconds
    shown: int = 0
    skipped: int = 0


def tail(client: Client, address: str, console: str, pid: int, settings: BenchSettings, case: Case) -> dict[str, Any]:
    """Measures one case. `console`: HOST:PORT; `pid`: the broker's. Raises Failure if a tail neither showed nor skipped
    an event."""
    events = load.make(settings.count, settings.record_bytes, settings.keys)
    pairs: list[tuple[Seen, Seen]] = []
    for number in range(settings.rounds + 1):
        order = (False, True) if number % 2 else (True, False)
        found = {beside: _round(client, address, console, pid, events, settings, case, beside) for beside in order}
        if number:  # the first is for warming up
            pairs.append((found[False], found[True]))
    alone, beside = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    count = len(events)

    def rate(rounds: list[Seen]) -> float:
        return round(count / statistics.median(each.seconds for each in rounds), 1)

    def micros(rounds: list[Seen]) -> float:
        return round(statistics.median(each.processor for each in rounds) / count * 1e6, 3)

    return {
        "bench": "tail",
        "case": case.name,
        "readers": case.readers,
        "count": count,
        "rounds": settings.rounds,
        "per_second_alone": rate(alone),
        "per_second": rate(beside),
        "rate_ratio": round(statistics.median(one.seconds / other.seconds for one, other in pairs), 4),
        "processor_us_alone": micros(alone),
        "processor_us": micros(beside),
        "processor_ratio": round(statistics.median(other.processor / one.processor for one, other in pairs), 4),
        "shown": round(statistics.median(each.shown for each in beside)),
        "skipped": round(statistics.median(each.skipped for each in beside)),
    }


def _round(
    client: Client,
    address: str,
    console: str,
    pid: int,
    events: load.Load,
    settings: BenchSettings,
    case: Case,
    beside: bool,
) -> Seen:
    with own_topic(client, settings) as topic, contextlib.ExitStack() as stack:
        readers = [stack.enter_context(_reading(console, topic, case)) for _ in range(case.readers if beside else 0)]
        before = processor_seconds(pid)
        done = batches(address, topic, events, settings)
        if settings.view:
            client.table(topic).get(events.keys[0])  # waits until the table has everything
        spent = processor_seconds(pid) - before
        if not readers or not case.reads or case.path != "tail" or case.query.get("text"):
            return Seen(done.seconds, spent)
        readers[0].wait_for(len(events))
        return Seen(done.seconds, spent, readers[0].shown, readers[0].skipped)


class _Reader:
    """One live view, read in a thread."""

    def __init__(self, console: str, topic: str, case: Case) -> None:
        self._case = case
        self._connection = http.client.HTTPConnection(console, timeout=PATIENCE)
        self._connection.request("GET", f"/api/v1/topics/{topic}/{case.path}?{urlencode(case.query)}")
        self._answer = self._connection.getresponse()
        if self._answer.status != 200:
            raise Failure(f"the console refuses: {self._answer.read(2000).decode(errors='replace')}")
        self._ending = False
        self._failure: Exception | None = None
        self.shown = self.skipped = 0
        self._line()  # the view has begun: events that are published from now on come
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_for(self, events: int) -> None:
        """Returns when so many events were shown or reported as skipped. Raises Failure if they are not."""
        end = time.monotonic() + PATIENCE
        while self.shown + self.skipped < events:
            if time.monotonic() > end or not self._thread.is_alive():
                told = f"{self.shown:,} shown, {self.skipped:,} skipped, of {events:,}"
                raise Failure(f"a tail was not told of every event: {told}") from self._failure
            time.sleep(0.01)

    def close(self) -> None:
        self._ending = True
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):  # the broker has closed it
                self._connection.sock.shutdown(socket.SHUT_RDWR)  # close() alone would not wake its reader
        self._thread.join(PATIENCE)
        self._connection.close()

    def _run(self) -> None:
        step: Callable[[], bool] = self._event if self._case.reads else self._piece
        try:
            while not self._ending and step():
                pass
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._failure = error

    def _line(self) -> bytes:
        return self._answer.readline()

    def _event(self) -> bool:
        line = self._line()
        if line.startswith(b"data: "):
            told = json.loads(line[6:])
            if "events" in told:
                if isinstance(told["events"], int):
                    self.skipped += told["events"]
                else:
                    self.shown += len(told["events"])
        return bool(line)

    def _piece(self) -> bool:
        time.sleep(SLOW_SECONDS)
        return bool(self._answer.read1(SLOW_BYTES))


@contextmanager
def _reading(console: str, topic: str, case: Case) -> Iterator[_Reader]:
    reader = _Reader(console, topic, case)
    reader.start()
    try:
        yield reader
    finally:
        reader.close()


def processor_seconds(pid: int) -> float:
    """CPU seconds of a process so far, user and system (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
