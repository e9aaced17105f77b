"""`krappy top`: shows a broker's figures in the terminal. It reads them from the console's HTTP API."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

import click

from krappy.cli import output
from krappy.cli.errors import Failure
from krappy.cli.options import Quantity, address_option, json_option
from krappy.clients.values import address as parse_address
from krappy.settings import units

PORT = 8092  # the console's, unless the broker was given another
SECONDS = 10.0  # timeout of a request
PAGE = 1000  # topics or groups per request: the most that the API allows
ROWS = 8  # rows shown of each table


class TopScreen:
    """Reads figures from the console at `url`, with `token` if it needs one."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url.rstrip("/") if "://" in url else f"http://{url}".rstrip("/")
        self._headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        # Without the proxies of the environment: the console is most often on this machine.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def get(self, path: str, **query: Any) -> Any:
        """The JSON that the API answers for a path. Raises Failure."""
        where = f"{self._url}/api/v1/{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            with self._open(urllib.request.Request(where, headers=self._headers), timeout=SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 401:
                raise Failure(f"the console at {self._url} needs its token: --token or KRAPPY_CONSOLE_TOKEN") from None
            raise Failure(f"the console at {self._url} refuses: {_reason(error)}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = (
                "it does not speak HTTP"
                if isinstance(error, http.client.HTTPException)
                else getattr(error, "reason", error)
            )
            raise Failure(
                f"there is no console at {self._url} ({why}); `krappy serve` has one when krappy[console] is "
                "installed; if it is elsewhere, give --url"
            ) from None

    def look(self) -> dict[str, Any]:
        """Reads all figures once."""
        return {
            "overview": self.get("overview"),
            "topics": self._every("topics"),
            "groups": self._every("groups"),
            "connections": self.get("connections", limit=ROWS)["connections"],
        }

    def _every(self, what: str) -> list[dict[str, Any]]:
        """All topics, or all groups, read page by page."""
        page = self.get(what, limit=PAGE)
        found: list[dict[str, Any]] = page[what]
        while page["after"] is not None:
            page = self.get(what, limit=PAGE, after=page["after"])
            found += page[what]
        return found


def _console_of(address: str) -> str:
    """Where the console of the broker at this address most likely is."""
    return str(parse_address(address)._replace(port=PORT))


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        body = error.read(10_000).decode()
        return str(json.loads(body)["detail"]) if body.startswith("{") else body.strip() or f"status {error.code}"
    except (ValueError, KeyError, OSError):
        return f"status {error.code}"


@click.command()
@address_option
@click.option(
    "--url",
    metavar="URL",
    envvar="KRAPPY_CONSOLE_URL",
    show_envvar=True,
    help=f"The broker's console.  [default: port {PORT} of the broker's host]",
)
@click.option("--token", metavar="TEXT", envvar="KRAPPY_CONSOLE_TOKEN", show_envvar=True, help="The console's token.")
@click.option(
    "--interval",
    type=Quantity(units.MS, 1000, 0.2),
    default=2.0,
    show_default=True,
    help="Seconds between two updates; 2, 500ms, 1m.",
)
@click.option("--once", is_flag=True, help="Measure one interval, print it, and end.")
@json_option
def top(address: str, url: str | None, token: str | None, interval: float, once: bool, as_json: bool) -> None:
    """Show a broker's rates, latencies, lag, sizes and connections, updated every few seconds.

    Rates are those of the last interval. While the broker does not answer, the command waits for it. It uses the
    console's HTTP API, which `krappy serve` offers on port 8092 when krappy[console] is installed. --json prints one
    interval as one document, with rates per second and all topics and groups.

    \b
    Examples:
      krappy top
      krappy top --once
      krappy top --json | jq .rates.appended_events
      krappy top --address broker.example:7092 --token "$TOKEN"
      krappy top --url https://console.example --token "$TOKEN"
    """
    console = TopScreen(url or _console_of(address), token)
    before = console.look()
    if once or as_json:
        time.sleep(interval)
        after = console.look()
        if as_json:
            output.emit_json({"rates": rates(before, after), "latencies": latencies(before, after), **after})
        else:
            output.print_rich(screen(before, after))
        return
    from rich.live import Live

    with Live(screen(before, before), screen=os.isatty(1), auto_refresh=False) as shown:
        for after, trouble in looks(console, before, interval):
            shown.update(screen(before, after, trouble), refresh=True)
            before = after


def looks(console: TopScreen, last: dict[str, Any], interval: float) -> Iterator[tuple[dict[str, Any], str]]:
    """Reads the figures after each interval, for ever. Gives them with an empty text; while the console does not
    answer, the last ones with the reason."""
    while True:
        time.sleep(interval)
        try:
            last = console.look()
            yield last, ""
        except Failure as failure:
            yield last, failure.format_message()


def _seconds(before: dict[str, Any], after: dict[str, Any]) -> float:
    return max(1.0, float(after["overview"]["now_ms"] - before["overview"]["now_ms"])) / 1000


def _comparable(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The figures to compare `after` with: `before`, or `after` itself when the broker has restarted in between, since
    its counters then began at 0."""
    return before if before["overview"]["started_ms"] == after["overview"]["started_ms"] else after


def rates(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """Per second, of what happened between two looks."""
    before = _comparable(before, after)
    seconds = _seconds(before, after)
    was, now = before["overview"], after["overview"]

    def grown(name: str) -> float:
        old, new = was[name], now[name]
        if isinstance(new, dict):
            old, new = sum(old.values()), sum(new.values())
        return max(0.0, float(new - old)) / seconds

    asked = sum(each["latency"]["count"] for each in now["requests"])
    asked -= sum(each["latency"]["count"] for each in was["requests"])
    names = ("appended_events", "appended_bytes", "received_bytes", "sent_bytes", "stalls")
    return {**{name: grown(name) for name in names}, "requests": max(0, asked) / seconds}


def latencies(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """For each type of request answered between two reads: its rate per second, and upper bounds of its p50 and p99 in
    seconds (None: above the highest bound). The most frequent type comes first."""
    before = _comparable(before, after)
    seconds = _seconds(before, after)
    was = {(each["protocol"], each["request"]): each["latency"]["counts"] for each in before["overview"]["requests"]}
    found = []
    for each in after["overview"]["requests"]:
        latency = each["latency"]
        old = was.get((each["protocol"], each["request"]), [0] * len(latency["counts"]))
        counts = [new - held for new, held in zip(latency["counts"], old, strict=True)]
        total = sum(counts)
        if total > 0:
            p50, p99 = (_quantile(latency["bounds"], counts, part) for part in (0.5, 0.99))
            row = {"protocol": each["protocol"], "request": each["request"], "per_second": total / seconds}
            found.append({**row, "p50": p50, "p99": p99})
    return sorted(found, key=lambda each: -float(each["per_second"]))


def _quantile(bounds: list[float], counts: list[int], part: float) -> float | None:
    wanted, seen = part * sum(counts), 0
    for bound, count in zip(bounds, counts, strict=False):
        seen += count
        if seen >= wanted:
            return bound
    return None


def screen(before: dict[str, Any], after: dict[str, Any], trouble: str = "") -> Any:
    """The screen, as an object of rich. `trouble`: why there are no newer figures."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.text import Text

    now, per_second = after["overview"], rates(before, after)
    uptime = (now["now_ms"] - now["started_ms"]) // 1000
    connections = ", ".join(f"{count} {protocol}" for protocol, count in sorted(now["connections"].items()) if count)
    lines = [
        f"up {uptime // 3600}:{uptime // 60 % 60:02}:{uptime % 60:02}   {now['topics']:,} topics, "
        f"{now['partitions']:,} partitions, {now['groups']:,} groups   connections: {connections or 'none'}",
        f"in {per_second['appended_events']:,.0f} events/s, {output.size(int(per_second['appended_bytes']))}/s   "
        f"received {output.size(int(per_second['received_bytes']))}/s, "
        f"sent {output.size(int(per_second['sent_bytes']))}/s   {per_second['requests']:,.0f} requests/s",
        f"logs {output.size(now['log_bytes'])}, tables {output.size(now['views'].get('file_bytes', 0))}, "
        f"memory {output.size(now['resident_bytes'])}   "
        f"lag: groups {now['group_lag']:,}, tables {now['view_lag_events']:,}   "
        f"requests and answers hold {output.size(now['budget_used_bytes'])} of {output.size(now['budget_bytes'])}, "
        f"{per_second['stalls']:,.0f} stalls/s",
    ]
    warnings = [trouble] if trouble else []
    for name, what in (
        ("partitions_failed", "take no more events since the disk failed them: start the broker again"),
        ("views_failed", "have a table that does not go on, as their log is damaged: see `krappy doctor`"),
    ):
        if now[name]:
            warnings.append(f"{now[name]:,} partitions {what}")
    shown = [*(Text(each, style="bold red") for each in warnings), *map(Text, lines)]
    return Group(*shown, Text(), Columns([_requests(before, after), _topics(before, after), _groups(after)]))


def _requests(before: dict[str, Any], after: dict[str, Any]) -> Any:
    rows = [
        (f"{each['protocol']} {each['request']}", f"{each['per_second']:,.0f}", _ms(each["p50"]), _ms(each["p99"]))
        for each in latencies(before, after)[:ROWS]
    ]
    return _table(["request", "/s", "p50 ms <=", "p99 ms <="], rows)


def _ms(seconds: float | None) -> str:
    return "more" if seconds is None else f"{seconds * 1000:g}"


def _topics(before: dict[str, Any], after: dict[str, Any]) -> Any:
    before = _comparable(before, after)
    seconds = _seconds(before, after)
    was = {each["name"]: each["events"] for each in before["topics"]}
    rows = [
        (each["name"], max(0.0, each["events"] - was.get(each["name"], 0)) / seconds, each["size"], each["view_lag"])
        for each in after["topics"]
    ]
    rows.sort(key=lambda row: (-row[1], -row[2], row[0]))
    shown = [(name, f"{rate:,.0f}", output.size(size), f"{lag:,}") for name, rate, size, lag in rows[:ROWS]]
    return _table(["topic", "events/s", "size", "table lag"], shown)


def _groups(after: dict[str, Any]) -> Any:
    rows = sorted(after["groups"], key=lambda each: (-each["lag"], each["group"]))[:ROWS]
    return _table(["group", "lag"], [(each["group"], f"{each['lag']:,}") for each in rows])


def _table(columns: list[str], rows: Sequence[tuple[str, ...]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        shown.add_column(column, justify="right" if index else "left", overflow="ellipsis", max_width=40)
    for row in rows:
        shown.add_row(*(Text(output.visible(cell)) for cell in row))
    return shown
