"""Backfill, rollup with windows, reconcile that finds what is wrong, scd2; and what a command says that fails."""

from __future__ import annotations

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as sf

from krappy.blocking import Client
from krappy.cli.commands.pipeline import typed
from krappy.cli.main import run
from krappy.clients.acls import AclInfo
from krappy.errors import ConfigError, KrappyError, TopicAuthorizationFailed
from krappy.pipelines import archive, backfill, reconcile, rollup, scd2
from krappy.pipelines.following import Done, said, silent, worked
from krappy.pipelines.sessions import cause, running
from krappy.spark.versions import features
from krappy.types import Event
from tests.long import long
from tests.security.two_users import ada_and_eve
from tests.spark.test_shared import with_users

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEOPLE, VISITS = "pipeline-people", "pipeline-visits"
HOUR = 3_600_000
START = 20_454 * 24 * HOUR  # 2026-01-01


@pytest.fixture(scope="module")
def path(spark: SparkSession, client: Client, address: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An archive of two topics: visits, and people: three versions of each of 20 people, of whom some were deleted."""
    client.create_topic(PEOPLE, 2, {"cleanup.policy": "compact"})
    client.create_topic(VISITS)
    with client.producer(PEOPLE) as producer:
        for version in range(3):
            for n in range(20):
                value = None if n % 7 == version else f"{n}.{version}"
                behind = 30 * HOUR if n == 3 and version == 1 else 0  # a clock that is behind
                producer.send(
                    value, key=f"p{n}", timestamp=START + 24 * version * HOUR - behind, headers=(("v", b"1"),)
                )
    with client.producer(VISITS) as producer:
        for n in range(30):
            producer.send(f"{n}", key=f"p{n % 10 if n < 20 else n}", timestamp=START + n * HOUR)
    folder = str(tmp_path_factory.mktemp("archive"))
    archive.run(spark, [PEOPLE, VISITS], folder, address=address)
    return folder


def events(client: Client, topic: str) -> list[Event]:
    with client.consumer(topic, end="now") as consumer:
        return list(consumer)


def by_key(found: list[Event]) -> dict[bytes | None, list[Any]]:
    kept: dict[bytes | None, list[Any]] = {}
    for event in found:
        kept.setdefault(event.key, []).append((event.value, event.timestamp, event.headers))
    return kept


def test_backfill(
    spark: SparkSession, client: Client, address: str, tmp_path: Path, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    to, command = "people-again", ["pipeline", "backfill", path, "--address", address, "--json"]
    client.create_topic(to, 3)
    for new, told in ((60, "goes to people-again as the job"), (0, "is published already; to publish the same events")):
        assert run([*command, "--to", to, "--topic", PEOPLE]) == 0
        out, err = capfd.readouterr()
        assert json.loads(out)["events"] == new
        assert told in err
    assert by_key(events(client, to)) == by_key(events(client, PEOPLE))
    assert run([*command, "--to", to, "--topic", PEOPLE, "--since", "2026-01-02", "--until", "2026-01-03"]) == 0
    assert json.loads(capfd.readouterr().out)["events"] == 19, "a day without the event whose clock was behind"
    client.delete_topic(to)
    client.create_topic(to, 3)
    with ThreadPoolExecutor(1) as pool:  # in a thread where no session is active
        filled = pool.submit(backfill.run, spark, path, to, topic=PEOPLE, address=address).result(300)
    assert filled.events == 60, "the new topic has nothing of it"
    rows = str(tmp_path / "rows")
    spark.range(5).selectExpr("id", "IF(id = 3, NULL, id * 2) AS twice").write.parquet(rows)
    filled = backfill.run(spark, rows, to, key="id", job="rows-1", address=address)
    assert filled == (5, "rows-1")
    assert client.table(to).get("3").value == b'{"id":3,"twice":null}'  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="has no column name; it has id, twice"):
        backfill.run(spark, rows, to, key="name", address=address)
    with pytest.raises(ConfigError, match="choose events of an archive"):
        backfill.run(spark, rows, to, key="id", since="2026-01-01", address=address)
    assert client.staged_jobs() == []
    with pytest.raises(ConfigError, match="'2026-13-01' is not a date: give one such as 2026-01-31"):
        backfill.run(spark, path, to, topic=PEOPLE, since="2026-13-01", address=address)
    lines: list[str] = []
    assert backfill.run(spark, path, to, topic="people", address=address, tell=lines.append).events == 0
    assert lines[-1] == f"nothing is published: {path} has no such events"


@long
def test_reconcile_finds_what_differs(
    spark: SparkSession, client: Client, address: str, tmp_path: Path, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """First in archives in which something was changed; then it finds nothing in the true one, after more was sent."""
    planted, saved = str(tmp_path / "planted"), str(tmp_path / "saved")
    true = archive.events(spark, path, PEOPLE)
    key, last = sf.col("key").cast("string"), sf.col("value").cast("string").endswith(".2")
    false = (
        true.where(key != "p4")  # the archive does not know p4
        .where((key != "p5") | ~last)  # of p5 the event before counts
        .withColumn("value", sf.when((key == "p6") & last, sf.lit(b"other")).otherwise(sf.col("value")))
        .withColumn(
            "headers",
            sf.when(key == "p8", sf.array().cast(true.schema["headers"].dataType)).otherwise(sf.col("headers")),
        )
        .withColumn(
            "key", sf.when(key == "p10", sf.lit(b"nobody")).otherwise(sf.col("key"))
        )  # one key is missing, one is unknown
    )
    false.write.partitionBy(*archive.PARTED_BY).parquet(planted)
    command = ["pipeline", "reconcile", PEOPLE, "--address", address]
    assert run([*command, "--archive", planted, "--save", saved, "--json"]) == 5
    told = json.loads(capfd.readouterr().out)
    assert told["differences"] == {"unknown": 2, "offset": 1, "value": 2, "missing": 1}
    found = {(each["key"], each["difference"]) for each in told["examples"]}
    assert found == {
        ("p4", "unknown"),
        ("p5", "offset"),
        ("p6", "value"),
        ("p8", "value"),
        ("p10", "unknown"),
        ("nobody", "missing"),
    }
    assert spark.read.parquet(saved).where("difference = 'value'").count() == 2
    assert run([*command, "--archive", planted]) == 5
    assert "6 of" in capfd.readouterr().err

    others = str(tmp_path / "others")
    true.where("false").write.partitionBy(*archive.PARTED_BY).parquet(others)
    with pytest.raises(ConfigError, match=f"has no events of {PEOPLE}, so there is nothing to compare"):
        reconcile.run(spark, PEOPLE, others, address=address)

    client.alter_topic(PEOPLE, partitions=3)
    with client.producer(PEOPLE) as producer:
        producer.send("new", key="p100", partition=2)
        producer.send(None, key="p1")
    assert run([*command, "--archive", path]) == 0
    assert "keys are as the log says" in capfd.readouterr().err
    client.delete_records(VISITS, 15)
    expired = reconcile.run(spark, VISITS, path, address=address)
    assert expired.differences == {}
    assert expired.keys == 15, "of the 20, five have had no visit since"


def test_scd2(
    spark: SparkSession, client: Client, address: str, tmp_path: Path, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    to = str(tmp_path / "history")
    command = ["pipeline", "scd2", PEOPLE, "--to", to, "--address", address, "--archive", path, "--json"]
    assert run(command) == 0
    rows = spark.read.parquet(to)
    history: dict[str, list[Any]] = {}
    for row in rows.selectExpr("*", "string(key) AS k", "string(value) AS v").orderBy("offset").collect():
        valid = [moment and int(moment.replace(tzinfo=UTC).timestamp() * 1000 - START) // HOUR for moment in row[2:4]]
        history.setdefault(row.k, []).append((row.v, *valid, row.current))
    assert history["p5"] == [("5.0", 0, 24, False), ("5.1", 24, 48, False), ("5.2", 48, None, True)]
    assert history["p0"] == [("0.1", 24, 48, False), ("0.2", 48, None, True)], "deleted first"
    assert history["p1"] == [("1.0", 0, 24, False), ("1.2", 48, None, True)], "deleted in between"
    assert history["p2"] == [("2.0", 0, 24, False), ("2.1", 24, 48, False)], "deleted at the end"
    assert history["p3"] == [("3.0", 0, 0, False), ("3.1", 0, 48, False), ("3.2", 48, None, True)], "a clock behind"
    assert json.loads(capfd.readouterr().out)["rows"] == sum(map(len, history.values()))
    assert run(command) == 1, "the folder is there"
    assert "already exists" in capfd.readouterr().err
    for archived in (path, None):
        with pytest.raises(ConfigError, match="is an archive, which the history would replace"):
            scd2.run(spark, PEOPLE, path, archive_path=archived, address=address, overwrite=True)
    count = scd2.run(spark, VISITS, to, address=address, overwrite=True)
    assert count == len(events(client, VISITS))


def test_a_moved_archive_is_refused(
    spark: SparkSession, client: Client, address: str, tmp_path: Path, path: str
) -> None:
    """Spark would say that a file is missing, or go on with an archive that it can't read any more."""
    moved, back = tmp_path / "moved", Path(path)
    back.rename(moved)
    try:
        with pytest.raises(ConfigError, match="is an archive that was moved"):
            archive.run(spark, [PEOPLE, VISITS], str(moved), address=address)
        with pytest.raises(ConfigError, match="is an archive that was moved"):
            scd2.run(spark, VISITS, str(tmp_path / "history"), archive_path=str(moved))
    finally:
        moved.rename(back)
    assert archive.events(spark, path, VISITS).count() == len(events(client, VISITS))
    shutil.copytree(back, moved)  # its log names the files of the other one
    with pytest.raises(ConfigError, match="is an archive that was moved or copied"):
        archive.run(spark, [PEOPLE, VISITS], str(moved), address=address)


def test_an_archive_may_have_any_name_and_be_named_by_a_link(
    spark: SparkSession, client: Client, address: str, tmp_path: Path
) -> None:
    """Spark's log of its files has %20 for a space. And Spark can't read an archive whose files have two folders."""
    topic, folder, link = "pipeline-linked", tmp_path / "50%20 of #1", tmp_path / "link"
    link.symlink_to(folder)
    client.create_topic(topic)
    for count, name in enumerate((folder, folder, link, folder), 1):
        with client.producer(topic) as producer:
            producer.send("v", key="k")
        archive.run(spark, [topic], str(name), address=address)
        assert (
            archive.events(spark, str(folder), topic).count()
            == archive.events(spark, str(link), topic).count()
            == count
        )


def test_a_history_is_replaced_as_a_whole(
    spark: SparkSession, client: Client, address: str, tmp_path: Path, path: str
) -> None:
    """While it runs the old one is there, and no part of the new one. A run that fails leaves it; so does one that is
    killed, at the latest for the next run."""
    to, damaged = tmp_path / "history", tmp_path / "archive"
    new, old = tmp_path / "_history.new", tmp_path / "_history.old"
    replaced = partial(scd2.run, spark, VISITS, str(to), overwrite=True)
    count = replaced(address=address)
    ended = threading.Event()

    def unfinished() -> list[list[str]]:
        """What was in the folder whenever it was not a whole history."""
        found: list[list[str]] = []
        while not ended.wait(0.005):
            with suppress(FileNotFoundError):  # between two renames
                found.append(os.listdir(to))
        return [names for names in found if "_SUCCESS" not in names]

    with ThreadPoolExecutor(1) as pool:
        watched = pool.submit(unfinished)
        try:
            assert replaced(address=address) == count
        finally:
            ended.set()
        assert not watched.result()
    shutil.copytree(path, damaged, ignore=shutil.ignore_patterns("_*", "*.crc"))
    files = [each for each in damaged.rglob("*.parquet") if f"topic={VISITS}" in str(each)]
    files[0].write_bytes(bytes(files[0].stat().st_size))
    for _ in range(2):
        with pytest.raises(Exception, match=r"not a Parquet file|FAILED_READ_FILE"):
            replaced(archive_path=str(damaged))
        assert spark.read.parquet(str(to)).count() == count
    shutil.copytree(to, new)
    to.rename(old)  # as a kill between the two renames leaves them
    with pytest.raises(AnalysisException, match="already exists"):
        scd2.run(spark, VISITS, str(to), address=address)
    assert spark.read.parquet(str(to)).count() == count
    shutil.copytree(to, old)  # as a kill before the last step leaves them
    assert replaced(address=address) == count
    assert sorted(tmp_path.iterdir()) == [damaged, to]


Event3 = tuple[bytes | None, bytes | None, int]  # key, value, hour
HISTORIES = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([None, b"", b"a", b"b"]), st.sampled_from([None, b"", b"1", b"2"]), st.integers(0, 9)
        ),
        max_size=12,
    ),
    min_size=1,
    max_size=30,
)


def folded(history: list[Event3]) -> list[tuple[Any, ...]]:
    """The versions of the keys of a partition: key, value, from, to, current, offset."""
    found: list[tuple[Any, ...]] = []
    valid: dict[bytes, tuple[bytes | None, int, int]] = {}  # value, since which hour, offset
    for offset, (key, value, hour) in enumerate(history):
        if key is None:
            continue
        old = valid.get(key)
        at = hour if old is None else max(hour, old[1])
        if old is not None and old[0] is not None:
            found.append((key, old[0], old[1], at, False, old[2]))
        valid[key] = (value, at, offset)
    found += [(key, value, at, None, True, offset) for key, (value, at, offset) in valid.items() if value is not None]
    return sorted(found, key=lambda row: int(row[-1]))


@settings(max_examples=5, phases=[Phase.generate])
@given(HISTORIES)
def test_scd2_is_a_fold(spark: SparkSession, histories: list[list[Event3]]) -> None:
    """Each history is a partition of one log, so that Spark folds many at a time."""
    rows = [
        (key, value, partition, offset, datetime.fromtimestamp(hour * 3600, UTC))
        for partition, history in enumerate(histories)
        for offset, (key, value, hour) in enumerate(history)
    ]
    types = "key binary, value binary, partition int, offset long, timestamp timestamp"
    shown = scd2.history(spark.createDataFrame(rows, types)).selectExpr(
        "*", "unix_seconds(valid_from) div 3600 AS since", "unix_seconds(valid_to) div 3600 AS until"
    )
    found: dict[int, list[tuple[Any, ...]]] = {}
    for row in shown.orderBy("partition", "offset").collect():
        version = (bytes(row.key), bytes(row.value), row.since, row.until, row.current, row.offset)
        found.setdefault(row.partition, []).append(version)
    assert found == {partition: versions for partition, each in enumerate(histories) if (versions := folded(each))}


@long
def test_a_rollup_by_windows_counts_what_is_late(
    spark: SparkSession, client: Client, address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, to = "rollup-hits", "rollup-hours"
    client.create_topic(source)

    def hits(*minutes: int, page: str = "a") -> None:
        with client.producer(source) as producer:
            for minute in minutes:
                producer.send(json.dumps({"page": page, "n": minute}), timestamp=START + minute * 60_000)

    command = ["pipeline", "rollup", source, "--to", to, "--checkpoint", str(tmp_path / "checkpoint")]
    command += ["--fields", "page STRING, n INT", "--by", "value.page", "--agg", "hits=count(*)", "--agg"]
    command += ["sum=sum(value.n)", "--window", "1 hour", "--watermark", "30 minutes", "--where", "value.n <> 7"]
    command += ["--address", address, "--json"]
    hits(5, 7, 10, 65, 100)
    hits(20, page="b")
    assert run(command) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["events"], told["late"]) == (6, 0)
    hits(50, 62, 170)  # the window of 50 ended 40 minutes before the latest hit
    assert run(command) == 0
    told = json.loads(capfd.readouterr().out)
    late = features().admission_control  # else Spark judges by the watermark from before the first run
    assert (told["events"], told["late"]) == (3, 1 if late else 0)
    found = {(entry.key or b"").decode(): json.loads(entry.value or b"") for entry in client.table(to).scan()}
    hours = {key: (value["hits"], value["sum"]) for key, value in found.items()}
    assert hours == {
        "a@2026-01-01T00:00:00Z": (2, 15) if late else (3, 65),
        "a@2026-01-01T01:00:00Z": (3, 227),
        "a@2026-01-01T02:00:00Z": (1, 170),
        "b@2026-01-01T00:00:00Z": (1, 20),
    }

    def send_more(said: str) -> None:
        if said.split(": ")[1].startswith("1 "):
            hits(180, page="c")
        else:
            raise InterruptedError("both have come")

    hits(175, page="c")
    same: dict[str, Any] = {
        "by": "value.page",
        "fields": "page STRING, n INT",
        "window": "1 hour",
        "watermark": "30 minutes",
    }
    same |= {"checkpoint": str(tmp_path / "checkpoint"), "where": "value.n <> 7", "address": address}
    sums = {"hits": "count(*)", "sum": "sum(value.n)"}
    with pytest.raises(InterruptedError):
        rollup.run(spark, source, to, aggregates=sums, every="100 milliseconds", tell=send_more, **same)
    both = [entry.key for entry in client.table(to).scan(prefix="c@")]
    assert both == [b"c@2026-01-01T02:00:00Z", b"c@2026-01-01T03:00:00Z"]
    begin = found["b@2026-01-01T00:00:00Z"]["from"]
    assert datetime.fromisoformat(begin) == datetime.fromtimestamp(START / 1000, UTC)
    assert client.describe(to).config["cleanup.policy"] == "compact"
    with pytest.raises(ConfigError, match="give a window"):
        rollup.run(spark, source, to, aggregates={"n": "1"}, checkpoint="", watermark="1 hour", address=address)
    with pytest.raises(ConfigError, match="would aggregate its own results"):
        rollup.run(spark, source, source, aggregates={"n": "count(*)"}, checkpoint="", address=address)
    with pytest.raises(ConfigError, match="without an aggregate"):
        rollup.run(spark, source, to, aggregates={}, checkpoint="", address=address)


def test_what_a_failing_command_says(
    spark: SparkSession, address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["--to", str(tmp_path), "--address", address]
    assert run(["pipeline", "archive", "no-such-topic", *command]) == 1
    said = capfd.readouterr().err
    assert said.startswith("krappy: ")
    assert "no-such-topic" in said
    assert len(said.splitlines()) == 1
    taken = tmp_path / "file"
    taken.touch()
    for folder in (f"file://{taken}/archive", "/proc/archive"):
        # There is no broker, since the command looks at the folder first.
        assert run(["pipeline", "archive", VISITS, "--to", folder, "--address", "127.0.0.1:1"]) == 2
        said = capfd.readouterr().err
        assert said.startswith(f"krappy: the folder {folder} can't be made")
        assert len(said.splitlines()) == 1
    with running(None, {}) as same:
        assert same is spark
    with pytest.raises(KrappyError, match="no_such_column"), running(None, {}):
        spark.range(1).select("no_such_column")
    spark.range(1).collect()  # the session was not stopped


def test_the_cause_of_an_error() -> None:
    text = "Job aborted\n  File x\nkrappy.errors.UnknownTopic: there is no topic 'x'\n\n\tat org.apache.spark"
    assert cause(text) == "there is no topic 'x'"
    assert cause("\n[PATH_NOT_FOUND] Path does not exist: x.\nmore") == "[PATH_NOT_FOUND] Path does not exist: x."
    assert cause("") == "Spark failed, and does not say why"


def test_a_query_that_waits_has_not_done_its_next_batch() -> None:
    waits: Any = {"batchId": 4, "durationMs": {"latestOffset": 1}}
    done: Any = {"batchId": 4, "durationMs": {"latestOffset": 1, "addBatch": 9}}
    assert worked([waits, waits], 3) == []
    assert worked([waits, done], 3) == [done]
    assert worked([done], 4) == []


def test_what_is_said_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"endOffset": '{"a": {"0": 12}}', "latestOffset": '{"a": {"0": 20}}'}
    progress: Any = {"batchId": 3, "processedRowsPerSecond": 1234.5, "sources": [source]}
    monkeypatch.setattr("pyspark.__version__", "4.2.0")
    assert said(Done(2000, 4, 1), progress) == "batch 3: 2,000 events, 1,234/s, 8 to come, 1 late"
    monkeypatch.setattr("pyspark.__version__", "4.1.0")
    assert said(Done(2000, 4), {**progress, "processedRowsPerSecond": 0}) == "batch 3: 2,000 events"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            "it is gone. The option failOnDataLoss=false goes on.",
            "it is gone. --allow-data-loss goes on.",
        ),
        ("option maxOffsetsPerTrigger='0': give more", "--per-batch='0': give more"),
        ("is this the checkpointLocation of another query?", "is this the --checkpoint of another query?"),
        ("jobId='j' was published: give each write a jobId", "--job='j' was published: give each write a --job"),
        ("option subscribe is empty", "TOPIC is empty"),
        ("the address of who may subscribe", "the address of who may subscribe"),
    ],
)
def test_an_error_of_a_command_names_what_was_typed(told: str, said: str) -> None:
    assert typed(told) == said


def test_a_rollup_of_a_topic_that_was_made_anew(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["pipeline", "rollup", topic, "--to", f"{topic}-to", "--checkpoint", str(tmp_path), "--address", address]
    command += ["--agg", "n=count(*)"]
    for more in ([], ["--allow-data-loss"]):
        client.create_topic(topic)
        with client.producer(topic) as producer:
            producer.send_columns(["k"] * 5, ["v"] * 5)
        if more:
            assert run(command) == 1
            assert "--allow-data-loss goes on" in capfd.readouterr().err
        assert run([*command, *more]) == 0
        client.delete_topic(topic)
    assert client.table(f"{topic}-to").get("k").value == b'{"n":10}'  # type: ignore[union-attr]
    client.create_topic(topic)
    client.delete_topic(f"{topic}-to")
    for _ in range(2):
        assert run(command) == 2
        assert f"{tmp_path} has batches already, and there is no topic {topic}-to" in capfd.readouterr().err


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"])
def test_a_windows_key_is_its_begin_in_utc(spark: SparkSession, zone: str) -> None:
    """Every window has a key of its own: in the hour that a clock goes through twice, and where seconds are
    too coarse."""
    turns = 1_792_890_000_000  # 2026-10-25T01:00:00Z, when clocks are set back in Berlin
    moments = [turns + n * 1_800_000 for n in range(-4, 4)] + [turns + 500, 0, 500, 1_774_746_000_000]
    rows = [(f"{ms}", ms) for ms in moments]
    before = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        events = spark.createDataFrame(rows, "said STRING, ms LONG").selectExpr(
            "binary('g') AS key", "binary(said) AS value", "timestamp_millis(ms) AS timestamp"
        )
        read = rollup.parsed(events, None, "key", "timestamp")
        found = rollup.aggregated(read, {"ms": "max(bigint(value))"}, "500 milliseconds").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    told = {row.key: json.loads(row.value)["ms"] for row in found}
    assert sorted(told.values()) == sorted(moments)
    for key, ms in told.items():
        moment = datetime.fromtimestamp(ms / 1000, UTC)
        assert key == f"g@{moment:%Y-%m-%dT%H:%M:%S}{'.500000' if ms % 1000 else ''}Z"


def test_an_aggregate_that_is_called_like_a_windows_bound(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the aggregate 'From' has the name of one of the window's bounds"):
        rollup.run(spark, "a", "b", aggregates={"From": "count(*)"}, checkpoint=str(tmp_path), window="1 hour")


def test_reconcile_needs_to_know_the_settings(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who may read a topic may not be told its settings. Then nobody knows which entries the table may lack."""
    monkeypatch.setenv("KRAPPY_USER", "eve")
    monkeypatch.setenv("KRAPPY_PASSWORD_FILE", str(tmp_path / "users" / "eve"))
    with ada_and_eve(tmp_path) as (ada, eve):
        ada.create_topic("hers")
        ada.add_acls([AclInfo("topic", "hers", "User:eve", "read")])
        with pytest.raises(TopicAuthorizationFailed, match="needs DESCRIBE_CONFIGS on the topic 'hers'"):
            reconcile.run(spark, "hers", str(tmp_path / "archive"), address=eve.address)


def test_a_rollup_into_a_topic_that_is_made_anew(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    """It would have only the groups that change from then on: between two runs, and in a run."""
    to, more = f"{topic}-to", iter(range(9))
    client.create_topic(topic)

    def send(_: str = "") -> None:
        with client.producer(topic) as producer:
            producer.send("v", f"k{next(more)}")

    def anew(_: str) -> None:
        client.delete_topic(to)
        client.create_topic(to, config={"cleanup.policy": "compact"})
        send()

    roll = partial(rollup.run, spark, topic, aggregates={"n": "count(*)"}, address=address)
    for checkpoint, tell, every in (("a", None, None), ("b", anew, "100 milliseconds")):
        send()
        if tell is None:
            assert roll(to, checkpoint=str(tmp_path / checkpoint)).events
            anew("")
        again = partial(roll, to, checkpoint=str(tmp_path / checkpoint), every=every, tell=tell or silent)
        with pytest.raises((ConfigError, StreamingQueryException), match=f"or {to} was deleted and made anew"):
            again()
        assert not list(client.table(to).scan())


def test_a_rollup_by_who_may_only_write_to_its_topic(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who makes the topic needs `create`. Later runs do without it, and nobody needs to know its settings."""
    monkeypatch.setenv("KRAPPY_USER", "eve")
    monkeypatch.setenv("KRAPPY_PASSWORD_FILE", str(tmp_path / "users" / "eve"))
    monkeypatch.setattr(rollup, "follow", lambda *_: Done(1))  # the session's own processes are not Eve's
    with with_users(tmp_path) as (ada, eve):
        ada.create_topic("to", 2)
        ada.add_acls([AclInfo("topic", *each) for each in (("hers", "User:eve", "read"), ("to", "User:eve", "write"))])
        sums: Any = {
            "aggregates": {"n": "count(*)"},
            "checkpoint": str(tmp_path / "checkpoint"),
            "address": eve.address,
        }
        with pytest.raises(TopicAuthorizationFailed, match="needs CREATE on the topic 'to'"):
            rollup.run(spark, "hers", "to", **sums)
        ada.add_acls([AclInfo("topic", "to", "User:eve", "create")])
        assert rollup.run(spark, "hers", "to", **sums) == Done(1)
        (tmp_path / "checkpoint" / "offsets" / "0").mkdir(parents=True)  # as if the first batch had begun
        ada.delete_acls(name="to", operation="create")
        assert rollup.run(spark, "hers", "to", **sums) == Done(1)
