"""`krappy bench …`: measures a broker, as redis-benchmark does for Redis."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import click

from krappy.bench import report
from krappy.bench.settings import Settings
from krappy.cli import output
from krappy.cli.options import Group, connect, json_option
from krappy.cli.spawn import spawn_broker

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=Group)
def bench() -> None:
    """Measure a broker: one that is started for it, or the one at --address.

    Each command runs several rounds and prints the median. What is sent is made beforehand. The client runs on the
    machine it is started on, and shares its processors with a broker that it starts. `--help` of each command says
    what is inside the measured time.

    \b
    Examples:
      krappy bench produce                               # batches of 100-byte events, view on, fsync on
      krappy bench produce --no-view --size 1024
      krappy bench get --clients 16 --json
      krappy bench all --address broker.example:7092
    """


def common(command: F) -> F:
    """Options of every bench."""
    for option in (
        json_option,
        click.option(
            "--durability",
            type=click.Choice(["fsync", "os"]),
            default="fsync",
            show_default=True,
            help="Of the broker that is started; not with --address.",
        ),
        click.option("--address", metavar="HOST:PORT", help="Measure this broker.  [default: one of its own]"),
        click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, metavar="N"),
    ):
        command = option(command)
    return command


def count(default: int, what: str) -> Callable[[F], F]:
    return click.option(
        "-n", "--count", type=click.IntRange(1), default=default, show_default=True, metavar="N", help=what
    )


SIZE = click.option(
    "--size",
    "record_bytes",
    type=click.IntRange(12, 1 << 20),
    default=100,
    show_default=True,
    metavar="BYTES",
    help="Of an event's key (12 bytes) and value together.",
)
KEYS = click.option(
    "--keys", type=click.IntRange(1), default=10_000, show_default=True, metavar="N", help="How many different keys."
)
PARTITIONS = click.option("--partitions", type=click.IntRange(1), default=1, show_default=True, metavar="N")
VIEW = click.option("--view/--no-view", default=True, show_default=True, help="Whether the topic is a table too.")
COMPRESSION = click.option("--compression", type=click.Choice(["gzip", "snappy", "lz4", "zstd"]))


@bench.command()
@count(500_000, "Events of a round.")
@SIZE
@KEYS
@PARTITIONS
@VIEW
@COMPRESSION
@click.option("--batch", type=click.IntRange(1), default=5_000, show_default=True, help="Events handed over at a time.")
@click.option("--single", is_flag=True, help="One Message for each event, pipelined.")
@click.option("--connections", type=click.IntRange(1), default=1, show_default=True, metavar="N")
@click.option("--window", type=click.IntRange(1), default=256, show_default=True, help="--single: in flight on each.")
@common
def produce(**given: Any) -> None:
    """How fast events are taken, stored and acknowledged.

    Timed: from handing over the first event to the acknowledgement of the last: encoding into record batches (or
    Messages), sending, the broker's append, fdatasync unless --durability os, the answer. The view is fed beside it.
    The client cuts what it is handed into record batches of at most 512 KiB.

    \b
    Examples:
      krappy bench produce
      krappy bench produce --no-view --size 1024 --compression lz4
      krappy bench produce --single --count 50000 --connections 50
    """
    _run("produce", "events/s", given)


@bench.command()
@count(1_000_000, "Events in the topic.")
@SIZE
@PARTITIONS
@COMPRESSION
@click.option("--batch", type=click.IntRange(1), default=5_000, show_default=True, help="Events handed over at a time.")
@common
def consume(**given: Any) -> None:
    """How fast a stored log is read.

    Timed: from opening the consumer until its last event is decoded into columns.

    \b
    Examples:
      krappy bench consume
      krappy bench consume --size 1024 --count 200000
    """
    _run("consume", "events/s", {**given, "view": False})


@bench.command()
@count(100_000, "Keys looked up in a round.")
@SIZE
@KEYS
@PARTITIONS
@click.option("--clients", "connections", type=click.IntRange(1), default=16, show_default=True, metavar="N")
@click.option("--window", type=click.IntRange(1), default=16, show_default=True, help="Requests in flight on each.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Keys of one multi-get.")
@click.option("--history", type=click.IntRange(1), default=1, show_default=True, help="Events stored of each key.")
@common
def get(**given: Any) -> None:
    """How fast keys are looked up, by clients that keep several requests in flight.

    Timed: packing the requests, sending, receiving, unpacking the entries. Latencies run from a request's send to
    its unpacked answer. `--clients 1 --window 1` is a lone client.

    \b
    Examples:
      krappy bench get
      krappy bench get --batch 100 --count 1000000
      krappy bench get --clients 1 --window 1 --count 10000
      krappy bench get --clients 1 --window 1 --keys 100000 --history 200   # beside a log of 20 M events
    """
    _run("get", "keys/s", given)


@bench.command()
@count(300_000, "Entries of the table.")
@SIZE
@PARTITIONS
@common
def scan(**given: Any) -> None:
    """How fast a whole table is read.

    Timed: from the request to the last entry, decoded by the client.

    \b
    Examples:
      krappy bench scan
      krappy bench scan --count 1000000 --json
    """
    _run("scan", "entries/s", given)


@bench.command()
@count(200_000, "Events of a round.")
@SIZE
@PARTITIONS
@click.option("--members", "connections", type=click.IntRange(1, 1000), default=8, show_default=True, metavar="N")
@click.option("--batch", type=click.IntRange(1), default=500, show_default=True, help="Events of a poll, at most.")
@common
def group(**given: Any) -> None:
    """How fast the members of one group share a topic.

    Timed: from the first poll to the last acknowledgement: leasing, reading, sending, and the acks made durable unless
    --durability os. The events are not decoded. Latencies run from a poll's send to its unpacked answer.

    \b
    Examples:
      krappy bench group
      krappy bench group --members 100 --batch 10 --count 50000
      krappy bench group --members 1 --batch 1 --count 5000
    """
    _run("group", "events/s", {**given, "view": False})


@bench.command()
@count(300_000, "Rows.")
@SIZE
@PARTITIONS
@click.option("--of", type=click.Choice(["table", "log", "lookup"]), default="table", show_default=True)
@common
def blocks(**given: Any) -> None:
    """How fast much is read as columns in Arrow's layout, as the Spark data source reads.

    Timed: from the first request to the last block. Of a table: a snapshot and all of its ranges, one after the other;
    of a log: all of its events; of lookups: as many keys, drawn by chance, 10,000 in a request.

    \b
    Examples:
      krappy bench blocks
      krappy bench blocks --of log --count 1000000
      krappy bench blocks --of lookup --json
    """
    _run("blocks", "rows/s", given)


@bench.command()
@count(5_000, "Events of a round.")
@SIZE
@VIEW
@click.option("--rate", type=click.IntRange(1), default=1_000, show_default=True, help="Events per second.")
@common
def latency(**given: Any) -> None:
    """How long from publish to a waiting consumer, at a steady rate.

    Timed: from when an event was due to be sent until the consumer has decoded it: sending, the broker's append,
    fdatasync unless --durability os, the answer to the waiting poll.

    \b
    Examples:
      krappy bench latency
      krappy bench latency --rate 5000 --durability os
    """
    _run("latency", "events/s", given)


@bench.command()
@click.option("--megabytes", type=click.IntRange(1), default=1000, show_default=True, metavar="N", help="Of events.")
@click.option("--partitions", type=click.IntRange(1), default=4, show_default=True, metavar="N")
@click.option("--kill", is_flag=True, help="End the broker by SIGKILL each time, right after its last acknowledgement.")
@click.option("--refold", is_flag=True, help="Delete the tables before each start: they are made anew from the log.")
@click.option("--durability", type=click.Choice(["fsync", "os"]), default="fsync", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, metavar="N")
@json_option
def start(**given: Any) -> None:
    """How long a broker takes from its start to its first answer.

    Timed: from starting a process on data that was closed cleanly, or with --kill was not closed at all, until it
    listens, and until a client has connected and looked up a key. With --kill every acknowledged event must be there
    again; with --refold the answer waits until the whole log was read. Its memory is looked at a second later. The data
    is made in the temporary folder (TMPDIR).

    \b
    Examples:
      krappy bench start
      krappy bench start --megabytes 10000 --kill --json
      krappy bench start --partitions 1000 --kill --refold
    """
    as_json = given.pop("as_json")
    measured = importlib.import_module("krappy.bench.start").start(**given)
    facts = report.circumstances(given["durability"])
    if as_json:
        output.emit_json({"circumstances": facts, "results": [measured]})
        return
    shown = ("megabytes", "ready_seconds", "seconds", "seconds_min", "seconds_max", "idle_megabytes")
    titles = ["MB stored", "listens", "answers", "least", "most", "MB in memory"]
    output.table(titles, [[measured[name] for name in shown]])
    output.note("")
    output.note(", ".join(f"{name} {value}" for name, value in facts.items()))


@bench.command()
@click.option("--megabytes", type=click.IntRange(1), default=1000, show_default=True, metavar="N", help="Of events.")
@click.option("--seconds", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Of each time without one.")
@click.option("--max-rate", type=click.FloatRange(0.001), metavar="MB", help="As of `krappy backup`.")
@click.option("--durability", type=click.Choice(["fsync", "os"]), default="fsync", show_default=True)
@json_option
def backup(megabytes: int, seconds: float, max_rate: float | None, durability: str, as_json: bool) -> None:
    """What a backup costs a broker that is busy, how fast it is, and how fast it is brought back.

    Two writers publish as fast as they are acknowledged; meanwhile `krappy backup --incremental` runs twice. The share
    is what they write beside a backup, of what they write without one. All is in the temporary folder (TMPDIR), which
    needs four times the megabytes.

    \b
    Examples:
      krappy bench backup
      krappy bench backup --megabytes 10000 --json
    """
    measured = importlib.import_module("krappy.bench.backup").backup(megabytes, durability, seconds, max_rate)
    facts = report.circumstances(durability)
    if as_json:
        output.emit_json({"circumstances": facts, "results": [measured]})
        return
    output.table(["what", "figure"], [[name.replace("_", " "), value] for name, value in list(measured.items())[1:]])
    output.note("")
    output.note(", ".join(f"{name} {value}" for name, value in facts.items()))


@bench.command()
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
    """What live views in the console cost a producer at full speed.

    Rounds without and with readers take turns. Compared are the rates, and the processor time that the broker spends
    on an event, which other programs disturb less. A tail must show every event, or say that it was skipped.

    \b
    Examples:
      krappy bench tail
      krappy bench tail --case tail --case "10 tails" --rounds 9 --json
    """
    module = importlib.import_module("krappy.bench.tail")
    known = {each.name: each for each in module.CASES}
    for name in cases:
        if name not in known:
            raise click.BadParameter(f"'{name}' is none of: {', '.join(known)}", param_hint="--case")
    settings = Settings(**given)
    results = []
    with (
        spawn_broker(settings={"durability": durability, "listen_http": "127.0.0.1:0"}) as broker,
        connect(broker.address) as client,
    ):
        for name in cases or known:
            output.note(name)
            results.append(module.tail(client, broker.address, broker.http, broker.pid, settings, known[name]))
    facts = report.circumstances(durability)
    if as_json:
        output.emit_json({"circumstances": facts, "results": results})
        return
    titles = ["beside", "events/s alone", "beside it", "ratio", "broker us/event alone", "beside it", "ratio"]
    names = ("case", "per_second_alone", "per_second", "rate_ratio", "processor_us_alone", "processor_us")
    output.table(
        [*titles, "shown", "skipped"],
        [[each[name] for name in (*names, "processor_ratio", "shown", "skipped")] for each in results],
    )
    output.note("")
    output.note(", ".join(f"{name} {value}" for name, value in facts.items()))


ALL: list[tuple[str, dict[str, Any]]] = [
    ("produce", {"count": 500_000}),
    ("produce", {"count": 500_000, "view": False}),
    ("produce", {"count": 200_000, "view": False, "record_bytes": 1024}),
    ("produce", {"count": 30_000, "single": True, "window": 256}),
    ("produce", {"count": 30_000, "single": True, "window": 16, "connections": 50}),
    ("consume", {"count": 1_000_000, "view": False}),
    ("consume", {"count": 200_000, "view": False, "record_bytes": 1024}),
    ("get", {"count": 50_000, "connections": 16, "window": 16, "batch": 1}),
    ("get", {"count": 1_000_000, "connections": 16, "window": 4, "batch": 100}),
    ("get", {"count": 10_000, "connections": 1, "window": 1, "batch": 1}),
    ("scan", {"count": 300_000}),
    ("group", {"count": 200_000, "view": False, "connections": 8, "batch": 500}),
    ("blocks", {"count": 300_000}),
    ("blocks", {"count": 300_000, "of": "log"}),
    ("blocks", {"count": 300_000, "of": "lookup"}),
    ("latency", {"count": 5_000}),
]
UNITS = dict.fromkeys(("produce", "consume", "group", "latency"), "events/s") | {
    "get": "keys/s",
    "scan": "entries/s",
    "blocks": "rows/s",
}


@bench.command("all")
@common
def everything(address: str | None, durability: str, as_json: bool, rounds: int) -> None:
    """One table of the figures that matter most, in a few minutes.

    \b
    Examples:
      krappy bench all
      krappy bench all --rounds 5 --json > figures.json
    """
    results = []
    for name, setting in ALL:
        output.note(f"{name} {_words(setting)}")
        results.append(_measure(name, UNITS[name], Settings(**setting, rounds=rounds), address, durability))
    _print(results, address, durability, as_json)


def _run(name: str, unit: str, given: dict[str, Any]) -> None:
    address, durability, as_json = given.pop("address"), given.pop("durability"), given.pop("as_json")
    _print([_measure(name, unit, Settings(**given), address, durability)], address, durability, as_json)


def _measure(name: str, unit: str, settings: Settings, address: str | None, durability: str) -> dict[str, Any]:
    module = importlib.import_module(f"krappy.bench.{'table' if name in ('get', 'scan') else name}")
    measure = getattr(module, name)
    if address is None:
        with spawn_broker(settings={"durability": durability}) as broker, connect(broker.address) as client:
            rounds = measure(client, broker.address, settings)
    else:
        with connect(address) as client:
            rounds = measure(client, address, settings)
    return report.summary(name, unit, rounds, **_setting(name, settings))


# Which settings mean something to which bench.
_SETTINGS = {
    "produce": ("record_bytes", "keys", "partitions", "view", "compression", "batch", "single", "connections"),
    "consume": ("record_bytes", "partitions", "compression", "batch"),
    "get": ("record_bytes", "keys", "history", "partitions", "connections", "window", "batch"),
    "scan": ("record_bytes", "partitions"),
    "group": ("record_bytes", "partitions", "connections", "batch"),
    "blocks": ("of", "record_bytes", "partitions"),
    "latency": ("record_bytes", "view", "rate"),
}


def _setting(name: str, settings: Settings) -> dict[str, Any]:
    names = list(_SETTINGS[name])
    if name == "produce" and settings.single:
        names[names.index("batch")] = "window"
    return {each: getattr(settings, each) for each in names}


def _words(setting: dict[str, Any]) -> str:
    """A setting in few words: what is off or not set is left out."""
    words = {
        "record_bytes": "{} B",
        "view": "view",
        "single": "single",
        "compression": "{}",
        "rate": "{}/s",
        "of": "{}",
    }
    shown = ((words.get(name, f"{name} {{}}"), value) for name, value in setting.items())
    return ", ".join(word.format(value) for word, value in shown if value)


def _print(results: list[dict[str, Any]], address: str | None, durability: str, as_json: bool) -> None:
    facts = report.circumstances(None if address else durability)
    if as_json:
        output.emit_json({"circumstances": facts, "results": results})
        return
    output.table(
        ["bench", "settings", "median", "unit", "lowest", "highest", "MB/s", "p50 ms", "p99 ms", "p99.9 ms"],
        [
            [
                each["bench"],
                _words({name: each[name] for name in _SETTINGS[each["bench"]] if each.get(name) is not None}),
                round(each["per_second"]),
                each["unit"],
                round(each["per_second_min"]),
                round(each["per_second_max"]),
                *(each.get(name) for name in ("megabytes_per_second", "p50_ms", "p99_ms", "p99.9_ms")),
            ]
            for each in results
        ],
    )
    output.note("")
    output.note(", ".join(f"{name} {value}" for name, value in facts.items()))
