"""The catalog of data folders of format 2 and 1, and how it becomes znodes (local_tree.py) at the first start of a
version that knows format 3:

    t/ topic           msgpack [name, id, {setting: text}, [view number of each partition], generation of defaults]
    d/ id              the same, of a deleted topic whose files may still exist
    cb/ broker id      msgpack {setting: text}: settings changed while it ran, of one broker, or of all (no id)
    cg/ group          the same, of a Kafka group
    c/next-producer    u64: producer ids below it may have been given
    c/cluster          16 bytes: the cluster's id

Each record is replaced by its znodes in one write, so an interrupted conversion goes on at the next start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgpack

from krappy.core.cluster import paths, znodes
from krappy.store.meta import Meta
from krappy.store.refusals import reading
from krappy.store.view_numbers import record

TOPIC, DELETING, BROKER, GROUP = b"t/", b"d/", b"cb/", b"cg/"
STATIC = "static"  # the topic defaults that the broker was started with, which stay under their key
NEXT_PRODUCER, CLUSTER_ID = b"c/next-producer", b"c/cluster"


class MigrationStep(NamedTuple):
    """What replaces one record."""

    znodes: dict[str, bytes]
    puts: dict[bytes, bytes]
    deletes: list[bytes]


def steps(meta: Meta) -> Iterator[MigrationStep]:
    """The steps that are left. Raises StorageError for a record that can't be read."""
    for key, value in meta.items(TOPIC):
        name, id, config, numbers, generation = _topic(key, value)
        made = {paths.topic(name): znodes.topic(id, [()] * len(numbers), generation), paths.partitions(name): b""}
        if config:
            made[paths.config("topics", name)] = znodes.config(config)
        yield MigrationStep(made, dict([record(id, name, numbers)]), [key])
    for key, value in meta.items(DELETING):
        name, id, _, numbers, _ = _topic(key, value)
        yield MigrationStep({paths.deleted(id): znodes.deleted(name, ())}, dict([record(id, name, numbers)]), [key])
    for prefix, kind in ((BROKER, paths.BROKER_CONFIG), (GROUP, paths.GROUP_CONFIG)):
        for key, value in meta.items(prefix):
            name = key[len(prefix) :].decode()
            if prefix != BROKER or name != STATIC:
                with reading(key):
                    settings = dict(msgpack.unpackb(value))
                yield MigrationStep({paths.config(kind, name or paths.DEFAULT): znodes.config(settings)}, {}, [key])
    following = meta.get(NEXT_PRODUCER)
    if following is not None:
        block = znodes.producer_ids(int.from_bytes(following, "big"))
        yield MigrationStep({paths.PRODUCER_IDS: block}, {}, [NEXT_PRODUCER])
    cluster = meta.get(CLUSTER_ID)
    if cluster is not None:
        yield MigrationStep({paths.CLUSTER_ID: znodes.cluster(cluster)}, {}, [CLUSTER_ID])


def _topic(key: bytes, value: bytes) -> tuple[str, bytes, dict[str, str], list[int], int]:
    with reading(key):
        name, id, config, numbers, *generation = msgpack.unpackb(value)
        return name, id, dict(config), list(numbers), generation[0] if generation else 0
