"""`krappy demo …`: small programs that show what Krappy does and check the results."""

from __future__ import annotations

import importlib
from collections.abc import Callable
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
