"""The output of a demo, and its checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from krappy.cli import output
from krappy.cli.errors import Failure


class Show:
    """Prints text on stdout; or, with `--json`, only collects facts and prints them at the end."""

    def __init__(self, as_json: bool) -> None:
        self._quiet = as_json
        self.facts: dict[str, Any] = {}
        self.checks: list[str] = []

    def heading(self, text: str) -> None:
        if not self._quiet:
            output.write_lines(["", text])

    def line(self, text: str) -> None:
        if not self._quiet:
            output.write_lines(["  " + text])

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        if not self._quiet:
            output.table(columns, rows)

    def fact(self, name: str, value: Any) -> None:
        """Adds a result to the JSON."""
        self.facts[name] = value

    def check(self, what: str, holds: bool, otherwise: str = "") -> None:
        """Checks a claim of the demo. Raises Failure, with `otherwise` as explanation, when it does not hold."""
        if not holds:
            raise Failure(f"not so: {what}" + (f"; {otherwise}" if otherwise else ""))
        self.checks.append(what)
        self.line(f"✓ {what}")

    def progress(self) -> Progress:
        """A progress bar on stderr; it shows nothing when that is no terminal."""
        console = Console(stderr=True)
        return Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=console,
            disable=self._quiet or not console.is_terminal,
        )

    def end(self) -> None:
        if self._quiet:
            output.emit_json({"checks": self.checks, **self.facts})
        else:
            output.write_lines(["", f"All {len(self.checks)} checks hold."])
