"""The backup of a cluster. Its brokers hold their files; those of a partition are read from one broker that has it all.

The listing of such a backup (`backup.json`, format 2) has beside the files:

    ends        [topic, partition, leader epoch, offset]: the backup ends before this offset; its files may have more
    brokers     the ids of the brokers that held files

One file, `cluster/tree.json`, has the topics, settings, users, ACLs and quotas, as ZooKeeper has them.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from krappy.blocking import Client
from krappy.broker.topics.internal_topics import INTERNAL, JOBS, OFFSETS, SHARES, TRANSACTIONS
from krappy.broker.upkeep.cluster_backup import TREE
from krappy.cli import archive, backup_files
from krappy.cli.archive import Counted, Earlier, Origin, Sink, Tell, Written
from krappy.cli.errors import Failure
from krappy.clients import backups
from krappy.clients.backups import BegunAt, HeldAt, LeaderEnd
from krappy.clients.router import Router
from krappy.clients.runtime import run
from krappy.core.cluster.image import Image, TopicImage
from krappy.core.cluster.state import NOBODY
from krappy.core.cluster.tree import Znode
from krappy.errors import ConnectionLost, InvalidRequest, KrappyError, RequestTimeout, ShuttingDown, UnknownHandle
from krappy.settings.topic import check_topic_name
from krappy.store.format import LOG
from krappy.store.hold import MANIFEST
from krappy.types import text_id

PATIENCE_S = 90.0  # with brokers that come, go, or lead no more, until the backup fails
PAUSE_S = 1.0
REACHING_S = 5.0
READ = 1 << 20
# What is decided is noted before what follows from it; groups before the logs that they have positions in.
ROUNDS: tuple[list[str] | None, ...] = ([TRANSACTIONS, JOBS], [OFFSETS, SHARES], None)
PARTITION: Mapping[str, type] = {"topic": str, "topic_id": str, "partition": int, "high_watermark": int}
At = tuple[str, int]


class Unsettled(Exception):
    """The cluster has changed while a backup was begun, so it is begun anew."""


class ClusterHeld(NamedTuple):
    """`image`: the cluster, as its tree tells. `manifests`: by the broker's id."""

    brokers: Mapping[int, HeldAt]
    manifests: Mapping[int, Mapping[str, Any]]
    ends: Mapping[At, LeaderEnd]
    image: Image
    tree_at: int

    @property
    def taken_ms(self) -> int:
        return int(self.manifests[self.tree_at]["taken_ms"])


@contextmanager
def held_cluster(client: Client, tell: Callable[[str], None]) -> Iterator[ClusterHeld | None]:
    """What the brokers hold for a backup, until the end of the block. None: the broker is alone. `tell` is called with
    the reason whenever it is begun anew. Raises Failure, KrappyError."""
    router = client._router
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            held = _hold(router)
            break
        except (Unsettled, ConnectionLost, RequestTimeout, ShuttingDown) as error:
            if time.monotonic() > end:
                raise Failure(f"the cluster can't be backed up now: {error}") from None
            tell(f"{error}; the backup begins anew")
            time.sleep(PAUSE_S)
    try:
        yield held
    finally:
        if held is not None:
            backups.release([*held.brokers.values()])


def _hold(router: Router) -> ClusterHeld | None:
    """Raises Unsettled, KrappyError."""
    begun: list[BegunAt] = []
    try:
        for link in sorted(run(backups.links(router, REACHING_S)), key=lambda link: router.links.id_of(link)):
            # Always in this order: of two backups at once, one then waits at the first broker for the other.
            at = run(backups.begin(link))
            if at is None:
                if begun or router.known.several:
                    raise Unsettled("a broker of the cluster is alone")
                return None
            begun.append(at)
        try:
            ends = _note(router, begun)
            held = run(backups.hold(router, begun))
        except (InvalidRequest, UnknownHandle) as error:
            raise Unsettled(str(error)) from None
    finally:
        backups.release(begun)
    try:
        return _with_manifests(held, ends)
    except BaseException:
        backups.release(held)
        raise


def _note(router: Router, begun: list[BegunAt]) -> dict[At, LeaderEnd]:
    here = {each.broker for each in begun}
    views = {each.brokers for each in begun}
    ends: dict[At, LeaderEnd] = {}
    for topics in ROUNDS:
        found, known = run(backups.note(router, begun, topics))
        views |= known
        ends = found | ends  # what was noted first stays
    if len(views) != 1 or {id for id, _ in next(iter(views))} != here:
        raise Unsettled("brokers come or go")
    return ends


def _with_manifests(held: list[HeldAt], ends: Mapping[At, LeaderEnd]) -> ClusterHeld:
    manifests = {each.broker: _manifest(each) for each in held}
    size = dict(manifests[held[0].broker]["files"]).get(TREE)
    if size is None:
        raise Failure(f"broker {held[0].broker} does not hold {TREE}")
    try:
        tree = backup_files.parse(_read_all(held[0], TREE, min(size, backup_files.MOST_TOLD)))
        image = Image().after({path: Znode(base64.b64decode(data)) for path, data in sorted(tree.items())})
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Failure(f"the {TREE} of broker {held[0].broker} can't be read") from None
    if image.unreadable:
        raise Failure(f"this version of Krappy can't read the znode {min(image.unreadable)}")
    there = {
        (id, each["topic"], each["partition"], each["topic_id"])
        for id, manifest in manifests.items()
        for each in manifest["partitions"]
    }
    known: dict[At, LeaderEnd] = {}
    for name, topic in image.topics.items():
        check_topic_name(name)  # folders are called after it
        for at in ((name, index) for index in range(len(topic.partitions))):
            end = ends.get(at)
            if end is not None and (end.broker, *at, text_id(topic.id)) in there:  # not of an earlier topic of its name
                known[at] = end
            elif _is_new(topic, at, manifests):
                known[at] = LeaderEnd(NOBODY, 0, 0)
            else:
                raise Unsettled(f"nobody can tell how far {name}-{at[1]} is committed")
    return ClusterHeld({each.broker: each for each in held}, manifests, known, image, held[0].broker)


def _is_new(topic: TopicImage, at: At, manifests: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether nothing was written to a partition: its leader is its first one, and holds no log of it that has, or had,
    events. Clients may create topics while a backup is begun, but no broker opens them meanwhile."""
    partition = topic.partitions[at[1]]
    if topic.name in INTERNAL:
        return False  # what a broker that was alone has kept of groups moves there by itself
    manifest = manifests.get(partition.state.leader)
    if manifest is None or partition.state.leader_epoch > 0:
        return False
    segments = [(Path(name), size) for name, size in manifest["files"] if name.startswith(f"{_folder(at)}/")]
    return all(not size and not name.stem.strip("0") for name, size in segments if name.suffix == LOG)


def _manifest(held: HeldAt) -> dict[str, Any]:
    found = backup_files.read_manifest(_read_all(held, MANIFEST, backup_files.MOST_TOLD))
    try:
        for name, _ in found["files"]:
            inode, changed_ns = found["origins"][name]
            found["origins"][name] = int(inode), int(changed_ns)
        found["partitions"] = [
            {name: kind(each[name]) for name, kind in PARTITION.items()} for each in found["partitions"]
        ]
        found |= {name: str(found[name]) for name in ("version", "cluster", "directory")}
    except (ValueError, KeyError, TypeError):
        raise Failure(f"what broker {held.broker} says of its files can't be read") from None
    return found


def _read_all(held: HeldAt, name: str, most: int) -> bytes:
    """A whole file of at most so many bytes. Raises Failure for a longer one."""
    source = HeldRemotely(held, name)
    data = bytearray()
    while some := source.read():
        data += some
        if len(data) > most:
            raise Failure(f"{name} of broker {held.broker} has more than {most:,} bytes")
    return bytes(data)


class HeldRemotely(io.RawIOBase):
    """A file that a broker holds."""

    def __init__(self, held: HeldAt, name: str) -> None:
        self._held, self._name, self._at = held, name, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not size:
            return b""
        wanted = READ if size < 0 else size
        data = run(backups.read(self._held, self._name, self._at, wanted))
        if len(data) > wanted:
            who = f"broker {self._held.broker}"
            raise Failure(f"{who} sent {len(data):,} bytes of {self._name} where {wanted:,} were asked for")
        self._at += len(data)
        return data


class ClusterCopy:
    """Copies what brokers hold to a folder."""

    def __init__(self, held: ClusterHeld, earlier: Earlier | None, pace: Callable[[int], None]) -> None:
        self._held, self._earlier, self._pace = held, earlier, pace
        self._files = {id: _by_folder(manifest) for id, manifest in held.manifests.items()}
        self._lost: dict[int, str] = {}  # why nothing is read from a broker any more
        self._listed: list[tuple[str, int, int]] = []
        self._origins: dict[str, Origin] = {}
        self._copied = self._shared = 0
        self._place = Path()
        self._tell: Tell = lambda name, count: None
        self.taken_ms = held.taken_ms

    @property
    def files(self) -> int:
        return len(self._listed)

    @property
    def more(self) -> Mapping[str, Any]:
        """What `--json` tells in addition to what it tells of one broker's backup."""
        lost = {str(id): why for id, why in self._lost.items()}
        return {"brokers": sorted(self._held.brokers), "partitions": len(self._held.ends), "lost_brokers": lost}

    def sources(self, at: At) -> list[int]:
        """The brokers that hold all of a partition, its leader first."""
        end, topic = self._held.ends[at], self._held.image.topics[at[0]]
        found = [
            id
            for id, manifest in self._held.manifests.items()
            for each in manifest["partitions"]
            if (each["topic"], each["partition"]) == at and each["topic_id"] == text_id(topic.id)
            if each["high_watermark"] >= end.end or id == end.broker
        ]
        return sorted(found, key=lambda id: (id in self._lost, id != end.broker, id))

    @property
    def size(self) -> int:
        return sum(size for _, _, size in self._planned())

    @property
    def copied(self) -> int:
        """How many bytes are copied: all but those of files that an earlier backup has too."""
        same = self._same
        return sum(size for broker, name, size in self._planned() if same(broker, name, size) is None)

    def _planned(self) -> Iterator[tuple[int, str, int]]:
        """(broker, name, size) of each file, if no broker is lost."""
        for at in self._held.ends:
            broker = next(iter(self.sources(at)), None)
            if broker is not None:
                yield from ((broker, *each) for each in self._files[broker].get(_folder(at), ()))

    def write(self, sink: Sink, place: Path, tell: Tell) -> Written:
        """Raises Failure when a partition can't be read from any broker."""
        self._place, self._tell = place, tell
        held = self._held
        self._file(sink, held.tree_at, TREE, dict(held.manifests[held.tree_at]["files"])[TREE])
        for at in sorted(held.ends):
            self._partition(sink, at)
        manifest = held.manifests[held.tree_at]
        listing = {name: manifest[name] for name in ("version", "cluster", "taken_ms")} | {
            "format": archive.CLUSTER_FORMAT,
            "brokers": sorted(held.brokers),
            "ends": [[*at, end.leader_epoch, end.end] for at, end in sorted(held.ends.items())],
            "files": self._listed,
            "origins": self._origins,
        }
        text = json.dumps(listing).encode()
        sink.add(archive.LISTING, len(text), io.BytesIO(text))
        sink.close()
        return Written(self._copied, self._shared)

    def _partition(self, sink: Sink, at: At) -> None:
        folder, sources = _folder(at), self.sources(at)
        if not sources and not self._held.ends[at].end:
            return  # it is new: nobody has opened it
        for broker in sources:
            if broker in self._lost:
                continue
            before = len(self._listed), self._copied, self._shared
            try:
                for name, size in self._files[broker].get(folder, ()):
                    self._file(sink, broker, name, size)
                return
            except KrappyError as error:
                self._lost[broker] = str(error)
                shutil.rmtree(self._place / folder, ignore_errors=True)
                del self._listed[before[0] :]
                _, self._copied, self._shared = before
        raise Failure(
            f"no broker holds {at[0]}-{at[1]} any more: start again "
            f"({'; '.join(f'broker {id}: {why}' for id, why in self._lost.items())})"
        )

    def _file(self, sink: Sink, broker: int, name: str, size: int) -> None:
        earlier, crc = self._earlier, self._same(broker, name, size)
        if earlier is not None and crc is not None and sink.share(name, earlier.folder / name):
            self._shared += size
            self._tell(name, size)
        else:
            source = Counted(HeldRemotely(self._held.brokers[broker], name), name, size, self._spent)  # type: ignore[arg-type]
            sink.add(name, size, source)  # type: ignore[arg-type]
            if source.left:
                raise Failure(f"{name} of broker {broker} is {source.left} bytes shorter than it said")
            crc = source.crc
            self._copied += size
        self._origins[name] = self._origin(broker, name)
        self._listed.append((name, size, crc))

    def _same(self, broker: int, name: str, size: int) -> int | None:
        """The CRC-32 of this file in the earlier backup; None: it has no such file."""
        return None if self._earlier is None else self._earlier.same(name, size, self._origin(broker, name))

    def _origin(self, broker: int, name: str) -> Origin:
        manifest = self._held.manifests[broker]
        return (*manifest["origins"][name], manifest["directory"])

    def _spent(self, name: str, count: int) -> None:
        self._tell(name, count)
        self._pace(count)


def _folder(at: At) -> str:
    return f"topics/{at[0]}-{at[1]}"


def _by_folder(manifest: Mapping[str, Any]) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {}
    for name, size in manifest["files"]:
        found.setdefault(name.rpartition("/")[0], []).append((name, size))
    return found
