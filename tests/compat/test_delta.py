"""Spark to Delta Lake: the program of krappy/docs/howto/delta.md has each committed event once, even if it
is killed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import krappy.spark.pyspark_krappy
from krappy.blocking import Client
from krappy.errors import ConfigError
from krappy.spark.session import java_home
from tests.compat import tools
from tests.compat.clients.base import PATIENCE
from tests.compat.programs import LONG_S, MADE, Program, block, python
from tests.compat.servers import KrappyServer
from tests.documents import DOCS, ROOT

PAGE = DOCS / "howto" / "delta.md"
pytestmark = [MADE, pytest.mark.timeout(6 * LONG_S)]
# The page's program lets Spark fetch the jar; here the test gives the jar.
FETCHED = "delta.configure_spark_with_delta_pip(SparkSession.builder)  # it fetches the jar\n"
GIVEN = """SparkSession.builder.config("spark.jars", "{jars}").master("local[2]")
    .config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.sql.shuffle.partitions", "2")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""
# Reads the table by another implementation of Delta Lake than the one that writes it. The threads of this reader
# abort a process that ends in the usual way.
READ = """
import json, os, sys, deltalake
rows = deltalake.DeltaTable(sys.argv[1]).to_pyarrow_table().drop_columns(sys.argv[2:]).to_pylist()
print(json.dumps(rows), flush=True)
os._exit(0)
"""


@pytest.fixture
def interpreter() -> Path:
    found = python("delta")
    try:
        tools.java("delta")
        java_home()
    except (tools.Missing, ConfigError) as reason:
        pytest.skip(str(reason))
    return found


@pytest.fixture
def program(interpreter: Path, broker: KrappyServer, tmp_path: Path) -> Program:
    """The page's program, not started."""
    jars = ",".join(map(str, sorted((tools.CACHE / "java" / "delta").glob("*.jar"))))
    text = block("lake.py", PAGE)
    assert FETCHED in text
    text = text.replace(FETCHED, GIVEN.format(jars=jars)).replace("127.0.0.1:7092", broker.broker.address)
    (tmp_path / "lake.py").write_text(text)
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "pyspark_krappy").symlink_to(Path(krappy.spark.pyspark_krappy.__path__[0]).resolve())
    environ = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path / "found")]), "PYSPARK_PYTHON": str(interpreter)}
    return Program([interpreter, "lake.py"], tmp_path, "delta", environ)


def rows(interpreter: Path, table: Path, *without: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [interpreter, "-c", READ, table, *without], capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_a_topic_and_a_table_become_delta_tables(
    program: Program, interpreter: Path, broker: KrappyServer, native: Client, tmp_path: Path
) -> None:
    native.create_topic("orders", 2)
    native.create_topic("users", 2, {"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "shop", "log_level": 0})
    producer.init_transactions(PATIENCE)
    committed: list[dict[str, Any]] = []

    def order(first: int, count: int, *, abort: bool = False) -> None:
        producer.begin_transaction()
        for n in range(first, first + count):
            producer.produce("orders", json.dumps({"user": f"u{n % 9}", "eur": n / 4}), f"u{n % 9}")
        producer.flush(PATIENCE)
        if abort:
            producer.abort_transaction(PATIENCE)
        else:
            producer.commit_transaction(PATIENCE)
            committed.extend({"user": f"u{n % 9}", "eur": n / 4} for n in range(first, first + count))

    def user(names: dict[str, str | None]) -> None:
        with native.producer("users") as sender:
            for key, name in names.items():
                sender.send(name, key=key)

    def run() -> None:
        program.start()
        assert program.ended() == 0, program.last_words()

    def check() -> None:
        orders = rows(interpreter, tmp_path / "lake" / "orders", "timestamp")
        places = [(each["partition"], each["offset"]) for each in orders]
        assert len(set(places)) == len(places), "an event is there twice"
        by_order = sorted((each["order"] for each in orders), key=lambda each: float(each["eur"]))
        assert by_order == sorted(committed, key=lambda each: float(each["eur"]))
        ours = {entry.key.decode(): (entry.value or b"").decode() for entry in native.table("users").scan()}
        lake = rows(interpreter, tmp_path / "lake" / "users", "offset")
        assert {each["key"]: each["value"] for each in lake} == ours
        assert len(lake) == len(ours)

    order(0, 300)
    order(300, 100, abort=True)
    user({f"u{n}": f"name {n}" for n in range(9)})
    program.start()
    log = tmp_path / "lake" / "orders" / "_delta_log"
    program.until(lambda: any(log.glob("*.json")), "it has written")
    program.kill()
    order(400, 200)
    user({"u1": "another name", "u2": None, "u9": "new"})
    run()  # with this PySpark, this run only ends the batch that was open
    run()
    check()
    order(600, 100)
    user({"u3": None, "u2": "again", "u10": None})
    run()
    check()
