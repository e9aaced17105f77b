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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from krappy.clients import admin, snapshots, staging
from krappy.clients.admin import GroupInfo, Moved, Setting, TopicInfo
from krappy.clients.blocks import COLUMNS, ColumnBlock
from krappy.clients.link import Link
from krappy.clients.runtime import run
from krappy.clients.snapshots import BLOCK_BYTES, KeyRange, Snapshot
from krappy.clients.staging import StagedCommit, StagedJob
from krappy.clients.sync.blocks import Blocks
from krappy.clients.sync.connection import ClientConnection
from krappy.clients.sync.opened import Opened
from krappy.clients.sync.table import History, Scan, Table, Watch
from krappy.clients.tables import KeyRangeChoice
from krappy.clients.values import StartAt, Text, names
from krappy.types import Compression, TopicPartition
from krappy.wire.messages import Pong, ReadLog

if TYPE_CHECKING:
    from krappy.clients.sync.consumer import Consumer, End, Order
    from krappy.clients.sync.io import Delivery
    from krappy.clients.sync.producer import Producer, TopicProducer
    from krappy.clients.sync.stage import Stage

_HOMES = {  # imported when they are asked for: with all that reads and writes record batches, they are half of this
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


def connect(to: str | None = None, *, timeout: float = 30.0, keepalive: float = 30.0) -> Client:
    """A client, to be entered with `with`.

    Args:
        to: `host:port` of a broker; None: $KRAPPY_ADDRESS, else 127.0.0.1:7092.
        timeout: seconds that any operation may take, with all its tries.
        keepalive: a broker that was silent for so many seconds is asked whether it lives, and if it is silent for as
            long again, the connection counts as lost.

    Raises ConfigError for what is no address or no time. Entering raises ConnectionLost when no broker answers there.
    Later losses are healed in the background.
    """
    return Client(to, timeout=timeout, keepalive=keepalive)


class Client(Opened):
    """One connection to a broker, made again when it is lost; any number of threads may use it at the same time."""

    def __init__(self, to: str | None = None, *, timeout: float = 30.0, keepalive: float = 30.0) -> None:
        self._connection = ClientConnection(to, timeout, keepalive)

    def __enter__(self) -> Client:
        self._connection.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def __repr__(self) -> str:
        return f"<krappy.blocking.Client of {self.address}, {'open' if self._connection.is_open else 'not open'}>"

    @property
    def address(self) -> str:
        """`host:port` of the broker."""
        return str(self._connection.address)

    @property
    def trouble(self) -> str:
        """Why there is no connection to the broker now, while it is tried again; empty while there is one."""
        return self._link.broken

    @property
    def _link(self) -> Link:
        return self._connection.link

    # --- events -------------------------------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        *,
        linger_ms: float = 5,
        batch_bytes: int = 512 << 10,
        buffer_bytes: int = 32 << 20,
        compression: Compression | None = None,
        idempotent: bool = True,
        timeout: float = 120.0,
        name: str | None = None,
    ) -> TopicProducer:
        """A producer to one topic, which the broker makes when there is none (if it is so configured).

        Args:
            linger_ms: how long an event waits for company while others of its partition are on their way; the
                first one never waits.
            batch_bytes: a batch of this size leaves at once.
            buffer_bytes: of events not acknowledged yet; a full buffer makes senders wait.
            compression: of the batches: None, "gzip", "snappy", "lz4" or "zstd".
            idempotent: the broker stores a batch once, however often it is sent. Without it a batch that was on its
                way when the connection was lost fails with ConnectionLost, and may have been stored.
            timeout: seconds until an event that is not acknowledged fails.
            name: shown by the broker, for people.
        """
        from krappy.clients.producing import limits
        from krappy.clients.sync.producer import TopicProducer

        limited = limits(linger_ms, batch_bytes, buffer_bytes, compression, idempotent, timeout)
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

        Without `group` it sees every event of its `partitions` (None: all) from `start` on and owns its position.
        With `group` it shares the events with the other members: each is leased to one of them for `lease_ms`, who
        says `ack` when it is done.

        Args:
            start: "earliest", "latest", an offset, or an aware datetime (the first event at or after it). For a
                group: where its very first member begins.
            end: "now" stops at the high watermarks of the moment it opens, an int before that offset.
            order: "key" never leases events of one key to two members at a time.
            max_deliveries: an event that comes back as often goes to `dead_letter` (None:
                "<topic>.<group>.dead").
            max_records: of one poll. In a group: how many events are leased ahead at most (None: 500); fewer when
                each takes long, so that their leases do not run out while they wait. Without a group None leaves it
                to `max_bytes`.
            max_bytes: of one poll.
        """
        from krappy.clients.consuming import Choice
        from krappy.clients.sync.consumer import Consumer

        choice = Choice(
            names(topics),
            group,
            partitions,
            start,
            end,
            order,
            lease_ms,
            max_deliveries,
            dead_letter,
            max_records,
            max_bytes,
        )
        return Consumer(choice, connection=self._connection)

    def table(self, topic: str) -> Table:
        """The topic as a table."""
        return Table(self._connection, topic)

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
        """A moment of the topic's table, all that is committed now included, for any number of readers.

        The broker holds it, not this connection: any client may read it, by its id. It ends `ttl` seconds after it was
        last read or kept (`keep_snapshot`), by `close_snapshot`, or with the broker; SnapshotGone says so.

        Args:
            splits: how many ranges of about equal size are wanted, over all partitions. There may be fewer of a small
                table, and there is one for each partition at least.
            prefix, start, end: of the keys that are wanted, as in `Table.scan`.
            tombstones: whether reads bring deleted keys, with null as their value, unless they say otherwise.
            topic_id: `describe(topic).id`: another topic of the same name is UnknownTopic.
            measure: bytes up to which the snapshot's `size` is to be exact, 64 MiB at the most; None: it has none. The
                broker looks at as many bytes of the table for it.

        Raises ViewDisabled, UnknownTopic, UnknownPartition, Overloaded when too many snapshots are held.
        """
        chosen = KeyRangeChoice(prefix, start, end)
        return run(
            snapshots.open_snapshot(self._link, topic, partitions, splits, ttl, chosen, tombstones, topic_id, measure)
        )

    def keep_snapshot(self, id: str, ttl: float | None = None) -> None:
        """Lets a snapshot live for `ttl` seconds (None: as many as before) from now on. Raises SnapshotGone."""
        run(snapshots.keep_snapshot(self._link, id, ttl))

    def close_snapshot(self, id: str) -> None:
        """Ends a snapshot. Nothing when it has ended."""
        run(snapshots.close_snapshot(self._link, id))

    def read_snapshot(
        self,
        id: str,
        key_range: KeyRange,
        *,
        tombstones: bool | None = None,
        columns: Sequence[str] = COLUMNS,
        block_bytes: int = BLOCK_BYTES,
    ) -> Blocks:
        """The rows of a snapshot in a range of keys, in their order, as blocks of columns.

        `for block in client.read_snapshot(snapshot.id, snapshot.ranges[0])`. It goes on after a lost connection.

        Args:
            tombstones: None: as the snapshot was taken.
            columns: only these are sent: some of "key", "value", "offset", "timestamp", "headers".
            block_bytes: of a block, about.

        Raises SnapshotGone, UnknownPartition.
        """
        return Blocks(snapshots.SnapshotReading(self._link, id, key_range, tombstones, columns, block_bytes))

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

        It goes on after a lost connection. Raises OffsetOutOfRange unless all of them are there: the log begins behind
        `start_offset`, or `end_offset` is beyond what is committed; UnknownTopic when the topic is not there, or when
        it is another one than `topic_id`: `describe(topic).id`.
        """
        span = ReadLog(topic, partition, start_offset, end_offset, block_bytes, topic_id)
        return Blocks(snapshots.LogReading(self._link, span, columns))

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
        """What one attempt of a job's task writes to one topic; nobody sees it before the job is committed.

        For work that is retried, done twice at a time, or killed: each attempt stages and seals, and `commit_staged`
        with the token of one attempt of each task publishes them all at once, once. To be entered with `with`.

        Args:
            job: the name of the whole; a name that nothing else ever had.
            task, attempt: of that job; one token of each task and topic can be committed.
            ttl: seconds after which the job is dropped when nothing more comes of it. The longest of its tasks' holds.
            batch_bytes, buffer_bytes, compression, timeout: as for `producer`.

        Entering raises StagingFenced when the job was aborted, and StagingCommitted when it is committed already: then
        there is nothing to do, as when a committed job is run again.
        """
        from krappy.clients.attempt import Attempt
        from krappy.clients.producing import limits
        from krappy.clients.sync.stage import Stage

        limited = limits(5, batch_bytes, buffer_bytes, compression, True, timeout)
        return Stage(self._connection, topic, Attempt(job, str(task), str(attempt), ttl), limited)

    def commit_staged(
        self,
        job: str,
        tokens: Iterable[str],
        *,
        timeout: float | None = None,
        progress: staging.Progress | None = None,
    ) -> StagedCommit:
        """Publishes what was sealed under these tokens: all of it or nothing, and once. What was published, and where.

        A job that was committed is not published again, whatever the tokens: the answer is what it was. The broker
        remembers that for a week (staging_outcome_ms). Transactions keep readers from seeing a part of it.

        Args:
            timeout: seconds to wait; None: as long as the broker takes. When they are over, RequestTimeout, the broker
                goes on by itself: ask again to know the end.
            progress: called now and then with the bytes published so far, and all of them.

        Raises StagingFenced, StagingExpired, UnknownStaging; UnknownTopic when a topic was deleted meanwhile.
        """
        return run(staging.commit(self._link, job, list(tokens), timeout, progress))

    def abort_staged(self, job: str) -> None:
        """Drops all that a job has staged, and refuses what still comes of it. Also for a job that has not begun yet.

        For good: what may be run again under the same name, such as a batch of a stream, is better left to its ttl.
        Raises StagingCommitted when it is committed: it is published, or about to be.
        """
        run(staging.abort(self._link, job))

    def staged_jobs(self) -> list[StagedJob]:
        """Every job that is neither committed nor aborted."""
        return run(staging.jobs(self._link))

    # --- topics -------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        config: Mapping[str, Setting] | None = None,
        *,
        if_absent: bool = False,
    ) -> bool:
        """Makes a topic; `config` has Kafka's names, such as {"cleanup.policy": "compact"}. Whether it was made.

        Raises TopicExists unless `if_absent`, InvalidTopic, InvalidPartitions, InvalidConfig; ConnectionLost when the
        connection is lost in the middle and nobody knows whether it was made (not with `if_absent`).
        """
        return run(admin.create_topic(self._link, topic, partitions, config, if_absent))

    def alter_topic(
        self, topic: str, config: Mapping[str, Setting] | None = None, *, partitions: int | None = None
    ) -> None:
        """Changes settings (None as a value: back to the default) or the number of partitions, which only grows."""
        run(admin.alter_topic(self._link, topic, config, partitions))

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic with all its events. Raises UnknownTopic; ConnectionLost as `create_topic`."""
        run(admin.delete_topic(self._link, topic))

    def topics(self) -> list[TopicInfo]:
        """Every topic, as `describe` tells of it."""
        return run(admin.topics(self._link))

    def describe(self, topic: str) -> TopicInfo:
        """Settings, and where each partition stands. Raises UnknownTopic."""
        return run(admin.describe(self._link, topic))

    def offsets(self, topic: str, at: StartAt = "latest") -> dict[int, int]:
        """By partition, the offset at an end of the log, or of the first event at or after a datetime."""
        return run(admin.offsets(self._link, topic, at))

    def delete_records(
        self, topic: str, before: StartAt | Mapping[int, int], *, partitions: Sequence[int] | None = None
    ) -> dict[int, int]:
        """Deletes the events before a place, for good; by partition, the offset of the first event there is then.

        Args:
            before: "latest" (all events of now), an offset, an aware datetime, or an offset for each partition.
            partitions: only these; None: all, or those that `before` names.

        The topic's table loses the entries of deleted events (but not with cleanup.policy=compact,delete, where it
        outlives them). Raises UnknownTopic, UnknownPartition, OffsetOutOfRange beyond the last event, PolicyViolation
        when the topic is only compacted.
        """
        return run(admin.delete_records(self._link, topic, before, partitions))

    # --- groups -------------------------------------------------------------------------------------------------

    def groups(self) -> list[GroupInfo]:
        """Every group, without its members."""
        return run(admin.groups(self._link))

    def group(self, name: str) -> GroupInfo:
        """Members, and floor and lag by partition. Raises UnknownGroup."""
        return run(admin.group(self._link, name))

    def reset_group(
        self,
        name: str,
        to: StartAt = "earliest",
        *,
        topic: str | None = None,
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
    ) -> list[Moved]:
        """Moves a group's position; what was leased or acknowledged beyond is forgotten. Raises UnknownGroup."""
        return run(admin.reset_group(self._link, name, to, topic, partitions, dry_run))

    @contextmanager
    def hold_backup(self) -> Iterator[admin.HeldBackup]:
        """Links the broker's files of this moment aside, in a folder at the broker, to be copied within the `with`.

        For `krappy backup`. Raises StorageError.
        """
        held = run(admin.hold_backup(self._link))
        try:
            yield held
        finally:
            admin.release_backup(self._link, held)

    def delete_group(self, name: str) -> None:
        """Forgets a group. Raises UnknownGroup, GroupNotEmpty while it has members."""
        run(admin.delete_group(self._link, name))

    def commit(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        """Sets a group's floors by hand: every event below counts as acknowledged."""
        run(admin.commit(self._link, group, positions))

    def positions(self, group: str) -> dict[TopicPartition, int]:
        """A group's floors."""
        return run(admin.positions(self._link, group))

    def ping(self) -> Pong:
        """What the broker says of itself: .version .cluster .time .max_frame"""
        return run(admin.ping(self._link))
