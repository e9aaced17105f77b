"""An archive holds each event once, wherever it was stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from krappy.blocking import Client
from krappy.cli.main import run
from krappy.pipelines import archive
from tests.long import LONG, long
from tests.process import wait_until
from tests.spark.conftest import SETTINGS, python_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = 86_400_000


def send(client: Client, topic: str, numbers: range, a_day: int = 8) -> None:
    """Sends `a_day` events for each day from 1970 on; every tenth has no key, every fifth no value."""
    with client.producer(topic) as producer:
        for n in numbers:
            key = None if n % 10 == 9 else f"k{n}"
            value = None if n % 5 == 0 else f"v{n}"
            producer.send(value, key=key, timestamp=n * DAY // a_day, headers=(("n", b"%d" % n),))


def logged(client: Client, topic: str) -> list[tuple[Any, ...]]:
    with client.consumer(topic, end="now") as consumer:
        return sorted(
            (event.partition, event.offset, event.key, event.value, event.timestamp, event.headers)
            for event in consumer
        )


def archived(spark: SparkSession, path: Path, topic: str) -> list[tuple[Any, ...]]:
    rows = archive.events(spark, str(path), topic).selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    assert all(row.date.toordinal() - 719_163 == row.ms // DAY for row in rows), "the date is that of UTC"
    return sorted(
        (
            row.partition,
            row.offset,
            row.key and bytes(row.key),
            row.value and bytes(row.value),
            row.ms,
            tuple((header.key, bytes(header.value)) for header in row.headers),
        )
        for row in rows
    )


@long
def test_an_archive_that_was_stopped_goes_on(
    spark: SparkSession, client: Client, address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was stopped after a batch; then there are files of a batch that was not noted; then it is stopped by the
    command."""
    topic, other, path = "2013", "archive-other", tmp_path / "archive"  # a name that looks like a number
    client.create_topic(topic, 2)
    client.create_topic(other)
    send(client, topic, range(20))

    def stop(_: str) -> None:
        raise InterruptedError("stopped behind a batch")

    with pytest.raises(InterruptedError):
        archive.run(spark, [topic], str(path), address=address, per_batch=12, tell=stop)
    some = archived(spark, path, topic)
    assert len(some) > 0
    assert set(some) <= set(logged(client, topic))
    last = max(int(file.name) for file in (path / archive.CHECKPOINT / "offsets").glob("[0-9]*"))
    for notes in (
        path / "_spark_metadata",
        path / archive.CHECKPOINT / "commits",
    ):  # as if it had died in its last batch
        for name in (f"{last}", f".{last}.crc"):
            (notes / name).unlink(missing_ok=True)
    send(client, other, range(20, 30))
    send(client, topic, range(30, 40))
    assert run(["pipeline", "archive", topic, other, "--to", str(path), "--address", address, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["events"] >= 40 - len(some)
    assert archived(spark, path, topic) == logged(client, topic)
    assert archived(spark, path, other) == logged(client, other)

    counts: list[int] = []

    def send_more(said: str) -> None:
        counts.append(int(said.split(": ")[1].split()[0]))
        if len(counts) == 1:
            send(client, other, range(50, 55))
        if counts[-1] >= 10:
            raise InterruptedError("all has come")

    send(client, other, range(40, 45))
    with pytest.raises(InterruptedError):
        archive.run(spark, [topic, other], str(path), address=address, every="100 milliseconds", tell=send_more)
    assert counts[-1] == 10
    assert archived(spark, path, other) == logged(client, other)


def test_an_archive_of_a_topic_that_was_made_anew(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The new topic has as many events as the old one had. Either an error says so in the command's own words, or all
    of the new topic is added."""
    client.create_topic(topic)
    send(client, topic, range(20))
    path = tmp_path / "archive"
    command = ["pipeline", "archive", topic, "--to", str(path), "--address", address]
    assert run(command) == 0
    old = logged(client, topic)
    client.delete_topic(topic)
    client.create_topic(topic)
    send(client, topic, range(100, 120))
    capfd.readouterr()
    assert run(command) == 1
    said = capfd.readouterr().err
    assert f"{topic}-0 was read up to offset 20, and its topic was deleted and made anew since" in said
    assert "--allow-data-loss goes on with what is there, and reads a topic that was made anew from its first" in said
    assert "failOnDataLoss" not in said
    assert archived(spark, path, topic) == old
    for _ in range(2 if LONG else 1):
        assert run([*command, "--allow-data-loss"]) == 0
        assert archived(spark, path, topic) == sorted([*old, *logged(client, topic)])


def test_an_archive_with_the_checkpoint_of_another(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Spark would skip its batches, whose numbers the archive has already, and their events would be lost unnoticed."""
    client.create_topic(topic)
    path, mine = tmp_path / "archive", tmp_path / "mine"
    command = ["pipeline", "archive", topic, "--to", str(path), "--address", address, "--checkpoint"]
    for first in (0, 20):
        send(client, topic, range(first, first + 20))
        assert run([*command, str(mine)]) == 0
        assert archived(spark, path, topic) == logged(client, topic)
    send(client, topic, range(40, 60))
    capfd.readouterr()
    other = ["pipeline", "archive", topic, "--to", str(tmp_path / "other"), "--address", address, "--checkpoint"]
    for wrong in ([*command, str(tmp_path / "another")], [*other, str(mine)]):
        assert run(wrong) == 2
        assert f"{wrong[-1]} is not its checkpoint" in capfd.readouterr().err
    assert run([*command, str(mine)]) == 0
    assert archived(spark, path, topic) == logged(client, topic)


@long
def test_an_archive_that_is_killed_in_a_batch(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    """The command runs in a process of its own, with its Java. SIGKILL comes when a batch has begun and is
    not whole."""
    client.create_topic(topic, 2)
    send(client, topic, range(3000), a_day=1000)  # each date of a batch is one file of each task
    path = tmp_path / "archive"
    begun, committed = path / archive.CHECKPOINT / "offsets", path / archive.CHECKPOINT / "commits"
    command = [sys.executable, "-m", "krappy", "pipeline", "archive", topic, "--to", str(path), "--address", address]
    settings = [text for name, value in SETTINGS.items() for text in ("--conf", f"{name}={value}")]
    every = ["--every", "1 millisecond", "--per-batch", "10"]  # 300 batches, if it were left alone
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [*command, *every, "--master", "local[1]", *settings],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,  # all that it starts is in its process group, and dies with it
            env={**os.environ, "PYTHONPATH": python_path(tmp_path)},
        )
        try:
            wait_until(
                lambda: batches(begun) > batches(committed) >= 1 or process.poll() is not None,
                "it is in its second batch or later",
                300,
            )
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait(60)
    assert status == -signal.SIGKILL, (tmp_path / "said").read_text()
    some = archived(spark, path, topic)
    assert 0 < len(some) < 3000
    archive.run(spark, [topic], str(path), address=address)
    assert archived(spark, path, topic) == logged(client, topic)


def batches(folder: Path) -> int:
    return sum(file.name.isdigit() for file in folder.glob("*"))
