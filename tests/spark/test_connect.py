"""The same over Spark Connect, in a process of its own, since a process has sessions of only one kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from krappy.blocking import Client
from krappy.spark.session import java_home
from krappy.spark.versions import features
from krappy.types import Record
from tests.long import long
from tests.process import ROOT
from tests.spark import connect_session, warm
from tests.spark.conftest import SETTINGS, need_java, python_path


@long
def test_spark_connect(client: Client, address: str, topic: str, tmp_path: Path) -> None:
    need_java()
    client.create_topic(topic, partitions=2)
    client.create_topic(f"{topic}-copy")
    with client.producer(topic) as producer:
        producer.send_many([Record(f"v{number}".encode(), f"u{number}".encode()) for number in range(200)])
    own_java = java_home()
    environ = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{python_path(tmp_path)}",
        "PYSPARK_PYTHON": warm.program(tmp_path),
    }
    settings = {**SETTINGS, "spark.sql.warehouse.dir": str(tmp_path / "sql")}
    lines = [f"{name} {value}" for name, value in settings.items()]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    environ["SPARK_CONF_DIR"] = str(tmp_path)
    environ |= {} if own_java is None else {"JAVA_HOME": str(own_java)}
    environ["SPARK_TESTING"] = "1"  # a free port instead of 15002, which another run may use
    done = subprocess.run(
        [sys.executable, "-m", connect_session.__name__, "local[2]", address, topic, str(tmp_path)],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    kind, said = found.pop("error")
    assert kind == "AnalysisException"
    assert "no option 'subcribe'; the nearest is 'subscribe'" in said
    assert found == expected(topic)
    with client.consumer(f"{topic}-copy", end="now") as consumer:
        assert sorted(str(event.value) for event in consumer)[0] == "b'v0'"
    assert sum(client.offsets(f"{topic}-copy").values()) >= 300


def expected(topic: str) -> dict[str, Any]:
    """What connect_session.py finds, but for the error."""
    can = features()
    return {
        "log": 200,
        "options": {"keys": '["dTU="]', "keyEncoding": "base64"},
        "range": {"keyFrom": "dTU=", "keyEncoding": "base64"},
        "condition": ["v5"],
        "prefix": 111,
        "named": 1,
        "near": [["v150", "v5"], True, True, 1, True],
        "many": 200,
        "offsets": 200,
        "snapshot": 200,
        "joined": 50,
        **({"sql": 50, "table_function": 50} if can.arrow_udf else {}),
        "stream": ["None", {topic: {"0": 0, "1": 0}} if can.admission_control else {}],
    }
