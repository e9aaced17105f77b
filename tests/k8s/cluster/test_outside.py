"""The component `outside`: Kafka's clients that can reach the node, but none of the cluster's own addresses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.k8s.cluster.guide import Desk, blocks
from tests.k8s.cluster.krappy import CLIENT_S, Krappy
from tests.k8s.cluster.sandbox import ADDRESS

PORT = 31094  # from its service.yaml, for where there is no load balancer
OUTSIDE = f"{ADDRESS}:{PORT}"


@pytest.fixture
def exposed(krappy: Krappy, desk: Desk) -> Iterator[Krappy]:
    """Adds the lines of "Connect" to the overlay, with a port of the node in the place of a load balancer's."""
    before = desk.overlay.read_text()
    [text] = blocks("Connect", "yaml")
    more = yaml.safe_load(text.replace("krappy.example.com:9094", OUTSIDE))
    mine = yaml.safe_load(before)
    mine["components"] += more["components"]
    mine["configMapGenerator"] = more["configMapGenerator"]
    node_port = [
        {"op": "replace", "path": "/spec/type", "value": "NodePort"},
        {"op": "add", "path": "/spec/ports/0/nodePort", "value": PORT},
    ]
    target = {"kind": "Service", "name": "krappy-outside"}
    mine["patches"] = [{"target": target, "patch": yaml.safe_dump(node_port)}]
    roll = "kubectl apply -k my-krappy && kubectl -n krappy rollout status statefulset/krappy"
    desk.overlay.write_text(yaml.safe_dump(mine))
    try:
        desk.type(roll)
        krappy.wait_until_ready()
        yield krappy
    finally:
        desk.overlay.write_text(before)
        desk.type(f"{roll} && kubectl -n krappy delete service,networkpolicy krappy-outside")


def advertised(address: str) -> str:
    [broker] = AdminClient({"bootstrap.servers": address}).list_topics(timeout=CLIENT_S).brokers.values()
    return f"{broker.host}:{broker.port}"


def test_clients_outside_are_told_what_they_can_reach(exposed: Krappy) -> None:
    """And clients inside are told what they could reach before."""
    assert advertised(OUTSIDE) == OUTSIDE
    assert advertised(exposed.kafka) == "krappy-0.krappy-headless.krappy.svc:9092"
    producer = Producer({"bootstrap.servers": OUTSIDE, "message.timeout.ms": int(CLIENT_S * 1000)})
    for number in range(1000):
        producer.produce("outside", str(number))
    assert producer.flush(CLIENT_S) == 0
    settings = {"bootstrap.servers": OUTSIDE, "group.id": "outside", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe(["outside"])
    try:
        seen: set[int] = set()
        while len(seen) < 1000:
            messages = consumer.consume(1000, timeout=CLIENT_S)
            assert messages, f"nothing came after {len(seen)} events"
            seen.update(int(message.value() or b"") for message in messages if message.error() is None)
    finally:
        consumer.close()
    assert seen == set(range(1000))
