"""Queries that are started again when a Python process of Spark is slow: here a real process is made slow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

import krappy.spark
from krappy.pipelines.following import Done, follow
from krappy.spark import patience
from krappy.spark.patience import SLOW_START, patiently
from tests.long import long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOW = """#!/bin/sh
# The first process of a stream's source is there after Spark has given up.
case "$*" in *python_streaming_source_runner*) if mkdir {mark} 2>/dev/null; then sleep 13; fi ;; esac
exec {python} "$@"
"""


class OneRow(DataSource):
    @classmethod
    def name(cls) -> str:
        return "krappy-slow"

    def schema(self) -> str:
        return "n INT"

    def simpleStreamReader(self, schema: object) -> SimpleDataSourceStreamReader:
        return OneRowReader()


class OneRowReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
        return iter([(7,)] if start["n"] == 0 else []), {"n": 1}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int]]:
        return iter([(7,)])


@pytest.fixture
def slow_python(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the first Python process of the data source slow."""
    program = tmp_path / "python"
    program.write_text(SLOW.format(mark=tmp_path / "begun", python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(program))
    spark.dataSource.register(OneRow)


@long
def test_a_query_whose_python_is_slow_is_run_again(spark: SparkSession, slow_python: None) -> None:
    told: list[str] = []
    rows = spark.readStream.format("krappy-slow").load()

    def run() -> None:
        query = rows.writeStream.format("memory").queryName("krappy_slow").start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    patiently(run, tell=told.append)
    assert [row.n for row in spark.table("krappy_slow").collect()] == [7]
    assert told
    assert "starting the query again" in told[0]


class Fails:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_no_more_often_than_it_is_told_and_for_no_other_reason() -> None:
    slow = RuntimeError(f"SparkException: {SLOW_START}.")
    work = Fails(slow, slow)
    assert (krappy.spark.patiently(work), work.calls) == ("done", 3)
    work = Fails(slow, slow, slow)
    with pytest.raises(RuntimeError, match=SLOW_START):
        patiently(work, starts=3)
    assert work.calls == 3
    work = Fails(slow, ValueError("other"), slow)
    with pytest.raises(ValueError, match="other"):
        patiently(work)
    assert work.calls == 2
    with pytest.raises(ValueError, match="starts=0"):
        patiently(work, starts=0)


def test_it_may_be_the_cause_of_what_is_raised() -> None:
    wrapped = ValueError("the query failed")
    wrapped.__cause__ = RuntimeError(SLOW_START)
    assert patience.slow_start(wrapped)
    assert not patience.slow_start(ValueError("the query failed"))
    assert not patience.slow_start(None)


def test_pipelines_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from krappy.pipelines import following

    runs = Fails(RuntimeError(SLOW_START))
    monkeypatch.setattr(following, "_once", lambda *given: Done(events=5) if runs() else Done())
    told: list[str] = []

    class Writer:
        def trigger(self, **given: object) -> Writer:
            return self

    assert follow(Writer(), "1 second", told.append) == Done(events=5)  # type: ignore[arg-type]
    assert (runs.calls, len(told)) == (2, 1)
