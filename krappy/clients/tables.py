"""A topic as a table: lookups, scans, histories. Watches are in `watching.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Any

from krappy import arrow_layout
from krappy.arrow_layout import Binary
from krappy.clients import blocks, lookups
from krappy.clients.backoff import Backoff
from krappy.clients.blocks import ColumnBlock
from krappy.clients.router import OthersNeeded, Router
from krappy.clients.scattering import is_scattered, may_scatter, partitions
from krappy.clients.session_reads import ask_replicas
from krappy.clients.values import Text, encoded, key_bytes
from krappy.errors import (
    InvalidRequest,
    NotLeader,
    PolicyViolation,
    ProtocolError,
    RecordTooLarge,
)
from krappy.partitioner import partition_for
from krappy.types import Entry, Headers
from krappy.wire import messages

_entry: Any = partial(tuple.__new__, Entry)  # faster: Entry's own `__new__` checks the number of fields
PAGE_ENTRIES = 4_000
PAGE_BYTES = 1 << 20
MOST_KEYS = 10_000  # keys in one request
EVERYWHERE = 500  # keys that are looked up in all partitions at once
KEY_BYTES = 1_000_000  # bytes of the keys in one request: the broker reads at most 1 MiB of small values at once


async def get(
    router: Router, topic: str, key: Text, partition: int | None, min_offset: int | None, session: bool = False
) -> Entry | None:
    """The entry of a key. None: absent. An entry whose value is None: deleted, at its offset. `session`: any replica
    answers that has what this client has written, and read in this way."""
    wanted, deadline = key_bytes(key), router.runtime.now() + router.timeout
    if router.known.several and (session or min_offset is not None):
        told, found = await _get_of_replica(router, topic, wanted, partition, min_offset, session, deadline)
        if told:
            return found
    if partition is not None or not router.known.several or not await may_scatter(router, topic, deadline):
        with suppress(OthersNeeded):
            return _saw(router, topic, session, await _get(router, topic, wanted, partition, min_offset, deadline))

    async def ask(at: int, among: int | None) -> Entry | None:
        home = partition_for(wanted, await partitions(router, topic, deadline))
        return await _get(router, topic, wanted, at, min_offset if at == home else None, deadline, among)

    found = lookups.newest_of(wanted, await lookups.everywhere(router, topic, deadline, ask))
    return _saw(router, topic, session, found)


def _saw(router: Router, topic: str, session: bool, entry: Entry | None) -> Entry | None:
    if session and entry is not None:
        router.session.saw(topic, [(entry.partition, entry.offset)])
    return entry


async def _get_of_replica(
    router: Router,
    topic: str,
    key: bytes,
    partition: int | None,
    min_offset: int | None,
    session: bool,
    deadline: float,
) -> tuple[bool, Entry | None]:
    """(whether some replica has answered, its answer)."""
    at = partition_for(key, await partitions(router, topic)) if partition is None else partition
    least = -1 if min_offset is None else min_offset
    if session:
        least = max(least, router.session.seen(topic).get(at, -1))
    request = messages.Get(topic, key, partition, least)
    answers = await ask_replicas(router, topic, [at], lambda _: request, messages.Got, deadline)
    if answers is None:
        return False, None
    [(_, got)] = answers
    return True, _saw(router, topic, session, _got(key, got))


async def _get(
    router: Router,
    topic: str,
    key: bytes,
    partition: int | None,
    min_offset: int | None,
    deadline: float,
    among: int | None = None,
) -> Entry | None:
    request = messages.Get(topic, key, partition, min_offset, among)
    return _got(key, await router.ask(request, messages.Got, topic, partition, key, deadline))


def _got(key: bytes, got: messages.Got) -> Entry | None:
    if len(got.entry) != 1:
        raise ProtocolError(f"{len(got.entry)} entries in the answer to a lookup of one key")
    found = got.entry[0]
    return None if found is None else _one(key, got.partition, found)


def _several(keys: Iterable[Text]) -> Iterable[Text]:
    """Raises InvalidRequest for a single key: each of its characters would be taken for a key."""
    if isinstance(keys, str | bytes):
        raise InvalidRequest(f"several keys are expected, as a list, not {keys!r}")
    return keys


async def get_many(
    router: Router, topic: str, keys: Iterable[Text], partition: int | None, session: bool = False
) -> list[Entry | None]:
    """For each key, in their order, what `get` returns."""
    wanted = [key if type(key) is bytes else key_bytes(key) for key in _several(keys)]
    found: list[Entry | None] = []
    step = max(1, min(MOST_KEYS, KEY_BYTES // (max(map(len, wanted), default=0) + 5)))
    for first in range(0, len(wanted), step):
        some = wanted[first : first + step]
        deadline = router.runtime.now() + router.timeout
        got = None
        if session and router.known.several:
            got = await _get_some_of_replicas(router, topic, some, partition, deadline)
        if got is None:
            got = await _get_some(router, topic, some, partition, deadline)
        if session:
            router.session.saw(topic, [(each.partition, each.offset) for each in got if each is not None])
        found += got
    return found


async def _get_some_of_replicas(
    router: Router, topic: str, keys: list[bytes], partition: int | None, deadline: float
) -> list[Entry | None] | None:
    rows = await lookups.rows_by_partition(router, topic, keys, partition)
    least = sorted(router.session.seen(topic).items())

    def request(some: list[int]) -> messages.MultiGet:
        return messages.MultiGet(topic, [keys[row] for row in lookups.rows_of(rows, some)], partition, least)

    answers = await ask_replicas(router, topic, rows, request, messages.MultiGot, deadline)
    if answers is None:
        return None
    return _in_rows(keys, [(lookups.rows_of(rows, some), got) for some, got in answers], partition)


async def get_columns(
    router: Router, topic: str, keys: Iterable[Text] | Binary, partition: int | None, columns: Sequence[str]
) -> ColumnBlock:
    """One block: row `i` answers key `i`. Raises InvalidRequest for a null key."""
    asked = keys if isinstance(keys, Binary) else arrow_layout.binary([key_bytes(key) for key in _several(keys)])
    if asked.validity is not None:
        raise InvalidRequest("a lookup needs a key: a column without nulls")
    wanted = blocks.check_columns(columns)
    request = messages.GetColumns(topic, asked.offsets, asked.data, partition, wanted)
    if partition is not None:
        return _columns(await router.ask(request, messages.ColumnsGot, topic, partition), request)
    if not router.known.several:
        try:
            return _columns(await router.home.ask(request, messages.ColumnsGot), request)
        except NotLeader as error:
            router.note(error)

    def of(some: list[bytes], partition: int | None = None) -> messages.GetColumns:
        column = arrow_layout.binary(some)
        return messages.GetColumns(topic, column.offsets, column.data, partition, wanted)

    rows = arrow_layout.parts(asked.offsets, asked.data)
    if not rows:
        return blocks.merged(0, [])
    deadline, backoff = router.runtime.now() + router.timeout, Backoff()
    while True:
        if await is_scattered(router, topic, deadline):
            raise PolicyViolation(
                f"'{topic}' has keys in other partitions than those that murmur2 gives them, and several brokers lead "
                "it: look them up with get_many, or name the partition"
            )
        try:
            parts = await lookups.spread(router, topic, rows, of, messages.ColumnsGot, deadline)
            break
        except OthersNeeded as error:  # a leader is not sure any more that there are no strays
            await router.look_again(topic, error, backoff, deadline)
    return blocks.merged(len(rows), [(some, _columns(got, of([rows[row] for row in some]))) for some, got in parts])


def _columns(got: messages.ColumnsGot, asked: messages.GetColumns) -> ColumnBlock:
    rows = len(asked.offsets) // 4 - 1
    if got.rows != rows:
        raise ProtocolError(f"{got.rows} rows in the answer to a lookup of {rows} keys")
    return blocks.of_answer(asked.partition or 0, got)


async def _get_some(
    router: Router,
    topic: str,
    keys: list[bytes],
    partition: int | None,
    deadline: float,
    among: int | None = None,
) -> list[Entry | None]:
    request = messages.MultiGet(topic, keys, partition, among=among)
    if partition is not None:
        got = await router.ask(request, messages.MultiGot, topic, partition, deadline=deadline)
        return _several_got(got, keys, partition)
    if not router.known.several:
        try:
            return _several_got(await router.home.ask(request, messages.MultiGot), keys, None)
        except NotLeader as error:
            router.note(error)
    try:
        if await may_scatter(router, topic, deadline):
            raise OthersNeeded
        parts = await lookups.spread(
            router, topic, keys, lambda some: messages.MultiGet(topic, some), messages.MultiGot, deadline
        )
    except OthersNeeded:
        everywhere = await lookups.everywhere(
            router, topic, deadline, lambda at, among: _get_some(router, topic, keys, at, deadline, among)
        )
        return [lookups.newest_of(key, found) for key, *found in zip(keys, *everywhere, strict=True)]
    return _in_rows(keys, parts, None)


async def get_everywhere(router: Router, topic: str, keys: Sequence[bytes]) -> list[tuple[Entry | None, ...]]:
    """For each key, its entry in each of the topic's partitions. Those of different keys may be of different times."""
    found: list[tuple[Entry | None, ...]] = []
    step = max(1, min(EVERYWHERE, KEY_BYTES // (max(map(len, keys), default=0) + 5)))
    for first in range(0, len(keys), step):
        some = list(keys[first : first + step])
        deadline = router.runtime.now() + router.timeout

        async def ask(
            at: int, among: int | None, some: list[bytes] = some, deadline: float = deadline
        ) -> list[Entry | None]:
            try:
                return await _get_some(router, topic, some, at, deadline, among)
            except RecordTooLarge:  # all keys together
                return [await _get(router, topic, key, at, None, deadline, among) for key in some]

        found += zip(*await lookups.everywhere(router, topic, deadline, ask), strict=True)
    return found


def _in_rows(
    keys: list[bytes], parts: Iterable[tuple[list[int], messages.MultiGot]], partition: int | None
) -> list[Entry | None]:
    """The entries of the keys, in their order. `parts`: (numbers of keys, the answer about them)."""
    entries: list[Entry | None] = [None] * len(keys)
    for rows, got in parts:
        for row, entry in zip(rows, _several_got(got, [keys[row] for row in rows], partition), strict=True):
            entries[row] = entry
    return entries


def _several_got(got: messages.MultiGot, keys: list[bytes], partition: int | None) -> list[Entry | None]:
    partitions = got.partitions or repeat(partition or 0)
    if len(got.entries) != len(keys) or (got.partitions and len(got.partitions) != len(keys)):
        raise ProtocolError(f"{len(got.entries)} entries in the answer to a lookup of {len(keys)} keys")
    return [
        None if found is None else _one(key, at, found)
        for key, at, found in zip(keys, partitions, got.entries, strict=False)
    ]


def _one(key: bytes, partition: int, found: Any) -> Entry:
    try:
        offset, timestamp, value, headers = found
    except (TypeError, ValueError):
        raise ProtocolError(f"{found!r:.60} is no entry") from None
    return Entry(key, value, partition, offset, timestamp, _headers(headers))


def entries(partition: int, flat: Sequence[Any]) -> list[Entry]:
    """Entries of a page, given as key, [offset, timestamp, value, headers], key, … Raises ProtocolError."""
    if not flat:
        return []
    try:
        offsets, timestamps, values, headers = zip(*flat[1::2], strict=True)
        told: Iterable[Headers] = repeat(()) if not any(headers) else map(_headers, headers)
        rows = zip(flat[::2], values, repeat(partition), offsets, timestamps, told, strict=False)
        return list(map(_entry, rows))
    except (TypeError, ValueError):
        raise ProtocolError("a page of a table that does not consist of keys and entries") from None


def _headers(headers: Any) -> Headers:
    return tuple((name, value) for name, value in headers) if headers else ()


class KeyRangeChoice:
    """Which keys: all, those with a prefix, or from `start` (inclusive) to `end` (exclusive). Raises InvalidRequest for
    a prefix together with `start` or `end`."""

    def __init__(self, prefix: Text | None, start: Text | None, end: Text | None) -> None:
        if prefix is not None and (start is not None or end is not None):
            raise InvalidRequest("give either a prefix, or a range from start to end")
        self.prefix = encoded(prefix, "prefix")
        self.start = encoded(start, "start")
        self.end = encoded(end, "end")


class KeyHistory:
    """The events of one key that the log still has, oldest first, a page at a time."""

    def __init__(self, router: Router, topic: str, key: Text, partition: int | None, start: int) -> None:
        self._router = router
        self._topic, self._key, self._partition = topic, key_bytes(key), partition
        self._next: int | None = start

    @property
    def next(self) -> int | None:
        """Where the next page begins; None: there is none."""
        return self._next

    async def page(self) -> list[Entry] | None:
        """The next entries. None: there are no more now."""
        if self._partition is None and self._router.known.several and await may_scatter(self._router, self._topic):
            raise InvalidRequest("the topic has keys in several partitions, which several brokers lead: say which")
        while self._next is not None:
            request = messages.History(self._topic, self._key, self._partition, self._next)
            found = await self._router.ask(request, messages.HistoryFound, self._topic, self._partition, self._key)
            self._next = found.next_offset
            if found.entries:
                return [_one(self._key, found.partition, each) for each in found.entries]
        return None
