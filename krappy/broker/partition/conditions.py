"""Conditional writes: the conditions of a batch are decided by the view, in the drain that writes the batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from krappy.broker.partition.elsewhere import Elsewhere, look
from krappy.broker.partition.queued import Loose, Publish
from krappy.broker.partition.undecided import UNDECIDED
from krappy.broker.partition.viewed import Viewed
from krappy.entries.entry import entry_offset, is_tombstone
from krappy.errors import KrappyError, OffsetMismatch, RequestTimeout, TransactionPending
from krappy.partitioner import any_elsewhere
from krappy.records import batch as batches
from krappy.records.batch import Columns
from krappy.types import ABSENT

MAX_TOLD = 100  # the most records that an error lists


class Conditions:
    def __init__(self, viewed: Viewed) -> None:
        self._viewed = viewed

    def keys_elsewhere(self, items: list[Publish | Loose]) -> list[bytes]:
        """The keys of all conditions, if other partitions may have entries of them; else none."""
        strays, index = self._viewed.strays, self._viewed.index
        found: list[bytes] = []
        if strays.count > 1:
            for item in items:
                if isinstance(item, Publish) and item.expect:
                    keys = (item.columns or batches.decode(item.data)).keys
                    found += [key for row, _ in item.expect if (key := keys[row]) is not None]
        return found if strays or any_elsewhere(found, strays.count, index) else []

    async def prepare(self, items: list[Publish | Loose], keys: Collection[bytes] = ()) -> Elsewhere | None:
        """Waits until the view has everything that was written before. If it never will, items with conditions are
        rejected and removed from `items`. Gives what other partitions have of `keys`, if there are keys."""
        conditional = [item for item in items if isinstance(item, Publish) and item.expect]
        if not conditional:
            return None
        try:
            await self._viewed.commit.settled()
            while True:
                await self._viewed.applier.caught_up()
                await self._viewed.undecided.refresh()
                if self._viewed.view_ready(None):
                    break  # else a deletion of records has moved the last stable offset
            if keys:
                return await look(self._viewed, keys)
        except KrappyError as error:
            for item in conditional:
                item.reject(error)
            items[:] = [item for item in items if item not in conditional]
        return None

    def check(
        self,
        columns: Columns,
        expect: Sequence[tuple[int, int]],
        overlay: dict[bytes, int],
        base_offset: int,
        elsewhere: Elsewhere | None,
    ) -> None:
        """Decides a batch's conditions by the view and, with `elsewhere`, by other partitions' views.

        Raises OffsetMismatch, ViewDisabled, and TransactionPending for a key that was written at or after the last
        stable offset, so that the view does not have it.
        """
        viewed = self._viewed
        if expect and not viewed.view_ready(None):  # it was waited for, and nothing has been appended since
            raise RequestTimeout(f"the view of {viewed} was begun anew just now; try again")
        for index, _ in expect:
            key = columns.keys[index]
            if key is not None and (overlay.get(key) == UNDECIDED or viewed.undecided.holds(key)):
                raise TransactionPending(
                    f"{viewed}: the key was written beside a transaction that is not decided yet; try again",
                    index=index,
                )
        look_up = viewed.look_up
        if elsewhere is not None:
            elsewhere.check(columns, expect, overlay)
            look_up = partial(elsewhere.here, viewed)
        check_expected(columns, expect, overlay, look_up, base_offset)
        if elsewhere is not None:
            elsewhere.check_overtaking(viewed, columns, expect)


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
    names the first mismatch, and others in its details.
    """
    keys, values = columns.keys, columns.values
    before: dict[bytes, int] = {}  # of this batch
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
            entry = look_up(key)
            current = ABSENT if entry is None or is_tombstone(entry) else entry_offset(entry)
            allowed = {current} if entry is None else {current, entry_offset(entry)}
        if wanted not in allowed:
            what = "absent" if current == ABSENT else f"at offset {current}"
            hoped = "absent" if wanted == ABSENT else f"at offset {wanted}"
            wrong.append((index, f"the key was expected {hoped} and is {what}", None if current == ABSENT else current))
    if wrong:
        index, text, found = wrong[0]
        others = {"others": [list(each[:2]) for each in wrong[1:MAX_TOLD]]} if len(wrong) > 1 else {}
        raise OffsetMismatch(text, current=found, index=index, **others)
