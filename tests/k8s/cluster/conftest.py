"""The node, and Krappy on it, installed as k8s/README.md says: one for all tests, and each test leaves it ready."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.k8s.cluster import parts, volumes
from tests.k8s.cluster.guide import Desk, blocks
from tests.k8s.cluster.krappy import Krappy
from tests.k8s.cluster.node import Node
from tests.k8s.cluster.sandbox import INSIDE

LOGS = parts.CACHE / "logs"


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """The node. Skips the tests outside of the sandbox."""
    cgroup = os.environ.get("KRAPPY_K8S")
    if not cgroup or not INSIDE.is_dir():
        pytest.skip("opt-in: make k8s-test")
    found = Node(cgroup)
    try:
        found.start()
        found.kubectl.apply(volumes.objects())
        yield found
        found.check()
    finally:
        found.stop()
        found.save_logs(LOGS)


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.fixture(scope="session")
def installed(node: Node, desk: Desk) -> Krappy:
    """Installs the overlay `single` with its components, in the namespace `krappy`."""
    define(node, "monitoring.coreos.com", "ServiceMonitor", "PrometheusRule")
    for tag in ("0.1.0", "0.1.1"):
        node.ctr("images", "tag", "docker.io/library/krappy:0.1.0", f"registry.example/krappy:{tag}")
    _, install = blocks("Install")
    desk.type(install)
    found = Krappy(node, node.kubectl.of("krappy"))
    found.wait_until_ready()
    return found


@pytest.fixture
def krappy(installed: Krappy) -> Krappy:
    """Krappy, which is ready when a test begins."""
    installed.wait_until_ready()
    return installed


def define(node: Node, group: str, *kinds: str) -> None:
    """Defines kinds of an operator that is not there, so that objects of them can be applied."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind in kinds:
        plural = f"{kind.lower()}s"
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "names": {"kind": kind, "plural": plural},
                "scope": "Namespaced",
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}],
            },
        }
        node.kubectl.apply(definition)
        node.kubectl("wait", "--for=condition=Established", f"crd/{plural}.{group}", "--timeout=60s")
