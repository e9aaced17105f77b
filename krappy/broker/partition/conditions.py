"""Conditional writes: what a batch expects of its keys, decided by the view, within the drain that is to write it."""

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

MAX_TOLD = 100  # records of a batch that an error tells of


class Conditions:
    def __init__(self, viewed: Viewed) -> None:
        self._viewed = viewed

    def keys_elsewhere(self, items: list[Publish | Loose]) -> list[bytes]:
        """The keys that conditions are about, if other partitions may have them, too."""
        strays, index = self._viewed.strays, self._viewed.index
        found: list[bytes] = []
        if strays.count > 1:
            for item in items:
                if isinstance(item, Publish) and item.expect:
                    keys = (item.columns or batches.decode(item.data)).keys
                    found += [key for row, _ in item.expect if (key := keys[row]) is not None]
        return found if strays or any_elsewhere(found, strays.count, index) else []

    async def prepare(self, items: list[Publish | Loose], keys: Collection[bytes] = ()) -> Elsewhere | None:
        """A condition is decided by the view, which must hold everything that was written before. Where it never will,
        those with a condition are refused, and no others. What other partitions have of `keys`, if there are any."""
        conditional = [item for item in items if isinstance(item, Publish) and item.expect]
        if not conditional:
            return None
        try:
            await self._viewed.commit.settled()
            while True:
                await self._viewed.applier.caught_up()
                await self._viewed.undecided.refresh()
                if self._viewed.view_ready(None):
                    break  # else a deletion of records has moved what is stable
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
        """Raises OffsetMismatch, or ViewDisabled: a condition is decided by the view; `elsewhere`: and by others'.

        TransactionPending for a key that has been written behind the last stable offset, which the view has not yet.
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
    """Raises OffsetMismatch when a key is not where its writer believes it to be.

    `overlay` holds what this very drain wrote before; `look_up` reads the view, which has all else. What stands in the
    batch before a record counts as written before it. A deleted key is absent, and also stands at its tombstone's
    offset. The error tells of the first such record, and of others in its details.
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
