"""A Krappy that runs on the cluster, as its clients and the kubelet see it."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from krappy import blocking
from tests.k8s.cluster.kubectl import Kubectl, Object
from tests.k8s.cluster.node import Node

POD = "krappy-0"
WATCH_S = 300
CLIENT_S = 300.0  # seconds: a pod that is killed, restarted and recovers on a busy machine is back by then


class Krappy:
    """One broker in a namespace. `login`: how Krappy's clients connect; `kafka_login`: how librdkafka does."""

    def __init__(self, node: Node, kubectl: Kubectl) -> None:
        self.node, self.kubectl = node, kubectl
        self.service = f"krappy.{kubectl.namespace}.svc"
        self.native, self.kafka = f"{self.service}:7092", f"{self.service}:9092"
        self.login: dict[str, Any] = {}
        self.kafka_login: dict[str, Any] = {}

    def client(self, **login: Any) -> blocking.Client:
        """A client that connects by the Service's name and address, as from any pod. `login`: in the place of Krappy's
        own."""
        return blocking.connect(self.native, timeout=CLIENT_S, **(login or self.login))

    def stored(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """Every event of a topic, by key and value."""
        with self.client() as client, client.consumer(topic, start="earliest", end="now") as consumer:
            return [(event.key, event.value) for event in consumer]

    # --- the pod

    def pod(self) -> Object:
        return self.kubectl.get("pod", POD)

    def uid(self) -> str:
        found: str = self.pod()["metadata"]["uid"]
        return found

    def status(self) -> Object:
        """The status of the pod's one container."""
        [found] = self.pod()["status"]["containerStatuses"]
        assert isinstance(found, dict)
        return found

    def ready(self) -> bool:
        """Whether the pod counts as ready, and the Service sends clients to it."""
        found = self.kubectl.get("pods", "--field-selector", f"metadata.name={POD}")["items"]
        conditions = {each["type"]: each["status"] for pod in found for each in pod["status"].get("conditions", [])}
        return conditions.get("Ready") == "True" and bool(self.endpoints())

    def endpoints(self) -> list[str]:
        """The addresses to which the client Service sends."""
        slices = self.kubectl.get("endpointslices", "--selector", "kubernetes.io/service-name=krappy")["items"]
        return [
            address
            for each in slices
            for endpoint in each["endpoints"] or []
            if endpoint["conditions"].get("ready")
            for address in endpoint["addresses"]
        ]

    def answers(self) -> bool:
        """Whether the node's rules lead from the Service to the pod: the rules follow the Service's endpoints a little
        later."""
        try:
            socket.create_connection((self.service, 7092), timeout=1).close()
        except OSError:
            return False
        return True

    def wait_until_ready(self) -> None:
        self.kubectl.until("ready", lambda: self.ready() and self.answers())

    def process(self) -> int:
        """The broker's process id, as the node knows it."""
        container = self.status()["containerID"].removeprefix("containerd://")
        for line in self.node.ctr("tasks", "ls").splitlines():
            words = line.split()
            if words[0] == container:
                return int(words[1])
        raise AssertionError(f"no task of {container}")

    def python(self, program: str) -> str:
        """Runs a program in the broker's container; returns what it prints."""
        return self.kubectl("exec", POD, "--", "/bin/python3", "-c", program)

    def cgroup(self, controller: str) -> Path:
        """The cgroup of the broker's container."""
        for line in Path(f"/proc/{self.process()}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                return Path("/sys/fs/cgroup") / controller / path.lstrip("/")
            if not controllers and Path("/sys/fs/cgroup/cgroup.controllers").exists():
                return Path("/sys/fs/cgroup") / path.lstrip("/")
        raise AssertionError(f"no cgroup of {controller}")

    @contextmanager
    def last_words(self) -> Iterator[list[Object]]:
        """The pod is to be deleted inside the `with`; afterwards the list holds how its container ended."""
        pods = f"/api/v1/namespaces/{self.kubectl.namespace}/pods"
        query = f"watch=1&fieldSelector=metadata.name={POD}&timeoutSeconds={WATCH_S}"
        watch = subprocess.Popen([*self.kubectl.command, "get", "--raw", f"{pods}?{query}"], stdout=subprocess.PIPE)
        assert watch.stdout is not None
        found: list[Object] = []
        try:
            uid = json.loads(next(watch.stdout))["object"]["metadata"]["uid"]
            yield found
            for line in watch.stdout:
                event = json.loads(line)
                if event["type"] == "DELETED" and event["object"]["metadata"]["uid"] == uid:
                    [status] = event["object"]["status"]["containerStatuses"]
                    found.append(status["state"]["terminated"])
                    break
        finally:
            watch.kill()
            watch.wait()
            watch.stdout.close()
