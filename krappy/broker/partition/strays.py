"""Strays: keys that stand in another partition than the one that murmur2 gives them now.

Producers with another partitioner (librdkafka's default is CRC32), producers that choose partitions themselves and
partitions that were added leave them behind. A key may then stand in several partitions. Its newest entry is the one
with the highest timestamp; of equal ones that in the key's own partition, else that in the highest.

While no key of a topic is astray, a key is looked for in its own partition alone. While one is, or while that is not
known, all partitions are asked. So what is known errs to one side only:

- A view keeps, beside its applied offset and in the same write, among how many partitions its keys were judged, and
  whether one of them is astray. A view of before, and every view whose topic got partitions, is looked through again.
- Keys are judged when their events become readable, before anybody may ask for them; events whose keys are not at hand
  then, as those of transactions, when they are applied, and until that is done nothing is known.
- A view with strays judges no more keys. It is looked through again when compaction or a sweep has taken keys out of
  it; that ends at the first stray.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import trio

from krappy.errors import KrappyError
from krappy.partitioner import any_elsewhere
from krappy.records.batch import TRANSACTIONAL
from krappy.store.keys import PREFIX_SIZE, view_end, view_prefix

if TYPE_CHECKING:
    from krappy.broker.partition.queued import Accepted
    from krappy.broker.partition.replica import Replica

P = TypeVar("P", bound="Replica")

AT_ONCE = 500  # keys judged at a stretch,
LEAST, BYTES = 16, 256 << 10  # or as many as have so many bytes


class Strays(Generic[P]):
    """What is known of a topic's partitions."""

    def __init__(self, partitions: Mapping[int, P]) -> None:
        """`partitions`: those of the topic, by index, as they are at any time."""
        self.partitions = partitions
        self.views: dict[int, ViewStrays] = {}  # what is known of each of their views
        self.count = 0  # partitions among which keys are judged; 0: none yet
        self.unsure: set[int] = set()  # partitions that may have strays
        self.switching = False  # some have a view and others do not: they are turned on or off, one after the other
        self.conditions = trio.Lock()  # held while conditions are decided that look at several partitions

    def __bool__(self) -> bool:
        """Whether a key may stand in another partition than its own."""
        return (bool(self.unsure) or self.switching) and self.count > 1

    def others(self, partition: Replica) -> list[P]:
        return [each for each in self.partitions.values() if each is not partition]

    def begin(self) -> None:
        """All partitions that there are now count from now on."""
        self.count = len(self.partitions)
        for view in self.views.values():
            view.judge()


class ViewStrays:
    """What is known of one view."""

    def __init__(self, replica: Replica, topic: Strays[Any], applied: int) -> None:
        """`applied`: the offset at which folding goes on."""
        self._replica = replica
        self._topic = topic
        topic.views[replica.index] = self
        self.closing = False  # the broker stops, and nobody wants to know any more
        self._kept = replica.views.strays(replica.number) if replica.config.view else None
        self._some: bool | None = None  # None: nobody knows
        self._judged = applied  # keys of events below are, unless there are strays anyway
        self._applied = applied
        self._count = 0
        self._counting = self._met = False
        self._stale = False  # keys have left the view since it was looked through
        if self._topic.count:
            self.judge()

    def judge(self) -> None:
        """As many partitions as the topic has now."""
        replica, count = self._replica, self._topic.count
        if count == self._count:
            return
        self._count = count
        if not replica.config.view or count == 1:
            self._some = False
        elif self._kept is not None and self._kept[0] == count:
            self._some = self._kept[1]
        elif not replica.views.applied(replica.number) and not self._topic.conditions.locked() and not replica.busy:
            self._some, self._judged = False, self._applied
        else:
            self._some = None
            self.tend()
        self._tell()

    def _tell(self) -> None:
        if self._count <= 1:
            return  # nobody asks
        replica, unsure = self._replica, self._topic.unsure
        if self._some is not False or (replica.config.view and self._judged < replica.last_stable_offset):
            unsure.add(replica.index)
        else:
            unsure.discard(replica.index)

    def committed(self, accepted: Sequence[Accepted]) -> None:
        """These have just become readable."""
        if self._some and not self._counting:
            return
        for item in accepted:
            if item.offset != self._judged or item.columns is None or item.header.attributes & TRANSACTIONAL:
                break
            self._look(item.columns.keys)
            self._judged = item.end
        self._tell()

    def applying(self, keys: Collection[bytes], applied: int) -> tuple[int, bool] | None:
        """These keys are about to be applied, up to this offset. What the view is to keep."""
        if applied > self._judged:
            self._look(list(keys))
        return None if self._count <= 1 or self._some is None else (self._count, self._some)

    def applied(self, upto: int) -> None:
        """All below this offset has been applied."""
        self._applied = upto
        if upto > self._judged:
            self._judged = upto
        self._tell()

    def _look(self, keys: Sequence[bytes | None]) -> None:
        if (self._some and not self._counting) or self._count <= 1:
            return
        known = keys if None not in keys else [key for key in keys if key is not None]
        for start in range(0, len(known), AT_ONCE):
            some = cast("Sequence[bytes]", known[start : start + AT_ONCE])
            if any_elsewhere(some, self._count, self._replica.index):
                self._some = self._met = True
                break

    def expect(self) -> None:
        """One is about to be written, perhaps."""
        self._some = self._stale = True
        self._tell()

    def taken_out(self) -> None:
        """Keys have left the view."""
        self._stale = True
        self.tend()

    def tend(self) -> None:
        """Looks through the view, if there is something to be known."""
        if not self._counting and self._count > 1 and (self._some is None or (self._some and self._stale)):
            self._counting = True
            self._replica.spawn(self._look_through)

    async def _look_through(self) -> None:
        replica = self._replica
        try:
            while self._counting:
                count = self._count
                async with replica.counting:
                    found = await self._any()
                await replica.written()  # what was decided among fewer partitions
                async with self._topic.conditions:  # what is expected is there then, and was met, or it does not come
                    if count == self._count:
                        self._counting = False
                        self._some = found or self._met
        except KrappyError as error:  # it stays as it is; what is unknown is looked at again
            if replica.gone is None and not self.closing:
                replica.report("strays_unknown", error)
        finally:
            self._counting = False
        self._tell()

    async def _any(self) -> bool:
        """Whether any key of the view is astray."""
        replica, count = self._replica, self._count
        number = replica.number
        self._met = self._stale = False
        self._judged = self._applied  # what is applied from now on is judged, too
        self._tell()
        at, end, step = view_prefix(number), view_end(number), LEAST
        while not self._met and count == self._count:
            keys = replica.views.keys(at, end, step)
            if any_elsewhere([key[PREFIX_SIZE:] for key in keys], count, replica.index):
                return True
            if len(keys) < step:
                break
            at = keys[-1] + b"\0"
            step = max(LEAST, min(AT_ONCE, 2 * step, BYTES * step // (1 + sum(map(len, keys)))))
            await trio.lowlevel.checkpoint()
        return self._met
