"""Measures PySpark on Krappy, beside Spark's Kafka connector on the same events: `make bench-spark`.

The connector (a JAR from Maven Central) reads and writes Krappy by its Kafka listener; and Apache Kafka, if
`make compat` has downloaded that. In each round a measure is taken on one after the other; the summary has the medians.
Figures are rows a second unless they say ms. A read makes every row and throws it away (format noop). All runs on one
machine: Spark with two cores, its Python workers, and the brokers.

Each figure is printed at once, and with --json also written at once; a part that fails does not stop the others.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

import krappy.spark
from krappy import blocking
from krappy.cli.spawn import spawn_broker
from krappy.spark.session import session
from krappy.spark.source import KrappyDataSource
from tests.compat.admin import Admin
from tests.compat.servers import KafkaServer
from tests.compat.tools import CACHE, Missing
from tests.peers.spark_report import shown, summary, table
from tests.process import free_address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# PySpark's version -> the newest connector that Maven Central has for it
CONNECTORS = {"4.0": "4.0.0", "4.1": "4.1.1", "4.2": "4.2.0", "4.3": "4.2.0"}
POM = Path(__file__).with_name("spark-pom.xml")
EVENTS, KEYS, LOADED = 10_000_000, 1_000_000, 10_000_000  # at scale 1
PROBES = (1_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 10_000_000)  # the last: ten times the keys
LOOKUPS = 20  # of one key, timed one by one
PARTITIONS = 4
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "3g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
}


def connector() -> list[Path]:
    """The connector's jars, which are downloaded if they are not there. Raises Missing."""
    version = CONNECTORS.get(".".join(pyspark.__version__.split(".")[:2]))
    if version is None:
        raise Missing(f"no connector is known for PySpark {pyspark.__version__}")
    folder = CACHE.parent / "bench-spark" / version
    if not (folder / ".complete").exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise Missing("no mvn on the PATH (Apache Maven)")
        command = [maven, "-B", "-q", "-f", str(POM), f"-Dspark.version={version}", "dependency:copy-dependencies"]
        done = subprocess.run([*command, f"-DoutputDirectory={folder}"], capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise Missing((done.stdout + done.stderr).strip()[-500:])
        (folder / ".complete").touch()
    return sorted(folder.glob("*.jar"))


def events(spark: SparkSession, count: int, keys: int) -> DataFrame:
    """`count` rows whose keys have 9 bytes and whose values have 100; `keys` keys are different, in no order."""
    rows = spark.range(0, count, 1, PARTITIONS)
    key = f"concat('k', lpad(string(pmod(id * 7919, {keys})), 8, '0'))"
    return rows.selectExpr(f"{key} AS key", "rpad(string(id), 100, 'x') AS value")


def work_out(df: DataFrame) -> None:
    """Makes every row, and throws it away."""
    df.write.format("noop").mode("overwrite").save()


def read_all(reader: Any) -> None:
    work_out(reader.load())


def seconds(work: Callable[..., Any], *given: Any) -> float:
    begin = time.perf_counter()
    work(*given)
    return time.perf_counter() - begin


class Bench:
    """`kafka`: by name, the address of each Kafka listener with which the connector is measured.

    `results`: by measure and by reader or writer, one figure for each round; `noted` is called with each figure.
    """

    def __init__(self, spark: SparkSession, address: str, kafka: dict[str, str], scale: float, folder: Path) -> None:
        self.spark, self.address, self.kafka, self.folder = spark, address, kafka, folder
        self.noted: Callable[[str, str, float], None] = lambda *_: None
        self.count, self.keys, self.loaded = (max(10_000, int(n * scale)) for n in (EVENTS, KEYS, LOADED))
        self.probes = [max(100, int(n * scale)) for n in PROBES]
        self.results: dict[str, dict[str, list[float]]] = {}
        self._topics = self._changes = 0

    def note(self, measure: str, who: str, value: float) -> None:
        self.results.setdefault(measure, {}).setdefault(who, []).append(value)
        self.noted(measure, who, value)

    def rate(self, measure: str, who: str, rows: int, work: Callable[..., Any], *given: Any) -> None:
        self.note(measure, who, rows / seconds(work, *given))

    def ours(self, **options: Any) -> Any:
        return self.spark.read.format("krappy").options(address=self.address, **options)

    def theirs(self, name: str, topic: str) -> Any:
        options = {"kafka.bootstrap.servers": self.kafka[name], "subscribe": topic, "startingOffsets": "earliest"}
        return self.spark.read.format("kafka").options(**options)

    @contextmanager
    def topic(self, **config: str) -> Iterator[str]:
        """A topic on all brokers."""
        self._topics += 1
        name = f"bench-{self._topics}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        with blocking.connect(self.address) as client:
            client.create_topic(name, PARTITIONS, settings)
            others = [Admin(address) for who, address in self.kafka.items() if "Apache" in who]
            for admin in others:
                admin.create(name, PARTITIONS, settings)
            try:
                yield name
            finally:
                client.delete_topic(name)
                for admin in others:
                    admin.delete(name)

    def send(self, df: DataFrame, topic: str, who: str | None, **options: str) -> None:
        to = df.write.mode("append").option("topic", topic)
        if who is None:
            to.format("krappy").options(address=self.address, **options).save()
        else:
            to.format("kafka").option("kafka.bootstrap.servers", self.kafka[who]).save()

    def writes(self) -> None:
        """Writes. The connector writes at least once; Krappy stages rows, and publishes them once."""
        rows = self.count // 10
        df = events(self.spark, rows, self.keys)
        for who in (None, *self.kafka):
            with self.topic() as topic:
                self.rate("write", who or "krappy", rows, self.send, df, topic, who)

    def reads(self, rounds: int) -> None:
        """Reads of the log and the table, `where key = x`, and lookup joins, all of one topic."""
        with self.topic() as topic:
            df = events(self.spark, self.count, self.keys)
            for who in (None, *(who for who in self.kafka if "Apache" in who)):
                self.send(df, topic, who)
            with blocking.connect(self.address) as client:
                client.table(topic).catch_up()
            for _ in range(rounds):
                self.rate("log read", "krappy", self.count, read_all, self.ours(subscribe=topic))
                for who in self.kafka:
                    self.rate("log read", who, self.count, read_all, self.theirs(who, topic))
                self.rate("table read", "krappy", self.keys, read_all, self.ours(subscribe=topic, mode="table"))
                self.where(topic)
                for probes in self.probes:
                    self.join(topic, probes)

    def where(self, topic: str) -> None:
        """Looks a key up by a condition and by its name; and finds its last event by reading the whole log."""
        users = krappy.spark.table(self.spark, topic, address=self.address, keyType="string")
        key = f"k{self.keys // 2:08d}"
        by_condition = sorted(seconds(lambda: users.where(f"key = '{key}'").collect()) for _ in range(LOOKUPS))
        by_key = sorted(seconds(lambda: users.lookup([key]).collect()) for _ in range(LOOKUPS))
        self.note("where key = x, p50 (ms)", "krappy", by_condition[LOOKUPS // 2] * 1000)
        self.note("lookup([x]), p50 (ms)", "krappy", by_key[LOOKUPS // 2] * 1000)
        for who in ("krappy", *self.kafka):
            reader = self.ours(subscribe=topic) if who == "krappy" else self.theirs(who, topic)
            scan = reader.load().where(f"key = binary('{key}')")
            self.note("last event of x, by a scan of the log (ms)", who, seconds(last, scan) * 1000)

    def join(self, topic: str, probes: int) -> None:
        """Lookup joins with keys that exist, by workers that have kept nothing of the table, and again; beside a join
        with a read of the whole table."""
        self.forget(topic)
        df = events(self.spark, probes, self.keys).select("key", "value").withColumnRenamed("value", "mine")
        found = krappy.spark.lookup(df, topic, "key", columns={"value": "theirs"}, address=self.address)
        view = self.ours(subscribe=topic, mode="table", columns="key,value", keyType="string").load()
        self.rate(f"join of {probes:,} rows, lookup", "krappy", probes, work_out, found)
        self.rate(f"join of {probes:,} rows, scan", "krappy", probes, work_out, df.join(view, "key", "left"))
        self.rate(f"join of {probes:,} rows, lookup again", "krappy", probes, work_out, found)

    def forget(self, topic: str) -> None:
        """Lets tasks forget all that they keep of a topic, by a change of a setting on which that depends."""
        self._changes += 1
        with blocking.connect(self.address) as client:
            client.alter_topic(topic, {"delete.retention.ms": 86_400_000 + self._changes})

    def bulk(self) -> None:
        """Writes Parquet rows to a compacted topic, until its table has all: in their order, and sorted by key."""
        path = str(self.folder / "loaded.parquet")
        events(self.spark, self.loaded, self.loaded).write.mode("overwrite").parquet(path)
        df = self.spark.read.parquet(path)
        for name, load in (("df.write", self.send_all), ("bulk_load", self.load_all)):
            with self.topic(cleanup_policy="compact") as topic:
                self.rate(f"bulk load, {name}", "krappy", self.loaded, load, df, topic)

    def send_all(self, df: DataFrame, topic: str) -> None:
        self.send(df, topic, None, awaitTable="true")

    def load_all(self, df: DataFrame, topic: str) -> None:
        krappy.spark.bulk_load(df, topic, address=self.address)


def last(df: DataFrame) -> Any:
    return df.selectExpr("max_by(value, timestamp)").collect()


class Told:
    """Prints figures on stderr, and writes the summary so far to a file."""

    def __init__(self, file: Path | None) -> None:
        self.bench: Bench | None = None
        self.failed: dict[str, str] = {}  # by part
        self._file = file

    def note(self, measure: str, who: str, value: float) -> None:
        sys.stderr.write(f"    {measure}: {who} {shown(value)}\n")
        self.write()

    def summary(self) -> dict[str, Any]:
        bench = self.bench
        sizes = {} if bench is None else {"events": bench.count, "keys": bench.keys, "loaded": bench.loaded}
        return summary({} if bench is None else bench.results, sizes, self.failed)

    def write(self) -> None:
        if self._file is not None:
            self._file.write_text(json.dumps(self.summary(), indent=1))

    def part(self, name: str, work: Callable[..., None], *given: Any) -> None:
        """Calls `work`; if it fails, notes that and goes on."""
        sys.stderr.write(f"{name}\n")
        try:
            work(*given)
        except Exception as error:
            self.failed[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
            self.write()


def run(scale: float, rounds: int, folder: Path, told: Told) -> None:
    say = sys.stderr.write
    conf, kafka = dict(CONF), {}
    try:
        conf["spark.jars"] = ",".join(map(str, connector()))
    except Missing as reason:
        say(f"without Spark's Kafka connector: {reason}\n")
    with ExitStack() as stack:
        listener = free_address()
        broker = stack.enter_context(spawn_broker(folder / "krappy", {"listen_kafka": listener}))
        if "spark.jars" in conf:
            kafka["connector on Krappy"] = listener
            try:
                server = KafkaServer(folder / "kafka", heap="1g")
                stack.callback(server.kill)
                server.start()
                kafka["connector on Apache Kafka"] = server.address
            except (Missing, AssertionError) as reason:  # AssertionError: it did not start in time
                say(f"without Apache Kafka: {reason}\n")
        spark = session("local[2]", app="make bench-spark", config=conf)
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(KrappyDataSource)
        say("warming up\n")
        bench = Bench(spark, broker.address, kafka, scale, folder)
        bench.writes()
        bench.results.clear()
        bench.noted, told.bench = told.note, bench
        for number in range(rounds):
            told.part(f"writes, round {number + 1} of {rounds}", bench.writes)
        told.part("reads, lookups and joins", bench.reads, rounds)
        told.part("bulk load", bench.bulk)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make bench-spark", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of events; 1.0: 10 M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file that takes the summary, after each measure")
    asked = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="krappy-bench-spark-"))
    told = Told(asked.json)
    try:
        run(asked.scale, asked.rounds, folder, told)
    finally:  # also if it was interrupted
        shutil.rmtree(folder, ignore_errors=True)
        told.write()
        sys.stdout.write(table(told.summary()) + "\n")
    return 1 if told.failed else 0


if __name__ == "__main__":
    sys.exit(main())
