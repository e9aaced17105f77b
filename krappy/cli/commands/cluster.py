"""`krappy cluster`: the brokers, and who leads and follows which partition; what changes; elections and moves."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from krappy.cli import cluster_moves, output
from krappy.cli.cluster_views import change_line, counts, print_state
from krappy.cli.errors import Failure
from krappy.cli.figures import ConsoleFigures, console_of
from krappy.cli.options import (
    DefaultCommandGroup,
    address_option,
    confirm,
    console_token,
    console_token_option,
    json_option,
)
from krappy.settings.listeners import HTTP

F = TypeVar("F", bound=Callable[..., Any])
PAUSE_S = 1.0  # before brokers are asked again when none of them answered
REMEMBERED = 2000  # changes that are not printed again when another broker tells them, too
CLOCKS_MS = 10_000  # how much the clocks of two brokers may differ


def console_options(command: F) -> F:
    """Where the cluster's state is read."""
    command = console_token_option(command)
    command = click.option(
        "--url",
        metavar="URL",
        envvar="KRAPPY_CONSOLE_URL",
        show_envvar=True,
        help="A broker's console.  [default: where the broker at --address says]",
    )(command)
    return address_option(command)


def filter_options(command: F) -> F:
    """Which partitions are shown."""
    command = click.option(
        "--troubled", is_flag=True, help="Only partitions that are offline or have replicas not in sync."
    )(command)
    return click.option("--topic", "wanted", metavar="TEXT", default="", help="Only topics whose names contain this.")(
        command
    )


@click.group(cls=DefaultCommandGroup)
def cluster() -> None:
    """Show the cluster: its brokers and controller, who leads and follows what; elect leaders, and move replicas.

    Any broker can be asked. Without a command this is `krappy cluster show`.

    \b
    Examples:
      krappy cluster
      krappy cluster --troubled
      krappy cluster watch
      krappy cluster elect flights
      krappy cluster balance
    """


@cluster.command()
@console_options
@filter_options
@json_option
def show(address: str, url: str | None, token_file: Path | None, wanted: str, troubled: bool, as_json: bool) -> None:
    """Show the cluster's brokers and controller, and of each partition the leader, the replicas in sync and their lag.

    A broker tells what it sees, and asks the leaders how far their followers are.

    \b
    Examples:
      krappy cluster
      krappy cluster --troubled
      krappy cluster show --topic flights --json | jq '.topics[].partitions[] | {partition, leader, isr}'
    """
    console = ConsoleFigures(url or console_of(address), console_token(token_file))
    state = read_state(console, _query(wanted, troubled))
    (output.emit_json if as_json else print_state)(state)


def _query(wanted: str, troubled: bool) -> dict[str, str]:
    return {"filter": wanted, "troubled": str(troubled).lower()}


@cluster.command()
@console_options
@filter_options
@json_option
def watch(address: str, url: str | None, token_file: Path | None, wanted: str, troubled: bool, as_json: bool) -> None:
    """Show the cluster, then elections, changes of ISRs, brokers that come or go and new controllers as they happen.

    It also shows replicas that are spoiled (damaged), begin anew (are copied anew) and are whole again. Each is a line;
    with --json only these are printed. Times are those of the broker that is watched. If that one goes away, the
    command goes on with another broker of the cluster, and says so on stderr.

    \b
    Examples:
      krappy cluster watch
      krappy cluster watch --json | jq -r 'select(.kind == "leader") | .text'
    """
    console = ConsoleFigures(url or console_of(address), console_token(token_file))
    watched = ClusterWatch(console, _query(wanted, troubled))
    if not as_json:
        print_state(watched.state)
        output.write_lines([""])
    with output.ending_with_reader():
        for change in watched.changes():
            if wanted not in (change["topic"] or wanted):
                continue
            if as_json:
                output.emit_json(change)
            else:
                output.write_lines([change_line(change)])


@cluster.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:PARTITION]…")
@click.option("--unclean", is_flag=True, help="Elect leaders that may lack acknowledged events, where there is none.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before an unclean election.")
@console_options
@json_option
def elect(
    topics: tuple[str, ...],
    unclean: bool,
    yes: bool,
    address: str,
    url: str | None,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Give partitions their preferred leaders: the first of their replicas, if that is in sync.

    The controller does so by itself every few minutes (leader.imbalance.check.interval.seconds); this does it now.

    With --unclean, a partition that has no leader gets one of the replicas that are there, although it may lack
    acknowledged events. Those are lost then. Use it only if the brokers that have them do not come back.

    \b
    Examples:
      krappy cluster elect flights
      krappy cluster elect flights:3 airports
      krappy cluster elect flights:3 --unclean
    """
    if unclean:
        confirm(f"Elect leaders of {', '.join(topics)} that may lack acknowledged events? Those events are lost.", yes)
    console = ConsoleFigures(url or console_of(address), console_token(token_file))
    cluster_moves.print_elections(cluster_moves.elect(console, topics, unclean=unclean), as_json)


@cluster.command()
@click.option("-y", "--yes", is_flag=True, help="Move them. Without it, the moves are only shown.")
@click.option(
    "--without",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="ID",
    help="A broker that is to have no replicas any more; may be given several times.",
)
@click.option(
    "--at-once",
    type=click.IntRange(min=1, max=cluster_moves.MOST_AT_ONCE),
    default=10,
    show_default=True,
    metavar="N",
    help="How many partitions move at a time.",
)
@console_options
@json_option
def balance(
    yes: bool,
    without: tuple[int, ...],
    at_once: int,
    address: str,
    url: str | None,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Propose moves of replicas, so that brokers have as many as each other, and partitions are on several racks.

    It counts replicas, not bytes. Nothing is moved without --yes. Then replicas are copied, `--at-once` partitions at a
    time, and the command prints how many have moved. If you end the command, what has begun goes on, and the rest is
    not moved. To limit the rate of copying, set a throttle of the brokers with Kafka's tools: see the how-to on
    clusters.

    \b
    Examples:
      krappy cluster balance
      krappy cluster balance --yes
      krappy cluster balance --without 3 --yes --at-once 2
      krappy cluster balance --json | jq '.moves[] | select(.copies != [])'
    """
    console = ConsoleFigures(url or console_of(address), console_token(token_file))
    proposal = console.get("cluster/balance", without=list(without))
    if as_json:
        output.emit_json(proposal)
    else:
        cluster_moves.print_proposal(proposal)
    if yes:
        cluster_moves.move(console, proposal["moves"], at_once, as_json)
    elif proposal["moves"] and not as_json:
        output.note("nothing was moved: give --yes to move them")


def read_state(console: ConsoleFigures, query: Mapping[str, str]) -> dict[str, Any]:
    """The cluster's state, read page by page."""
    state: dict[str, Any] = console.get("cluster/state", **query)
    after = state["after"]
    while after is not None:
        page = console.get("cluster/state", **query, after=after)
        state["topics"] += page["topics"]
        after = page["after"]
    del state["after"]
    return state


class ClusterWatch:
    """The cluster's changes, as one broker tells them, or the next if that one goes away. `state`: the cluster when
    the first broker was asked. `note(line)` is called when another broker is asked."""

    def __init__(
        self,
        console: ConsoleFigures,
        query: Mapping[str, str],
        note: Callable[[str], None] = output.note,
    ) -> None:
        self._console, self._query, self._note = console, query, note
        self.state = read_state(console, query)
        self._told: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)  # (at_ms, text) of the last changes

    def changes(self) -> Iterator[dict[str, Any]]:
        """The changes as they come, for ever."""
        state, after, since = self.state, self.state["last_change"], self.state["now_ms"]
        while True:
            told = Counter(text for at_ms, text in self._told if at_ms >= since - CLOCKS_MS)
            try:
                for event in self._console.events("cluster/changes", after=after):
                    for each in event["changes"]:
                        if each["number"] <= state["last_change"]:  # from before this broker was asked
                            if each["at_ms"] < since - CLOCKS_MS:
                                continue
                            if told[each["text"]]:
                                told[each["text"]] -= 1
                                continue
                        self._told.append((each["at_ms"], each["text"]))
                        yield each
                self._note(f"broker {state['told_by']} sends no more changes")
            except Failure as failure:
                self._note(failure.format_message())
            state, after = self._next(state), 0
            since = max((at_ms for at_ms, _ in self._told), default=since)
            self._note(f"watching through broker {state['told_by']} now; {counts(state)}")

    def _next(self, state: dict[str, Any]) -> dict[str, Any]:
        """Watches another broker from now on, or the same one once it is back. Returns the state as that broker tells
        it."""
        others = [
            self._console.like(each["endpoints"][HTTP])
            for each in state["brokers"]
            if each["id"] != state["told_by"] and HTTP in each["endpoints"]
        ]
        while True:
            for each in (*others, self._console):
                with suppress(Failure):
                    found = read_state(each, self._query)
                    self._console = each
                    return found
            time.sleep(PAUSE_S)
