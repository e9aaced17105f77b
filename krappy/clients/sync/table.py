# Written by tests/clients/mirror.py from krappy/clients/aio/table.py: change that one, and run `make generate`.

"""A topic as a table, for the blocking client."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from krappy.arrow_layout import Binary
from krappy.clients import tables, watching
from krappy.clients.blocks import ColumnBlock
from krappy.clients.catching_up import Progress, catch_up
from krappy.clients.runtime import run
from krappy.clients.sync.connection import ClientConnection
from krappy.clients.values import Text
from krappy.clients.watching import SnapshotEnd
from krappy.types import Entry


class Table:
    """A topic's latest value for each key. Every answer includes all that was committed when it was asked for."""

    def __init__(self, connection: ClientConnection, topic: str) -> None:
        self.topic = topic
        self._connection = connection

    def get(self, key: Text, *, partition: int | None = None, min_offset: int | None = None) -> Entry | None:
        """The entry of a key. None: absent. `.deleted`: it was deleted, at `.offset`.

        Args:
            partition: look there alone. None: where the key's newest event is: in the partition that its murmur2 names,
                or, while the topic has keys that stand elsewhere, in whichever has the one with the highest timestamp.
            min_offset: wait until this offset of the key's own partition is included, instead of all that is committed.

        Raises ViewDisabled, UnknownTopic, UnknownPartition.
        """
        return run(tables.get(self._connection.link, self.topic, key, partition, min_offset))

    def get_many(self, keys: Iterable[Text], *, partition: int | None = None) -> list[Entry | None]:
        """The entries of many keys, in their order, in one request."""
        return run(tables.get_many(self._connection.link, self.topic, keys, partition))

    def get_columns(
        self,
        keys: Iterable[Text] | Binary,
        *,
        columns: Sequence[str] = ("value", "offset", "timestamp", "headers"),
        partition: int | None = None,
    ) -> ColumnBlock:
        """The entries of up to 100,000 keys in one request, as columns: row `i` answers key `i`.

        Absent keys are null in `found` and have a null value; deleted ones are found, with a null value. `keys` may be
        a column in Arrow's layout (`krappy.arrow_layout.Binary`), which then nobody takes apart here. Only `columns`
        are sent. Raises RecordTooLarge beyond 16 MiB, with nothing: ask for fewer keys at once.
        """
        return run(tables.get_columns(self._connection.link, self.topic, keys, partition, columns))

    def catch_up(
        self,
        offsets: Mapping[int, int] | None = None,
        *,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Returns when the table has taken in all that is committed now, or all before `offsets` of its partitions.

        Lookups wait for that too, but no longer than the client's timeout; the table of a topic into which very much
        was published at once may take minutes.

        Args:
            timeout: seconds; None: as long as it takes.
            progress: called now and then with the number of events taken in since, and of all that it waits for.

        Raises RequestTimeout, ViewDisabled, UnknownTopic, UnknownPartition.
        """
        run(catch_up(self._connection.link, self.topic, offsets, timeout, progress))

    def scan(
        self,
        *,
        prefix: Text | None = None,
        start: Text | None = None,
        end: Text | None = None,
        partitions: Sequence[int] | None = None,
        tombstones: bool = False,
        page_entries: int = tables.PAGE_ENTRIES,
    ) -> Scan:
        """A snapshot of all keys, of those with a `prefix`, or from `start` (inclusive) to `end` (exclusive).

        `for entry in table.scan()`, partition by partition, in the order of keys; `.pages()` gives lists of
        entries, which is faster. When the connection is lost in the middle, the snapshot is too: ConnectionLost.
        """
        chosen = tables.KeyRangeChoice(prefix, start, end)
        return Scan(tables.Scanning(self._connection.link, self.topic, chosen, partitions, tombstones, page_entries))

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

        `for item in table.watch()`: entries, deletions as entries whose value is None. It goes on after a lost
        connection. It has a connection of its own: a slow watcher holds up nobody else.
        """
        chosen = tables.KeyRangeChoice(prefix, start, end)
        link = self._connection.new_link()
        return Watch(watching.Watching(link, self.topic, chosen, partitions, tombstones, random.random))

    def history(self, key: Text, *, partition: int | None = None, start: int = 0) -> History:
        """Every event of a key that the log still has, oldest first, from offset `start` on."""
        return History(tables.KeyHistory(self._connection.link, self.topic, key, partition, start))


class Scan:
    """The entries of a snapshot. `for` goes over them, `pages` over lists of them."""

    def __init__(self, core: tables.Scanning) -> None:
        self._core = core
        self._page: Iterable[Entry] = iter(())

    @property
    def offsets(self) -> dict[int, int]:
        """By partition, the next offset after what the snapshot includes; known once the first entry came."""
        return self._core.offsets

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self._core.close()

    def __del__(self) -> None:
        self._core.close()

    def __iter__(self) -> Scan:
        return self

    def __next__(self) -> Entry:
        for entry in self._page:
            return entry
        page = run(self._core.page())
        if page is None:
            raise StopIteration
        self._page = iter(page)
        return self.__next__()

    def pages(self) -> Pages:
        """Lists of entries, each of one partition."""
        return Pages(self._core, self)


class Pages:
    """The pages of a scan or a history."""

    def __init__(self, core: tables.Scanning | tables.KeyHistory, keep: object = None) -> None:
        self._core = core
        self._keep = keep  # a scan that nobody refers to is closed

    def __iter__(self) -> Pages:
        return self

    def __next__(self) -> list[Entry]:
        page = run(self._core.page())
        if page is None:
            raise StopIteration
        return page


class History:
    """The events of one key, as entries."""

    def __init__(self, core: tables.KeyHistory) -> None:
        self._core = core
        self._page: Iterable[Entry] = iter(())

    def __iter__(self) -> History:
        return self

    def __next__(self) -> Entry:
        for entry in self._page:
            return entry
        page = run(self._core.page())
        if page is None:
            raise StopIteration
        self._page = iter(page)
        return self.__next__()

    def pages(self) -> Pages:
        """Lists of entries."""
        return Pages(self._core)


class Watch:
    """Entries, one `SnapshotEnd`, entries. Leave the loop, use `with`, or `close` it, to end it."""

    def __init__(self, core: watching.Watching) -> None:
        self._core = core
        self._items: Iterable[Entry] = iter(())

    def __enter__(self) -> Watch:
        run(self._core.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(RuntimeError):  # what the connection lived in has ended, and the connection with it
            self.close()

    def close(self) -> None:
        """Ends it: who waits for what comes next gets ConnectionLost."""
        self._core.close()

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Entry | SnapshotEnd:
        for entry in self._items:
            return entry
        taken = run(self._core.take())
        if isinstance(taken, SnapshotEnd):
            return taken
        self._items = iter(taken)
        return self.__next__()

    @property
    def offsets(self) -> dict[int, int] | None:
        """By partition, the next offset after what was received; None while the snapshot is incomplete."""
        return self._core.offsets
