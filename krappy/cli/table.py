"""`krappy get`, `krappy scan`, `krappy watch`: a topic as a table."""

from __future__ import annotations

from typing import Any

import click

from krappy.cli import output
from krappy.cli.options import (
    Separator,
    address_option,
    complete_topics,
    connect,
    json_option,
    key_bytes,
    partition_option,
)
from krappy.cli.progress import telling
from krappy.types import Entry

ABSENT, DELETED = 3, 4  # exit statuses of `get`


def range_options(command: Any) -> Any:
    """Which keys of a table."""
    for option in (
        click.option("--end", metavar="KEY", help="Keys before this one."),
        click.option("--start", metavar="KEY", help="Keys from this one on."),
        click.option("--prefix", metavar="TEXT", help="Keys that begin so."),
    ):
        command = option(command)
    return command


def _chosen(prefix: str | None, start: str | None, end: str | None) -> dict[str, bytes | None]:
    if prefix is not None and (start is not None or end is not None):
        raise click.UsageError("either --prefix, or --start and --end")
    given = {"prefix": prefix, "start": start, "end": end}
    return {name: None if text is None else key_bytes(text) for name, text in given.items()}


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("-p", "--partition", type=click.IntRange(min=0), metavar="N", help="Look in this partition.")
@click.option("--min-offset", type=click.IntRange(min=0), metavar="OFFSET", help="Wait until the table includes it.")
@click.option("--history", is_flag=True, help="Every event of the key that the log still has, oldest first.")
@address_option
@json_option
def get(
    topic: str,
    keys: tuple[str, ...],
    partition: int | None,
    min_offset: int | None,
    history: bool,
    address: str,
    as_json: bool,
) -> None:
    """Print the latest value of a key, or of several.

    The value goes to stdout; where and when it was written goes to stderr. A key may be given as `base64:…`.

    \b
    Exit status: 0 when every key has a value, 3 when one is absent, 4 when one was deleted.

    \b
    Examples:
      krappy get users u1
      krappy get users u1 u2 u3 --json
      krappy get users u1 --history
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
        _show_found(topic, key, entry, as_json)
    # Of a history only the end says what the key is now.
    raise click.exceptions.Exit(_status(found[-1:] if history else found))


def _show_found(topic: str, key: bytes, entry: Entry | None, as_json: bool) -> None:
    if as_json:
        state = "absent" if entry is None else "deleted" if entry.deleted else "value"
        facts = {"key": output.plain(key)} if entry is None else output.entry_json(entry)
        output.emit_json({"state": state, **facts})
        return
    name = output.text(key)
    if entry is None:
        output.note(f"{name}: absent: {topic} has no event of this key")
        return
    where = f"{topic} partition {entry.partition} offset {entry.offset}, {output.when(entry.timestamp)}"
    if entry.value is None:
        output.note(f"{name}: deleted at {where}")
        return
    output.write_lines([output.text(entry.value)])
    output.note(f"{name}: {where}")


def _status(found: list[Entry | None]) -> int:
    if None in found:
        return ABSENT
    return DELETED if any(entry is not None and entry.deleted for entry in found) else 0


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@range_options
@partition_option
@click.option("--tombstones", is_flag=True, help="Deleted keys too, while their tombstones are kept.")
@click.option("-n", "--max", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N entries.")
@click.option("-s", "--sep", "separator", type=Separator(), default="\t", help="Between key and value.  [default: tab]")
@click.option("--keys", "keys_only", is_flag=True, help="Only the keys.")
@address_option
@json_option
def scan(
    topic: str,
    prefix: str | None,
    start: str | None,
    end: str | None,
    partitions: tuple[int, ...],
    tombstones: bool,
    limit: int | None,
    separator: str,
    keys_only: bool,
    address: str,
    as_json: bool,
) -> None:
    """Print the table: each key and its latest value, from one snapshot.

    Entries come partition by partition, in the order of the keys within each.

    \b
    Examples:
      krappy scan users
      krappy scan users --prefix u1 --max 10
      krappy scan users --start u1 --end u5 --json
      krappy scan users --keys | wc -l
    """
    chosen = _chosen(prefix, start, end)
    left = limit
    with connect(address) as client:
        table = client.table(topic)
        with table.scan(**chosen, partitions=list(partitions) or None, tombstones=tombstones) as scanned:  # type: ignore[arg-type]
            for page in scanned.pages():
                entries = page if left is None else page[:left]
                output.write_lines(_line(entry, separator, keys_only, as_json) for entry in entries)
                if left is not None:
                    left -= len(entries)
                    if left <= 0:
                        break


def _line(entry: Entry, separator: str, keys_only: bool, as_json: bool) -> str:
    if as_json:
        return output.to_json({"key": output.plain(entry.key)} if keys_only else output.entry_json(entry))
    key = output.text(entry.key)
    return key if keys_only else key + separator + output.text(entry.value)


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@range_options
@partition_option
@click.option("-n", "--max", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N entries.")
@click.option("-s", "--sep", "separator", type=Separator(), default="\t", help="Between key and value.  [default: tab]")
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
    address: str,
    as_json: bool,
) -> None:
    """Print the table as it is, then every change as it happens, until Ctrl-C. No gap, no duplicate.

    Lines begin with `=` for what is there, `+` for a change and `-` for a deletion; the end of what is there is said
    on stderr. With --json each line has an "event": snapshot, end_of_snapshot or change.

    \b
    Examples:
      krappy watch users
      krappy watch users --prefix u1 --json
      krappy watch users --max 1
    """
    from krappy.clients.watching import SnapshotEnd

    chosen = _chosen(prefix, start, end)
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
                _show_change(item, live, separator, as_json)
                if left is not None:
                    left -= 1
                    if left <= 0:
                        break


def _show_change(entry: Entry, live: bool, separator: str, as_json: bool) -> None:
    if as_json:
        output.emit_json({"event": "change" if live else "snapshot", **output.entry_json(entry)})
        return
    mark = "-" if entry.deleted else "+" if live else "="
    line = f"{mark} {output.text(entry.key)}"
    output.write_lines([line if entry.value is None else line + separator + output.text(entry.value)])
