"""Makes the data folder of a broker that is alone out of a cluster's backup.

Each log is cut where the backup says that it ends. What a cluster keeps of groups, transactional ids and staged jobs
in internal topics goes to the catalog, where a broker that is alone has it. (If the broker joins a cluster, that moves
to internal topics again.) Transactions that nobody would end are ended here.
"""

from __future__ import annotations

import base64
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from krappy.broker.groups.keeping import joined
from krappy.broker.groups.replicated import LINEAGE
from krappy.broker.kafka_groups.offset_records import is_offset_key, offset_in, offset_key
from krappy.broker.staging.replicated import outcome_rows
from krappy.broker.topics.internal_topics import INTERNAL, JOBS, OFFSETS, SHARES, TRANSACTIONS
from krappy.broker.upkeep.cluster_backup import TREE
from krappy.cli.backup_files import MOST_TOLD, parse
from krappy.cli.errors import Failure
from krappy.core import staging, transactions
from krappy.core.cluster import paths, znodes
from krappy.core.cluster.document import Document
from krappy.core.cluster.image import Image, TopicImage
from krappy.core.cluster.state import NOBODY, write_state
from krappy.core.cluster.tree import Znode
from krappy.core.epochs import Epochs
from krappy.core.kafka.offset import Offset
from krappy.core.kafka.share_state import ShareState
from krappy.core.leases import Leases
from krappy.core.lineage import split_lineage
from krappy.core.stability import marker
from krappy.core.staging import OWN, JobState
from krappy.core.transactions import Transaction
from krappy.errors import InvalidTopic, KrappyError, StorageError
from krappy.records import batch as batches
from krappy.settings.topic import TopicConfig, check_topic_name
from krappy.store.catalog import new_id
from krappy.store.group_offsets import GroupChange
from krappy.store.groups import GROUP, group_of, state_at
from krappy.store.local_tree import records
from krappy.store.log import Log
from krappy.store.meta import Meta
from krappy.store.staging import ENDED, JOB, OUTCOME, job_in, job_of
from krappy.store.transactions import packed, unpacked
from krappy.store.view_numbers import ViewNumbers
from krappy.store.views import Views
from krappy.types import Headers, TopicPartition

ID = 16  # bytes of a topic's id
READ = 1 << 20
JOB_ENDED = 1  # the producer epoch of the markers of a staged job
MOST_KEPT = 1 << 30  # bytes of internal topics that are kept in memory: keys and values of groups and the like
WRITES = 1_000  # rows of the catalog that are written at a time
At = tuple[str, int]
Row = tuple[bytes, Headers]


class ClusterRestored(NamedTuple):
    topics: int
    partitions: int
    notes: list[str]


def build(folder: Path, listing: Mapping[str, Any]) -> ClusterRestored:
    """Turns the files of a backup, which were unpacked to `folder`, into those of a broker that is alone. Raises
    Failure, StorageError."""
    return _Build(folder, listing).run()


class _Build:
    def __init__(self, folder: Path, listing: Mapping[str, Any]) -> None:
        self._folder = folder
        try:
            with (folder / TREE).open("rb") as file:
                tree = parse(file.read(MOST_TOLD + 1))
            self._tree = {str(path): base64.b64decode(data) for path, data in tree.items()}
            self._ends = {(str(topic), int(index)): int(end) for topic, index, _, end in listing["ends"]}
            self._image = Image().after({path: Znode(self._tree[path]) for path in sorted(self._tree)})
            for name, topic in self._image.topics.items():
                check_topic_name(name)  # folders are called after it
                for index in range(len(topic.partitions)):
                    if self._ends.get((name, index), -1) < 0:
                        raise ValueError(f"it does not say where {name}-{index} ends")
        except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError, InvalidTopic) as error:
            raise Failure(f"this is not a whole backup of a cluster: {error!r:.200}") from None
        self._now_ms = int(time.time() * 1000)
        self._puts: dict[bytes, bytes] = {}  # for the catalog
        self._committed: set[int] = set()  # producer ids of staged jobs whose commit was decided
        self._open: dict[int, Transaction] = {}  # by producer id
        self._epochs: dict[At, tuple[Epochs, int]] = {}  # of logs that are done, and where these end
        self._notes: list[str] = []
        self._left = MOST_KEPT

    def run(self) -> ClusterRestored:
        topics = [each for name, each in sorted(self._image.topics.items()) if name not in INTERNAL]
        self._take_all(TRANSACTIONS, JOBS, OFFSETS)
        for topic in topics:
            for index in range(len(topic.partitions)):
                with _failing(f"{topic.name}-{index}"):
                    self._finish(topic, index)
        self._take_all(SHARES)
        Views(self._folder / "views").close()  # the broker's first start folds the logs
        meta = Meta(self._folder / "meta")
        try:
            self._write(meta, topics)
        finally:
            meta.close()
        shutil.rmtree(self._folder / "cluster")
        return ClusterRestored(len(topics), sum(len(each.partitions) for each in topics), self._notes)

    # --- logs

    def _log(self, topic: TopicImage, index: int) -> Log:
        """The log, cut where the backup ends."""
        folder, end = self._folder / "topics" / f"{topic.name}-{index}", self._ends[topic.name, index]
        config = TopicConfig.parse(dict(self._image.config("topics", topic.name)))
        log = Log.open(folder, config)
        if log.end_offset < end:
            raise StorageError(f"{folder} ends at offset {log.end_offset}, and the backup has events up to {end}")
        log.truncate(end)
        if log.end_offset < end:  # compaction took away the last ones: their offsets must not be given again
            data = batches.nothing(log.end_offset, end)
            log.append_as_is([(batches.read_header(data), data)], self._now_ms)
        return log

    def _finish(self, topic: TopicImage, index: int) -> None:
        log = self._log(topic, index)
        epoch = max(0, topic.partitions[index].state.leader_epoch)
        for producer_id in list(log.producers.stability.open):
            found = self._open.get(producer_id)
            commit = producer_id in self._committed
            if found is not None and TopicPartition(topic.name, index) in found.partitions:
                continue  # its coordinator ends it
            producer_epoch = JOB_ENDED if producer_id >= OWN else found.epoch if found is not None else 0
            data = marker(producer_id, producer_epoch, commit, self._now_ms)
            log.append([(batches.read_header(data), data)], epoch, self._now_ms)
        log.sync()
        log.high_watermark = log.end_offset
        log.checkpoint()
        self._epochs[topic.name, index] = log.epochs, log.end_offset
        log.close()

    def _fold(self, topic: TopicImage) -> dict[bytes, Row]:
        """Value and headers of each key of an internal topic, without rows of staged data. Removes the topic's logs."""
        found: dict[bytes, Row] = {}
        for index in range(len(topic.partitions)):
            with _failing(f"{topic.name}-{index}"):
                log = self._log(topic, index)
                for key, value, headers in _events(log):
                    self._left += _size(key, found.pop(key, None))
                    if value is not None and (topic.name != JOBS or key.startswith((JOB, OUTCOME, ENDED))):
                        found[key] = value, headers
                        self._left -= _size(key, found[key])
                    if self._left < 0:
                        raise Failure(
                            f"{topic.name} has more than {MOST_KEPT:,} bytes of what groups and the like keep"
                        )
                log.close()
            shutil.rmtree(self._folder / "topics" / f"{topic.name}-{index}")
        return found

    # --- what internal topics have

    def _take_all(self, *topics: str) -> None:
        for name in topics:
            if name in self._image.topics:
                self._take(name, self._fold(self._image.topics[name]))

    def _take(self, topic: str, rows: Mapping[bytes, Row]) -> None:
        take = {
            TRANSACTIONS: self._take_transaction,
            JOBS: self._take_job,
            OFFSETS: self._take_group,
            SHARES: self._take_share,
        }[topic]
        groups = {group_of(key) for key in rows if topic == SHARES and key.startswith(GROUP)}
        unreadable = 0
        for key, (value, headers) in rows.items():
            try:
                take(key, value, headers, groups)
            except StorageError as error:  # it is left out, as brokers of a cluster do, and the other rows are taken
                unreadable += 1
                if unreadable == 1:
                    self._notes.append(f"left out of {topic}, as it can't be read: {error}")
        if unreadable > 1:
            self._notes.append(f"left out of {topic}, as they can't be read: {unreadable} records")

    def _take_transaction(self, key: bytes, value: bytes, headers: Headers, groups: Collection[str]) -> None:
        found = transactions.restored(unpacked(key, value), self._now_ms)
        if found.prepared:
            self._open[found.producer_id] = found
        self._puts[key] = packed(found)

    def _take_job(self, key: bytes, value: bytes, headers: Headers, groups: Collection[str]) -> None:
        if not key.startswith(JOB):
            self._puts[key] = value
            return
        job = job_of(job_in(key), value)
        if job.state is JobState.MARKING:
            self._committed.add(job.producer_id)
            self._puts |= outcome_rows(staging.complete(job, self._now_ms))
        else:
            self._notes.append(f"the staged job '{job.name:.80}' was not committed, and has to be run again")

    def _take_group(self, key: bytes, value: bytes, headers: Headers, groups: Collection[str]) -> None:
        if not is_offset_key(key):
            self._puts[key] = value
            return
        (name, at), offset = offset_key(key), offset_in(value, headers)
        if self._is_there(at[0], offset):
            self._puts |= GroupChange(name, offsets={at: offset}).rows()[0]

    def _is_there(self, topic: str, offset: Offset) -> bool:
        """False if it is known that the topic of a position is gone. A position may be that of a table, which is no
        topic."""
        found = self._image.topics.get(topic)
        return found is None or not offset.topic_id or offset.topic_id == found.id

    def _take_share(self, key: bytes, value: bytes, headers: Headers, groups: Collection[str]) -> None:
        at = state_at(key)
        if at is None:
            self._puts[key] = value
            return
        found = self._image.topics.get(at[0])
        if group_of(key) in groups and found is not None and found.id == value[:ID] and at[1] < len(found.partitions):
            lineage = dict(headers).get(LINEAGE)
            self._puts[key] = _fitting(value[ID:], lineage, *self._epochs[at]) if lineage else value[ID:]

    # --- the catalog

    def _write(self, meta: Meta, topics: Collection[TopicImage]) -> None:
        rows = [*self._puts.items(), *records(self._znodes(topics)).items()]
        for at in range(0, len(rows), WRITES):
            meta.write(dict(rows[at : at + WRITES]))
        numbers = ViewNumbers(meta)
        for topic in topics:
            numbers.give(topic.id, topic.name, len(topic.partitions))
        meta.sync()

    def _znodes(self, topics: Collection[TopicImage]) -> dict[str, bytes]:
        """The tree, without internal topics, and without leaders. Topics remember how many replicas they had."""
        gone = [
            path
            for name in INTERNAL
            for root in (paths.topic(name), paths.config("topics", name))
            for path in self._tree
            if path == root or path.startswith(f"{root}/")
        ]
        found = {path: data for path, data in self._tree.items() if path not in set(gone)}
        found[paths.CLUSTER_ID] = znodes.cluster(new_id())  # never that of the old cluster, which may still exist
        for topic in topics:
            factor = max((len(each.replicas) - len(each.adding) for each in topic.partitions), default=1)
            replicas = [each.replicas for each in topic.partitions]
            before = Document.of(found[paths.topic(topic.name)]).with_fields({znodes.RESTORED_FACTOR: factor})
            found[paths.topic(topic.name)] = znodes.topic(topic.id, replicas, topic.generation, before)
            for index, each in enumerate(topic.partitions):
                path = paths.state(topic.name, index)
                if path in found:
                    state = each.state._replace(leader=NOBODY, elr=(), last_known_elr=(), emptied=())
                    found[path] = write_state(state, found[path])
        return found


def _fitting(state: bytes, lineage: bytes, epochs: Epochs, end: int) -> bytes:
    """A group's state without its lineage. If the log has another history, since an unclean election that the group has
    not seen, the group goes back to where they part. It is done here because a broker that is alone could not tell
    any more. Raises StorageError."""
    try:
        flat = msgpack.unpackb(joined(lineage, state))
        found = ShareState.load(flat)  # native ones, too: these have the leases alone
        leases = Leases.load(found.leases, max_deliveries=sys.maxsize)
    except (ValueError, TypeError) as error:
        raise StorageError(f"the state of a group can't be read: {error}") from error
    known = epochs.known[-1][0] if epochs.known else -1
    while (last := leases.lineage.last) >= 0:
        parts = leases.lineage.parts(epochs.end_of(last, end) or (known, end), leases.frontier)
        if parts is None:
            break
        leases.cut(parts)
    plain = split_lineage(leases.dump())[1]
    return bytes(msgpack.packb(plain if found.leases == flat else found._replace(leases=plain).dump()))


def _size(key: bytes, row: Row | None) -> int:
    """Bytes that a row takes."""
    if row is None:
        return 0
    value, headers = row
    return len(key) + len(value) + sum(len(name) + len(told or b"") for name, told in headers)


def _events(log: Log) -> Iterator[tuple[bytes, bytes | None, Headers]]:
    offset = log.start_offset
    while offset < log.end_offset:
        span = log.read_span(offset, READ)
        if not span.data:
            return
        for header, data in batches.split(span.data):
            if not header.is_control:
                columns = batches.decode(data)
                headers = columns.headers or [()] * len(columns.keys)
                for key, value, told in zip(columns.keys, columns.values, headers, strict=True):
                    if key is not None:
                        yield key, value, told
        offset = span.next_offset


class _failing:
    """Turns a KrappyError of the block into a Failure that names the partition."""

    def __init__(self, partition: str) -> None:
        self._partition = partition

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KrappyError):
            raise Failure(f"{self._partition} can't be restored: {error}") from error
