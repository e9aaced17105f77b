"""`krappy consume`: prints the events of topics."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from krappy.cli import output
from krappy.cli.forms import Form, form_options
from krappy.cli.options import (
    Quantity,
    Separator,
    Start,
    address_option,
    complete_groups,
    complete_topics,
    connect,
    json_option,
    partition_option,
)
from krappy.cli.progress import telling
from krappy.clients.values import StartAt
from krappy.settings import units
from krappy.types import Event

if TYPE_CHECKING:
    from krappy.blocking import Consumer

FIELDS = ("topic", "partition", "offset", "timestamp", "time", "key", "value", "headers", "deliveries")


@click.command()
@click.argument("topics", nargs=-1, required=True, shell_complete=complete_topics, metavar="TOPIC...")
@click.option(
    "--from",
    "start",
    type=Start("earliest", "latest"),
    default="earliest",
    show_default=True,
    help="Where to begin. With --group it counts only when the group is new.",
)
@click.option(
    "--to", "end", metavar="now|OFFSET", help="Stop at the current end (now), or before this offset.  [default: follow]"
)
@click.option("-g", "--group", shell_complete=complete_groups, help="Share the events with the group's other members.")
@partition_option
@click.option("-n", "--max", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N events.")
@click.option(
    "--idle",
    type=Quantity(units.MS, 1000, 0),
    metavar="SECONDS",
    help="Stop when no event came for so long; 5, 500ms, 2m.",
)
@click.option("-s", "--sep", "separator", type=Separator(), help="Print `key<sep>value`.  [default: the value alone]")
@click.option("-f", "--format", "template", metavar="TEXT", help="Print each event by this template; see above.")
@click.option("--null", default="", metavar="TEXT", help="Printed for a key or value that is null.  [default: nothing]")
@form_options
@address_option
@json_option
def consume(
    topics: tuple[str, ...],
    start: StartAt,
    end: str | None,
    group: str | None,
    partitions: tuple[int, ...],
    limit: int | None,
    idle: float | None,
    separator: str | None,
    template: str | None,
    null: str,
    form: Form,
    address: str,
    as_json: bool,
) -> None:
    """Print all events of topics, then new ones as they come, until Ctrl-C.

    `--from latest` prints only new events; `--to now` stops after the events that exist now. With --group the command
    joins a group: its members share the events, and each event is acknowledged when it has been printed.

    \b
    Output, a line per event: the value; with --sep key and value; with --json a JSON object; with --format a text with
      {topic} {partition} {offset} {timestamp} {time} {key} {value} {headers} {deliveries}
    where headers are pairs of name and value, as in --json. Keys and values that are not UTF-8 are printed as
    `base64:…`, and so are keys with invisible characters, such as tabs and line ends. Values are printed as they are,
    with their line ends; on a terminal control characters are escaped. --as decodes values. At a value that is not
    of that kind the command ends with an error.

    \b
    Examples:
      krappy consume users                                # all events, then follow
      krappy consume users --to now --sep :               # all events so far, with their keys
      krappy consume users --from latest                  # only new events
      krappy consume users --from 15m --to now --json     # the last 15 minutes
      krappy consume users --from 1200 --partition 0 --max 1
      krappy consume users --group mail                   # as a member of a group
      krappy consume orders --as avro --registry http://127.0.0.1:8081
      krappy consume users --format '{time} {partition}/{offset} {key}: {value}'
    """
    _check(group, end, partitions, [separator is not None, template is not None, as_json])
    show = _shower(as_json, template, separator, null, form)
    options: dict[str, Any] = {"group": group, "start": start}
    if group is None:
        options |= {"partitions": list(partitions) or None, "end": _end(end)}
    if limit is not None:
        options["max_records"] = min(limit, 500)  # so that no member leases events that it does not print
    with (
        connect(address) as client,
        client.consumer(list(topics), **options) as consumer,
        telling(lambda: client.trouble, "waiting for the broker"),
        output.ending_with_reader(),
    ):
        for events in _up_to(limit, _arriving(consumer, idle)):
            lines: list[str] = []
            try:
                lines.extend(map(show, events))
            finally:  # the events before a value that can't be shown are printed and acknowledged
                output.write_lines(lines)
                if group is not None:
                    consumer.ack(events[: len(lines)])


def _check(group: str | None, end: str | None, partitions: tuple[int, ...], forms: list[bool]) -> None:
    if group is not None and end is not None:
        raise click.UsageError("members of a group share one position, which has no end: use --idle or --max, not --to")
    if group is not None and partitions:
        raise click.UsageError("members of a group share all partitions: --partition is for reading without one")
    if sum(forms) > 1:
        raise click.UsageError("give one of --sep, --format and --json")


def _end(text: str | None) -> str | int | None:
    if text is None or text == "now":
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise click.BadParameter(f"'{text}' is neither 'now' nor an offset", param_hint="--to")


def _arriving(consumer: Consumer, idle: float | None) -> Iterator[list[Event]]:
    """The events, as soon as they come, until none has come for `idle` seconds. None: for ever."""
    if idle is None:
        for batch in consumer.batches():
            yield batch.events()
        return
    while events := consumer.poll(idle):
        yield events


def _up_to(limit: int | None, arriving: Iterable[list[Event]]) -> Iterator[list[Event]]:
    left = limit
    for events in arriving:
        if left is None:
            yield events
            continue
        yield events[:left]
        left -= len(events)
        if left <= 0:
            return


def _shower(
    as_json: bool, template: str | None, separator: str | None, null: str, form: Form
) -> Callable[[Event], str]:
    if as_json:
        return lambda event: output.to_json(output.event_json(event, form.plain))
    if template is not None:
        return _formatter(template, null, form)
    if separator is not None:
        return lambda event: output.key_text(event.key, null) + separator + form.text(event.value, null)
    return lambda event: form.text(event.value, null)


def _formatter(template: str, null: str, form: Form) -> Callable[[Event], str]:
    r"""A function that formats an event by the template, in which `\t` and `\n` stand for the characters.

    Raises UsageError."""
    text = template.replace("\\t", "\t").replace("\\n", "\n")
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
        text.format(**dict.fromkeys(names & set(FIELDS), ""))
    except (KeyError, ValueError, IndexError, AttributeError):
        raise click.UsageError("--format is a text with " + " ".join(f"{{{name}}}" for name in FIELDS)) from None

    def show(event: Event) -> str:
        return text.format(
            topic=event.topic,
            partition=event.partition,
            offset=event.offset,
            timestamp=event.timestamp,
            time=output.when(event.timestamp),
            key=output.key_text(event.key, null),
            value=form.text(event.value, null),
            headers=output.to_json(output.headers_json(event.headers)),
            deliveries=event.deliveries,
        )

    return show
