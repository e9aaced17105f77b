"""`krappy top`: shows a broker's figures in the terminal. It reads them from the console's HTTP API."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from krappy.cli import output
from krappy.cli.figures import ConsoleFigures, console_of, latencies, looks, rates, topic_rates
from krappy.cli.options import Quantity, address_option, console_token, console_token_option, json_option
from krappy.settings import units


@click.command()
@address_option
@click.option(
    "--url",
    metavar="URL",
    envvar="KRAPPY_CONSOLE_URL",
    show_envvar=True,
    help="The broker's console.  [default: where the broker at --address says]",
)
@console_token_option
@click.option(
    "--interval",
    type=Quantity(units.MS, 1000, 0.2),
    default=2.0,
    show_default=True,
    help="Seconds between two updates; 2, 500ms, 1m.",
)
@click.option("--once", is_flag=True, help="Measure one interval, print it, and end.")
@json_option
def top(address: str, url: str | None, token_file: Path | None, interval: float, once: bool, as_json: bool) -> None:
    """Show a broker's rates, latencies, lag, sizes and connections, updated every few seconds.

    Rates are those of the last interval; the bars show those of the intervals before. While the broker does not answer,
    the command waits for it. It uses the console's HTTP API, which `krappy serve` offers when krappy[console] is
    installed. Into a pipe it prints a line for each interval, with tabs between the columns. --json prints one interval
    as one document, with rates per second and all topics and groups.

    \b
    Examples:
      krappy top
      krappy top --once
      krappy top | cut -f 1,2
      krappy top --json | jq .rates.appended_events
      krappy top --address broker.example:7092 --console-token-file console.token
      krappy top --url https://console.example --console-token-file console.token
    """
    console = ConsoleFigures(url or console_of(address), console_token(token_file))
    before = console.look()
    if once or as_json:
        time.sleep(interval)
        after = console.look()
        if as_json:
            output.emit_json({"rates": rates(before, after), "latencies": latencies(before, after), **after})
        elif sys.stdout.isatty():
            from krappy.cli.screen import screen

            output.print_rich(screen(before, after))
        else:
            _print(before, after)
    elif sys.stdout.isatty():
        _show(console, before, interval)
    else:
        _follow(console, before, interval)


def _show(console: ConsoleFigures, before: dict[str, Any], interval: float) -> None:
    """The screen, until Ctrl-C."""
    from rich.live import Live

    from krappy.cli.screen import Trends, figures, screen

    trends = Trends()
    with Live(screen(before, before), screen=True, auto_refresh=False) as shown:
        for after, trouble in looks(console, before, interval):
            if not trouble:
                trends.add(figures(before, after))
            shown.update(screen(before, after, trouble, trends), refresh=True)
            before = after


def _line(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """An interval, for a line."""
    now = after["overview"]
    return {
        "time": output.when(now["now_ms"]),
        **{f"{name}_per_s": round(rate) for name, rate in rates(before, after).items()},
        "group_lag": now["group_lag"],
        "view_lag": now["view_lag_events"],
        "resident_bytes": now["resident_bytes"],
    }


def _follow(console: ConsoleFigures, before: dict[str, Any], interval: float) -> None:
    """A line for each interval, until Ctrl-C or until the reader has gone."""
    with output.ending_with_reader():
        output.write_lines([output.tabbed(_line(before, before))])
        for after, trouble in looks(console, before, interval):
            if trouble:
                output.note(trouble)
            else:
                output.write_lines([output.tabbed(_line(before, after).values())])
            before = after


def _print(before: dict[str, Any], after: dict[str, Any]) -> None:
    """One interval, as tables."""
    output.table(["figure", "value"], _line(before, after).items())
    output.write_lines([""])
    output.table(
        ["protocol", "request", "per second", "p50 ms", "p99 ms"],
        [
            [each["protocol"], each["request"], round(each["per_second"]), _ms(each["p50"]), _ms(each["p99"])]
            for each in latencies(before, after)
        ],
    )
    output.write_lines([""])
    output.table(
        ["topic", "events per second", "bytes", "view lag"],
        [
            [each["topic"], round(each["per_second"]), each["size"], each["view_lag"]]
            for each in topic_rates(before, after)
        ],
    )
    output.write_lines([""])
    output.table(["group", "lag"], [[each["group"], each["lag"]] for each in after["groups"]])


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
