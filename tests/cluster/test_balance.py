"""`krappy cluster elect` and `krappy cluster balance` with three brokers as processes, under writes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from krappy.cli.main import run
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.test_cluster import PARTITIONS, Writer, leaders, read, until_acked
from tests.cluster.test_moves import holders, make, replicas
from tests.process import wait_until

Krappy = Callable[..., tuple[int, str, str]]


@pytest.fixture
def krappy(cluster: ClusterProcesses, capsys: pytest.CaptureFixture[str]) -> Krappy:
    """Runs `krappy cluster …` at a broker: (id, *arguments) -> status, stdout, stderr."""

    def call(id: int, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()  # not capfd: librdkafka of an earlier test may write to the descriptors
        status = run(["cluster", *arguments, "--address", cluster.brokers[id].address])
        return status, *capsys.readouterr()

    return call


def proposal(krappy: Krappy, *options: str) -> dict[str, Any]:
    status, out, _ = krappy(2, "balance", "--json", *options)
    assert status == 0
    found: dict[str, Any] = json.loads(out)
    return found


def counts(cluster: ClusterProcesses, topic: str) -> Counter[int]:
    return Counter(id for each in replicas(cluster, topic) for id in each)


def test_replicas_are_balanced_under_writes(cluster: ClusterProcesses, krappy: Krappy) -> None:
    make(cluster, "t", 1, 2)
    with Writer(cluster, "t") as writer:
        until_acked(writer, 1_000)
        status, out, err = krappy(3, "balance")
        assert status == 0
        assert "give --yes" in err
        assert "4 copies" in out
        assert counts(cluster, "t") == {1: 6, 2: 6}  # nothing was moved
        status, out, err = krappy(3, "balance", "--yes", "--at-once", "2")
        assert (status, err) == (0, "")
        assert f"of {len(proposal_moves(out))} moved" in out
        assert counts(cluster, "t") == {1: 4, 2: 4, 3: 4}
        wait_until(lambda: Counter(leaders(cluster, "t")) == {1: 2, 2: 2, 3: 2}, "all lead as many")
        until_acked(writer, 1_000)
    assert not writer.failed
    assert proposal(krappy)["moves"] == []
    assert "it is balanced" in krappy(1, "balance", "--yes")[1]
    cluster.until_in_sync("t")
    placed = replicas(cluster, "t")
    for each in cluster.brokers.values():
        each.stop()
    for partition, acked in writer.acked.items():
        for id in placed[partition]:
            found = read(cluster.brokers[id].data, "t", partition)
            assert all(found.get(offset) == str(number).encode() for number, offset in acked)


def proposal_moves(out: str) -> list[str]:
    """The lines of the table of moves."""
    return [line for line in out.splitlines() if line.startswith("t\t")]


def test_a_broker_is_emptied(cluster: ClusterProcesses, krappy: Krappy) -> None:
    make(cluster, "t", 3, 1)
    told = proposal(krappy, "--without", "3")
    assert {copy for each in told["moves"] for copy in each["copies"]} == {2}
    [emptied] = [each for each in told["brokers"] if each["id"] == 3]
    assert (emptied["replicas_before"], emptied["replicas_after"]) == (PARTITIONS, 0)
    status, out, _ = krappy(1, "balance", "--without", "3", "--yes", "--json")
    assert status == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[-1]["moved"] == lines[-1]["of"] == PARTITIONS
    assert counts(cluster, "t") == {1: 6, 2: 6}
    wait_until(lambda: holders(cluster, "t") == {1, 2}, "broker 3 has no files any more")
    assert proposal(krappy, "--without", "3")["moves"] == []
    status, _, err = krappy(1, "balance", "--without", "3", "--without", "2")
    assert status == 1
    assert "there are only 1" in err


def test_preferred_leaders_come_back(cluster: ClusterProcesses, krappy: Krappy) -> None:
    make(cluster, "t", 1, 2, 3)
    cluster.brokers[1].kill()
    wait_until(lambda: set(leaders(cluster, "t")) <= {2, 3}, "others lead")

    def why() -> str:
        status, out, _ = krappy(2, "elect", "t:0", "--json")
        assert status == 1
        [row] = json.loads(out)["elections"]
        assert (row["topic"], row["partition"], row["result"]) == ("t", 0, "not available")
        return str(row["why"])

    # Broker 1 leaves the ISR a little earlier than its registration is gone.
    away = "broker 1, which is to lead it, is away: start it, or "
    wait_until(lambda: why().startswith(away), "broker 1 is known to be away")
    assert "\tbroker 1, which is to lead it, is away" in krappy(2, "elect", "t:0")[1]
    cluster.brokers[1].start()
    cluster.until_in_sync("t")
    status, out, _ = krappy(3, "elect", "t:0", "t:2", "t:0")
    assert status == 0
    assert [line.split("\t") for line in out.splitlines()[1:]] == [["t", "0", "elected"], ["t", "2", "elected"]]
    wait_until(lambda: leaders(cluster, "t")[0] == leaders(cluster, "t")[2] == 1, "broker 1 leads two")
    assert krappy(1, "elect", "t")[1].count("elected") == PARTITIONS - 2
    wait_until(lambda: leaders(cluster, "t") == [1] * PARTITIONS, "broker 1 leads all")
    assert krappy(1, "elect", "t")[1].count("not needed") == PARTITIONS
    status, _, err = krappy(1, "elect", "t:99")
    assert status == 1
    assert "has partitions 0 to 5, not 99" in err
    assert krappy(1, "elect", "nothing")[0] == 1
    assert krappy(1, "elect", "t:x")[0] == 2


def test_an_unclean_election_is_asked_for_twice(cluster: ClusterProcesses, krappy: Krappy) -> None:
    make(cluster, "t", 2, 3, **{"min.insync.replicas": "1"})
    cluster.until_in_sync("t")
    cluster.brokers[3].kill()
    wait_until(lambda: all(each.isrs == [2] for each in cluster.partitions("t").values()), "3 is in no ISR")
    cluster.brokers[2].kill()
    wait_until(lambda: set(leaders(cluster, "t")) == {-1}, "nobody leads")
    cluster.start_again(3)  # then the controller knows that it runs
    status, _, err = krappy(1, "elect", "t", "--unclean")
    assert status == 1
    assert "--yes" in err
    assert set(leaders(cluster, "t")) == {-1}
    status, out, _ = krappy(1, "elect", "t:4", "--unclean", "--yes")
    assert (status, out.split()[-1]) == (0, "elected")
    wait_until(lambda: leaders(cluster, "t")[4] == 3, "broker 3 leads it")
    assert [at for at, leader in enumerate(leaders(cluster, "t")) if leader == 3] == [4]
