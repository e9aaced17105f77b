"""`krappy bench …`: measures a broker, as redis-benchmark does for Redis."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import click

from krappy.bench import machine, report
from krappy.bench.report import Round
from krappy.bench.settings import BenchSettings
from krappy.cli import output
from krappy.cli.options import Bytes, CommandGroup, connect, json_option
from krappy.cli.spawn import spawn_broker

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure a broker: one started for the purpose, or the one at --address.

    Each command runs several rounds and prints the median. The events are made before the clock starts. The client and
    a broker that it starts share this machine's processors. `--help` of each command says what the measured time
    includes.

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
            help="The durability of the broker that is started; not for --address.",
        ),
        click.option(
            "--address", metavar="HOST:PORT", help="Measure this broker, or its cluster.  [default: start one]"
        ),
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
    type=Bytes(12, 1 << 20),
    default=100,
    show_default=True,
    metavar="BYTES",
    help="Size of an event: its key (12 bytes) and its value.",
)
KEYS = click.option(
    "--keys", type=click.IntRange(1), default=10_000, show_default=True, metavar="N", help="Number of different keys."
)
PARTITIONS = click.option("--partitions", type=click.IntRange(1), default=1, show_default=True, metavar="N")
VIEW = click.option("--view/--no-view", default=True, show_default=True, help="With or without the topic's table.")
COMPRESSION = click.option("--compression", type=click.Choice(["gzip", "snappy", "lz4", "zstd"]))


@bench.command()
@count(500_000, "Events per round.")
@SIZE
@KEYS
@PARTITIONS
@VIEW
@COMPRESSION
@click.option("--batch", type=click.IntRange(1), default=5_000, show_default=True, help="Events passed at a time.")
@click.option("--single", is_flag=True, help="Send each event as a Message of its own, pipelined.")
@click.option("--connections", type=click.IntRange(1), default=1, show_default=True, metavar="N")
@click.option("--window", type=click.IntRange(1), default=256, show_default=True, help="--single: in flight on each.")
@common
def produce(**given: Any) -> None:
    """Measure how fast events are stored and acknowledged.

    Timed: from giving the first event to the client until the last one is acknowledged. That includes encoding record
    batches (or Messages), sending, the broker's append, fdatasync (not with --durability os) and the answer. The view
    is updated at the same time. The client makes record batches of at most 512 KiB.

    \b
    Examples:
      krappy bench produce
      krappy bench produce --no-view --size 1024 --compression lz4
      krappy bench produce --single --count 50000 --connections 50
    """
    _run("produce", given)


@bench.command()
@count(1_000_000, "Events in the topic.")
@SIZE
@PARTITIONS
@COMPRESSION
@click.option("--batch", type=click.IntRange(1), default=5_000, show_default=True, help="Events passed at a time.")
@common
def consume(**given: Any) -> None:
    """Measure how fast a stored log is read.

    Timed: from opening the consumer until the last event is decoded into columns.

    \b
    Examples:
      krappy bench consume
      krappy bench consume --size 1024 --count 200000
    """
    _run("consume", {**given, "view": False})


@bench.command()
@count(100_000, "Lookups per round.")
@SIZE
@KEYS
@PARTITIONS
@click.option("--clients", "connections", type=click.IntRange(1), default=16, show_default=True, metavar="N")
@click.option("--window", type=click.IntRange(1), default=16, show_default=True, help="Requests in flight on each.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Keys per request.")
@click.option("--history", type=click.IntRange(1), default=1, show_default=True, help="Events stored per key.")
@common
def get(**given: Any) -> None:
    """Measure how fast keys are looked up, by clients that keep several requests in flight.

    Timed: packing the requests, sending, receiving, unpacking the entries. A latency is the time from sending a request
    to its unpacked answer. `--clients 1 --window 1` measures one client that waits for each answer.

    \b
    Examples:
      krappy bench get
      krappy bench get --batch 100 --count 1000000
      krappy bench get --clients 1 --window 1 --count 10000
      krappy bench get --clients 1 --window 1 --keys 100000 --history 200   # beside a log of 20 M events
    """
    _run("get", given)


@bench.command()
@count(300_000, "Entries of the table.")
@SIZE
@PARTITIONS
@common
def scan(**given: Any) -> None:
    """Measure how fast a whole table is read.

    Timed: from the request until the client has decoded the last entry.

    \b
    Examples:
      krappy bench scan
      krappy bench scan --count 1000000 --json
    """
    _run("scan", given)


@bench.command()
@count(200_000, "Events per round.")
@SIZE
@PARTITIONS
@click.option("--members", "connections", type=click.IntRange(1, 1000), default=8, show_default=True, metavar="N")
@click.option("--batch", type=click.IntRange(1), default=500, show_default=True, help="Most events per poll.")
@common
def group(**given: Any) -> None:
    """Measure how fast the members of one group read and acknowledge a topic.

    Timed: from the first poll to the last acknowledgement. That includes leasing, reading, sending, and making the acks
    durable (not with --durability os). Events are not decoded. A latency is the time from sending a poll to its
    unpacked answer.

    \b
    Examples:
      krappy bench group
      krappy bench group --members 100 --batch 10 --count 50000
      krappy bench group --members 1 --batch 1 --count 5000
    """
    _run("group", {**given, "view": False})


@bench.command()
@count(200_000, "Events per round.")
@SIZE
@KEYS
@PARTITIONS
@click.option("--group/--no-group", "grouped", default=True, show_default=True, help="With acks, or a plain reader.")
@click.option("--members", "connections", type=click.IntRange(1, 1000), default=1, show_default=True, metavar="N")
@click.option("--order", type=click.Choice(["none", "key"]), default="none", show_default=True)
@click.option(
    "--work",
    "work_us",
    type=click.IntRange(0),
    default=0,
    metavar="µs",
    help="How long a member sleeps for each event.",
)
@common
def loop(**given: Any) -> None:
    """Measure the plain loop over a consumer's events, each acknowledged by itself.

    Timed: from opening the consumers of the async client until they are left. That includes reading, decoding and an
    object for each event; in a group also leasing, one `await consumer.ack(event)` for each event, and making the acks
    durable.

    \b
    Examples:
      krappy bench loop
      krappy bench loop --no-group
      krappy bench loop --members 8 --work 100 --order key
    """
    _run("loop", {**given, "view": False})


@bench.command()
@count(5_000, "Events per round.")
@SIZE
@VIEW
@click.option("--rate", type=click.IntRange(1), default=1_000, show_default=True, help="Events per second.")
@common
def latency(**given: Any) -> None:
    """Measure the time from publishing an event to a waiting consumer, at a steady rate.

    Timed: from when an event was due to be sent until the consumer has decoded it. That includes sending, the broker's
    append, fdatasync (not with --durability os) and the answer to the waiting poll. For a broker that is started here,
    two more rows show what the machine itself takes: a bare fdatasync of such an event in the same folder, and an empty
    hand-over to another thread and back.

    \b
    Examples:
      krappy bench latency
      krappy bench latency --rate 5000 --durability os
    """
    _run("latency", given)


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
    ("loop", {"count": 200_000, "view": False, "grouped": False}),
    ("loop", {"count": 200_000, "view": False}),
    ("latency", {"count": 5_000}),
]
UNITS = dict.fromkeys(("produce", "consume", "group", "loop", "latency"), "events/s") | {
    "get": "keys/s",
    "scan": "entries/s",
    "fdatasync": "syncs/s",
    "hand-over": "times/s",
}


@bench.command("all")
@common
def everything(address: str | None, durability: str, as_json: bool, rounds: int) -> None:
    """Run all benches and print one table, in a few minutes.

    \b
    Examples:
      krappy bench all
      krappy bench all --rounds 5 --json > figures.json
    """
    results = []
    for name, setting in ALL:
        output.note(f"{name} {_words(setting)}")
        results += _measure(name, BenchSettings(**setting, rounds=rounds), address, durability)
    _print(results, address, durability, as_json)


def _run(name: str, given: dict[str, Any]) -> None:
    address, durability, as_json = given.pop("address"), given.pop("durability"), given.pop("as_json")
    _print(_measure(name, BenchSettings(**given), address, durability), address, durability, as_json)


def _measure(name: str, settings: BenchSettings, address: str | None, durability: str) -> list[dict[str, Any]]:
    """One result, and those of the machine that belong to it."""
    module = importlib.import_module(f"krappy.bench.{'table' if name in ('get', 'scan') else name}")
    measure = getattr(module, name)
    costs: dict[str, list[Round]] = {}
    if address is None:
        with spawn_broker(settings={"durability": durability}) as broker, connect(broker.address) as client:
            rounds = measure(client, broker.address, settings)
            if name == "latency":
                if durability == "fsync":
                    costs["fdatasync"] = machine.fdatasync(broker.data.parent, settings)
                costs["hand-over"] = machine.hand_over(settings)
    else:
        with connect(address) as client:
            rounds = measure(client, address, settings)
    measured = {name: rounds, **costs}
    return [report.summary(each, UNITS[each], found, **_setting(each, settings)) for each, found in measured.items()]


# The settings that each bench uses.
_SETTINGS = {
    "produce": ("record_bytes", "keys", "partitions", "view", "compression", "batch", "single", "connections"),
    "consume": ("record_bytes", "partitions", "compression", "batch"),
    "get": ("record_bytes", "keys", "history", "partitions", "connections", "window", "batch"),
    "scan": ("record_bytes", "partitions"),
    "group": ("record_bytes", "partitions", "connections", "batch"),
    "loop": ("record_bytes", "keys", "partitions", "grouped", "connections", "order", "work_us"),
    "latency": ("record_bytes", "view", "rate"),
    "fdatasync": ("record_bytes", "rate"),
    "hand-over": ("rate",),
}


def _setting(name: str, settings: BenchSettings) -> dict[str, Any]:
    names = list(_SETTINGS[name])
    if name == "produce" and settings.single:
        names[names.index("batch")] = "window"
    return {each: getattr(settings, each) for each in names}


def _words(setting: dict[str, Any]) -> str:
    """Settings as short text, without those that are off or not set."""
    words = {
        "record_bytes": "{} B",
        "view": "view",
        "single": "single",
        "compression": "{}",
        "rate": "{}/s",
        "grouped": "group",
        "order": "order {}",
        "work_us": "work {} µs",
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
