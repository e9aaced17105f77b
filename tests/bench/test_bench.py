"""Each benchmark beside `krappy bench` runs, on little data, and prints its figures."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from tests.bench.__main__ import main


class Result(NamedTuple):
    status: int
    json: Any
    err: str


def bench(*arguments: str) -> Result:
    done = CliRunner().invoke(main, arguments)
    told = json.loads(done.stdout) if "--json" in arguments and not done.exit_code else None
    return Result(done.exit_code, told, done.stderr)


@pytest.mark.parametrize("more", [["--of", "table"], ["--of", "log"], ["--of", "lookup"]], ids=" ".join)
def test_reads_by_columns_are_measured(more: list[str]) -> None:
    result = bench("blocks", "--count", "3000", "--partitions", "2", "--rounds", "2", *more, "--json")
    assert result.status == 0, result.err
    [figures] = result.json["results"]
    assert figures["count"] == 3000
    assert 0 < figures["per_second_min"] <= figures["per_second"] <= figures["per_second_max"]


def test_live_views_beside_a_producer_are_measured() -> None:
    arguments = ["--case", "tail", "--case", "slow watch", "--count", "20000", "--rounds", "1"]
    result = bench("tail", *arguments, "--json")
    assert result.status == 0, result.err
    tail, watch = result.json["results"]
    assert (tail["case"], watch["case"]) == ("tail", "slow watch")
    assert tail["shown"] > 0
    assert tail["shown"] + tail["skipped"] == 20_000
    assert tail["per_second"] > 0
    refused = bench("tail", "--case", "none")
    assert refused.status == 2
    assert "filtered tail" in refused.err


def test_writes_under_a_condition_are_measured() -> None:
    result = bench("expect", "--count", "2000", "--rounds", "2", "--json")
    assert result.status == 0, result.err
    [figures] = result.json["results"]
    assert figures["count"] == 2000
    assert 0 < figures["ratio_min"] <= figures["ratio"] <= figures["ratio_max"]
    assert bench("expect", "--count", "500", "--rounds", "1", "--durability", "os").status == 0


def test_a_start_is_measured() -> None:
    result = bench("start", "--megabytes", "2", "--rounds", "2", "--durability", "os", "--json")
    assert result.status == 0, result.err
    [figures] = result.json["results"]
    assert 0 < figures["seconds_min"] <= figures["seconds"] <= figures["seconds_max"]
    assert figures["megabytes"] >= 2
    assert figures["idle_megabytes"] > 10
    more = ("--partitions", "20", "--kill", "--refold")
    assert bench("start", "--megabytes", "1", "--rounds", "1", "--durability", "os", *more).status == 0


def test_a_backup_is_measured() -> None:
    result = bench("backup", "--megabytes", "5", "--seconds", "0.3", "--durability", "os", "--json")
    assert result.status == 0, result.err
    [figures] = result.json["results"]
    assert figures["first_shared_megabytes"] == 0
    assert figures["megabytes"] >= 5
    assert figures["restore_megabytes_per_second"] > 0
    assert figures["alone_megabytes_per_second"] > 0
