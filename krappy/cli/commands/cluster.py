"""`krappy cluster`: the brokers, and who leads and follows which partition; `krappy cluster watch`: what changes."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import click

from krappy.cli import output
from krappy.cli.cluster_views import change_line, counts, print_state
from krappy.cli.errors import Failure
from krappy.cli.figures import ConsoleFigures, console_of
from krappy.cli.options import address_option, json_option
from krappy.settings.listeners import HTTP

PAUSE_S = 1.0  # before brokers are asked again of which none answered
REMEMBERED = 2000  # changes that are not told again by another broker
CLOCKS_MS = 10_000  # by which the clocks of two brokers may differ


@click.command()
@click.argument("watch", type=click.Choice(["watch"]), required=False)
@address_option
@click.option(
    "--url",
    metavar="URL",
    envvar="KRAPPY_CONSOLE_URL",
    show_envvar=True,
    help="A broker's console.  [default: where the broker at --address says]",
)
@click.option("--token", metavar="TEXT", envvar="KRAPPY_CONSOLE_TOKEN", show_envvar=True, help="The consoles' token.")
@click.option("--topic", "wanted", metavar="TEXT", default="", help="Only topics whose names contain this.")
@click.option("--troubled", is_flag=True, help="Only partitions that are offline or have replicas not in sync.")
@json_option
def cluster(
    watch: str | None, address: str, url: str | None, token: str | None, wanted: str, troubled: bool, as_json: bool
) -> None:
    """Show the cluster's brokers and controller, and of each partition the leader, the replicas in sync and their lag.

    Any broker can be asked. It tells what it sees, and asks the leaders how far their followers are.

    `krappy cluster watch` goes on with elections, changes of ISRs, brokers that come or go and new controllers as they
    happen, a line each. Times are those of the broker that is watched. If that one goes away, the command goes on with
    another broker of the cluster, and says so on stderr.

    \b
    Examples:
      krappy cluster
      krappy cluster --troubled
      krappy cluster --topic flights --json | jq '.topics[].partitions[] | {partition, leader, isr}'
      krappy cluster watch
      krappy cluster watch --json | jq -r 'select(.kind == "leader") | .text'
    """
    console = ConsoleFigures(url or console_of(address), token)
    query = {"filter": wanted, "troubled": str(troubled).lower()}
    watched = ClusterWatch(console, token, query)
    if not (watch and as_json):
        (output.emit_json if as_json else print_state)(watched.state)
    if watch is None:
        return
    if not as_json:
        output.write_lines([""])
    with output.ending_with_reader():
        for change in watched.changes():
            if wanted not in (change["topic"] or wanted):
                continue
            if as_json:
                output.emit_json(change)
            else:
                output.write_lines([change_line(change)])


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
    """The cluster's changes, from one broker after the other. `state`: the cluster when a broker was asked first.
    `note(line)` is called when another broker is asked."""

    def __init__(
        self,
        console: ConsoleFigures,
        token: str | None,
        query: Mapping[str, str],
        note: Callable[[str], None] = output.note,
    ) -> None:
        self._console, self._token, self._query, self._note = console, token, query, note
        self.state = read_state(console, query)
        self._told: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)  # (at_ms, text) of the last changes

    def changes(self) -> Iterator[dict[str, Any]]:
        """For ever."""
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
                self._note(f"broker {state['told_by']} has ended its answer")
            except Failure as failure:
                self._note(failure.format_message())
            state, after = self._next(state), 0
            since = max((at_ms for at_ms, _ in self._told), default=since)
            self._note(f"watching by broker {state['told_by']}; {counts(state)}")

    def _next(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state as another broker tells it, which is watched from now on; or the same one, once it is back."""
        others = [
            ConsoleFigures(each["endpoints"][HTTP], self._token)
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
