"""Benchmarks beside `krappy bench`, for developers of Krappy. `python -m tests.bench --help`."""

from __future__ import annotations

from typing import Any

import click

from krappy.bench import report
from krappy.bench.settings import BenchSettings
from krappy.cli import output
from krappy.cli.commands.bench import KEYS, PARTITIONS, SIZE, VIEW, count
from krappy.cli.options import CommandGroup, connect, json_option
from krappy.cli.spawn import spawn_broker
from tests.bench import backup as backup_module
from tests.bench import blocks as blocks_module
from tests.bench import expect as expect_module
from tests.bench import start as start_module
from tests.bench import tail as tail_module

DURABILITY = click.option("--durability", type=click.Choice(["fsync", "os"]), default="fsync", show_default=True)
ROUNDS = click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, metavar="N")
SPEEDS = ("per_second", "per_second_min", "per_second_max")


@click.group(cls=CommandGroup)
def main() -> None:
    """Measures starts, backups, live views, reads by columns and conditional writes, which `krappy bench` does not."""


def _told(durability: str, results: list[dict[str, Any]], as_json: bool) -> bool:
    """Prints the circumstances of the measurement; with --json also its results. Returns whether as JSON."""
    facts = report.circumstances(durability)
    if as_json:
        output.emit_json({"circumstances": facts, "results": results})
    else:
        output.note(", ".join(f"{name} {value}" for name, value in facts.items()))
    return as_json


@main.command()
@count(300_000, "Rows.")
@SIZE
@PARTITIONS
@click.option("--of", type=click.Choice(["table", "log", "lookup"]), default="table", show_default=True)
@DURABILITY
@ROUNDS
@json_option
def blocks(of: str, durability: str, as_json: bool, **given: Any) -> None:
    """How fast columns in Arrow's layout are read, as the Spark data source reads them.

    Timed: from the first request to the last block. Of a table: a snapshot and all of its ranges, one after the other.
    Of a log: all of its events. Of lookups: as many random keys, 10,000 in a request.

    \b
    Examples:
      python -m tests.bench blocks
      python -m tests.bench blocks --of log --count 1000000
      python -m tests.bench blocks --of lookup --json
    """
    settings = BenchSettings(**given)
    with spawn_broker(settings={"durability": durability}) as broker, connect(broker.address) as client:
        rounds = blocks_module.blocks(client, settings, of)
    facts = {"of": of, "record_bytes": settings.record_bytes, "partitions": settings.partitions}
    measured = report.summary("blocks", "rows/s", rounds, **facts)
    if not _told(durability, [measured], as_json):
        output.table(["of", "median", "lowest", "highest"], [[of, *(round(measured[name]) for name in SPEEDS)]])


@main.command()
@click.option("--megabytes", type=click.IntRange(1), default=1000, show_default=True, metavar="N", help="Of events.")
@click.option("--partitions", type=click.IntRange(1), default=4, show_default=True, metavar="N")
@click.option("--kill", is_flag=True, help="End the broker by SIGKILL each time, right after its last acknowledgement.")
@click.option("--refold", is_flag=True, help="Delete the tables before each start: they are made anew from the log.")
@DURABILITY
@ROUNDS
@json_option
def start(**given: Any) -> None:
    """How long a broker takes from its start to its first answer.

    Timed: from the start of a process until it listens, and until a client has connected and looked up a key. The data
    was closed cleanly; with --kill it was not closed, and every acknowledged event must be there again. With --refold
    the answer waits until the whole log is read. Memory is measured a second later. The data is made in the temporary
    folder (TMPDIR).

    \b
    Examples:
      python -m tests.bench start
      python -m tests.bench start --megabytes 10000 --kill --json
      python -m tests.bench start --partitions 1000 --kill --refold
    """
    as_json = given.pop("as_json")
    measured = start_module.start(**given)
    if _told(given["durability"], [measured], as_json):
        return
    shown = ("megabytes", "ready_seconds", "seconds", "seconds_min", "seconds_max", "idle_megabytes")
    titles = ["MB stored", "listens", "answers", "least", "most", "MB in memory"]
    output.table(titles, [[measured[name] for name in shown]])


@main.command()
@click.option("--megabytes", type=click.IntRange(1), default=1000, show_default=True, metavar="N", help="Of events.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    help="Length of each time without a backup.",
)
@click.option("--max-rate", type=click.FloatRange(0.001), metavar="MB", help="As in `krappy backup`.")
@DURABILITY
@json_option
def backup(megabytes: int, seconds: float, max_rate: float | None, durability: str, as_json: bool) -> None:
    """How much a backup slows a busy broker down, how fast it is, and how fast it is restored.

    Two writers publish as fast as they are acknowledged; meanwhile `krappy backup --incremental` runs twice. The share
    is their rate during a backup, divided by their rate without one. All data is in the temporary folder (TMPDIR),
    which needs four times the megabytes.

    \b
    Examples:
      python -m tests.bench backup
      python -m tests.bench backup --megabytes 10000 --json
    """
    measured = backup_module.backup(megabytes, durability, seconds, max_rate)
    if _told(durability, [measured], as_json):
        return
    output.table(["what", "figure"], [[name.replace("_", " "), value] for name, value in list(measured.items())[1:]])


@main.command()
@count(20_000, "Events of a round, each with a key of its own.")
@SIZE
@PARTITIONS
@DURABILITY
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, metavar="N")
@json_option
def expect(durability: str, as_json: bool, **given: Any) -> None:
    """How fast writes under a condition are, beside plain ones.

    One producer sends events of distinct keys by `send`, with expect="absent" and without, in turns. Timed: from the
    first send until the last is acknowledged.

    \b
    Examples:
      python -m tests.bench expect
      python -m tests.bench expect --durability os --json
    """
    with spawn_broker(settings={"durability": durability}) as broker, connect(broker.address) as client:
        measured = expect_module.expect(client, BenchSettings(**given))
    if _told(durability, [measured], as_json):
        return
    titles = ["plain events/s", "with expect", "ratio", "lowest", "highest"]
    names = ("per_second_plain", "per_second", "ratio", "ratio_min", "ratio_max")
    output.table(titles, [[measured[name] for name in names]])


@main.command()
@count(1_000_000, "Events of a round.")
@SIZE
@KEYS
@PARTITIONS
@VIEW
@click.option("--case", "cases", multiple=True, metavar="NAME", help="Only these; may be repeated.  [default: all]")
@click.option("--durability", type=click.Choice(["fsync", "os"]), default="os", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, metavar="N")
@json_option
def tail(cases: tuple[str, ...], durability: str, as_json: bool, **given: Any) -> None:
    """How much live views in the console slow a producer down that runs at full speed.

    Rounds without and with readers take turns. It compares the rates, and the broker's CPU time for each event, which
    other programs disturb less. A tail must show every event, or say that it was skipped.

    \b
    Examples:
      python -m tests.bench tail
      python -m tests.bench tail --case tail --case "10 tails" --rounds 9 --json
    """
    known = {each.name: each for each in tail_module.CASES}
    for name in cases:
        if name not in known:
            raise click.BadParameter(f"'{name}' is none of: {', '.join(known)}", param_hint="--case")
    settings = BenchSettings(**given)
    results = []
    with (
        spawn_broker(settings={"durability": durability, "listen_http": "127.0.0.1:0"}) as broker,
        connect(broker.address) as client,
    ):
        for name in cases or known:
            output.note(name)
            results.append(tail_module.tail(client, broker.address, broker.http, broker.pid, settings, known[name]))
    if _told(durability, results, as_json):
        return
    titles = ["beside", "events/s alone", "beside it", "ratio", "broker us/event alone", "beside it", "ratio"]
    names = ("case", "per_second_alone", "per_second", "rate_ratio", "processor_us_alone", "processor_us")
    output.table(
        [*titles, "shown", "skipped"],
        [[each[name] for name in (*names, "processor_ratio", "shown", "skipped")] for each in results],
    )


if __name__ == "__main__":
    main()
