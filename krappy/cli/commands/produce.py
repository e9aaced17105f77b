"""`krappy produce`: publishes events from stdin or a file to a topic."""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from krappy.cli import inputs, output
from krappy.cli.errors import Failure
from krappy.cli.inputs import BadInput
from krappy.cli.options import Separator, Stopwatch, address_option, complete_topics, connect, json_option
from krappy.cli.progress import telling
from krappy.errors import KrappyError

if TYPE_CHECKING:
    from krappy.blocking import TopicProducer
    from krappy.cli.inputs import InputSource, Item
    from krappy.types import Compression

CHUNK = 2_000  # events of a file that are passed to the producer at a time
MOST_WAITING = 10_000  # deliveries (events or chunks) that may be unsettled


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("file", required=False, type=click.Path(dir_okay=False, allow_dash=True))
@click.option(
    "-f",
    "--format",
    "format",
    type=click.Choice(inputs.FORMATS),
    help="The format of the input.  [default: by the ending of the file's name, else lines]",
)
@click.option(
    "-k",
    "--key",
    "key",
    metavar="FIELD",
    help="The field (json; u.id is the field id of u) or column (csv) with the event's key.",
)
@click.option(
    "--key-optional",
    is_flag=True,
    help="Store events without a key where --key, or the key before --sep, is missing, null or empty.",
)
@click.option("-s", "--sep", "separator", type=Separator(), help="lines: the text between key and value.")
@click.option("--null", metavar="TEXT", help="A value equal to TEXT deletes its key (a tombstone).")
@click.option("--no-key", default="", metavar="TEXT", help="A key equal to TEXT counts as no key.  [default: empty]")
@click.option(
    "--delimiter",
    type=Separator(),
    metavar="CHAR",
    help="csv: between columns.  [default: , but a tab for a .tsv file]",
)
@click.option("-p", "--partition", type=click.IntRange(min=0), metavar="N", help="Publish to this partition.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header for every event.")
@click.option(
    "--compression", type=click.Choice(["gzip", "snappy", "lz4", "zstd"]), help="Compress the batches.  [default: no]"
)
@click.option("--max", "limit", type=click.IntRange(min=0), metavar="N", help="Stop after N events.")
@address_option
@json_option
def produce(
    topic: str,
    file: str | None,
    format: str | None,
    key: str | None,
    key_optional: bool,
    separator: str | None,
    null: str | None,
    no_key: str,
    delimiter: str | None,
    partition: int | None,
    headers: tuple[str, ...],
    compression: Compression | None,
    limit: int | None,
    address: str,
    as_json: bool,
) -> None:
    """Publish events from FILE, or from stdin.

    \b
    Formats:
      lines    each line is a value; with --sep, `key<sep>value`
      json     each line is a JSON object, which is the value; --key names the field with the key
      csv      each row becomes a JSON object; the first row names the columns; --key names the column with the key
      tsv      (a file that ends in .tsv) csv with tabs between columns
      events   the output of `krappy consume --json`, to copy a topic

    A .gz file, or a .zip file with one file in it, is decompressed. The command ends when every event is acknowledged.
    At a bad line it stops; the events before it are published. After Ctrl-C it says how many are stored. A line without
    a key is bad if --key or --sep asks for one, unless --key-optional: then its event is in the log but not in the
    table, and is counted at the end.

    \b
    Examples:
      echo hello | krappy produce greetings
      printf 'u1:Ada\\nu2:Grace\\n' | krappy produce users --sep :
      krappy produce users --sep '\\t' --null NULL < users.tsv
      krappy produce people people.csv.gz --key id
      krappy produce orders orders.jsonl --key order_id --compression zstd
      krappy consume users --to now --json | krappy produce copy --format events
    """
    kind = format or inputs.guess_format(file)
    delimiter = delimiter or inputs.guess_delimiter(file)
    _check(kind, key, separator, delimiter)
    if key_optional and key is None and separator is None:
        raise click.UsageError("--key-optional is about --key or --sep, and neither is given")
    common = [_header(text) for text in headers]
    watch = Stopwatch()
    with (
        inputs.open_input(file) as source,
        connect(address) as client,
        client.producer(topic, compression=compression) as producer,
        _progress(source) as advance,
        telling(lambda: producer.trouble, "not stored yet, trying again"),
    ):
        items = inputs.parse(
            source,
            kind,
            key=key,
            key_optional=key_optional,
            separator=separator,
            null=null,
            no_key=no_key,
            delimiter=delimiter,
        )
        sent = _send_all(producer, itertools.islice(items, limit), source, partition, common, advance)
    if as_json:
        counts = {"events": sent.events, "without_key": sent.without_key}
        output.emit_json({"topic": topic, **counts, "seconds": round(watch.seconds, 3)})
        return
    asked = key is not None or separator is not None
    keyless = f", {sent.without_key:,} of them without a key" if asked and sent.without_key else ""
    output.note(f"{_events(sent.events)} to {topic} in {watch.seconds:.2f} s{keyless}")


class SentLine(NamedTuple):
    """How many events were sent, and how many of them had no key."""

    events: int
    without_key: int


def _events(count: int) -> str:
    return f"{count:,} event{'' if count == 1 else 's'}"


def _check(kind: str, key: str | None, separator: str | None, delimiter: str) -> None:
    """Raises UsageError for options that would be ignored."""
    if key is not None and kind not in ("json", "csv"):
        raise click.UsageError(f"--key names a field of json or csv, and this is read as {kind}; see --format")
    if separator is not None and kind != "lines":
        raise click.UsageError(f"--sep is for lines, and this is read as {kind}; see --format")
    if len(delimiter) != 1 or delimiter in '\r\n"':
        raise click.UsageError("--delimiter is one character")


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--header '{text}' is not NAME=VALUE")
    return name, value.encode(errors="surrogateescape")


def _send_all(
    producer: TopicProducer,
    items: Iterator[Item],
    source: InputSource,
    partition: int | None,
    common: list[tuple[str, bytes]],
    advance: Callable[[int], None],
) -> SentLine:
    """Publishes all items. Raises the error of the first event that the broker refuses. At a bad line it raises
    Failure when all events before it are stored; at Ctrl-C it says how many are stored by then."""
    deliveries = deque[tuple[Any, int]]()  # and how many events each has
    count = keyless = 0

    def settle(room: int) -> None:
        while deliveries and (len(deliveries) > room or deliveries[0][0].done()):
            deliveries[0][0].result()
            del deliveries[0]

    try:
        if source.total is None:
            # A pipe may be slow, so each event is sent at once; the producer batches those that come fast.
            for item in items:
                headers = [*item.headers, *common]
                sent = producer.send(
                    item.value, item.key, headers=headers, timestamp=item.timestamp, partition=partition
                )
                deliveries.append((sent, 1))
                count += 1
                keyless += item.key is None
                settle(MOST_WAITING)
                if count % 100 == 0:
                    advance(count)
        else:
            for chunk in _chunks(items):
                deliveries.append((_send(producer, chunk, partition, common), len(chunk)))
                count += len(chunk)
                keyless += sum(item.key is None for item in chunk)
                settle(MOST_WAITING)
                advance(count)
        settle(0)
    except BadInput as wrong:
        settle(0)
        raise Failure(f"{wrong.message}; {_events(count)} before it {'is' if count == 1 else 'are'} stored") from None
    except KeyboardInterrupt:
        with suppress(KrappyError):
            settle(len(deliveries))
        if unknown := sum(events for _, events in deliveries):
            output.note(f"{_events(count - unknown)} stored; of {unknown:,} more it is not known")
        elif count:
            output.note(f"{_events(count)} stored")
        raise
    return SentLine(count, keyless)


def _chunks(items: Iterator[Item]) -> Iterator[list[Item]]:
    """Items in lists of CHUNK. Only the last one is shorter. At a bad line, gives the items before it, then raises
    BadInput."""
    chunk: list[Item] = []
    try:
        for item in items:
            chunk.append(item)
            if len(chunk) == CHUNK:
                yield chunk
                chunk = []
    except BadInput:
        yield chunk
        raise
    if chunk:
        yield chunk


def _send(producer: TopicProducer, chunk: list[Item], partition: int | None, common: list[tuple[str, bytes]]) -> Any:
    """Sends events as columns, which is several times faster than one by one."""
    now = time.time_ns() // 1_000_000
    return producer.post_columns(
        [item.key for item in chunk],
        [item.value for item in chunk],
        headers=[[*item.headers, *common] for item in chunk] if common or any(i.headers for i in chunk) else None,
        timestamps=[now if item.timestamp is None else item.timestamp for item in chunk],
        partition=partition,
    )


@contextmanager
def _progress(source: InputSource) -> Iterator[Callable[[int], None]]:
    """Shows a bar over the bytes of a file, or the number of events of a pipe. Shows nothing when stderr is no
    terminal, or when the user types the input."""
    if not sys.stderr.isatty() or (source.total is None and sys.stdin.isatty()):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn(source.name),
        BarColumn(),
        TextColumn("{task.fields[events]:,} events"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=source.total, events=0)
        yield lambda count: bar.update(task, completed=source.position, events=count)
