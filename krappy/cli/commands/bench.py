"""`krappy bench …`: measures a broker, as redis-benchmark does for Redis."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import click

from krappy.bench import report
from krappy.bench.settings import BenchSettings
from krappy.cli import output
from krappy.cli.options import CommandGroup, connect, json_option
from krappy.cli.spawn import spawn_broker

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=CommandGroup)
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
    ("latency", {"count": 5_000}),
]
UNITS = dict.fromkeys(("produce", "consume", "group", "latency"), "events/s") | {
    "get": "keys/s",
    "scan": "entries/s",
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
        results.append(_measure(name, UNITS[name], BenchSettings(**setting, rounds=rounds), address, durability))
    _print(results, address, durability, as_json)


def _run(name: str, unit: str, given: dict[str, Any]) -> None:
    address, durability, as_json = given.pop("address"), given.pop("durability"), given.pop("as_json")
    _print([_measure(name, unit, BenchSettings(**given), address, durability)], address, durability, as_json)


def _measure(name: str, unit: str, settings: BenchSettings, address: str | None, durability: str) -> dict[str, Any]:
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
    "latency": ("record_bytes", "view", "rate"),
}


def _setting(name: str, settings: BenchSettings) -> dict[str, Any]:
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
