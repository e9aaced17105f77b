"""Runs a command beside a running cluster, inside the sandbox: to look around by hand."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.k8s.cluster import volumes
from tests.k8s.cluster.node import Node
from tests.k8s.cluster.sandbox import INSIDE


def main(command: list[str]) -> int:
    node = Node(os.environ["KRAPPY_K8S"])
    try:
        node.start()
        node.kubectl.apply(volumes.objects())
        return subprocess.run(command, env={**os.environ, "KUBECONFIG": str(INSIDE / "kubeconfig")}).returncode
    finally:
        node.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
