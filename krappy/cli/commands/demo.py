"""`krappy demo …`: small programs that show what Krappy does and check themselves."""

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
    """Small programs that show what Krappy does, and fail when it does not.

    Each starts a broker of its own in a temporary folder and ends it, unless --address names one to use. Their source
    is meant to be read: krappy/demos/.

    \b
    Examples:
      krappy demo flights      # 336,776 flights: log, table, scan, a group with a crash
      krappy demo broadcast    # one event, three services
      krappy demo work         # a task queue whose worker crashes
      krappy demo bank         # balances from deposits, now and as of an earlier offset
    """


def options(command: F) -> F:
    where = click.option("--address", metavar="HOST:PORT", help="A broker to use.  [default: one of its own]")
    return where(json_option(command))


@demo.command()
@options
@click.option("--limit", type=click.IntRange(min=1000), metavar="N", help="Only the first N flights.")
def flights(address: str | None, as_json: bool, limit: int | None) -> None:
    """Stream a year of real flights through a broker and check every answer.

    The latest flight of an aircraft by key, a scan, three workers that share the stream while one is killed, offsets
    and lag, and the log read back: all compared with a plain fold of the file. Any difference ends it with status 1.

    \b
    Examples:
      krappy demo flights
      krappy demo flights --limit 20000 --json
    """
    _run("flights", address, as_json, limit=limit)


@demo.command()
@options
def broadcast(address: str | None, as_json: bool) -> None:
    """One signup event reaches three services, each at its own pace.

    \b
    Examples:
      krappy demo broadcast
    """
    _run("broadcast", address, as_json)


@demo.command()
@options
def work(address: str | None, as_json: bool) -> None:
    """A task queue: three worker processes, one of which is killed; its tasks go to the others.

    \b
    Examples:
      krappy demo work
    """
    _run("work", address, as_json)


@demo.command()
@options
def bank(address: str | None, as_json: bool) -> None:
    """Accounts rebuilt from deposits and withdrawals, now and as of an earlier offset.

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
