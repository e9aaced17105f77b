"""`order = "key"`: which events must wait for an earlier one of their key.

For each key, the first unsettled events are leased, all to one member; the others wait behind them in the order of the
log. The first waiting one is open (may be leased) once none of its key is leased; later ones may be added to the same
lease. So events of a key are never with two members at a time, and nobody gets an event before the earlier ones of its
key are settled or leased to the same member. When an event goes back, later leased events of its key go back with it;
else its redelivery would break the order. Events without a key are always open.

Keys are tokens here: any hashable value. The broker uses a hash of the key; two keys with one hash merely wait for
each other.

A member mostly gets all fresh events of a read, and settles them in their order. They are kept as one block, whose
events are looked at one by one only when something else happens to one of them, or when another event has one of their
keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain as chained
from itertools import islice

from krappy.core.runs import Span

BLOCKS = 16  # at most, because every lease and every ack looks at all of them


class _Chain:
    """The unsettled events of one key, ascending; each of `waiting` is above all of `leased`."""

    __slots__ = ("leased", "waiting")

    def __init__(self, leased: list[int], waiting: list[int]) -> None:
        self.leased = leased
        self.waiting = waiting


class _Block:
    """Leased events: all from `low` on that are in the spans, which ascend. `keys`: the keys of all events of the
    spans; the first `settled` of these events are gone. `distinct`: the set of these keys, without None."""

    __slots__ = ("_gone", "_spans", "distinct", "high", "keys", "low", "settled")

    def __init__(self, spans: Sequence[Span], keys: Sequence[Hashable | None], distinct: set[Hashable]) -> None:
        self._spans = spans
        self._gone = 0  # how many spans are gone; not removed, for a log with gaps may have a span for each event
        self.keys = keys
        self.distinct = distinct
        self.settled = 0
        self.low, self.high = spans[0][0], spans[-1][1]

    @property
    def spans(self) -> list[Span]:
        return [(max(first, self.low), last) for first, last in islice(self._spans, self._gone, None)]

    def cut(self, last: int) -> None:
        """Takes away what it has up to `last`, which is below `high`."""
        while last >= self._spans[self._gone][1]:
            self.settled += self._spans[self._gone][1] - self.low + 1
            self._gone += 1
            self.low = self._spans[self._gone][0]
        if last >= self.low:
            self.settled += last + 1 - self.low
            self.low = last + 1


class KeyOrder:
    """`known`: the offset below which all events' keys are known. `open`: the offsets that may be leased now."""

    def __init__(self, known: int) -> None:
        self.known = known
        self.open: set[int] = set()
        self._blocks: list[_Block] = []  # the fields below do not have their events
        self._keys: dict[int, Hashable] = {}  # offset -> key, of each unsettled event with a key
        self._alone: dict[Hashable, int] = {}  # by key, its only event, which is leased: most keys have no chain
        self._chains: dict[Hashable, _Chain] = {}
        self._held_back: set[int] = set()  # waiting, but delayed or dead: not to be leased, whatever its key

    def arrive(
        self, spans: Sequence[Span], keys: Sequence[Hashable | None], left: int, room: int, mine: set[Hashable]
    ) -> tuple[list[int], int | None]:
        """Adds up to `room` fresh events, above all known ones, and leases up to `left` of them to a member, which was
        just leased events of the keys `mine`. `keys`: the key of each event of the spans.

        Returns the offsets of those that wait, and the offset of the first event that it did not take, because no more
        may be leased or there is no more room; None: it took them all."""
        few = len(self._blocks) < BLOCKS
        if few and len(keys) <= min(left, room) and self._leased_as_block(spans, keys, mine):
            return [], None
        self._unfold()
        events = zip(offsets_of(spans), keys, strict=True)
        waiting, stop = self._arrive(islice(events, max(0, room)), left, mine)
        return waiting, next((offset for offset, _ in events), None) if stop is None else stop

    def _leased_as_block(self, spans: Sequence[Span], keys: Sequence[Hashable | None], mine: set[Hashable]) -> bool:
        """Leases these events together. False, with nothing done, if there are none, or one may have to wait."""
        distinct = set(keys)
        distinct.discard(None)
        if not (spans and self._alone.keys().isdisjoint(distinct) and self._chains.keys().isdisjoint(distinct)):
            return False
        if not all(block.distinct.isdisjoint(distinct) or block.distinct <= mine for block in self._blocks):
            return False
        self._blocks.append(_Block(spans, keys, distinct))
        mine |= distinct
        self.known = spans[-1][1] + 1
        return True

    def _unfold(self) -> None:
        """Keeps the events of blocks as others are kept: one by one."""
        blocks, self._blocks = self._blocks, []
        known = self.known
        for block in blocks:
            keys = block.keys[block.settled :]
            self._arrive(zip(offsets_of(block.spans), keys, strict=True), len(keys), set(block.distinct))
        self.known = known

    def _arrive(
        self, events: Iterable[tuple[int, Hashable | None]], left: int, mine: set[Hashable]
    ) -> tuple[list[int], int | None]:
        keys, alone, chains = self._keys, self._alone, self._chains
        waiting: list[int] = []
        offset = self.known - 1
        for offset, key in events:
            if not left:
                self.known = offset
                return waiting, offset
            if key is None:
                left -= 1
                continue
            keys[offset] = key
            chain = chains.get(key)
            if chain is None:
                if key not in alone:
                    alone[key] = offset
                    mine.add(key)
                    left -= 1
                    continue
                chain = self._chain(key)
            if chain.waiting or key not in mine:
                chain.waiting.append(offset)
                waiting.append(offset)
            else:
                chain.leased.append(offset)
                left -= 1
        self.known = offset + 1
        return waiting, None

    def _chain(self, key: Hashable) -> _Chain:
        """The chain of a key that has events."""
        if (offset := self._alone.pop(key, None)) is not None:
            self._chains[key] = _Chain([offset], [])
        return self._chains[key]

    def add(self, offset: int, key: Hashable | None, *, held_back: bool = False) -> None:
        """Adds a waiting event, above all known ones. `held_back`: it is delayed or dead."""
        self._unfold()
        if held_back:
            self._held_back.add(offset)
        self.known = offset + 1
        if key is None:
            self._open_unless_held(offset)
            return
        self._keys[offset] = key
        if key in self._chains or key in self._alone:
            self._chain(key).waiting.append(offset)
        else:
            self._chains[key] = _Chain([], [offset])
            self._open_unless_held(offset)

    def lease(self, offset: int) -> None:
        """Marks an event as leased. It must be open, or the next of its key (`is_next`)."""
        self.open.discard(offset)
        key = self._keys.get(offset)
        if key is not None:
            chain = self._chain(key)
            chain.leased.append(chain.waiting.pop(0))

    def is_next(self, offset: int, key: Hashable) -> bool:
        """Whether the event is the first waiting one of its key, and not held back itself."""
        chain = self._chains.get(key)
        return (
            chain is not None and bool(chain.waiting) and chain.waiting[0] == offset and offset not in self._held_back
        )

    def give_back(self, offsets: Iterable[int]) -> list[int]:
        """Makes leased events wait again, and with each the later leased ones of its key. Returns these others,
        ascending."""
        self._unfold()
        given = set(offsets)
        lowest: dict[Hashable, int] = {}
        for offset in given:
            key = self._keys.get(offset)
            if key is None:
                self._open_unless_held(offset)
            elif offset < lowest.get(key, offset + 1):
                lowest[key] = offset
        others: list[int] = []
        for key, low in lowest.items():
            chain = self._chain(key)
            back = [offset for offset in chain.leased if offset >= low]
            chain.leased = [offset for offset in chain.leased if offset < low]
            if chain.waiting:
                self.open.discard(chain.waiting[0])
            chain.waiting[:0] = back
            self._open_head(chain)
            others += [offset for offset in back if offset not in given]
        return sorted(others)

    def hold_back(self, offset: int) -> None:
        """Marks an event as delayed or dead: neither it nor later ones of its key may be leased."""
        if offset < self.known:
            self._held_back.add(offset)
            self.open.discard(offset)

    def free(self, offset: int) -> None:
        """Undoes `hold_back`."""
        if offset in self._held_back:
            self._held_back.discard(offset)
            key = self._keys.get(offset)
            if key is None:
                self.open.add(offset)
            else:
                self._open_head(self._chain(key))

    def settle(self, first: int, last: int) -> None:
        """Removes the events `first` to `last`, which are settled, whatever their state."""
        kept = []
        for block in self._blocks:
            if last < block.low or block.high < first:
                kept.append(block)
            elif block.low < first:  # the settled events begin within the block
                self._unfold()
                break
            elif last < block.high:
                block.cut(last)
                kept.append(block)
        else:
            self._blocks = kept
        keys, alone, chains = self._keys, self._alone, self._chains
        for offset in range(first, last + 1) if keys else ():
            key = keys.pop(offset, None)
            if key is None or alone.pop(key, None) is not None:
                continue
            chain = chains[key]
            if chain.waiting and offset >= chain.waiting[0]:
                chain.waiting.remove(offset)
            else:
                chain.leased.remove(offset)
            if not chain.leased:
                if chain.waiting:
                    self._open_unless_held(chain.waiting[0])
                else:
                    del chains[key]
        if self.open:
            self.open.difference_update(range(first, last + 1))
        if self._held_back:
            self._held_back.difference_update(range(first, last + 1))

    def _open_head(self, chain: _Chain) -> None:
        if chain.waiting and not chain.leased:
            self._open_unless_held(chain.waiting[0])

    def _open_unless_held(self, offset: int) -> None:
        if offset not in self._held_back:
            self.open.add(offset)


def offsets_of(spans: Sequence[Span]) -> Iterator[int]:
    return chained.from_iterable(range(first, last + 1) for first, last in spans)
