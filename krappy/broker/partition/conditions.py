"""Conditional writes: the conditions of a batch are decided by the view, in the drain that writes the batch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from krappy.broker.partition.elsewhere import Elsewhere, look
from krappy.broker.partition.hashing import look_for_strays
from krappy.broker.partition.pending import Pending
from krappy.broker.partition.undecided import UNDECIDED
from krappy.broker.partition.viewed import Viewed
from krappy.entries.entry import entry_offset, is_tombstone
from krappy.errors import KrappyError, NotEnoughReplicas, OffsetMismatch, RequestTimeout, TransactionPending
from krappy.partitioner import any_elsewhere
from krappy.records.batch import TRANSACTIONAL, Columns
from krappy.types import ABSENT

MAX_TOLD = 100  # the most records that an error lists


class Conditions:
    def __init__(self, viewed: Viewed) -> None:
        self._viewed = viewed

    @asynccontextmanager
    async def judged(self, items: list[Pending]) -> AsyncIterator[Judge]:
        """Gives a judge for these items; the body writes what it accepts. During the body the views have everything
        that was written before. If they never will, items with conditions are rejected and removed from `items`."""
        viewed = self._viewed
        strays, count = viewed.strays, viewed.strays.count
        # It looks for strays before it waits, and only once: as long as it waits, other partitions' writes may make
        # more.
        with viewed.applier.strays.until_closing():
            astray = count > 1 and await look_for_strays(_keys(items), count, viewed.index)
        if not (strays or astray):
            await self._prepare(items)
        if strays.count != count:
            astray = any_elsewhere(_keys(items), strays.count, viewed.index)
        keys = _keys(items) if strays or astray else []  # again: a key may have become a stray
        if not keys:
            yield Judge(viewed)
            return
        async with viewed.strays.conditions:
            yield Judge(viewed, await self._prepare(items, keys))
            with suppress(NotEnoughReplicas):  # its writers have been told
                await viewed.settled()

    async def _prepare(self, items: list[Pending], keys: Collection[bytes] = ()) -> Elsewhere | None:
        """Waits until the view has everything that was written before. If it never will, items with conditions are
        rejected and removed from `items`. Gives what other partitions have of `keys`, if there are keys."""
        try:
            await self._viewed.settled()
            while True:
                await self._viewed.applier.caught_up()
                await self._viewed.undecided.refresh()
                if self._viewed.view_ready(None):
                    break  # else a deletion of records has moved the last stable offset
            if keys:
                return await look(self._viewed, keys)
        except KrappyError as error:
            for item in items:
                if item.expect:
                    item.reject(error)
            items[:] = [item for item in items if not item.expect]
        return None


def _keys(items: list[Pending]) -> list[bytes]:
    """The keys of all conditions."""
    found: list[bytes] = []
    for item in items:
        if item.expect:
            keys = item.records.keys
            found += [key for row, _ in item.expect if (key := keys[row]) is not None]
    return found


class Judge:
    """Decides the conditions of one drain's batches by the view and, with `elsewhere`, by other partitions' views."""

    def __init__(self, viewed: Viewed, elsewhere: Elsewhere | None = None) -> None:
        self._viewed = viewed
        self._elsewhere = elsewhere
        self._overlay: dict[bytes, int] = {}  # what this drain has written: key -> offset, ABSENT, or UNDECIDED

    def check(self, item: Pending, base_offset: int) -> None:
        """Decides a batch's conditions. `base_offset`: the offset that the batch would get.

        Raises OffsetMismatch, ViewDisabled, NotLeader without a lease, and TransactionPending for a key that was
        written at or after the last stable offset, so that the view does not have it.
        """
        viewed, elsewhere, expect = self._viewed, self._elsewhere, item.expect
        if not expect:
            return
        if not viewed.is_sure:  # the key may stand in a partition that was added
            raise viewed.unsure()
        if not viewed.view_ready(None):  # it was waited for, and nothing has been appended since
            raise RequestTimeout(f"the view of {viewed} was begun anew just now; try again")
        columns = item.records
        for index, _ in expect:
            key = columns.keys[index]
            if key is not None and (self._overlay.get(key) == UNDECIDED or viewed.undecided.holds(key)):
                raise TransactionPending(
                    f"{viewed}: the key was written since a transaction began that is not decided yet; try again",
                    index=index,
                )
        look_up = viewed.look_up
        if elsewhere is not None:
            elsewhere.check(columns, expect, self._overlay)
            look_up = partial(elsewhere.here, viewed)
        check_expected(columns, expect, self._overlay, look_up, base_offset)
        if elsewhere is not None:
            elsewhere.check_overtaking(viewed, columns, expect)

    def accepted(self, item: Pending, base_offset: int) -> None:
        """Notes the keys of a batch that is to be written at this offset."""
        if item.header.is_control:
            return
        written, decided = item.records, not item.header.attributes & TRANSACTIONAL
        for index, key in enumerate(written.keys):
            if key is not None and self._overlay.get(key) != UNDECIDED:
                last = ABSENT if written.values[index] is None else base_offset + index
                self._overlay[key] = last if decided else UNDECIDED


def check_expected(
    columns: Columns,
    expect: Sequence[tuple[int, int]],
    overlay: Mapping[bytes, int],
    look_up: Callable[[bytes], bytes | None],
    base_offset: int,
) -> None:
    """Raises OffsetMismatch when a key is not at the offset that its writer expects.

    `overlay`: the offsets of keys that this drain wrote before; `look_up` reads the view, which has all else. Earlier
    records of the same batch count as written. A deleted key matches both ABSENT and its tombstone's offset. The error
    names the first mismatch, and others in its details, each as [index, text, current].
    """
    keys, values = columns.keys, columns.values
    before: dict[bytes, int] = {}  # written by earlier records of this batch
    seen = 0
    wrong: list[tuple[int, str, int | None]] = []
    for index, wanted in sorted(expect):
        for at in range(seen, index):
            held = keys[at]
            if held is not None:
                before[held] = ABSENT if values[at] is None else base_offset + at
        seen = index
        key = keys[index]
        assert key is not None
        current = before.get(key, overlay.get(key))
        if current is not None:
            allowed = {current}
        else:
            try:
                entry = look_up(key)
            except OffsetMismatch as error:
                wrong.append((index, error.text, error.details.get("current")))
                continue
            current = ABSENT if entry is None or is_tombstone(entry) else entry_offset(entry)
            allowed = {current} if entry is None else {current, entry_offset(entry)}
        if wanted not in allowed:
            what = "absent" if current == ABSENT else f"at offset {current}"
            hoped = "absent" if wanted == ABSENT else f"at offset {wanted}"
            wrong.append((index, f"the key was expected {hoped} and is {what}", None if current == ABSENT else current))
    if wrong:
        index, text, found = wrong[0]
        others = {"others": [list(each) for each in wrong[1:MAX_TOLD]]} if len(wrong) > 1 else {}
        raise OffsetMismatch(text, current=found, index=index, **others)
