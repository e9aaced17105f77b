"""Which keys of a table a command is about."""

from __future__ import annotations

from typing import Any

import click

from krappy.cli.options import (
    key_bytes,
)


def range_options(command: Any) -> Any:
    """Which keys of a table."""
    for option in (
        click.option("--end", metavar="KEY", help="Keys before this one."),
        click.option("--start", metavar="KEY", help="Keys from this one on."),
        click.option("--prefix", metavar="TEXT", help="Keys that begin so."),
    ):
        command = option(command)
    return command


def chosen_keys(prefix: str | None, start: str | None, end: str | None) -> dict[str, bytes | None]:
    if prefix is not None and (start is not None or end is not None):
        raise click.UsageError("either --prefix, or --start and --end")
    given = {"prefix": prefix, "start": start, "end": end}
    return {name: None if text is None else key_bytes(text) for name, text in given.items()}
