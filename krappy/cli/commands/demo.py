"""`krappy demo …`: small programs that show what Krappy does and check the results."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from krappy.cli.options import CommandGroup, connect, json_option
from krappy.cli.spawn import spawn_broker

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=CommandGroup)
def demo() -> None:
    """Run small programs that show what Krappy does, and check the results.

    Each starts its own broker in a temporary folder and stops it at the end, unless --address names a broker. Read
    their source: krappy/demos/.

    \b
    Examples:
      krappy demo flights      # 336,776 flights: log, table, scan, a group whose worker is killed
      krappy demo broadcast    # one event, three services
      krappy demo work         # a task queue of which one worker is killed
      krappy demo cluster      # three brokers, of which some are killed: nothing is lost
      krappy demo bank         # balances from deposits, now and as of an earlier offset
    """


def options(command: F) -> F:
    where = click.option("--address", metavar="HOST:PORT", help="A broker to use.  [default: start one]")
    return where(json_option(command))


@demo.command()
@options
@click.option("--limit", type=click.IntRange(min=1000), metavar="N", help="Only the first N flights.")
def flights(address: str | None, as_json: bool, limit: int | None) -> None:
    """Stream a year of real flights through a broker and check every answer.

    It looks up the latest flight of each aircraft, scans the table, lets three workers share the stream and kills one,
    and reads the log back. It compares all results with a plain fold of the file, and exits with 1 if any differs.

    \b
    Examples:
      krappy demo flights
      krappy demo flights --limit 20000 --json
    """
    _run("flights", address, as_json, limit=limit)


@demo.command()
@options
def broadcast(address: str | None, as_json: bool) -> None:
    """Send signup events to three services, each of which reads all of them at its own pace.

    \b
    Examples:
      krappy demo broadcast
    """
    _run("broadcast", address, as_json)


@demo.command()
@options
def work(address: str | None, as_json: bool) -> None:
    """Run a task queue with three worker processes, and kill one: its tasks go to the others.

    \b
    Examples:
      krappy demo work
    """
    _run("work", address, as_json)


@demo.command()
@options
def bank(address: str | None, as_json: bool) -> None:
    """Compute account balances from deposits and withdrawals, for now and as of an earlier offset.

    \b
    Examples:
      krappy demo bank --json
    """
    _run("bank", address, as_json)


@demo.command()
@json_option
@click.option("--limit", type=click.IntRange(min=1000), metavar="N", help="Only the first N flights.")
@click.option("--zookeeper", metavar="HOST:PORT", help="A ZooKeeper that runs; it stays up.  [default: start one]")
@click.option(
    "--jars",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="ZooKeeper's jars, to start one.  [default: where they usually are]",
)
def cluster(as_json: bool, limit: int | None, zookeeper: str | None, jars: Path | None) -> None:
    """Stream flights through three brokers while a leader, the controller and ZooKeeper are killed.

    It starts a ZooKeeper (which needs java and ZooKeeper's jars) and three brokers on 127.0.0.1, with a topic of 6
    partitions and 3 replicas, and tells what happens. At the end it compares every replica with the file: every event
    is there once, in order. It exits with 1 if anything is not so. It takes about a minute.

    \b
    Examples:
      krappy demo cluster
      krappy demo cluster --limit 20000 --zookeeper localhost:2181
    """
    from krappy.demos.cluster import run
    from krappy.demos.show import Show

    show = Show(as_json)
    run(show, limit, zookeeper, jars)
    show.end()


def _run(name: str, address: str | None, as_json: bool, **given: Any) -> None:
    from krappy.demos.show import Show

    run = importlib.import_module(f"krappy.demos.{name}").run
    show = Show(as_json)
    if address is None:
        with spawn_broker() as broker, connect(broker.address) as client:
            run(client, broker.address, show, **given)
    else:
        with connect(address) as client:
            run(client, address, show, **given)
    show.end()
