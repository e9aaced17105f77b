"""`krappy scan`: prints a topic's table."""

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
from krappy.cli.ranges import chosen_keys, range_options
from krappy.types import Entry


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@range_options
@partition_option
@click.option("--tombstones", is_flag=True, help="Print deleted keys too, while their tombstones are kept.")
@click.option("--ordered", is_flag=True, help="Merge all partitions in the order of keys.")
@click.option("-n", "--max", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N entries.")
@click.option(
    "-s", "--sep", "separator", type=Separator(), default="\t", help="The text between key and value.  [default: tab]"
)
@click.option("--keys", "keys_only", is_flag=True, help="Print only the keys.")
@form_options
@address_option
@json_option
def scan(
    topic: str,
    prefix: str | None,
    start: str | None,
    end: str | None,
    partitions: tuple[int, ...],
    tombstones: bool,
    ordered: bool,
    limit: int | None,
    separator: str,
    keys_only: bool,
    form: Form,
    address: str,
    as_json: bool,
) -> None:
    """Print a topic's table: each key and its latest value, from one snapshot.

    Entries come partition by partition, ordered by key within each; with --ordered all in one order. Keys that are not
    UTF-8, or have invisible characters, such as line ends, are printed as `base64:…`. Values are printed as they are.

    \b
    Examples:
      krappy scan users
      krappy scan users --prefix u1 --max 10
      krappy scan users --start u1 --end u5 --json
      krappy scan users --keys | wc -l
      krappy scan users --ordered --start u1
    """
    chosen = chosen_keys(prefix, start, end)
    left = limit
    with connect(address) as client:
        table = client.table(topic)
        some = list(partitions) or None
        with table.scan(**chosen, partitions=some, tombstones=tombstones, ordered=ordered) as scanned:  # type: ignore[arg-type]
            for page in scanned.pages():
                entries = page if left is None else page[:left]
                output.write_lines(_line(entry, separator, keys_only, form, as_json) for entry in entries)
                if left is not None:
                    left -= len(entries)
                    if left <= 0:
                        break


def _line(entry: Entry, separator: str, keys_only: bool, form: Form, as_json: bool) -> str:
    if as_json:
        return output.to_json({"key": output.plain(entry.key)} if keys_only else output.entry_json(entry, form.plain))
    key = output.key_text(entry.key)
    return key if keys_only else key + separator + form.text(entry.value)
