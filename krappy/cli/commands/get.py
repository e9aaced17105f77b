"""`krappy get`: prints the latest value of keys."""

from __future__ import annotations

import click

from krappy.cli import output
from krappy.cli.forms import Form, form_options
from krappy.cli.options import (
    address_option,
    complete_topics,
    connect,
    json_option,
    key_bytes,
)
from krappy.types import Entry

ABSENT, DELETED = 3, 4  # exit statuses


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("-p", "--partition", type=click.IntRange(min=0), metavar="N", help="Look in this partition only.")
@click.option(
    "--min-offset", type=click.IntRange(min=0), metavar="OFFSET", help="Wait until the table includes this offset."
)
@click.option("--history", is_flag=True, help="Print every event of the key that the log still has, oldest first.")
@form_options
@address_option
@json_option
def get(
    topic: str,
    keys: tuple[str, ...],
    partition: int | None,
    min_offset: int | None,
    history: bool,
    form: Form,
    address: str,
    as_json: bool,
) -> None:
    """Print the latest value of one or more keys.

    The value goes to stdout as it is; its offset and time go to stderr. A key that is not text, or has
    invisible characters, can be given as `base64:…`, and is shown so.

    \b
    Exit status: 0 when every key has a value, 3 when one is absent, 4 when one was deleted.

    \b
    Examples:
      krappy get users u1
      krappy get users u1 u2 u3 --json
      krappy get users u1 --history
      krappy get users u1 --as json
      krappy get visits u1 --as long
    """
    wanted = [key_bytes(key) for key in keys]
    if len(wanted) > 1 and (min_offset is not None or history):
        raise click.UsageError("--min-offset and --history are for one key")
    with connect(address) as client:
        table = client.table(topic)
        found: list[Entry | None]
        if history:
            found = list(table.history(wanted[0], partition=partition)) or [None]
        elif len(wanted) == 1:
            found = [table.get(wanted[0], partition=partition, min_offset=min_offset)]
        else:
            found = table.get_many(wanted, partition=partition)
    for key, entry in zip(wanted * len(found) if history else wanted, found, strict=False):
        _show_found(topic, key, entry, form, as_json)
    # The last entry of a history is the key's current state.
    raise click.exceptions.Exit(_status(found[-1:] if history else found))


def _show_found(topic: str, key: bytes, entry: Entry | None, form: Form, as_json: bool) -> None:
    if as_json:
        state = "absent" if entry is None else "deleted" if entry.deleted else "value"
        facts = {"key": output.plain(key)} if entry is None else output.entry_json(entry, form.plain)
        output.emit_json({"state": state, **facts})
        return
    name = output.key_text(key)
    if entry is None:
        output.note(f"{name}: absent: {topic} has no event of this key")
        return
    where = f"{topic} partition {entry.partition} offset {entry.offset}, {output.when(entry.timestamp)}"
    if entry.value is None:
        output.note(f"{name}: deleted at {where}")
        return
    output.write_lines(form.lines(entry.value))
    output.note(f"{name}: {where}")


def _status(found: list[Entry | None]) -> int:
    if None in found:
        return ABSENT
    return DELETED if any(entry is not None and entry.deleted for entry in found) else 0
