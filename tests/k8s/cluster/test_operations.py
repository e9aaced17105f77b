"""What k8s/README.md tells an operator to type: upgrade and back, backup, restore, a drain, another template."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.k8s.cluster.guide import Desk, blocks
from tests.k8s.cluster.krappy import Krappy
from tests.k8s.cluster.kubectl import Refused

Stored = list[tuple[bytes | None, bytes | None]]
TOPIC = "operations"


@pytest.fixture
def kept(krappy: Krappy) -> Stored:
    """What is stored when a test begins, with some more events."""
    with krappy.client() as client:
        client.create_topic(TOPIC, partitions=3, if_absent=True)
        with client.producer(TOPIC) as producer:
            producer.send_columns([f"k{number % 700}" for number in range(10_000)], ["v" * 100] * 10_000)
    return sorted(krappy.stored(TOPIC))


def image(krappy: Krappy) -> str:
    found: str = krappy.pod()["spec"]["containers"][0]["image"]
    return found


def test_an_upgrade_and_back(krappy: Krappy, desk: Desk, kept: Stored) -> None:
    """The overlay gets another tag, as "Upgrade" tells; then the rollout is undone."""
    assert image(krappy).endswith(":0.1.0")
    desk.replace("my-krappy/kustomization.yaml", 'newTag: "0.1.0"', 'newTag: "0.1.1"')
    [upgrade] = blocks("Upgrade")
    desk.type(upgrade)
    assert image(krappy) == "registry.example/krappy:0.1.1"
    assert sorted(krappy.stored(TOPIC)) == kept
    desk.type("kubectl -n krappy rollout undo statefulset/krappy")
    desk.replace("my-krappy/kustomization.yaml", 'newTag: "0.1.1"', 'newTag: "0.1.0"')
    desk.type("kubectl apply -k my-krappy && kubectl -n krappy rollout status statefulset/krappy")
    assert image(krappy).endswith(":0.1.0")
    assert sorted(krappy.stored(TOPIC)) == kept


def test_an_eviction_is_refused_by_the_budget(krappy: Krappy) -> None:
    """`kubectl drain` waits, as the guide says, until somebody deletes the pod."""
    uid = krappy.uid()
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "krappy-0", "namespace": "krappy"},
    }
    path = "/api/v1/namespaces/krappy/pods/krappy-0/eviction"
    with pytest.raises(Refused, match="Cannot evict pod as it would violate the pod's disruption budget"):
        krappy.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction).encode())
    drain = ("drain", "node", "--ignore-daemonsets", "--delete-emptydir-data")
    try:
        with pytest.raises(Refused, match="global timeout reached"):
            krappy.kubectl(*drain, "--timeout=10s")
        assert krappy.uid() == uid
        krappy.kubectl("delete", "pod", "krappy-0")
        krappy.kubectl(*drain, "--timeout=60s")
    finally:
        krappy.kubectl("uncordon", "node")
    krappy.wait_until_ready()
    assert krappy.uid() != uid


def publish_in_vain(krappy: Krappy) -> None:
    """Publishes an event that the backup does not have."""
    with krappy.client() as client, client.producer(TOPIC) as producer:
        producer.send_columns(["later"], ["lost"])


def test_a_backup_comes_back_through_a_pipe(krappy: Krappy, desk: Desk, kept: Stored) -> None:
    """What came after the backup is gone, and all else is there."""
    by_pipe, *_ = blocks("Back up")
    plain, packed = by_pipe.splitlines()
    desk.type(f"{plain}\n{packed if shutil.which('zstd') else ''}")
    publish_in_vain(krappy)
    restore, _ = blocks("Restore")
    desk.type(restore)
    krappy.wait_until_ready()
    assert sorted(krappy.stored(TOPIC)) == kept


def test_the_nightly_backup_comes_back_from_its_volume(krappy: Krappy, desk: Desk, kept: Stored) -> None:
    """The CronJob's Job, run now; then the Job that restores from its volume."""
    _, nightly, _ = blocks("Back up")
    desk.type(nightly)
    publish_in_vain(krappy)
    _, restore = blocks("Restore")
    desk.type(restore)
    krappy.wait_until_ready()
    assert sorted(krappy.stored(TOPIC)) == kept


def test_a_stopped_broker_is_examined(krappy: Krappy, desk: Desk, kept: Stored) -> None:
    """By the block of "Troubleshooting": the volume stays as it is."""
    [examine] = blocks("Troubleshooting")
    desk.type(examine)
    krappy.wait_until_ready()
    assert sorted(krappy.stored(TOPIC)) == kept


def test_the_template_of_the_volume_is_replaced_around_the_pod(krappy: Krappy, desk: Desk) -> None:
    """By the last lines of "Resize the volume". Growing itself needs a CSI driver: here the change of the claim is
    refused."""
    uid, began = krappy.uid(), krappy.status()["restartCount"]
    [resize] = blocks("Resize the volume")
    lines = resize.splitlines()
    with pytest.raises(AssertionError, match="only dynamically provisioned pvc can be resized"):
        desk.type(lines[0])
    desk.replace("k8s/base/statefulset.yaml", "storage: 20Gi", "storage: 50Gi")
    desk.type("\n".join(lines[2:]))
    [template] = krappy.kubectl.get("statefulset", "krappy")["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"]["storage"] == "50Gi"
    desk.type("kubectl -n krappy rollout status statefulset/krappy")
    krappy.wait_until_ready()
    assert (krappy.uid(), krappy.status()["restartCount"]) == (uid, began)
    desk.replace("k8s/base/statefulset.yaml", "storage: 50Gi", "storage: 20Gi")
    desk.type("\n".join(lines[2:]))
