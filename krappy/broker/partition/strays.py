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

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import trio

from krappy.batch import TRANSACTIONAL
from krappy.entry import entry_timestamp
from krappy.errors import KrappyError
from krappy.partitioner import any_elsewhere, partition_for
from krappy.store.keys import PREFIX_SIZE, view_end, view_prefix
from krappy.waiting import wait_any

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition
    from krappy.broker.partition.queued import Accepted

AT_ONCE = 500  # keys judged at a stretch,
LEAST, BYTES = 16, 256 << 10  # or as many as have so many bytes
LOOKUPS = 640  # of single keys, between two turns of the event loop

Pause = Callable[[], Awaitable[None]]


class Strays:
    """What is known of a topic's partitions."""

    def __init__(self, partitions: Mapping[int, Partition]) -> None:
        """`partitions`: those of the topic, by index, as they are at any time."""
        self.partitions = partitions
        self.count = 0  # partitions among which keys are judged; 0: none yet
        self.unsure: set[int] = set()  # partitions that may have strays
        self.switching = False  # some have a view and others do not: they are turned on or off, one after the other
        self.conditions = trio.Lock()  # held while conditions are decided that look at several partitions

    def __bool__(self) -> bool:
        """Whether a key may stand in another partition than its own."""
        return (bool(self.unsure) or self.switching) and self.count > 1

    def others(self, partition: Partition) -> list[Partition]:
        return [each for each in self.partitions.values() if each is not partition]

    def begin(self) -> None:
        """All partitions that there are now count from now on."""
        self.count = len(self.partitions)
        for partition in self.partitions.values():
            partition.applier.strays.judge()


class ViewStrays:
    """What is known of one view."""

    def __init__(self, partition: Partition, applied: int) -> None:
        """`applied`: the offset at which folding goes on."""
        self._partition = partition
        self._topic = partition.strays
        self._kept = partition.views.strays(partition.number) if partition.config.view else None
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
        partition, count = self._partition, self._topic.count
        if count == self._count:
            return
        self._count = count
        if not partition.config.view or count == 1:
            self._some = False
        elif self._kept is not None and self._kept[0] == count:
            self._some = self._kept[1]
        elif (
            not partition.views.applied(partition.number)
            and not self._topic.conditions.locked()
            and not _busy(partition)
        ):
            self._some, self._judged = False, self._applied
        else:
            self._some = None
            self.tend()
        self._tell()

    def _tell(self) -> None:
        partition, unsure = self._partition, self._topic.unsure
        if self._some is not False or (partition.config.view and self._judged < partition.last_stable_offset):
            unsure.add(partition.index)
        else:
            unsure.discard(partition.index)

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
            if any_elsewhere(some, self._count, self._partition.index):
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
            self._partition.spawn(self._look_through)

    async def _look_through(self) -> None:
        partition = self._partition
        try:
            while self._counting:
                count = self._count
                async with partition.counting:
                    found = await self._any()
                await written(partition)  # what was decided among fewer partitions
                async with self._topic.conditions:  # what is expected is there then, and was met, or it does not come
                    if count == self._count:
                        self._counting = False
                        self._some = found or self._met
        except KrappyError as error:  # it stays as it is; what is unknown is looked at again
            if partition.gone is None and not partition.applier.closing:
                partition.report("strays_unknown", error)
        finally:
            self._counting = False
        self._tell()

    async def _any(self) -> bool:
        """Whether any key of the view is astray."""
        partition, count = self._partition, self._count
        applier, number = partition.applier, partition.number
        self._met = self._stale = False
        self._judged = applier.applied  # what is applied from now on is judged, too
        self._tell()
        at, end, step = view_prefix(number), view_end(number), LEAST
        while not self._met and count == self._count:
            keys = partition.views.keys(at, end, step)
            if any_elsewhere([key[PREFIX_SIZE:] for key in keys], count, partition.index):
                return True
            if len(keys) < step:
                break
            at = keys[-1] + b"\0"
            step = max(LEAST, min(AT_ONCE, 2 * step, BYTES * step // (1 + sum(map(len, keys)))))
            await trio.lowlevel.checkpoint()
        return self._met


def _busy(partition: Partition) -> bool:
    """Whether something is being written that nobody can read yet."""
    return partition.writing.locked() or partition.log.end_offset > partition.high_watermark


async def written(partition: Partition) -> None:
    """Returns once all that was decided in a partition before is readable, or never will be."""
    async with partition.writing:
        end = partition.log.end_offset
    commit = partition.appender.commit
    await wait_any(
        [partition.moved, commit.moved],
        lambda: partition.high_watermark >= end or partition.gone is not None or bool(partition.log_failed),
    )


def is_newer(entry: bytes, index: int, other: bytes, its: int, home: int) -> bool:
    """Whether an entry of partition `index` is newer than another, of partition `its`, of the same key; `home`: the
    key's own partition."""
    return (entry_timestamp(entry), index == home, index) > (entry_timestamp(other), its == home, its)


async def newest(
    partitions: Sequence[Partition], keys: Sequence[bytes], pause: Pause, count: int
) -> tuple[list[int], list[bytes | None]]:
    """The newest entry of each key in these of `count` partitions, and which one it stands in; the key's own for a key
    that stands nowhere. The caller has waited for their views."""
    looked = 0
    homes = [partition_for(key, count) for key in keys]
    where = list(homes)
    found: list[bytes | None] = [None] * len(keys)
    for partition in partitions:
        index = partition.index
        for row, entry in enumerate(partition.look_up_many(keys)):
            if entry is not None:
                best = found[row]
                if best is None or is_newer(entry, index, best, where[row], homes[row]):
                    found[row], where[row] = entry, index
        looked += len(keys)
        if looked >= LOOKUPS:
            looked = 0
            await pause()
    return where, found


async def holders(partitions: Sequence[Partition], key: bytes, pause: Pause) -> list[int]:
    """The partitions that have an entry of a key, a tombstone too."""
    found: list[int] = []
    for number, partition in enumerate(partitions, 1):
        if partition.look_up(key) is not None:
            found.append(partition.index)
        if number % LOOKUPS == 0:
            await pause()
    return found
