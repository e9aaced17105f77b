"""`krappy group …`: shows, moves and deletes consumer groups."""

from __future__ import annotations

import click

from krappy.cli import output
from krappy.cli.options import (
    CommandGroup,
    Start,
    address_option,
    complete_groups,
    confirm,
    connect,
    json_option,
    partition_option,
)
from krappy.clients.values import StartAt


@click.group(cls=CommandGroup)
def group() -> None:
    """Show consumer groups, move their positions, delete them.

    \b
    Examples:
      krappy group list
      krappy group describe mail
      krappy group reset mail --to 2026-01-31T12:00:00Z --dry-run
    """


@group.command("list")
@address_option
@json_option
def list_groups(address: str, as_json: bool) -> None:
    """Show every group: its kind, its topics and its lag.

    The kind is `shared` for native groups (`positions` if they have only committed offsets), and `classic`, `consumer`
    or `share` for Kafka's groups, by the protocol of their members.

    \b
    Examples:
      krappy group list
      krappy group list --json | jq '.[] | select(.lag > 1000)'
    """
    with connect(address) as client:
        found = sorted(client.groups(), key=lambda each: each.group)
    if as_json:
        output.emit_json(
            [
                {"group": each.group, "kind": each.kind, "order": each.order, "topics": each.topics, "lag": each.lag}
                for each in found
            ]
        )
        return
    if not found:
        output.note("there are no groups; `krappy consume TOPIC --group NAME` makes one")
        return
    output.table(
        ["group", "kind", "topics", "order", "lag"],
        [[each.group, each.kind, each.topics, each.order, output.Lag(each.lag)] for each in found],
    )


@group.command()
@click.argument("name", shell_complete=complete_groups)
@address_option
@json_option
def describe(name: str, address: str, as_json: bool) -> None:
    """Show one group: its members, and its position and lag in each partition.

    `position`: all events before this offset are settled. The other columns count events. `leased`: leased to a member
    now. `redelivering`: waiting to be delivered again. `dead`: on their way to the dead-letter topic.

    \b
    Examples:
      krappy group describe mail
      krappy group describe mail --json | jq .lag
    """
    with connect(address) as client:
        found = client.group(name)
    if as_json:
        output.emit_json(
            {
                **found._asdict(),
                "members": [each._asdict() for each in found.members],
                "partitions": [each._asdict() for each in found.partitions],
                "lag": found.lag,
            }
        )
        return
    output.table(
        ["topic", "partition", "position", "end", "lag", "leased", "redelivering", "dead"],
        [
            [
                each.topic,
                each.partition,
                each.floor,
                *((None, None) if each.end < 0 else (each.end, output.Lag(each.lag))),
                each.leased,
                output.Lag(each.redelivering),
                output.Lag(each.dead),
            ]
            for each in found.partitions
        ],
        title=f"{found.group}  (order: {found.order}, lag: {found.lag:,})",
    )
    if found.members:
        output.write_lines([""])
        output.table(["member", "client", "leased"], [[each.name, each.client, each.leased] for each in found.members])
    else:
        output.note("no members now")


@group.command()
@click.argument("name", shell_complete=complete_groups)
@click.option(
    "--to",
    required=True,
    type=Start("earliest", "latest"),
    help="The new position: an end of the log, an offset, or the first event at or after a time.",
)
@click.option("--topic", metavar="TOPIC", help="Only in this topic.  [default: all of the group's topics]")
@partition_option
@click.option("--dry-run", is_flag=True, help="Show the new positions without changing anything.")
@address_option
@json_option
def reset(
    name: str,
    to: StartAt,
    topic: str | None,
    partitions: tuple[int, ...],
    dry_run: bool,
    address: str,
    as_json: bool,
) -> None:
    """Move a group to another position. Its members must have left.

    \b
    Examples:
      krappy group reset mail --to earliest
      krappy group reset mail --to latest --topic users --partition 0
      krappy group reset mail --to 2h --dry-run          # two hours ago
    """
    if partitions and topic is None:
        raise click.UsageError("--partition needs the --topic that it is a partition of")
    with connect(address) as client:
        moved = client.reset_group(name, to, topic=topic, partitions=list(partitions) or None, dry_run=dry_run)
    if as_json:
        output.emit_json({"group": name, "dry_run": dry_run, "positions": [each._asdict() for each in moved]})
        return
    output.table(
        ["topic", "partition", "from", "to"], [[each.topic, each.partition, each.old, each.new] for each in moved]
    )
    if not moved:
        output.note("nothing was moved: the group has no positions; --topic gives it those of a topic")
    elif dry_run:
        output.note("nothing was changed: this was a dry run")


@group.command()
@click.argument("name", shell_complete=complete_groups)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@address_option
@json_option
def delete(name: str, yes: bool, address: str, as_json: bool) -> None:
    """Delete a group and its positions. Its members must have left. Asks first.

    \b
    Examples:
      krappy group delete mail
      krappy group delete mail --yes
    """
    confirm(f"Delete the group {name} and its positions?", yes)
    with connect(address) as client:
        client.delete_group(name)
    if as_json:
        output.emit_json({"group": name, "deleted": True})
    else:
        output.note(f"deleted the group {name}")
