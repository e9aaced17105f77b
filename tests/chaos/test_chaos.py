"""A short run of chaos. And tests of its parts, so that a long run can be trusted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tests.chaos.faults  # noqa: F401  # registers the faults
from tests.chaos.checker import Replica
from tests.chaos.faults.base import KINDS, plan
from tests.chaos.networks import Missing, probe
from tests.chaos.renewed import AckedAnew, Renewed
from tests.long import long
from tests.process import ROOT

SECONDS = 8


def test_the_seed_decides_the_plan() -> None:
    assert plan(7, 600, KINDS) == plan(7, 600, list(KINDS)[::-1])
    assert plan(7, 600, KINDS) != plan(8, 600, KINDS)


def test_every_kind_is_planned() -> None:
    seen = {each.kind for seed in range(50) for each in plan(seed, 120, KINDS)}
    assert seen == set(KINDS)


def test_a_plan_has_only_what_is_possible() -> None:
    assert {each.kind for seed in range(20) for each in plan(seed, 120, ["kill", "stop"])} == {"kill", "stop"}
    assert {each.kind for each in plan(1, 300, ["kill", "stop"], swarm=False)} == {"kill", "stop"}


def test_faults_begin_in_their_order_and_in_time() -> None:
    for seed in range(20):
        times = [each.at for each in plan(seed, 60, KINDS)]
        assert times == sorted(times)
        assert times
        assert times[-1] < 60


def made_anew(*values: bytes, **more: object) -> list[str]:
    topic = Renewed(number=2, acked=[AckedAnew(0, 0, b"2:0")], **more)  # type: ignore[arg-type]
    return [each.text for each in topic.check({0: {1: Replica(0, len(values), dict(enumerate(values)))}})]


def test_a_topic_that_was_made_anew() -> None:
    assert made_anew(b"2:0", b"2:1") == []
    assert len(made_anew(b"2:0", b"1:1")) == 1  # an event of the deleted topic
    assert len(made_anew(b"2:1")) == 1  # the acknowledged event is not there
    assert made_anew(b"2:1", certain=False) == []  # the topic may have been deleted later
    assert made_anew(b"2:0", wrong=["refused"]) == ["refused"]


@pytest.mark.timeout(280)
@long
def test_a_short_run(tmp_path: Path) -> None:
    """Now and then a leader, a follower or the controller is killed."""
    command = [sys.executable, "-m", "tests.chaos.run", "--rounds", "1", "--seed", "3", "--zookeepers", "1"]
    command += [
        "--faults",
        "kill",
        "--seconds",
        str(SECONDS),
        "--power",
        "off",
        "--spark",
        "off",
        "--json",
        "--folder",
        str(tmp_path / "run"),
    ]
    try:
        probe()
    except Missing:
        command += ["--no-namespaces"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=270, check=False)
    if done.returncode == 2:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr[-5000:]
    [told] = [json.loads(line) for line in done.stdout.splitlines()]
    assert told["ok"]
    assert told["faults"]["kill"] >= 1
    assert told["acked"] > 100
    assert told["register_operations"]["read ok"] > 10
    assert sum(each.get("committed", 0) for each in told["jobs"].values()) > 1
    assert all(deliveries > 100 for _, deliveries in told["groups"].values()), told["groups"]
    assert not list((tmp_path / "run").glob("round-*"))
