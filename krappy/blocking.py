# Written by tests/clients/mirror.py from krappy/client.py: change that one, and run `make generate`.

"""The blocking client: the names of `krappy.client`, for programs without an event loop.

    with krappy.blocking.connect("127.0.0.1:7092") as client:
        with client.producer("users") as producer:
            future = producer.send("Ada", key="u1")     # future.result() is the receipt
        entry = client.table("users").get("u1")
        with client.consumer("users", group="mail") as consumer:
            for event in consumer:
                consumer.ack(event)

Where there is no `with`, as in a REPL, there are `open` and `close`: `client = krappy.blocking.connect().open()`.

What differs: `producer.send` returns a future and does not wait; `flush`, or leaving the `with`, waits for all of them
and raises the first error that nobody has looked at. Any number of threads may use a client, its producers and tables;
a consumer, a scan or a watch is for one thread at a time. A connection has a thread that reads, a producer one more.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from krappy.clients import admin, snapshots, staging
from krappy.clients.admin import GroupInfo, Moved, Setting, TopicInfo
from krappy.clients.blocks import COLUMNS, ColumnBlock
from krappy.clients.choice import End, Order
from krappy.clients.link import Link
from krappy.clients.router import Router
from krappy.clients.runtime import run
from krappy.clients.security import ClientOptions
from krappy.clients.snapshots import BLOCK_BYTES, KeyRange, Snapshot
from krappy.clients.staging import StagedCommit, StagedJob
from krappy.clients.sync.acls import AclMethods
from krappy.clients.sync.connection import ClientConnection
from krappy.clients.sync.items import Blocks
from krappy.clients.sync.opened import Opened
from krappy.clients.sync.security import Security
from krappy.clients.sync.table import History, Scan, Table, Watch
from krappy.clients.tables import KeyRangeChoice
from krappy.clients.values import Addresses, Consistency, StartAt, Text
from krappy.errors import TopicDiffers
from krappy.types import Compression, TopicPartition
from krappy.wire.messages import Pong, ReadLog

if TYPE_CHECKING:
    from krappy.clients.sync.consumer import Consumer
    from krappy.clients.sync.io import Delivery
    from krappy.clients.sync.producer import Producer, TopicProducer
    from krappy.clients.sync.stage import Stage

_HOMES = {  # imported when first used: with the code of record batches, they are half of this module's import
    "Consumer": "consumer",
    "Delivery": "io",
    "Producer": "producer",
    "TopicProducer": "producer",
    "Stage": "stage",
}

__all__ = [
    "Blocks",
    "Client",
    "ColumnBlock",
    "Consumer",
    "Delivery",
    "History",
    "KeyRange",
    "Producer",
    "Scan",
    "Snapshot",
    "Stage",
    "Table",
    "TopicProducer",
    "Watch",
    "connect",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'krappy.blocking' has no attribute {name!r}")
    return getattr(importlib.import_module(f"krappy.clients.sync.{home}"), name)


def connect(to: Addresses | None = None, **options: Unpack[ClientOptions]) -> Client:
    """A client, to be entered with `with`.

    Args:
        to: `host:port` of a broker, or of several brokers of a cluster, as a list or with commas between them. The
            first that answers tells of the others. None: $KRAPPY_ADDRESS, else 127.0.0.1:7092.
        timeout: seconds that any operation may take, with all its tries (30).
        keepalive: seconds of silence after which the broker is pinged; after as many more the connection is lost (30).
        tls, ca, cert, user, password, token: as `krappy.clients.security.ClientSecurity` explains them.

    Raises ConfigError for a wrong argument. Entering raises ConnectionLost when no broker answers there; connections
    that are lost later are made again in the background.
    """
    return Client(to, **options)


class Client(Opened, AclMethods):
    """Connections to a broker, or to those of a cluster, made again when lost. Any number of threads may use it."""

    def __init__(self, to: Addresses | None = None, **options: Unpack[ClientOptions]) -> None:
        self._connection = ClientConnection(to, **options)

    def __enter__(self) -> Client:
        self._connection.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def __repr__(self) -> str:
        return f"<krappy.blocking.Client of {self.address}, {'open' if self._connection.is_open else 'not open'}>"

    @property
    def address(self) -> str:
        """`host:port` of the broker; of several, with commas between them."""
        return ",".join(map(str, self._connection.addresses))

    @property
    def trouble(self) -> str:
        """Why there is no connection now, while the client tries again; empty while there is one."""
        return self._link.broken

    @property
    def _link(self) -> Link:
        return self._connection.link

    @property
    def _router(self) -> Router:
        return self._connection.router

    # --- events -------------------------------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        *,
        linger_ms: float = 5,
        batch_bytes: int = 512 << 10,
        buffer_bytes: int = 32 << 20,
        compression: Compression | None = None,
        timeout: float = 120.0,
        name: str | None = None,
    ) -> TopicProducer:
        """A producer to one topic, to be entered with `with`. A topic that does not exist is created if the
        broker allows it (auto_create_topics).

        Args:
            linger_ms: how long an event waits for others to share its batch while a batch of its partition is in
                flight. If none is, it is sent at once.
            batch_bytes: a batch of this size is sent at once.
            buffer_bytes: bytes of unacknowledged events; while the buffer is full, senders wait.
            compression: of the batches: None, "gzip", "snappy", "lz4" or "zstd".
            timeout: seconds until an event that is not acknowledged fails.
            name: a name that the broker shows to people.
        """
        from krappy.clients.producing import limits
        from krappy.clients.sync.producer import TopicProducer

        limited = limits(linger_ms, batch_bytes, buffer_bytes, compression, timeout)
        return TopicProducer(self._connection, topic, limited, name)

    def consumer(
        self,
        topics: str | Iterable[str],
        *,
        group: str | None = None,
        partitions: Sequence[int] | None = None,
        start: StartAt = "earliest",
        end: End | None = None,
        order: Order = "none",
        lease_ms: int = 30_000,
        max_deliveries: int = 10,
        dead_letter: str | None = None,
        max_records: int | None = None,
        max_bytes: int = 1 << 20,
    ) -> Consumer:
        """A consumer of one topic or several, to be entered with `with`.

        Without `group` it gets every event of its `partitions` (None: all) from `start` on, and keeps its own position.
        With `group` it shares the events with the other members: each event is leased to one member for `lease_ms`,
        which calls `ack` when it is done.

        Args:
            start: "earliest", "latest", an offset, or an aware datetime (the first event at or after it). In a group:
                where the group begins, if it is new.
            end: "now" stops at the last stable offsets of the moment it opens; an int stops before that offset.
            order: "key" never leases events of one key to two members at a time.
            max_deliveries: after this many deliveries without an ack an event goes to the topic `dead_letter` (None:
                "<topic>.<group>.dead"), which needs the right to write there.
            max_records: how many events one poll brings at most. In a group: how many events are leased ahead at most
                (None: 500, and up to 10,000 while a poll's events take less than 0.1 s). It asks for fewer when events
                take long, so that leases do not run out while events wait. Without a group None means that only
                `max_bytes` bounds a poll.
            max_bytes: of one poll.
        """
        from krappy.clients.sync.consumer import Consumer

        return Consumer(
            topics,
            connection=self._connection,
            group=group,
            partitions=partitions,
            start=start,
            end=end,
            order=order,
            lease_ms=lease_ms,
            max_deliveries=max_deliveries,
            dead_letter=dead_letter,
            max_records=max_records,
            max_bytes=max_bytes,
        )

    def table(self, topic: str, *, consistency: Consistency = "strong") -> Table:
        """The topic as a table. `consistency`: see `Table`. Raises InvalidRequest."""
        return Table(self._connection, topic, consistency)

    # --- by columns ---------------------------------------------------------------------------------------------

    def snapshot(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        splits: int = 8,
        ttl: float = 60.0,
        prefix: Text | None = None,
        start: Text | None = None,
        end: Text | None = None,
        tombstones: bool = False,
        topic_id: str | None = None,
        measure: int | None = None,
    ) -> Snapshot:
        """A snapshot of the topic's table as of now, with everything that is committed, for any number of readers.

        The broker holds it, not this connection: any client may read it, by its id. It ends `ttl` seconds after it was
        last read or kept (`keep_snapshot`), by `close_snapshot`, or with the broker; then reads raise SnapshotGone. In
        a cluster each leader holds its part; these are taken within milliseconds of each other.

        Args:
            splits: how many ranges of about equal size are wanted; a small table has fewer, a partition one or more.
            prefix, start, end: which keys are wanted, as in `Table.scan`.
            tombstones: whether reads bring deleted keys, with null as their value, unless a read says otherwise.
            topic_id: `describe(topic).id`; if the topic of this name has another id, it raises UnknownTopic.
            measure: up to how many bytes the snapshot's `size` is exact, 64 MiB at most; the broker reads so many bytes
                of the table. None: the snapshot has no `size`.

        Raises ViewDisabled, UnknownTopic, UnknownPartition, Overloaded when too many are held, PolicyViolation for a
        topic with strays that several brokers lead.
        """
        chosen = KeyRangeChoice(prefix, start, end)
        return run(
            snapshots.open_snapshot(self._router, topic, partitions, splits, ttl, chosen, tombstones, topic_id, measure)
        )

    def keep_snapshot(self, id: str, ttl: float | None = None) -> None:
        """Keeps a snapshot for another `ttl` seconds from now (None: as many as before). Raises SnapshotGone."""
        run(snapshots.keep_snapshot(self._router, id, ttl))

    def close_snapshot(self, id: str) -> None:
        """Ends a snapshot. Does nothing if it has ended."""
        run(snapshots.close_snapshot(self._router, id))

    def read_snapshot(
        self,
        id: str,
        key_range: KeyRange,
        *,
        tombstones: bool | None = None,
        columns: Sequence[str] = COLUMNS,
        block_bytes: int = BLOCK_BYTES,
    ) -> Blocks:
        """The rows of a snapshot in a range of keys, in the order of their keys, as blocks of columns.

        `for block in client.read_snapshot(snapshot.id, snapshot.ranges[0])`. It goes on after a lost connection.

        Args:
            tombstones: whether deleted keys are rows, too; None: as `snapshot` was asked.
            columns: which columns are sent: some of "key", "value", "offset", "timestamp", "headers".
            block_bytes: about how large a block is.

        Raises SnapshotGone, UnknownPartition.
        """
        return Blocks(snapshots.SnapshotReading(self._router, id, key_range, tombstones, columns, block_bytes))

    def read_log(
        self,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int,
        *,
        columns: Sequence[str] = COLUMNS,
        block_bytes: int = BLOCK_BYTES,
        topic_id: str | None = None,
    ) -> Blocks:
        """The events of a partition from `start_offset` to before `end_offset`, as blocks of columns.

        It goes on after a lost connection. Raises OffsetOutOfRange when the log starts after `start_offset`, or when
        `end_offset` is beyond the last stable offset; UnknownTopic when there is no such topic, or when its id
        (`describe(topic).id`) is not `topic_id`.
        """
        span = ReadLog(topic, partition, start_offset, end_offset, block_bytes, topic_id)
        return Blocks(snapshots.LogReading(self._router, span, columns))

    # --- staged writes ------------------------------------------------------------------------------------------

    def stage(
        self,
        topic: str,
        *,
        job: str,
        task: str | int,
        attempt: str | int,
        ttl: float = 3600.0,
        batch_bytes: int = 512 << 10,
        buffer_bytes: int = 32 << 20,
        compression: Compression | None = None,
        timeout: float = 120.0,
    ) -> Stage:
        """A stage, to be entered with `with`: it takes the events that one attempt of a job's task writes to one
        topic. Nobody sees them before the job is committed.

        For work that may be retried, run twice at a time, or killed. Each attempt stages its events and seals them,
        which gives a token. `commit_staged` with the token of one attempt of each task publishes all of them together,
        once.

        Args:
            job: the name of the whole work, which no other job ever had.
            task, attempt: their names within the job. One token of each task and topic can be committed.
            ttl: seconds without a request of the job after which it is dropped; if tasks differ, the longest counts.
            batch_bytes, buffer_bytes, compression, timeout: as for `producer`.

        Entering raises StagingFenced when the job was aborted, and StagingCommitted when it was committed: then there
        is nothing left to do.
        """
        from krappy.clients.attempt import Attempt
        from krappy.clients.producing import limits
        from krappy.clients.sync.stage import Stage

        limited = limits(5, batch_bytes, buffer_bytes, compression, timeout)
        return Stage(self._connection, topic, Attempt(job, str(task), str(attempt), ttl), limited)

    def commit_staged(
        self,
        job: str,
        tokens: Iterable[str],
        *,
        timeout: float | None = None,
        progress: staging.Progress | None = None,
    ) -> StagedCommit:
        """Publishes the events that were sealed under these tokens: all or none, and once. Returns what was published,
        and where.

        If the job was committed before, nothing is published, whatever the tokens, and the answer is the same as then.
        The broker remembers it for a week (staging_outcome_ms). A transaction shows readers all events or none.

        Args:
            timeout: seconds to wait, then it raises RequestTimeout; None: as long as the broker takes. The broker goes
                on after a timeout: call again to know the result.
            progress: called now and then with the bytes published so far, and the bytes in all.

        Raises StagingFenced, StagingExpired, UnknownStaging; UnknownTopic when a topic was deleted meanwhile.
        """
        return run(staging.commit(self._router, job, list(tokens), timeout, progress))

    def abort_staged(self, job: str) -> None:
        """Drops all that a job has staged, and refuses what it stages later; the job need not have begun.

        The name can't be used again. So leave a job that may run again under its name, such as a batch of a stream, to
        its ttl. Raises StagingCommitted when the job is committed: its events are published, or about to be.
        """
        run(staging.abort(self._router, job))

    def staged_jobs(self) -> list[StagedJob]:
        """Every job that is neither committed nor aborted."""
        return run(staging.jobs(self._router))

    def create_topic(
        self,
        topic: str,
        partitions: int | None = None,
        config: Mapping[str, Setting] | None = None,
        *,
        if_absent: bool = False,
        replication_factor: int | None = None,
    ) -> bool:
        """Creates a topic; `config` has Kafka's names, such as {"cleanup.policy": "compact"}. Returns whether it was
        created. `partitions`: how many; by default one. `replication_factor`: how many brokers have each partition; by
        default three, or all if there are fewer. The broker may be configured otherwise for both.

        With `if_absent`, a topic that exists is left as it is. If it has another number of partitions, or other values
        of the given settings, it warns with TopicDiffers, which Python prints.

        Raises InvalidTopic, InvalidPartitions, InvalidConfig, InvalidReplicationFactor; unless `if_absent` TopicExists,
        and ConnectionLost when the connection is lost before the answer: the topic may have been created.
        """
        created, differs = run(
            admin.create_topic(self._router, topic, partitions, config, if_absent, replication_factor)
        )
        if differs:
            warnings.warn(TopicDiffers(topic, differs), stacklevel=2)
        return created

    def alter_topic(
        self, topic: str, config: Mapping[str, Setting] | None = None, *, partitions: int | None = None
    ) -> None:
        """Changes settings (a value of None resets to the default), or the number of partitions, which only grows."""
        run(admin.alter_topic(self._router, topic, config, partitions))

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic with all its events. Raises UnknownTopic, and ConnectionLost as `create_topic`."""
        run(admin.delete_topic(self._router, topic))

    def topics(self) -> list[TopicInfo]:
        """Every topic, as `describe` gives it."""
        return run(admin.topics(self._router))

    def describe(self, topic: str) -> TopicInfo:
        """A topic's settings and the offsets of its partitions. Raises UnknownTopic."""
        return run(admin.describe(self._router, topic))

    def offsets(self, topic: str, at: StartAt = "latest") -> dict[int, int]:
        """By partition: the offset at an end of the log, or of the first event at or after a datetime."""
        return run(admin.offsets(self._router, topic, at))

    def delete_records(
        self, topic: str, before: StartAt | Mapping[int, int], *, partitions: Sequence[int] | None = None
    ) -> dict[int, int]:
        """Deletes the events before an offset, for good. Returns each partition's log start after that.

        Args:
            before: "latest" (all events there are now), an offset, an aware datetime, or an offset for each partition.
            partitions: only these; None: all, or those that `before` names.

        The topic's table loses the entries of deleted events; but it keeps them with cleanup.policy=compact,delete.
        Raises UnknownTopic, UnknownPartition, OffsetOutOfRange beyond the last event, PolicyViolation when the topic is
        only compacted.
        """
        return run(admin.delete_records(self._router, topic, before, partitions))

    def groups(self) -> list[GroupInfo]:
        """Every group, without its members."""
        return run(admin.groups(self._router))

    def group(self, name: str) -> GroupInfo:
        """A group with its members, and by partition its floor (every event before it is settled) and lag. Raises
        UnknownGroup."""
        return run(admin.group(self._router, name))

    def reset_group(
        self,
        name: str,
        to: StartAt = "earliest",
        *,
        topic: str | None = None,
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
    ) -> list[Moved]:
        """Moves a group's positions. Leases and acknowledgements of later events are forgotten. Raises UnknownGroup."""
        return run(admin.reset_group(self._router, name, to, topic, partitions, dry_run))

    @contextmanager
    def hold_backup(self) -> Iterator[admin.HeldBackup]:
        """Links the broker's files, as of now, into a folder on its machine, to be copied within the `with`, as `krappy
        backup` does. The client's `keepalive` has to be below 90 s. Raises StorageError."""
        held = run(admin.hold_backup(self._link))
        try:
            yield held
        finally:
            admin.release_backup(self._link, held)

    def delete_group(self, name: str) -> None:
        """Deletes a group with its positions. Raises UnknownGroup, and GroupNotEmpty while it has members."""
        run(admin.delete_group(self._router, name))

    def commit(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        """Sets a group's floors by hand: every event before them counts as acknowledged, none after them does."""
        run(admin.commit(self._router, group, positions))

    def positions(self, group: str) -> dict[TopicPartition, int]:
        """A group's floor in each partition."""
        return run(admin.positions(self._router, group))

    @property
    def security(self) -> Security:
        """Who may log in."""
        return Security(self._connection)

    def ping(self) -> Pong:
        """The broker's .version .cluster .time .max_frame .console"""
        return run(admin.ping(self._link))
