"""`overlays/cluster`: three brokers and a ZooKeeper, all over TLS, with users.

It has the namespace to itself, and removes the broker of the other tests. Those run before it: files run in the order
of their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from tests.cluster.zookeeper import SecuredBy, ZooKeeperServer
from tests.k8s.cluster.conftest import define
from tests.k8s.cluster.guide import K8S, Desk, blocks
from tests.k8s.cluster.krappy import CLIENT_S, Krappy
from tests.k8s.cluster.node import Node
from tests.k8s.cluster.sandbox import ADDRESS
from tests.k8s.cluster.secrets import Secrets, certificate
from tests.k8s.cluster.test_rolling import roll_under_load

NAME, PORT = "zookeeper.krappy.svc", 2182  # as the overlay's krappy.toml tells
IDS = [0, 1, 2]


@pytest.fixture(scope="module")
def cluster(node: Node, desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Krappy]:
    folder = tmp_path_factory.mktemp("cluster")
    node.kubectl("delete", "namespace", "krappy", "--ignore-not-found", "--timeout=300s", seconds=310)
    define(node, "cert-manager.io", "Certificate")
    node.kubectl("apply", "-f", K8S / "overlays" / "cluster" / "namespace.yaml")
    overlay = desk.folder / "my-cluster"
    overlay.mkdir()
    [text] = blocks("Install", "yaml")
    small = [{"op": "replace", "path": "/spec/template/spec/containers/0/resources/requests/cpu", "value": "100m"}]
    mine = {
        **yaml.safe_load(text),
        "resources": ["../k8s/overlays/cluster"],
        "patches": [{"target": {"kind": "StatefulSet"}, "patch": yaml.safe_dump(small)}],
    }
    del mine["components"]
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(mine))
    node.ctr("images", "tag", "--force", "docker.io/library/krappy:0.1.0", "registry.example/krappy:0.1.0")
    found = Krappy(node, node.kubectl.of("krappy"))
    secrets = Secrets(found.kubectl, folder)
    secrets.apply(certificate(found.kubectl, overlay))
    secrets.put("krappy-zookeeper", {"password": "of-zookeeper"})
    secured = SecuredBy(PORT, secrets.authority.issue(NAME, pkcs8=True), secrets.authority.ca, client_auth="none")
    server = ZooKeeperServer(folder / "zookeeper", 2181, host=ADDRESS, secured=secured)
    server.start()
    try:
        server.wait()
        found.kubectl.apply(outside_service())
        desk.type("kubectl apply -k my-cluster && kubectl -n krappy rollout status statefulset/krappy --timeout=600s")
        secrets.log_in(found)
        found.wait_until_ready()
        yield found
    finally:
        server.kill()


def outside_service() -> list[dict[str, object]]:
    """The manifests of a Service for a ZooKeeper that runs outside of the cluster."""
    meta = {"name": "zookeeper", "labels": {"kubernetes.io/service-name": "zookeeper"}}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": [{"port": PORT}]}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": meta,
            "addressType": "IPv4",
            "ports": [{"port": PORT, "protocol": "TCP", "name": ""}],
            "endpoints": [{"addresses": [ADDRESS]}],
        },
    ]


def replicas(krappy: Krappy, topic: str) -> list[tuple[int, ...]]:
    """The replicas in sync of each partition."""
    admin = AdminClient({"bootstrap.servers": krappy.kafka, **krappy.kafka_login})
    found = admin.list_topics(topic, timeout=CLIENT_S).topics[topic]
    return [tuple(sorted(each.isrs)) for each in found.partitions.values()]


def test_three_brokers_share_a_topic(cluster: Krappy) -> None:
    with cluster.client() as client:
        client.create_topic("shared", partitions=6)
        with client.producer("shared") as producer:
            producer.send_columns([f"k{number}" for number in range(1000)], ["v"] * 1000)
        found = client.table("shared").get("k7")
        assert found is not None
        assert found.value == b"v"
    cluster.kubectl.until("in sync", lambda: replicas(cluster, "shared") == [tuple(IDS)] * 6)
    admin = AdminClient({"bootstrap.servers": cluster.kafka, **cluster.kafka_login})
    brokers = admin.list_topics(timeout=CLIENT_S).brokers
    assert {id: each.host for id, each in brokers.items()} == {
        id: f"krappy-{id}.krappy-headless.krappy.svc" for id in IDS
    }


@pytest.mark.parametrize("id", IDS)
def test_a_pod_that_is_killed_comes_back_and_nothing_is_lost(cluster: Krappy, id: int) -> None:
    cluster.kubectl.until("in sync", lambda: replicas(cluster, "shared") == [tuple(IDS)] * 6)
    before = sorted(cluster.stored("shared"))
    uid = cluster.kubectl.get("pod", f"krappy-{id}")["metadata"]["uid"]
    cluster.kubectl("delete", "pod", f"krappy-{id}", "--grace-period=0", "--force")
    with cluster.client() as client, client.producer("shared") as producer:
        producer.send_columns([f"without-{id}"], ["v"])
    assert sorted(cluster.stored("shared")) == sorted([*before, (f"without-{id}".encode(), b"v")])
    cluster.kubectl.until("in sync again", lambda: replicas(cluster, "shared") == [tuple(IDS)] * 6)
    assert cluster.kubectl.get("pod", f"krappy-{id}")["metadata"]["uid"] != uid


def test_a_rolling_restart_loses_nothing_and_stops_nobody(cluster: Krappy) -> None:
    roll_under_load(cluster, "rolling-cluster")


def test_the_budget_lets_one_broker_go_at_a_time(cluster: Krappy) -> None:
    cluster.kubectl.until("ready", lambda: len(cluster.endpoints()) == len(IDS))
    budget = cluster.kubectl.get("poddisruptionbudget", "krappy")
    assert budget["status"]["disruptionsAllowed"] == 1


def test_no_secret_is_in_the_logs(cluster: Krappy, tmp_path: Path) -> None:
    said = "".join(cluster.kubectl("logs", f"krappy-{id}") for id in IDS)
    assert '"internal_error"' not in said
    assert "of-zookeeper" not in said
