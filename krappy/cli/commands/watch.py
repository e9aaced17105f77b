"""`krappy watch`: prints a topic's table, then every change to it."""

from __future__ import annotations

import click

from krappy.cli import output
from krappy.cli.forms import Form, form_options
from krappy.cli.options import (
    Separator,
    address_option,
    complete_topics,
    connect,
    json_option,
    partition_option,
)
from krappy.cli.progress import telling
from krappy.cli.ranges import chosen_keys, range_options
from krappy.types import Entry


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@range_options
@partition_option
@click.option("-n", "--max", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N entries.")
@click.option(
    "-s", "--sep", "separator", type=Separator(), default="\t", help="The text between key and value.  [default: tab]"
)
@form_options
@address_option
@json_option
def watch(
    topic: str,
    prefix: str | None,
    start: str | None,
    end: str | None,
    partitions: tuple[int, ...],
    limit: int | None,
    separator: str,
    form: Form,
    address: str,
    as_json: bool,
) -> None:
    """Print the table as it is, then every change as it happens, until Ctrl-C. There are no gaps and no duplicates.

    Lines begin with `=` for an entry of the table, `+` for a change and `-` for a deletion. When the table is complete,
    a note goes to stderr. With --json each line has an "event": snapshot, end_of_snapshot or change. Keys that are not
    UTF-8, or have invisible characters, such as line ends, are printed as `base64:…`. Values are printed as they are.

    \b
    Examples:
      krappy watch users
      krappy watch users --prefix u1 --json
      krappy watch users --max 1
    """
    from krappy.clients.watch_progress import SnapshotEnd

    chosen = chosen_keys(prefix, start, end)
    live, left = False, limit
    with connect(address) as client:
        table = client.table(topic)
        with (
            table.watch(**chosen, partitions=list(partitions) or None) as watched,  # type: ignore[arg-type]
            telling(lambda: client.trouble, "waiting for the broker"),
            output.ending_with_reader(),
        ):
            for item in watched:
                if isinstance(item, SnapshotEnd):
                    live = True
                    if as_json:
                        offsets = {str(index): offset for index, offset in item.offsets.items()}
                        output.emit_json({"event": "end_of_snapshot", "offsets": offsets})
                    else:
                        output.note("that is the table now; changes follow")
                    continue
                _show_change(item, live, separator, form, as_json)
                if left is not None:
                    left -= 1
                    if left <= 0:
                        break


def _show_change(entry: Entry, live: bool, separator: str, form: Form, as_json: bool) -> None:
    if as_json:
        output.emit_json({"event": "change" if live else "snapshot", **output.entry_json(entry, form.plain)})
        return
    mark = "-" if entry.deleted else "+" if live else "="
    line = f"{mark} {output.key_text(entry.key)}"
    output.write_lines([line if entry.value is None else line + separator + form.text(entry.value)])
