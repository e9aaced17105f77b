"""What this data folder is in a cluster: its id, the cluster's, and which replicas were made in it.

A replica is noted before its folder is made. So if the folder is missing later, its events are lost, and this broker
must not count as one that has them.

    f/directory   the folder's id, as text
    f/cluster     the id of the cluster that it has joined, as text
    f/broker      the id of the broker that it is there, as text
    f/joining     the id of the cluster that it is giving its topics to, as text; behind a space "users" if users, too
    f/start/      + an id under which it has registered, or was about to. All are kept: ZooKeeper may be given any
                  older data, and without its id there this folder would count as an old copy
    f/starts      such ids, as text, with spaces between: those of a version before
    f/replica/    + topic id (16 bytes) + partition (4 bytes): a replica was made. The value is empty; "kept" for a
                  replica that is not removed if its partition is other brokers'
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from threading import Lock

from krappy.store.catalog import new_id
from krappy.store.meta import Meta
from krappy.store.refusals import reading
from krappy.types import text_id

DIRECTORY, CLUSTER, BROKER = b"f/directory", b"f/cluster", b"f/broker"
JOINING, REPLICAS = b"f/joining", b"f/replica/"
START, STARTS = b"f/start/", b"f/starts"
KEPT = b"kept"
_INDEX = struct.Struct(">I")
ReplicaId = tuple[bytes, int]  # topic id, partition


class LocalReplicas:
    """Changes block until they are synced. Safe for several threads."""

    def __init__(self, meta: Meta) -> None:
        """Raises StorageError for a record that can't be read."""
        self._meta = meta
        self._lock = Lock()
        self._made: set[ReplicaId] = set()
        self._kept: set[ReplicaId] = set()
        self._start = ("", "")  # the id that was registered when it began to register, and its own new one
        for key, value in meta.items(REPLICAS):
            with reading(key):
                [index] = _INDEX.unpack(key[len(REPLICAS) + 16 :])
                replica = key[len(REPLICAS) : len(REPLICAS) + 16], index
            self._made.add(replica)
            if value == KEPT:
                self._kept.add(replica)

    def directory(self) -> str:
        """The folder's id. Raises StorageError."""
        found = self._meta.get(DIRECTORY)
        if found is None:
            found = text_id(new_id()).encode()
            self._meta.change_durably({DIRECTORY: found}, [])
        return found.decode()

    def new_start(self, registered: str) -> tuple[str, bool]:
        """(a new id to register under, whether this folder has registered under the id `registered`). If it has not, it
        is an old copy of the folder that did. `registered`: the id of the broker's last registration that ZooKeeper
        knows, which is an earlier one if ZooKeeper was given older data; empty: it had no id. Raises StorageError."""
        if not self._start[1] or registered != self._start[0]:  # else it tries once more
            id = text_id(new_id())
            self._meta.change_durably({START + id.encode(): b""}, [])
            self._start = registered, id
        known = self._meta.get(START + registered.encode()) is not None
        return self._start[1], not registered or known or registered in (self._meta.get(STARTS) or b"").decode().split()

    @property
    def cluster(self) -> str:
        """The id of the cluster that it has joined; empty: none yet."""
        return (self._meta.get(CLUSTER) or b"").decode()

    @property
    def broker(self) -> int | None:
        """Which broker of a cluster it is; None: none yet. Raises StorageError."""
        found = self._meta.get(BROKER)
        if found is None:
            return None
        with reading(BROKER):
            return int(found)

    def be(self, broker: int) -> None:
        """Notes which broker it is, for a folder that has joined without such a note."""
        self._meta.change_durably({BROKER: _number(broker)}, [])

    def begin_joining(self, cluster: str, broker: int, *, users: bool) -> None:
        """Notes that from now on the cluster may have this folder's topics, as the broker `broker` has brought them;
        with `users` its users and ACLs, too."""
        joining = f"{cluster}{' users' if users else ''}".encode()
        self._meta.change_durably({JOINING: joining, BROKER: _number(broker)}, [])

    @property
    def joining(self) -> tuple[str, bool]:
        """(the cluster's id, whether users are given to it, too), as `begin_joining` noted them; the id is empty if
        nothing is noted."""
        cluster, _, more = (self._meta.get(JOINING) or b"").decode().partition(" ")
        return cluster, bool(more)

    def join(self, cluster: str) -> None:
        self._meta.change_durably({CLUSTER: cluster.encode()}, [JOINING])

    def __contains__(self, replica: object) -> bool:
        """Whether the replica (topic id, partition) was made here."""
        return replica in self._made

    def all(self) -> frozenset[ReplicaId]:
        """The replicas that were made here, and not removed since."""
        return frozenset(self._made)

    @property
    def kept(self) -> frozenset[ReplicaId]:
        """The replicas that are not removed if their partitions are other brokers'."""
        return frozenset(self._kept)

    def keep(self, replicas: Collection[ReplicaId], *, keep: bool = True) -> None:
        """Notes that these replicas, which were made here, are kept, or not any more."""
        with self._lock:
            changed = {each for each in replicas if each in self._made and (each in self._kept) is not keep}
            if changed:
                self._kept = self._kept | changed if keep else self._kept - changed
                self._meta.change_durably({_key(each): KEPT if keep else b"" for each in changed}, [])

    def note(self, replicas: Iterable[ReplicaId]) -> None:
        """Notes these replicas, before their folders are made."""
        with self._lock:
            new = set(replicas) - self._made
            if new:
                self._meta.change_durably({_key(each): b"" for each in new}, [])
                self._made |= new

    def forget(self, topic_id: bytes, indexes: Collection[int] | None = None) -> None:
        """Forgets replicas of a topic whose folders are gone. `indexes`: None: all."""
        with self._lock:
            gone = {each for each in self._made if each[0] == topic_id and (indexes is None or each[1] in indexes)}
            if gone:
                self._meta.change_durably({}, [_key(each) for each in gone])
                self._made -= gone
                self._kept -= gone


def _number(broker: int) -> bytes:
    return str(broker).encode()


def _key(replica: ReplicaId) -> bytes:
    return REPLICAS + replica[0] + _INDEX.pack(replica[1])
