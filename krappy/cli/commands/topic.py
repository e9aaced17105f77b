"""`krappy topic …`: creates, shows, changes and deletes topics."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import click

from krappy.cli import output
from krappy.cli.options import (
    CommandGroup,
    Lifetime,
    SettingOption,
    Start,
    address_option,
    complete_topics,
    confirm,
    connect,
    json_option,
    partition_option,
)
from krappy.clients.admin import PartitionInfo
from krappy.errors import TopicDiffers
from krappy.settings import units
from krappy.settings.topic_table import FOREVER, SETTINGS, Setting

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

UNUSED = "accepted but not used"  # the meaning of a setting that has no effect here begins with this

CONFIG = click.option(
    "-c",
    "--config",
    "config",
    type=SettingOption(),
    multiple=True,
    metavar="NAME=VALUE",
    shell_complete=lambda ctx, param, incomplete: _names(incomplete, "="),
    help="A topic setting under its Kafka name, such as cleanup.policy=compact or segment.bytes=256M; may be given "
    "several times. `krappy topic settings` lists all.",
)

RETENTION = click.option(
    "--retention",
    type=Lifetime(),
    help="How long events are kept, such as 12h or 7d; sets retention.ms.",
)


def _names(incomplete: str, end: str = "") -> list[CompletionItem | str]:
    """The names of topic settings, for the shell's completion."""
    return [name + end for name in SETTINGS if name.startswith(incomplete)]


def _settings(config: tuple[tuple[str, str], ...], retention: int | None) -> dict[str, str]:
    found = dict(config)
    if retention is not None:
        if "retention.ms" in found:
            raise click.UsageError("--retention sets retention.ms too: give one of the two")
        found["retention.ms"] = str(retention)
    return found


@click.group(cls=CommandGroup)
def topic() -> None:
    """Create, show, change and delete topics.

    \b
    Examples:
      krappy topic create users --partitions 3 --config cleanup.policy=compact
      krappy topic list
      krappy topic describe users
    """


@topic.command()
@click.argument("name")
@click.option(
    "-p", "--partitions", type=click.IntRange(min=1), metavar="N", help="How many.  [default: the broker's: 1]"
)
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many brokers have each partition.  [default: the broker's: 3, or all if there are fewer]",
)
@RETENTION
@CONFIG
@click.option("--if-absent", is_flag=True, help="Do not fail when the topic exists already; say how it differs.")
@address_option
@json_option
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    retention: int | None,
    config: tuple[tuple[str, str], ...],
    if_absent: bool,
    address: str,
    as_json: bool,
) -> None:
    """Create a topic.

    Its events, and the keys of its table, are kept for ever, unless you give --retention, or the broker has another
    default (`krappy serve --log-retention-ms`).

    \b
    Examples:
      krappy topic create clicks --retention 7d
      krappy topic create users --partitions 3 --config cleanup.policy=compact
      krappy topic create orders --partitions 6 --replication-factor 3
      krappy topic create audit --config view.enable=false --retention forever
    """
    settings = _settings(config, retention)
    with connect(address) as client, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", TopicDiffers)
        created = client.create_topic(
            *(name, partitions, settings), if_absent=if_absent, replication_factor=replication_factor
        )
    told = [each.message for each in warned if isinstance(each.message, TopicDiffers)]
    if as_json:
        differs = {setting: {"asked": a, "is": b} for each in told for setting, (a, b) in each.differs.items()}
        output.emit_json({"topic": name, "created": created, **({"differs": differs} if differs else {})})
    elif told:
        output.note(str(told[0]))
    else:
        output.note(f"created {name}" if created else f"{name} was there already")


@topic.command("list")
@address_option
@json_option
def list_topics(address: str, as_json: bool) -> None:
    """Show every topic: its partitions, events and size.

    \b
    Examples:
      krappy topic list
      krappy topic list --json | jq -r '.[].topic'
    """
    with connect(address) as client:
        rows = [_summary(found) for found in sorted(client.topics(), key=lambda found: found.name)]
    if as_json:
        output.emit_json(rows)
        return
    if not rows:
        output.note("there are no topics; `krappy topic create` makes one")
        return
    output.table(
        ["topic", "partitions", "events", "size", "cleanup", "view"],
        [
            [row["topic"], row["partitions"], row["events"], output.ByteCount(row["size"]), row["cleanup"], row["view"]]
            for row in rows
        ],
    )


def _summary(found: Any) -> dict[str, Any]:
    return {
        "topic": found.name,
        "partitions": len(found.partitions),
        "events": sum(each.high_watermark - each.start for each in found.partitions),
        "size": sum(each.size for each in found.partitions),
        "cleanup": found.settings.get("cleanup.policy"),
        "view": str(found.settings.get("view.enable", True)).lower() == "true",
    }


@topic.command()
@click.argument("name", shell_complete=complete_topics)
@click.option("--all", "whole", is_flag=True, help="Show all settings in force, with defaults.")
@address_option
@json_option
def describe(name: str, whole: bool, address: str, as_json: bool) -> None:
    """Show one topic: its partitions' offsets and sizes, and its settings.

    `events` counts offsets; after compaction there are fewer events. `view lag` is the number of offsets that the table
    does not include yet. `scattered`: some keys are in other partitions than murmur2 gives them, because partitions
    were added or producers use another partitioner; then lookups ask all partitions. In a cluster it also shows the ids
    of the broker that leads a partition (none: nobody does now), of its replicas, and of its ISR: the replicas in sync.

    \b
    Examples:
      krappy topic describe users
      krappy topic describe users --all
      krappy topic describe users --json | jq .partitions
    """
    with connect(address) as client:
        found = client.describe(name)
    if as_json:
        partitions = [each._asdict() for each in found.partitions]
        config = {"config": found.config, "settings": found.settings}
        scattered = {"scattered": found.scattered}
        output.emit_json({"topic": found.name, "id": found.id, **config, **scattered, "partitions": partitions})
        return
    several = len({broker for each in found.partitions for broker in (each.leader, *each.replicas)}) > 1
    places = ["leader", "replicas", "isr"] if several else []
    output.table(
        ["partition", *places, "first offset", "next offset", "events", "view lag", "segments", "size"],
        [
            [
                each.partition,
                *(_place(each) if several else ()),
                each.start,
                each.high_watermark,
                each.high_watermark - each.start,
                output.Lag(max(0, each.high_watermark - each.applied)),
                each.segments,
                output.ByteCount(each.size),
            ]
            for each in found.partitions
        ],
        title=found.name,
    )
    for each in found.partitions:
        if each.failed:
            output.write_lines([output.visible(f"partition {each.partition} takes no events: {each.failed}")])
        if each.view_failed:
            stopped = f"the table of partition {each.partition} is not updated: {each.view_failed}"
            output.write_lines([output.visible(stopped)])
    if found.scattered:
        output.write_lines(
            ["keys may be in other partitions than their own (scattered): a lookup asks all, and needs all tables"]
        )
    settings = found.settings if whole else found.config
    if settings:
        output.write_lines([""])
        output.table(["setting", "value"], sorted((setting, str(value)) for setting, value in settings.items()))


@topic.command()
@click.argument("name", shell_complete=complete_topics)
@RETENTION
@CONFIG
@click.option(
    "--unset",
    multiple=True,
    metavar="NAME",
    shell_complete=lambda ctx, param, incomplete: _names(incomplete),
    help="Reset this setting to its default.",
)
@click.option("-p", "--partitions", type=click.IntRange(min=1), metavar="N", help="The new total; it can only grow.")
@address_option
@json_option
def alter(
    name: str,
    retention: int | None,
    config: tuple[tuple[str, str], ...],
    unset: tuple[str, ...],
    partitions: int | None,
    address: str,
    as_json: bool,
) -> None:
    """Change a topic's settings, or add partitions.

    New partitions change the partition that keys go to. Keys written before stay where they are; lookups still find
    them, but then ask all partitions. The order of a key's events is kept only within a partition.

    \b
    Examples:
      krappy topic alter clicks --retention 24h
      krappy topic alter clicks --unset retention.ms
      krappy topic alter clicks --partitions 6
    """
    changes: dict[str, str | None] = {**_settings(config, retention), **dict.fromkeys(unset)}
    if not changes and partitions is None:
        raise click.UsageError("nothing to change: give --retention, --config, --unset or --partitions")
    with connect(address) as client:
        before = client.describe(name)
        client.alter_topic(name, config=changes or None, partitions=partitions)
    added = max(0, (partitions or 0) - len(before.partitions))
    if as_json:
        output.emit_json({"topic": name, "altered": True})
    elif not changes and not added:
        output.note(f"{name} has {partitions} partitions already")
    else:
        output.note(f"altered {name}")
    if added and any(each.high_watermark > each.start for each in before.partitions):
        output.note(
            f"keys go to other partitions now; lookups in {name} still find those written before, but ask all "
            "partitions for them"
        )


@topic.command()
@click.option("--all", "whole", is_flag=True, help="Also those that are accepted but have no effect here.")
@json_option
def settings(whole: bool, as_json: bool) -> None:
    """Show the settings that a topic may have, with their defaults and what they mean.

    Bytes and times may have units: segment.bytes=256M, retention.ms=7d. `krappy serve` may have other defaults for all
    topics; `krappy topic describe NAME --all` shows what is in force.

    \b
    Examples:
      krappy topic settings
      krappy topic settings --json | jq -r '.[].name'
    """
    found = [each for each in SETTINGS.values() if whole or not each.doc.startswith(UNUSED)]
    if as_json:
        output.emit_json([{"name": each.name, "default": each.default, "meaning": each.doc} for each in found])
        return
    output.table(
        ["setting", "default", "meaning"],
        [[each.name, output.SettingValue(_default(each), each.default), each.doc] for each in found],
    )


def _default(setting: Setting) -> str:
    """The default, for people: in the largest unit."""
    if setting.default == str(FOREVER):
        return "no limit"
    unit = units.of(setting.name)
    return (units.shown(int(setting.default), unit) if unit else "") or setting.default


@topic.command()
@click.argument("name", shell_complete=complete_topics)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@address_option
@json_option
def delete(name: str, yes: bool, address: str, as_json: bool) -> None:
    """Delete a topic: its events, its table and its groups' positions in it. Asks first.

    \b
    Examples:
      krappy topic delete clicks
      krappy topic delete clicks --yes
    """
    confirm(f"Delete the topic {name} and everything in it?", yes)
    with connect(address) as client:
        client.delete_topic(name)
    if as_json:
        output.emit_json({"topic": name, "deleted": True})
    else:
        output.note(f"deleted {name}")


@topic.command("delete-records")
@click.argument("name", shell_complete=complete_topics)
@click.option("--before", type=Start("latest"), required=True, help="Delete the events before it; latest: all.")
@partition_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@address_option
@json_option
def delete_records(name: str, before: Any, partitions: tuple[int, ...], yes: bool, address: str, as_json: bool) -> None:
    """Delete a topic's oldest events, and their entries in its table. Asks first.

    It is refused for topics with cleanup.policy=compact: publish tombstones there.

    \b
    Examples:
      krappy topic delete-records clicks --before latest
      krappy topic delete-records clicks --before 7d --yes
      krappy topic delete-records clicks --before 1200 --partition 0
    """
    confirm(f"Delete the events of {name} before {before}?", yes)
    with connect(address) as client:
        starts = client.delete_records(name, before, partitions=list(partitions) or None)
    if as_json:
        found = [{"partition": partition, "start": start} for partition, start in sorted(starts.items())]
        output.emit_json({"topic": name, "partitions": found})
        return
    output.table(["partition", "first offset"], [[partition, start] for partition, start in sorted(starts.items())])


def _place(found: PartitionInfo) -> list[str]:
    """Who leads a partition, who has it, and who has all that is acknowledged."""
    leader = "none" if found.leader < 0 else str(found.leader)
    return [leader, *(",".join(map(str, ids)) for ids in (found.replicas, found.isr))]
