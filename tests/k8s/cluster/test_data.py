"""What was acknowledged is still there: in another pod, after the pod is deleted, and after its process is killed."""

from __future__ import annotations

import os
import signal
import time

import pytest

from krappy.demos import flights
from tests.k8s.cluster.krappy import Krappy
from tests.k8s.cluster.kubectl import Object

TOPIC = "flights"
Flights = tuple[list[str], list[str]]


@pytest.fixture(scope="module")
def sent(installed: Krappy) -> Flights:
    """All flights of 2013, published through the Service from outside of any pod: keys and values."""
    names, *rows = flights.rows(flights.find_file())
    keys, values = [row[names.index("tailnum")] for row in rows], [",".join(row) for row in rows]
    with installed.client() as client:
        client.create_topic(TOPIC, partitions=3)
        with client.producer(TOPIC) as producer:
            producer.send_columns(keys, values)
    return keys, values


def all_is_there(krappy: Krappy, sent: Flights) -> None:
    """Asserts that every event is there once, and the latest of each key."""
    keys, values = sent
    events = zip(keys, values, strict=True)
    assert sorted(krappy.stored(TOPIC)) == sorted((key.encode(), value.encode()) for key, value in events)
    with krappy.client() as client:
        found = {entry.key: entry.value for entry in client.table(TOPIC).scan()}
    assert found == {key.encode(): value.encode() for key, value in dict(zip(keys, values, strict=True)).items()}


def test_the_flights_are_stored_and_looked_up(krappy: Krappy, sent: Flights) -> None:
    all_is_there(krappy, sent)


def client_pod(image: str, *arguments: str) -> Object:
    """A pod that runs one command of the image, with no more rights than its namespace allows."""
    safe = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "client"},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "client", "image": image, "args": [*arguments], "securityContext": safe}],
        },
    }


def test_a_pod_looks_a_flight_up(krappy: Krappy, sent: Flights) -> None:
    """By the address that the guide names, with the image as its client."""
    keys, values = sent
    image = krappy.pod()["spec"]["containers"][0]["image"]
    krappy.kubectl.apply(client_pod(image, "get", TOPIC, keys[-1], "--address", "krappy.krappy:7092"))
    try:
        krappy.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/client", "--timeout=120s")
        assert values[len(keys) - 1 - keys[::-1].index(keys[-1])] in krappy.kubectl("logs", "client")
    finally:
        krappy.kubectl("delete", "pod", "client", "--grace-period=1")


def test_a_deleted_pod_leaves_its_data(krappy: Krappy, sent: Flights) -> None:
    """The process ends with 0, well within the time that it is given, and the next pod has the volume."""
    before, began = krappy.pod(), time.monotonic()
    with krappy.last_words() as ended:
        krappy.kubectl("delete", "pod", "krappy-0", "--wait=false")
    took = time.monotonic() - began
    [last] = ended
    assert last["exitCode"] == 0, last
    assert last["reason"] == "Completed"
    assert took < before["spec"]["terminationGracePeriodSeconds"]
    krappy.wait_until_ready()
    assert krappy.uid() != before["metadata"]["uid"]
    all_is_there(krappy, sent)


def test_a_killed_process_leaves_its_data(krappy: Krappy, sent: Flights) -> None:
    """SIGKILL, as the kernel sends when memory ends: the kubelet starts the process again in the same pod."""
    before, restarts = krappy.uid(), krappy.status()["restartCount"]
    os.kill(krappy.process(), signal.SIGKILL)
    krappy.kubectl.until("restarted", lambda: bool(krappy.status()["restartCount"] == restarts + 1))
    krappy.wait_until_ready()
    assert krappy.uid() == before
    assert krappy.status()["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGKILL
    all_is_there(krappy, sent)
