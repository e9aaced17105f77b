"""The screen of `krappy top`: figures with what they were over the last minutes, and tables beside each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.columns import Columns
from rich.console import Group
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from krappy.cli import output
from krappy.cli.figures import latencies, rates, topic_rates

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

ROWS = 8  # rows shown of each table
KEPT = 240  # intervals that a trend remembers
BARS = "▁▂▃▄▅▆▇█"


def spark(values: Sequence[float], width: int) -> str:
    """The last `width` values as bars, the highest of them as a whole one. No value is below 0."""
    seen = values[-width:]
    top = max(seen, default=0) or 1
    return "".join(BARS[min(len(BARS) - 1, int(value / top * len(BARS)))] for value in seen)


class Sparkline:
    """A trend (for rich), as wide as there is room."""

    def __init__(self, values: Sequence[float], style: str) -> None:
        self._values = values
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(spark(self._values, options.max_width), Style.parse(self._style))


class Figure(NamedTuple):
    name: str
    value: float
    unit: str  # "B": bytes, else what stands behind the number
    colour: str

    @property
    def text(self) -> str:
        if self.unit.startswith("B"):
            return output.size(int(self.value)) + self.unit[1:]
        return f"{self.value:,.0f}{self.unit}"


def figures(before: dict[str, Any], after: dict[str, Any]) -> list[Figure]:
    """The figures of which a trend is drawn."""
    now, per_second = after["overview"], rates(before, after)
    return [
        Figure("events in", per_second["appended_events"], "/s", "green"),
        Figure("written", per_second["appended_bytes"], "B/s", "green"),
        Figure("received", per_second["received_bytes"], "B/s", "cyan"),
        Figure("sent", per_second["sent_bytes"], "B/s", "cyan"),
        Figure("requests", per_second["requests"], "/s", "blue"),
        Figure("group lag", now["group_lag"], "", "yellow"),
        Figure("view lag", now["view_lag_events"], "", "yellow"),
        Figure("memory", now["resident_bytes"], "B", "magenta"),
    ]


class Trends:
    """The past values of each figure, by its name."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {}

    def add(self, found: Iterable[Figure]) -> None:
        for each in found:
            self._seen.setdefault(each.name, deque(maxlen=KEPT)).append(each.value)

    def of(self, name: str) -> list[float]:
        return list(self._seen.get(name, ()))


def screen(before: dict[str, Any], after: dict[str, Any], trouble: str = "", trends: Trends | None = None) -> Any:
    """The screen, as an object of rich. `trouble`: why there are no newer figures."""
    now, per_second = after["overview"], rates(before, after)
    warnings = [trouble] if trouble else []
    for name, what in (
        ("partitions_failed", "take no more events, because the disk failed: start the broker again"),
        ("views_failed", "have a table that is not updated, because their log is damaged: see `krappy doctor`"),
    ):
        if now[name]:
            warnings.append(f"{now[name]:,} partitions {what}")
    held = f"{output.size(now['budget_used_bytes'])} of {output.size(now['budget_bytes'])}"
    foot = (
        f"logs {output.size(now['log_bytes'])}, tables {output.size(now['views'].get('file_bytes', 0))}   "
        f"requests and answers hold {held}, {per_second['stalls']:,.0f} stalls/s"
    )
    lines = Table.grid(padding=(0, 1), expand=True)
    lines.add_column(width=9, no_wrap=True)
    lines.add_column(width=11, no_wrap=True, justify="right")
    lines.add_column(ratio=1)
    for each in figures(before, after):
        lines.add_row(
            Text(each.name, style="dim"),
            Text(each.text, style="bold"),
            Sparkline((trends or Trends()).of(each.name), each.colour),
        )
    tables = Columns([_requests(before, after), _topics(before, after), _groups(after)], padding=(1, 4))
    warned = [Text(output.visible(each), style="bold red") for each in warnings]
    return Group(*warned, Text(_head(now)), Text(), lines, Text(), Text(foot, style="dim"), Text(), tables)


def _head(now: dict[str, Any]) -> str:
    uptime = (now["now_ms"] - now["started_ms"]) // 1000
    connections = ", ".join(f"{count} {protocol}" for protocol, count in sorted(now["connections"].items()) if count)
    return (
        f"up {uptime // 3600}:{uptime // 60 % 60:02}:{uptime % 60:02}   {now['topics']:,} topics, "
        f"{now['partitions']:,} partitions, {now['groups']:,} groups   connections: {connections or 'none'}"
    )


def _requests(before: dict[str, Any], after: dict[str, Any]) -> Any:
    rows = [
        (f"{each['protocol']} {each['request']}", f"{each['per_second']:,.0f}", _ms(each["p50"]), _ms(each["p99"]))
        for each in latencies(before, after)[:ROWS]
    ]
    return _table(["request", "/s", "p50 ms <=", "p99 ms <="], rows)


def _ms(seconds: float | None) -> str:
    return "more" if seconds is None else f"{seconds * 1000:g}"


def _topics(before: dict[str, Any], after: dict[str, Any]) -> Any:
    rows = [
        (each["topic"], f"{each['per_second']:,.0f}", output.size(each["size"]), f"{each['view_lag']:,}")
        for each in topic_rates(before, after)[:ROWS]
    ]
    return _table(["topic", "events/s", "size", "view lag"], rows)


def groups_by_lag(after: dict[str, Any]) -> list[dict[str, Any]]:
    """The groups, those furthest behind first."""
    return sorted(after["groups"], key=lambda each: (-each["lag"], each["group"]))


def _groups(after: dict[str, Any]) -> Any:
    return _table(["group", "lag"], [(each["group"], f"{each['lag']:,}") for each in groups_by_lag(after)[:ROWS]])


def _table(columns: list[str], rows: Sequence[tuple[str, ...]]) -> Any:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        shown.add_column(column, justify="right" if index else "left", overflow="ellipsis", max_width=40)
    for row in rows:
        shown.add_row(*(Text(output.visible(cell)) for cell in row))
    return shown
