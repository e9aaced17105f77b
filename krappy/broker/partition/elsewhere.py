"""What the other partitions of a topic have of keys that conditions in one partition are about (strays.py).

Before such conditions are decided, whatever was acknowledged anywhere is in the views. They are decided one at a time
in a topic, and what was accepted is readable before the next one is: so none is decided on what another one changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import trio

from krappy.broker.partition.newest import is_newer, newest
from krappy.broker.partition.viewed import Viewed
from krappy.entries.entry import VALUE_AT, entry_offset, entry_timestamp, is_tombstone
from krappy.errors import OffsetMismatch, RequestTimeout, TransactionPending
from krappy.partitioner import partition_for
from krappy.records.batch import Columns

SLICE = 64  # keys looked up together
HEAD = VALUE_AT + 1  # bytes of an entry that tell all but its value


class Elsewhere(NamedTuple):
    """`newest`: by key, the newest entry elsewhere, its head alone, and its partition. `undecided`: keys that an open
    transaction has written elsewhere."""

    newest: dict[bytes, tuple[bytes, int]]
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
                    "the key was written beside a transaction that is not decided yet; try again", index=index
                )
            if key in self.newest and (key in seen or key in overlay):
                raise TransactionPending("the key was written just before, and stands elsewhere, too", index=index)

    def here(self, partition: Viewed, key: bytes) -> bytes | None:
        """The entry in this partition that a condition is decided by; None where a tombstone elsewhere is newer.

        Raises OffsetMismatch where a value elsewhere is.
        """
        entry, other = partition.look_up(key), self.newest.get(key)
        if other is None:
            return entry
        its, at = other
        home = partition_for(key, partition.strays.count)
        if entry is not None and is_newer(entry, partition.index, its, at, home):
            return entry
        if is_tombstone(its):
            return None
        offset = entry_offset(its)
        raise OffsetMismatch(
            f"the key's newest event stands in another partition, {at}, at offset {offset}: write to that one",
            current=offset,
        )

    def check_overtaking(self, partition: Viewed, columns: Columns, expect: Sequence[tuple[int, int]]) -> None:
        """Raises OffsetMismatch for an event that would not be the newest of its key, since one that another partition
        has of it is later: by the table it would not have been written, and who expects the same would be let in, too.
        """
        for index, _ in expect:
            key = columns.keys[index]
            other = None if key is None else self.newest.get(key)
            if key is None or other is None:
                continue
            its, at = other
            time = partition.now_ms() if partition.config.log_append_time else columns.timestamps[index]
            home = partition_for(key, partition.strays.count)
            if (time, partition.index == home, partition.index) < (entry_timestamp(its), at == home, at):
                raise OffsetMismatch(
                    f"the key's event in another partition, {at}, at offset {entry_offset(its)}, is later by its time, "
                    "so the table would take no notice of this one: write to that partition, or later",
                    current=None if is_tombstone(its) else entry_offset(its),
                    index=index,
                )


async def look(partition: Viewed, keys: Collection[bytes]) -> Elsewhere:
    """All that is acknowledged counts. Raises why it can't be known."""
    partition.view_ready(0)
    strays = partition.strays
    partition.applier.strays.expect()
    others = strays.others(partition)
    folding = [other.applier for other in others]
    undecided: set[bytes] = set()
    for other in others:
        # What was decided while none was astray, without a look at this partition, is in the log now, soon readable.
        await other.written()
        other.view_ready(0)  # raises what has become of it
        await other.applier.caught_up()
        await other.undecided.refresh()
        undecided.update(filter(other.undecided.holds, keys))
    found: dict[bytes, tuple[bytes, int]] = {}
    distinct = list(dict.fromkeys(keys))
    start = 0
    while start < len(distinct):
        some = distinct[start : start + SLICE]
        where, entries = await newest(others, some, trio.lowlevel.checkpoint, strays.count)
        for key, index, entry in zip(some, where, entries, strict=False):
            if entry is not None:
                found[key] = entry[:HEAD], index
        start += len(entries)
        await trio.lowlevel.checkpoint()
    for other, applier in zip(others, folding, strict=True):
        other.view_ready(0)
        if other.applier is not applier:
            raise RequestTimeout(f"the view of {other} was begun anew just now; try again")
    return Elsewhere(found, undecided)
