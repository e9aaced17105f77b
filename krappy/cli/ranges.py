"""The options --prefix, --start and --end, by which a command selects keys of a table."""

from __future__ import annotations

from typing import Any

import click

from krappy.cli.options import (
    key_bytes,
)


def range_options(command: Any) -> Any:
    """Adds --prefix, --start and --end."""
    for option in (
        click.option("--end", metavar="KEY", help="Only keys before this one."),
        click.option("--start", metavar="KEY", help="Only this key and those after it."),
        click.option("--prefix", metavar="TEXT", help="Only keys that begin with TEXT."),
    ):
        command = option(command)
    return command


def chosen_keys(prefix: str | None, start: str | None, end: str | None) -> dict[str, bytes | None]:
    if prefix is not None and (start is not None or end is not None):
        raise click.UsageError("give either --prefix, or --start and --end")
    given = {"prefix": prefix, "start": start, "end": end}
    return {name: None if text is None else key_bytes(text) for name, text in given.items()}
