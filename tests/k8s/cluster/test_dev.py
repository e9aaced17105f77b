"""The overlay `dev`: it is small, stays within its memory under load, and is empty again when its pod is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.k8s.cluster.guide import K8S
from tests.k8s.cluster.krappy import Krappy
from tests.k8s.cluster.node import Node

ROUNDS, ROWS, SIZE = 60, 100, 100_000  # 600 MB: with the page cache that is more than its limit, 512 MiB


@pytest.fixture(scope="module")
def small(node: Node) -> Iterator[Krappy]:
    kubectl = node.kubectl.of("krappy-dev")
    kubectl("apply", "-k", K8S / "overlays" / "dev")
    try:
        kubectl("rollout", "status", "statefulset/krappy", "--timeout=300s")
        found = Krappy(node, kubectl)
        found.wait_until_ready()
        yield found
    finally:
        kubectl("delete", "-k", K8S / "overlays" / "dev")


def test_it_stays_within_its_memory(small: Krappy) -> None:
    """Clients write and read more than it may hold, page cache included."""
    with small.client() as client:
        client.create_topic("load", partitions=2)
        with client.producer("load") as producer:
            for number in range(ROUNDS):
                producer.send_columns([f"{number}-{row}" for row in range(ROWS)], [os.urandom(SIZE)] * ROWS)
    assert len(small.stored("load")) == ROUNDS * ROWS
    status = small.status()
    assert status["restartCount"] == 0, status["lastState"]


def test_it_forgets(small: Krappy) -> None:
    before = small.uid()
    small.kubectl("delete", "pod", "krappy-0")
    small.wait_until_ready()
    assert small.uid() != before
    with small.client() as client:
        assert client.topics() == []
