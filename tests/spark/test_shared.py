"""All workers of an executor share one reading of a table: it is shared once, each follows the log from it, and none
trusts it beyond that."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

from krappy.blocking import Client
from krappy.clients.acls import AclInfo
from krappy.errors import TopicAuthorizationFailed
from krappy.spark import kept, lookup, shared, whole
from krappy.spark.chunk import ordered
from krappy.spark.moments import TableSource
from tests.security.two_users import ada_and_eve
from tests.spark.test_by_key import fill, values
from tests.spark.test_kept import known, written_and_looked_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an executor; this process is one of its workers."""
    place = tmp_path / "krappy"
    monkeypatch.setattr(shared, "folder", lambda: place)
    monkeypatch.setattr(kept, "FREE", 1)
    return place


@pytest.fixture
def snapshots(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics whose tables were read, one item for each read."""
    opened: list[str] = []
    snapshot = client.snapshot

    def counted(topic: str, *given: Any, **named: Any) -> Any:
        opened.append(topic)
        return snapshot(topic, *given, **named)

    monkeypatch.setattr(client, "snapshot", counted)
    return opened


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes this process another worker, which knows nothing yet, or the one that it was before."""
    workers: list[dict[Any, Any]] = [kept._kept, {}]

    def turn() -> None:
        workers.reverse()
        monkeypatch.setattr(kept, "_kept", workers[0])

    return turn


def look(client: Client, topic: str, keys: list[str | None], **options: Any) -> list[Any]:
    """Looks keys up as a worker of a join does from which many lookups are expected."""
    return values(client, topic, keys, expected=10_000, **options)


def keys(count: int) -> list[str | None]:
    return [f"u{n}" for n in range(count)]


def expected(count: int) -> list[str]:
    return [f"v{n}" for n in range(count)]


def test_one_worker_reads_it_for_all(
    client: Client, topic: str, folder: Path, snapshots: list[str], another: Callable[[], None]
) -> None:
    client.create_topic(topic, 2)
    fill(client, topic, 300)
    assert look(client, topic, keys(300)) == expected(300)
    with client.producer(topic) as producer:
        producer.send("other", key="u1")
        producer.send(None, key="u2")
        producer.send("new", key="n")
    another()
    assert look(client, topic, ["u0", "u1", "u2", "n", "no"]) == ["v0", "other", None, "new", None]
    assert known(topic).whole
    assert look(client, topic, keys(300))[3:] == expected(300)[3:]
    another()
    assert look(client, topic, ["u0", "u1", "u2", "n", "no"]) == ["v0", "other", None, "new", None]
    assert snapshots == [topic]
    assert [each.suffix for each in sorted(folder.iterdir())] == [".arrow", ".lock"]


@contextmanager
def with_users(folder: Path) -> Iterator[tuple[Client, Client]]:
    """The clients of Ada, who may do everything, and of Eve, who may do nothing, at a broker with the topic `hers`."""
    with ada_and_eve(folder) as (ada, eve):
        ada.create_topic("hers", 2)
        fill(ada, "hers", 100)
        yield ada, eve


def test_a_table_is_shared_by_one_users_workers_alone(
    tmp_path: Path, folder: Path, another: Callable[[], None]
) -> None:
    """Queries of one program may log in as different users. One who may not read the topic is told nothing of its
    table, whoever has read that."""
    with with_users(tmp_path) as (ada, eve):
        ada.add_acls([AclInfo("topic", "hers", "User:eve", each) for each in ("write", "describe_configs")])
        assert look(ada, "hers", keys(100)) == expected(100)
        another()
        with pytest.raises(TopicAuthorizationFailed):
            look(eve, "hers", keys(100))


def test_who_may_read_a_topic_and_is_not_told_its_settings(
    tmp_path: Path, folder: Path, another: Callable[[], None]
) -> None:
    with with_users(tmp_path) as (ada, eve):
        ada.add_acls([AclInfo("topic", "hers", "User:eve", "read")])
        for _ in range(2):
            assert look(eve, "hers", keys(100)) == expected(100)
            another()
        with ada.producer("hers") as producer:
            producer.send("other", key="u1")
            producer.send(None, key="u2")
        for _ in range(2):
            assert look(eve, "hers", ["u0", "u1", "u2", "no"]) == ["v0", "other", None, None]
            another()


@pytest.mark.parametrize("count", [50, 100, 150])
def test_a_file_of_a_topic_that_was_made_anew(
    client: Client, topic: str, folder: Path, snapshots: list[str], another: Callable[[], None], count: int
) -> None:
    """The file is still there, and nobody takes it for the new topic's table: neither who has it mapped, nor who comes
    anew."""
    client.create_topic(topic, 2)
    fill(client, topic, 100)
    assert look(client, topic, keys(100)) == expected(100)
    client.delete_topic(topic)
    client.create_topic(topic, 2)
    with client.producer(topic) as producer:
        producer.send_columns([f"u{n}" for n in range(count)], [f"new {n}" for n in range(count)])
    new = [f"new {n}" for n in range(count)]
    another()
    assert look(client, topic, keys(count + 1)) == [*new, None]
    another()
    assert look(client, topic, keys(count + 1)) == [*new, None]
    assert snapshots == [topic] * 2, "who comes second has the first one's"


def test_an_empty_table(
    client: Client, topic: str, folder: Path, snapshots: list[str], another: Callable[[], None]
) -> None:
    client.create_topic(topic, 2)
    for _ in range(2):
        assert look(client, topic, keys(3)) == [None] * 3
        another()
    assert snapshots == [topic]


def test_what_is_too_old_is_read_again(
    client: Client, topic: str, folder: Path, snapshots: list[str], another: Callable[[], None]
) -> None:
    """More has changed than the table has, or the log's beginning was cut off."""
    client.create_topic(topic, 1)
    fill(client, topic, 100)
    assert look(client, topic, keys(100)) == expected(100)
    fill(client, topic, 150)
    another()
    assert look(client, topic, keys(150)) == expected(150)
    assert snapshots == [topic] * 2
    client.delete_records(topic, {0: 240})
    another()
    assert look(client, topic, keys(150)) == [None] * 140 + expected(150)[140:]
    another()
    assert look(client, topic, keys(150)) == [None] * 140 + expected(150)[140:]
    assert snapshots == [topic] * 3


def test_the_file_may_have_more_than_a_worker_keeps_in_its_memory(
    client: Client, topic: str, folder: Path, snapshots: list[str], another: Callable[[], None]
) -> None:
    client.create_topic(topic, 1)
    fill(client, topic, 1_000)
    table = 1_000 * (8 + 8 + 9)  # bytes of fingerprints, of offsets of keys and values, and of keys and values
    for keep, fits in ((table // 5, True), (table // 15, False)):
        for _ in range(2):
            assert look(client, topic, keys(1_000), keep=keep) == expected(1_000)
            with client.producer(topic) as producer:
                producer.send("v7", key="u7").result()
            assert look(client, topic, keys(1_000), keep=keep) == expected(1_000)
            assert known(topic, keep).whole == fits
            another()
    assert snapshots == [topic] * 3  # each of the two workers has found out by itself that the table is too large
    assert len(list(folder.glob("*.arrow"))) == 1


def test_what_changed_since_is_read_if_a_worker_may_keep_it(
    client: Client, topic: str, folder: Path, snapshots: list[str], another: Callable[[], None]
) -> None:
    client.create_topic(topic, 1)
    fill(client, topic, 1_000)
    assert look(client, topic, keys(1_000), keep=8_000) == expected(1_000)
    for count, reads in ((20, 1), (900, 2)):
        fill(client, topic, count)
        another()
        assert look(client, topic, keys(1_000), keep=8_000) == expected(1_000)
        assert known(topic).whole
        assert snapshots == [topic] * reads


def test_without_a_folder_each_worker_reads_for_itself(
    client: Client, topic: str, folder: Path, snapshots: list[str], another: Callable[[], None]
) -> None:
    client.create_topic(topic, 2)
    fill(client, topic, 300)
    folder.write_text("a file")
    for _ in range(2):
        assert look(client, topic, keys(300)) == expected(300)
        assert known(topic).whole
        another()
    assert snapshots == [topic] * 2


def test_without_room_for_the_file_each_worker_has_what_it_may_keep(
    client: Client, topic: str, folder: Path, snapshots: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(topic, 2)
    fill(client, topic, 300)
    opened = pa.OSFile
    monkeypatch.setattr(pa, "OSFile", lambda _, mode: opened("/dev/full", mode))
    for keep in (2_000, kept.MOST):
        assert look(client, topic, keys(300), keep=keep) == expected(300)
        assert known(topic, keep).whole == (keep == kept.MOST)
    assert snapshots == [topic] * 2
    assert [each.suffix for each in folder.iterdir()] == [".lock"]


def test_two_that_write_at_once_do_not_mix(client: Client, topic: str, folder: Path) -> None:
    """Two may write at once where locks do not work: one of the files counts, as a whole."""
    client.create_topic(topic, 1)
    source = TableSource(client, topic, ("value",))
    folder.mkdir()
    two = [shared.SharedAmongWorkers(folder, source) for _ in range(2)]
    chunks = [
        ordered(np.arange(n, dtype=np.uint64), pa.array([b"k"] * n), pa.array([{"value": b"v"}] * n)) for n in (3, 5)
    ]
    drafts = [each.draft(source.moment(), chunk.entries.type) for each, chunk in zip(two, chunks, strict=True)]
    for draft, chunk in zip(drafts, chunks, strict=True):
        assert draft.add(chunk)
    for draft in drafts:
        draft.publish()
        draft.close()
    found = shared.SharedAmongWorkers(folder, source).newer()
    assert found is not None
    assert [len(each) for each in found[1]] in ([3], [5])
    assert [each.suffix for each in folder.iterdir()] == [".arrow"]


def test_a_file_system_without_locks_and_a_file_that_is_spoiled(
    client: Client,
    topic: str,
    folder: Path,
    snapshots: list[str],
    another: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    client.create_topic(topic, 2)
    fill(client, topic, 300)
    for _ in range(2):
        assert look(client, topic, keys(300)) == expected(300)
        another()
    assert snapshots == [topic]
    [file] = folder.glob("*.arrow")
    (folder / "other").write_bytes(b"nothing of the kind")
    (folder / "other").replace(file)  # a file that is mapped stays as it is
    fill(client, topic, 400)  # so that nobody can follow the log from the file
    assert look(client, topic, keys(400)) == expected(400)
    assert known(topic).whole
    assert snapshots == [topic] * 2


def test_what_was_shared_long_ago_goes(client: Client, topic: str, folder: Path) -> None:
    for number in range(shared.MOST_FILES + 2):
        client.create_topic(f"{topic}-{number}", 1)
        fill(client, f"{topic}-{number}", 10)
        assert look(client, f"{topic}-{number}", keys(10)) == expected(10)
    assert len(list(folder.glob("*.arrow"))) == shared.MOST_FILES


@pytest.mark.parametrize("seed", range(4))
def test_workers_never_differ_from_the_table(
    client: Client, topic: str, folder: Path, another: Callable[[], None], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(whole, "PIECE", 1_000)
    keep = chance.choice([20_000, 1 << 20])

    def one_of_them(keys: list[str | None]) -> list[Any]:
        if chance.random() < 0.5:
            another()
        return look(client, topic, keys, keep=keep)

    written_and_looked_up(client, topic, chance, one_of_them)


WORKER = """
import sys
from pathlib import Path
from krappy import blocking
from krappy.spark import kept, shared, whole
from tests.spark.test_shared import expected, keys, look
address, topic, folder, count, slow = sys.argv[1:]
shared.folder = lambda: Path(folder)
kept.FREE, whole.PIECE = 1, 1_000
locked = shared._locked
def waited(lock):
    print("turn", flush=True)
    return locked(lock)
shared._locked = waited
with blocking.connect(address) as client:
    snapshot = client.snapshot
    def told(*given, **named):
        print("reads", flush=True)
        if slow == "slow":
            sys.stdin.read()
        return snapshot(*given, **named)
    client.snapshot = told
    assert look(client, topic, keys(int(count))) == expected(int(count))
    assert [each.whole for each in kept._kept.values()] == [True]
print("done", flush=True)
"""


class Worker:
    """A process that looks every key up. A slow one reads the table only when its stdin ends."""

    def __init__(self, *given: Any) -> None:
        command = [sys.executable, "-c", WORKER, *map(str, given)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> list[str]:
        said, _ = self.process.communicate(timeout=120)
        return said.split()


def test_others_wait_for_the_one_that_reads(client: Client, address: str, topic: str, folder: Path) -> None:
    client.create_topic(topic, 3)
    fill(client, topic, 500)
    first = Worker(address, topic, folder, 500, "slow")
    assert [first.line(), first.line()] == ["turn", "reads"]
    others = [Worker(address, topic, folder, 500, "quick") for _ in range(3)]
    assert [each.line() for each in others] == ["turn"] * 3
    assert first.end() == ["done"]
    assert [each.end() for each in others] == [["done"]] * 3


def test_a_reader_that_is_killed_is_followed_by_another(client: Client, address: str, topic: str, folder: Path) -> None:
    client.create_topic(topic, 2)
    fill(client, topic, 500)
    first = Worker(address, topic, folder, 500, "slow")
    assert [first.line(), first.line()] == ["turn", "reads"]
    first.process.kill()
    first.end()
    assert not list(folder.glob("*.arrow"))
    assert Worker(address, topic, folder, 500, "quick").end() == ["turn", "reads", "done"]
    assert Worker(address, topic, folder, 500, "quick").end() == ["done"]
    assert not list(folder.glob("*.half"))


def test_in_spark(spark: SparkSession, client: Client, topic: str, address: str) -> None:
    """Spark's workers share what one of them has read, in a folder that goes with the executor."""
    [local] = spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ["SPARK_LOCAL_DIRS"]).collect()
    folder = Path(local.split(",")[0]) / "krappy"
    before = set(folder.glob("*.arrow"))
    client.create_topic(topic, 2)
    fill(client, topic, 30_000)
    many = spark.range(150_000, numPartitions=4).select(sf.concat(sf.lit("u"), (sf.col("id") % 40_000)).alias("key"))
    found = lookup(many, topic, "key", address=address)
    assert found.where("value = concat('v', substring(key, 2))").count() == 120_000
    assert len(set(folder.glob("*.arrow")) - before) == 1
    assert folder.stat().st_mode & 0o777 == 0o700
