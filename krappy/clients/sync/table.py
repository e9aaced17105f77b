# Written by tests/clients/mirror.py from krappy/clients/aio/table.py: change that one, and run `make generate`.

"""A topic as a table, for the blocking client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Self, Unpack, get_args

from krappy.arrow_layout import Binary
from krappy.clients import tables
from krappy.clients.backoff import chance
from krappy.clients.blocks import ColumnBlock
from krappy.clients.catching_up import Progress, catch_up
from krappy.clients.merging import MergedScanning
from krappy.clients.runtime import run
from krappy.clients.scanning import Scanning
from krappy.clients.sync.connection import ClientConnection
from krappy.clients.sync.io import Delivery
from krappy.clients.sync.items import Items
from krappy.clients.values import Consistency, EventOptions, Text, key_bytes
from krappy.clients.watch_progress import SnapshotEnd
from krappy.clients.watching import Watching
from krappy.errors import InvalidRequest, OffsetMismatch
from krappy.types import Entry, Receipt

LEAST_PAGE = 64  # entries of a page of one partition, when several are merged
LEAST_BYTES = 16 << 10  # bytes of such a page; it has more only if its first entry has more
LONGEST_PAUSE = 0.1  # seconds before `update` tries again


class Table:
    """A topic's latest value for each key.

    Its consistency is "strong": each answer includes all that was committed before the request, and the leaders of
    partitions give it. Or it is "session": each answer of `get`, `get_many` and `scan` includes what this client has
    written, and read in this way. Any replica in sync gives it, so that reads are spread over the cluster; it may lack
    the last writes of others. While the topic has strays, and where there is one broker, "session" is the same as
    "strong".
    """

    def __init__(self, connection: ClientConnection, topic: str, consistency: Consistency = "strong") -> None:
        """Raises InvalidRequest."""
        if consistency not in get_args(Consistency):
            raise InvalidRequest(f"consistency is one of {', '.join(get_args(Consistency))}, not {consistency!r}")
        self.topic = topic
        self._connection = connection
        self._session = consistency == "session"

    def get(self, key: Text, *, partition: int | None = None, min_offset: int | None = None) -> Entry | None:
        """The entry of a key. None: absent. An entry with `.deleted`: the key was deleted at `.offset`.

        Args:
            partition: looks in this partition only. None: in the one that murmur2 gives the key. While the topic has
                strays (keys in other partitions), it looks in all and takes the entry with the highest timestamp.
            min_offset: an offset of the key's own partition, such as that of your own last write. The answer includes
                the events up to it, and does not wait for all that is committed. Any replica in sync gives it, so
                lookups are spread over the cluster. None: the leader answers, with all that is committed.

        Raises ViewDisabled, UnknownTopic, UnknownPartition.
        """
        return run(tables.get(self._connection.router, self.topic, key, partition, min_offset, self._session))

    def get_many(self, keys: Iterable[Text], *, partition: int | None = None) -> list[Entry | None]:
        """The entries of many keys, in their order; None: absent. One request asks for up to 10,000 keys."""
        return run(tables.get_many(self._connection.router, self.topic, keys, partition, self._session))

    def get_columns(
        self,
        keys: Iterable[Text] | Binary,
        *,
        columns: Sequence[str] = ("value", "offset", "timestamp", "headers"),
        partition: int | None = None,
    ) -> ColumnBlock:
        """The entries of up to 100,000 keys in one request, as columns: row `i` answers key `i`.

        An absent key has a 0 in `found` and a null value; a deleted key has a 1 and a null value. `keys` may be a
        column in Arrow's layout (`krappy.arrow_layout.Binary`), which is sent as it is. Only `columns` are sent back.
        Raises RecordTooLarge when the answer would have more than 16 MiB: ask for fewer keys at once.
        """
        return run(tables.get_columns(self._connection.router, self.topic, keys, partition, columns))

    def put(self, key: Text, value: Text | None, **more: Unpack[EventOptions]) -> Receipt:
        """Writes a key's value, as one event of the topic, and waits until it is on disk. It creates the topic as a
        producer does.

        `more`: as `TopicProducer.post` has it: `expect`, `headers`, `timestamp`, `partition`. With `expect` (the offset
        of the entry that was read, or "absent") it raises OffsetMismatch if the key is not there any more, and writes
        nothing. Many puts at a time share batches; a producer is the way to write much from one place.

        Raises what a producer's send raises; RequestTimeout after the client's timeout: then it may have been written.
        Cancelling it does not take the event back.
        """
        from krappy.clients.writing import writer  # imported when first used, as producers are

        wanted = key_bytes(key)
        core = run(writer(self._connection.router, self.topic))
        if not core.takes(partition := more.get("partition")):
            run(core.room(partition))
        delivery = core.add(Delivery[Receipt](), value, wanted, **more)
        return delivery.result()

    def delete(self, key: Text, **more: Unpack[EventOptions]) -> Receipt:
        """Deletes a key by a tombstone, also one that is absent. As `put` of None."""
        return self.put(key, None, **more)

    def update(self, key: Text, change: Callable[[bytes | None], Text | None]) -> Receipt:
        """Replaces a key's value by what `change` makes of it, if nobody else wrote it in between; else tries again.

        `change` gets None for a key that is absent or deleted; if it returns None, the key is deleted. It may be called
        several times, and has no effects of its own; its exceptions leave the key as it is. Raises OffsetMismatch when
        others were faster for the whole of the client's timeout.

            table.update("visits", lambda value: str(int(value or 0) + 1))
        """
        from krappy.clients.writing import writer

        run(writer(self._connection.router, self.topic))  # so that there is a topic
        runtime, tries = self._connection.router.runtime, 0
        deadline = runtime.now() + self._connection.timeout
        while True:
            entry = self.get(key)
            value = change(None if entry is None else entry.value)
            try:
                if entry is None:
                    return self.put(key, value, expect="absent")
                return self.put(key, value, expect=entry.offset, partition=entry.partition)
            except OffsetMismatch:
                if runtime.now() >= deadline:
                    raise
            tries += 1
            run(runtime.sleep(chance.random() * min(LONGEST_PAUSE, 0.001 * 2 ** min(tries, 10))))

    def catch_up(
        self,
        offsets: Mapping[int, int] | None = None,
        *,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Waits until the table includes all events that are committed now, or all before `offsets` (by partition).

        Lookups wait for that too, but only for the client's timeout. When very many events were published at once, it
        may take minutes.

        Args:
            timeout: seconds; None: no limit.
            progress: called repeatedly with the number of events applied since the start, and to apply in all.

        Raises RequestTimeout, ViewDisabled, UnknownTopic, UnknownPartition.
        """
        run(catch_up(self._connection.router, self.topic, offsets, timeout, progress))

    def scan(
        self,
        *,
        prefix: Text | None = None,
        start: Text | None = None,
        end: Text | None = None,
        partitions: Sequence[int] | None = None,
        tombstones: bool = False,
        page_entries: int = tables.PAGE_ENTRIES,
        ordered: bool = False,
    ) -> Scan:
        """A snapshot of all keys, of those with a `prefix`, or from `start` (inclusive) to `end` (exclusive).

        `for entry in table.scan()` gives entries partition by partition, in the order of keys; `.pages()` gives
        lists of entries, which is faster. A lost connection ends the snapshot: then it raises ConnectionLost.

        `ordered`: gives the entries of all partitions in the order of keys, each key once. Each partition is scanned
        with a cursor of its own then, and each cursor waits at most two minutes for the others: after that it raises
        UnknownHandle.
        """
        router = self._connection.router
        chosen = tables.KeyRangeChoice(prefix, start, end)

        def scan(
            some: Sequence[int] | None, tombstones: bool, of: int, least: int = 1, among: int | None = None
        ) -> Scanning:
            size, room = max(least, page_entries // of), max(LEAST_BYTES, tables.PAGE_BYTES // of)
            which = (router, self.topic, chosen, some, tombstones, size)
            return Scanning(*which, page_bytes=room, session=self._session, among=among)

        if not ordered:
            return Scan(scan(partitions, tombstones, 1))

        def scan_one(partition: int, of: int, hidden: bool, among: int | None) -> Scanning:
            return scan([partition], tombstones or hidden, of, LEAST_PAGE, among)

        return Scan(MergedScanning(router, self.topic, partitions, scan_one, tombstones=tombstones))

    def watch(
        self,
        *,
        prefix: Text | None = None,
        start: Text | None = None,
        end: Text | None = None,
        partitions: Sequence[int] | None = None,
        tombstones: bool = False,
    ) -> Watch:
        """The table as it is, then a `SnapshotEnd`, then every change as it happens: no gap, no duplicate.

        `for item in table.watch()` gives entries; a deletion is an entry whose value is None. The watch goes on
        after a lost connection. It has its own connections, so a slow watcher delays nobody else.
        """
        chosen = tables.KeyRangeChoice(prefix, start, end)
        connection = self._connection
        return Watch(Watching(connection.router, connection.new_link, self.topic, chosen, partitions, tombstones))

    def history(self, key: Text, *, partition: int | None = None, start: int = 0) -> History:
        """Every event of a key that the log still has, oldest first, from offset `start` on. Raises InvalidRequest
        if several partitions have the key (strays) and `partition` is None."""
        return History(tables.KeyHistory(self._connection.router, self.topic, key, partition, start))


class KeyedEntries:
    """Entries one by one: `for entry in entries`; `pages` gives lists of them."""

    def __init__(self, core: Scanning | MergedScanning | tables.KeyHistory) -> None:
        self._core = core
        self._page: Iterable[Entry] = iter(())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry:
        for entry in self._page:
            return entry
        page = run(self._core.page())
        if page is None:
            raise StopIteration
        self._page = iter(page)
        return self.__next__()

    def pages(self) -> Items[list[Entry]]:
        """Lists of entries, each of one partition."""
        return Items(self._core.page, keep=self)


class Scan(KeyedEntries):
    """The entries of a snapshot."""

    _core: Scanning | MergedScanning

    @property
    def offsets(self) -> dict[int, int]:
        """By partition: the snapshot includes all events before this offset. Empty until the first entry came; in a
        cluster, it has the partitions of the brokers that the scan has come to."""
        return self._core.offsets

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self._core.close()

    def __del__(self) -> None:
        self._core.abandon()


class History(KeyedEntries):
    """The events of one key, as entries."""


class Watch:
    """Gives entries, then one `SnapshotEnd`, then entries. Leaving the loop, `with` or `close` end it."""

    def __init__(self, core: Watching) -> None:
        self._core = core

    def __enter__(self) -> Watch:
        run(self._core.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(RuntimeError):  # the event loop has ended, and the connection with it
            self._core.abandon()

    def close(self) -> None:
        """Ends the watch: a caller that waits for the next item gets ConnectionLost."""
        self._core.close()

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Entry | SnapshotEnd:
        while True:
            for item in self._core.items:
                return item
            run(self._core.more())

    @property
    def offsets(self) -> dict[int, int] | None:
        """By partition, the offset after the last event received; None while the snapshot is incomplete."""
        return self._core.offsets
