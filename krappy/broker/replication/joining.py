"""How a data folder joins a cluster: the cluster's id is checked, and topics that the folder has from its time alone
are given to the cluster.

A folder belongs to one cluster for ever. If ZooKeeper was emptied, or the path in it is a wrong one, the broker does
not start, and nothing is changed.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from krappy.core.cluster import places, znodes
from krappy.core.cluster.tree import Create, RefusedMulti
from krappy.errors import StorageError
from krappy.store.catalog import LocalCatalog
from krappy.store.local_replicas import LocalReplicas
from krappy.types import id_of, text_id

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.ports.cluster import MembershipPort

PATIENCE_S = 10.0  # between two words that ZooKeeper is still waited for
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


async def join(runtime: Runtime, cluster: MembershipPort, local: LocalCatalog, replicas: LocalReplicas) -> str:
    """The cluster's id. Raises StorageError when this folder is another cluster's, ConnectionLost."""
    if await cluster.read(places.CLUSTER_ID) is None:
        if replicas.cluster:
            raise StorageError(
                f"{runtime.config.data} belongs to the cluster {replicas.cluster}, and ZooKeeper knows of none at this "
                "path: zookeeper_connect names another ensemble or path, or the znodes were deleted. Nothing is changed"
            )
        with suppress(RefusedMulti):  # another broker was quicker
            await cluster.multi([Create(places.CLUSTER_ID, znodes.cluster(id_of(local.cluster_id)))])
    found = await cluster.read(places.CLUSTER_ID)
    assert found is not None
    id = text_id(znodes.cluster_id(found.data))
    if replicas.cluster not in ("", id):
        raise StorageError(
            f"{runtime.config.data} belongs to the cluster {replicas.cluster}, and zookeeper_connect names the cluster "
            f"{id}. Nothing is changed"
        )
    if not replicas.cluster:
        if local.tree.image.topics:
            names = ", ".join(sorted(local.tree.image.topics)[:5])
            raise StorageError(
                f"{runtime.config.data} has topics of a broker that was alone ({names}): this version can't give them "
                "to a cluster yet"
            )
        await runtime.in_thread(lambda: replicas.join(id))
    return id


def boot_id() -> str:
    """Changes with each boot of the machine; empty if the system does not tell it."""
    with suppress(OSError):
        return BOOT_ID.read_text().strip()
    return ""
