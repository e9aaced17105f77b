"""How a data folder joins a cluster: the cluster's id is checked, and topics that the folder has from its time alone
are given to the cluster.

A folder belongs to one cluster, and to one broker of it, for ever. If ZooKeeper was emptied, or the path in it or the
broker's id is a wrong one, the broker does not start, and nothing is changed: otherwise it would take the replicas in
the folder for replicas that were reassigned to others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from krappy.broker.topics.internal_topics import JOBS, OFFSETS, PARTITIONS, SHARES, TRANSACTIONS, settings_in_cluster
from krappy.broker.tree_changes import change, config_change
from krappy.core.cluster import paths, registration, znodes
from krappy.core.cluster.image import Image, TopicImage
from krappy.core.cluster.paths import Kind
from krappy.core.cluster.state import NOBODY, PartitionState, write_state
from krappy.core.cluster.tree import Create, Operation, Put, RefusedMulti
from krappy.errors import StorageError
from krappy.settings.topic_table import GENERATION
from krappy.store.catalog import LocalCatalog, new_id
from krappy.store.local_replicas import LocalReplicas
from krappy.types import id_of, text_id

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.ports.cluster import MembershipPort
    from krappy.store.meta import Meta

PATIENCE_S = 10.0  # between two reports that ZooKeeper is still waited for
LOOK_S = 0.2  # between two looks whether this broker's id is free
# The internal topics, and what in the meta database is coordinated by their leaders (see store/FORMAT.md).
COORDINATED = {
    OFFSETS: (b"kg/", b"ko/"),
    SHARES: (b"g/", b"s/"),
    TRANSACTIONS: (b"x/",),
    JOBS: (b"sj/", b"so/"),
}
KEPT = {
    OFFSETS: "groups",
    SHARES: "native groups or share groups",
    TRANSACTIONS: "transactional ids",
    JOBS: "staged jobs",
}
SECURITY: tuple[Kind, ...] = (paths.USER_CONFIG, paths.QUOTA_CONFIG, "clients")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


async def join(runtime: Runtime, cluster: MembershipPort, local: LocalCatalog, replicas: LocalReplicas) -> str:
    """The cluster's id. Raises StorageError when this folder is another cluster's or broker's, ConnectionLost,
    ShuttingDown."""
    if replicas.broker not in (None, runtime.id):
        raise StorageError(
            f"{runtime.config.data} is the folder of broker {replicas.broker}, and this is broker {runtime.id}: give "
            "it that id, or another folder. Nothing is changed"
        )
    if replicas.broker is None:
        await _until_free(runtime, cluster, local, replicas)
    if await cluster.read(paths.CLUSTER_ID) is None:
        if before := replicas.cluster or replicas.joining[0]:
            raise StorageError(
                f"{runtime.config.data} belongs to the cluster {before}, and ZooKeeper knows of none at this "
                "path: zookeeper_connect names another ensemble or path, or the znodes were deleted. Nothing is changed"
            )
        with suppress(RefusedMulti):  # another broker was quicker
            await cluster.multi([Create(paths.CLUSTER_ID, znodes.cluster(id_of(local.cluster_id)))])
    found = await cluster.read(paths.CLUSTER_ID)
    assert found is not None
    id = text_id(znodes.cluster_id(found.data))
    if replicas.cluster not in ("", id):
        raise StorageError(
            f"{runtime.config.data} belongs to the cluster {replicas.cluster}, and zookeeper_connect names the cluster "
            f"{id}. Nothing is changed"
        )
    if not replicas.cluster:
        await _give(runtime, cluster, local, replicas, id)
        await runtime.in_thread(lambda: replicas.join(id))
    elif replicas.broker is None:
        await runtime.in_thread(lambda: replicas.be(runtime.id))
    return id


async def _until_free(runtime: Runtime, cluster: MembershipPort, local: LocalCatalog, replicas: LocalReplicas) -> None:
    """Called before anything is noted, or given to the cluster. Waits while another folder is registered as this
    broker. Raises StorageError if another folder ever was, and this one has topics to give: each replica of this broker
    counts as lost with that folder, so nobody would lead them."""
    directory, told = await runtime.in_thread(replicas.directory), False
    last = await cluster.read(paths.epoch(runtime.id))
    is_new = last is None or znodes.directory(last.data) in ("", directory)
    if not is_new and not replicas.cluster and local.tree.image.topics:
        raise StorageError(
            f"{runtime.config.data} has topics of its own, and another folder is, or was, broker {runtime.id} of the "
            "cluster: give this one an id that no broker has had. Nothing is changed"
        )
    while (found := await cluster.read(paths.broker(runtime.id))) is not None:
        if znodes.directory(found.data) == directory:
            return
        if not told:
            told = True
            runtime.report("broker_id_in_use", **registration.in_use(runtime.id, found))
        await trio.sleep(LOOK_S)
        runtime.check_taking()


def check_alone(data: Path, meta: Meta) -> None:
    """Raises StorageError when a broker of a cluster is started without its ZooKeeper: it would have none of its
    topics, and events that it took for new topics of the same names would not be in the cluster."""
    replicas = LocalReplicas(meta)
    if cluster := replicas.cluster or replicas.joining[0]:
        raise StorageError(
            f"{data} belongs to the cluster {cluster}, and this broker is to be alone: zookeeper_connect is missing. "
            "Nothing is changed"
        )


async def _give(
    runtime: Runtime, cluster: MembershipPort, local: LocalCatalog, replicas: LocalReplicas, cluster_id: str
) -> None:
    """Gives the cluster of this id what the folder has from its time alone. Each topic gets this broker as its only
    replica, and goes on in the next leader epoch. Users, ACLs and quotas are given only to a cluster that has none: in
    another one they might allow what it forbids. If this is interrupted, the next start does what is left.

    Groups, transactions and jobs are in this folder, so this broker coordinates all names from then on. Raises
    StorageError, before anything is changed, if the cluster has a topic of one of the names, or others coordinate
    already what the folder has."""
    image, broker, there = local.tree.image, runtime.id, cluster.image
    begun, users = replicas.joining
    if begun not in ("", cluster_id):
        raise StorageError(
            f"{runtime.config.data} has begun to join the cluster {begun}, which may have its topics, and "
            f"zookeeper_connect names the cluster {cluster_id}. Nothing is changed"
        )
    _check(runtime, image, there, begun=bool(begun))
    # Before the topics: once clients see these, nobody else may tell them that a group has no positions there.
    await change(cluster, lambda: _internal(runtime, cluster))
    if not begun:
        users = not (there.acls or any(there.configs.get(kind) for kind in SECURITY))
        await runtime.in_thread(lambda: replicas.begin_joining(cluster_id, broker, users=users))
    made = [(topic.id, index) for topic in image.topics.values() for index in range(len(topic.partitions))]
    await runtime.in_thread(lambda: replicas.note(made))
    for topic in image.topics.values():
        if topic.name not in cluster.image.topics:
            await cluster.multi([*_topic(topic, local, broker), *_config(local, paths.config("topics", topic.name))])
    for id, gone in image.deleted.items():
        if id not in cluster.image.deleted:
            await cluster.multi([Create(paths.deleted(id), znodes.deleted(gone.name, [broker]))])
    for kind in (paths.BROKER_CONFIG, paths.GROUP_CONFIG, *(SECURITY if users else ())):
        for name in image.configs.get(kind, {}):
            if name not in cluster.image.configs.get(kind, {}):
                await cluster.multi(_config(local, paths.config(kind, name)))
    for path in (paths.USERS_SECRET, *map(paths.acl, image.acls)) if users else ():
        if (kept := local.tree.get(path)) is not None and await cluster.read(path) is None:
            await cluster.multi([Create(path, kept.data)])
    await _skip_producer_ids(cluster, image.producer_ids)
    if made:
        runtime.report("topics_joined", topics=len(image.topics), partitions=len(made))


def _check(runtime: Runtime, image: Image, there: Image, *, begun: bool) -> None:
    """Raises StorageError if the cluster has one of the folder's topics, unless that may have been given to it already,
    or another topic of the same name."""
    for topic in image.topics.values():
        found = there.topics.get(topic.name)
        if found is not None and found.id == topic.id:
            if begun:
                continue
            raise StorageError(
                f"{runtime.config.data} has the topic '{topic.name}' of a backup, and the cluster has it, too: give "
                "the folder a cluster of its own, by another path in zookeeper_connect. Nothing is changed"
            )
        if found is not None:
            raise StorageError(
                f"{runtime.config.data} has a topic '{topic.name}', and the cluster has another one of that name: "
                "delete one of them. Nothing is changed"
            )


async def _internal(runtime: Runtime, cluster: MembershipPort) -> list[Operation]:
    """What makes the internal topics that the folder needs, all led by this broker. Raises StorageError if the cluster
    has one that others lead: they would never be told of the positions, transactions and outcomes in this folder."""
    made: list[Operation] = []
    for name, prefixes in COORDINATED.items():
        if not any(_has(runtime, prefix) for prefix in prefixes):
            continue
        at, path = paths.config("topics", name), paths.topic(name)
        if (found := await cluster.read(path)) is None:
            id = new_id()
            data = znodes.topic(id, [(runtime.id,)] * PARTITIONS, GENERATION)
            made += [Create(path, data), Create(paths.identity(name, id)), Create(paths.partitions(name))]
            made += config_change(at, await cluster.read(at), settings_in_cluster(name))
        elif not _is_of(runtime.id, Image().after({path: found}).topics.get(name)):
            raise StorageError(
                f"{runtime.config.data} has {KEPT[name]} of its own, and the cluster keeps some already, in {name}: "
                "give the folder a cluster of its own, by another path in zookeeper_connect, and start it there before "
                "other brokers and clients. Nothing is changed"
            )
    return made


def _is_of(broker: int, topic: TopicImage | None) -> bool:
    """Whether an internal topic was made by `_internal` for this broker, in an earlier start that was interrupted."""
    return topic is not None and all(broker in each.replicas for each in topic.partitions)


def _topic(topic: TopicImage, local: LocalCatalog, broker: int) -> Iterator[Operation]:
    znode = local.tree.get(paths.topic(topic.name))
    before = b"{}" if znode is None else znode.data
    alone = [(broker,)] * len(topic.partitions)
    yield Create(paths.topic(topic.name), znodes.topic(topic.id, alone, topic.generation, before))
    yield Create(paths.identity(topic.name, topic.id))
    yield Create(paths.partitions(topic.name))
    for index, partition in enumerate(topic.partitions):
        state = PartitionState(NOBODY, max(0, partition.state.leader_epoch), isr=(broker,))
        yield Create(paths.partition(topic.name, index))
        yield Create(paths.state(topic.name, index), write_state(state))


def _config(local: LocalCatalog, path: str) -> list[Operation]:
    found = local.tree.get(path)
    return [] if found is None else [Create(path, found.data)]


def _has(runtime: Runtime, prefix: bytes) -> bool:
    return any(True for _ in runtime.meta.items(prefix))


async def _skip_producer_ids(cluster: MembershipPort, given: int) -> None:
    """Sees to it that the cluster gives no producer id that this broker may have given."""
    path = paths.PRODUCER_IDS

    async def made() -> list[Operation]:
        found = await cluster.read(path)
        if not given or (found is not None and znodes.producer_ids_following(found.data) >= given):
            return []
        data = znodes.producer_ids(given)
        return [Create(path, data) if found is None else Put(path, data, found.version)]

    await change(cluster, made)


def boot_id() -> str:
    """Changes with each boot of the machine; empty if the system does not tell it."""
    with suppress(OSError):
        return BOOT_ID.read_text().strip()
    return ""
