"""Volumes that are there before anybody claims them: folders of the node.

They are of the kind `local` (a `hostPath` would not be given to the pod's group, as real volumes are). Nothing
provisions them. So none is made larger, and a volume that was given back is not used again: there are enough of them.
"""

from __future__ import annotations

from typing import Any

from tests.k8s.cluster.sandbox import INSIDE

SIZES = ["20Gi"] * 12 + ["100Gi"] * 2


def objects() -> list[dict[str, Any]]:
    """A StorageClass, which is the default, and the volumes; makes their folders."""
    storage = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    return [storage, *(_volume(number, size) for number, size in enumerate(SIZES))]


def _volume(number: int, size: str) -> dict[str, Any]:
    folder = INSIDE / "volumes" / str(number)
    folder.mkdir(parents=True)
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node"]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"local-{number}"},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "local",
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }
