"""Conditional writes on keys that may be strays (strays.py): what the topic's other partitions have of these keys.

Before such conditions are decided, the views have everything that was acknowledged in any partition. In a topic, such
conditions are decided for one drain at a time, and its accepted events are readable before the next one's are decided.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import trio

from krappy.broker.partition.newest import is_newer, newest
from krappy.broker.partition.viewed import Viewed
from krappy.entries.entry import VALUE_AT, entry_offset, entry_timestamp, is_tombstone
from krappy.errors import OffsetMismatch, PolicyViolation, RequestTimeout, TransactionPending
from krappy.records.batch import Columns

SLICE = 64  # keys looked up together
HEAD = VALUE_AT + 1  # bytes of an entry before its value, and one byte more, which tells a tombstone


class Elsewhere(NamedTuple):
    """What other partitions have. `newest`: by key, the first HEAD bytes of its newest entry there, and the partition.
    `homes`: the partitions that murmur2 gives these keys. `undecided`: keys that an open transaction has written
    there."""

    newest: dict[bytes, tuple[bytes, int]]
    homes: dict[bytes, int]
    undecided: set[bytes]

    def check(self, columns: Columns, expect: Sequence[tuple[int, int]], overlay: Collection[bytes]) -> None:
        """Raises TransactionPending for a condition that can't be decided now. `overlay`: keys written just before."""
        seen: set[bytes | None] = set()
        at = 0
        for index, _ in sorted(expect):
            seen.update(columns.keys[at:index])
            at = index
            key = columns.keys[index]
            if key in self.undecided:
                raise TransactionPending(
                    "the key was written since a transaction began that is not decided yet; try again", index=index
                )
            if key in self.newest and (key in seen or key in overlay):
                raise TransactionPending(
                    "the key was written just before, and another partition has it, too", index=index
                )

    def here(self, partition: Viewed, key: bytes) -> bytes | None:
        """The entry in this partition by which a condition is decided. None if another partition has a newer tombstone.

        Raises OffsetMismatch if another partition has a newer value.
        """
        entry, other = partition.look_up(key), self.newest.get(key)
        if other is None:
            return entry
        its, at = other
        if entry is not None and is_newer(entry, partition.index, its, at, self.homes[key]):
            return entry
        if is_tombstone(its):
            return None
        offset = entry_offset(its)
        raise OffsetMismatch(
            f"the key's newest event stands in another partition, {at}, at offset {offset}: write to that one",
            current=offset,
        )

    def check_overtaking(self, partition: Viewed, columns: Columns, expect: Sequence[tuple[int, int]]) -> None:
        """Raises OffsetMismatch for an event that would not be its key's newest, since another partition has a later
        one: the table would ignore it, and another write with the same condition would be accepted too.
        """
        for index, _ in expect:
            key = columns.keys[index]
            other = None if key is None else self.newest.get(key)
            if key is None or other is None:
                continue
            its, at = other
            time = partition.now_ms() if partition.config.log_append_time else columns.timestamps[index]
            home = self.homes[key]
            if (time, partition.index == home, partition.index) < (entry_timestamp(its), at == home, at):
                raise OffsetMismatch(
                    f"the key's event in another partition, {at}, at offset {entry_offset(its)}, is later by its time, "
                    "so the table would ignore this one: write to that partition, or later",
                    current=None if is_tombstone(its) else entry_offset(its),
                    index=index,
                )


async def look(partition: Viewed, keys: Collection[bytes]) -> Elsewhere:
    """Looks up these keys in the other partitions. The result has all that was acknowledged. Raises why that can't be
    known."""
    partition.view_ready(0)
    strays = partition.strays
    _check_here(partition)
    partition.applier.strays.expect()
    others = strays.others(partition)
    folding = [other.applier for other in others]
    undecided: set[bytes] = set()
    for other in others:
        # Waits for writes that were decided there without a look at this partition, when no strays were known.
        await other.written()
        other.view_ready(0)  # raises if the partition is closed, or has no view
        await other.applier.caught_up()
        await other.undecided.refresh()
        undecided.update(filter(other.undecided.holds, keys))
    _check_here(partition)  # else another leader may have acknowledged what the views here lack
    found: dict[bytes, tuple[bytes, int]] = {}
    homes: dict[bytes, int] = {}
    distinct = list(dict.fromkeys(keys))
    start = 0
    while start < len(distinct):
        some = distinct[start : start + SLICE]
        where, entries = await newest(others, some, trio.lowlevel.checkpoint, strays.count, homes)
        for key, index, entry in zip(some, where, entries, strict=False):
            if entry is not None:
                found[key] = entry[:HEAD], index
        start += len(entries)
        await trio.lowlevel.checkpoint()
    for other, applier in zip(others, folding, strict=True):
        other.view_ready(0)
        if other.applier is not applier:
            raise RequestTimeout(f"the view of {other} was begun anew just now; try again")
    return Elsewhere(found, homes, undecided)


def _check_here(partition: Viewed) -> None:
    """Raises PolicyViolation unless this broker leads all partitions of the topic. Raises NotLeader instead, so that
    the sender tries again, if this may change soon: after its start a broker does not know yet whether there are
    strays; or no other broker leads the missing partitions, since this one is about to take another's place."""
    strays = partition.strays
    if not strays.all_here:
        if (strays and not strays.are_known) or not (strays.mark and strays.mark.is_split):
            raise partition.unsure()
        raise PolicyViolation(
            f"'{partition.topic}' may have keys in other partitions than those that murmur2 gives them, and several "
            "brokers lead it: then no broker can decide a condition on a key"
        )
