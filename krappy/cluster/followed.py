"""One partition as it is fetched from one leader, in one leader epoch: what is asked, and what an answer does.

- It asks for what is behind its last event on disk. So the offset that it asks for tells the leader what it has.
- An answer counts only for the request that is outstanding, and only while the partition follows the same leader in the
  same epoch: a late one could cut events off that are committed by now.
- First it asks for its own last batch, and compares. That tells the leader nothing of what it has: after ZooKeeper was
  given older data, two leaders may have written other events in the same leader epoch, at the same offsets.
- After a failure it waits before it asks again. First it takes up what the failure has left undone: events may have
  been written that are not on disk yet.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import trio

from krappy.core.cluster.state import NOBODY
from krappy.errors import CorruptBatch, KrappyError, OffsetOutOfRange
from krappy.ports import FollowerPort
from krappy.records.batch import BEGINS, HEADER_SIZE, LENGTH_END
from krappy.wire.kafka import Code

FIRST_PAUSE_S = 0.05
# The leader and this broker have different images of the cluster, or had when the answer was made. It passes by itself.
DIFFERENT_IMAGES = {
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.UNKNOWN_TOPIC_ID,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
}
Message = dict[str, Any]
Report = Callable[..., None]
PartitionKey = tuple[bytes, int]  # topic id, index


class Asked(NamedTuple):
    """What one request asks for one partition. `last_epoch`: the leader epoch of the event before `offset`; -1: the log
    is empty."""

    offset: int
    last_epoch: int


class FollowedPartition:
    """Times are seconds of trio's clock."""

    def __init__(self, port: FollowerPort, pause_s: float, report: Report) -> None:
        """`pause_s`: the longest pause after a failure."""
        self.port = port
        self.leader, self.epoch = port.leader, port.epoch
        self.key: PartitionKey = (port.topic_id, port.index)
        self.due = 0.0  # when it may be asked for
        self._asked: Asked | None = None  # by the request that is outstanding
        self._at = port.position()  # when that was made
        self._last: Asked | None = None  # for its last batch, which is to be compared
        self._looked = False  # whether it has a last batch to compare
        self._told: tuple[int, int] | None = None  # the leader's high watermark and log start, as of the last answer
        self.unfinished = True  # events may not be on disk yet, and what was told may not be in force
        self._ended = False
        self.start = 0  # where its log begins, as the leader was told last
        self.doubts = False  # what came was damaged: a leader that is asked for one batch checks it, and finds that out
        self._longest_s, self._report = pause_s, report
        self._pause = 0.0
        self._failed = False  # the failure has been reported

    def __str__(self) -> str:
        return f"{self.port.topic}-{self.port.index}"

    @property
    def stands(self) -> bool:
        """Whether the partition still follows the same leader in the same epoch."""
        port = self.port
        return not self._ended and port.epoch == self.epoch and port.leader == self.leader != NOBODY

    def end(self) -> None:
        """From now on nothing is taken for it."""
        self._ended = True

    def ask(self) -> Asked:
        """What the next request asks."""
        self.start = self.port.start_offset
        self._at = self.port.position()
        self._asked = self._last or Asked(*self._at)
        return self._asked

    @property
    def told_start(self) -> int:
        """The log start that the request tells. -1: the leader must not count on what is before the offset."""
        return self.start if self._last is None else -1

    @property
    def follows_start(self) -> bool:
        """Whether its log has not been shortened yet as the leader's has been."""
        return self._told is not None and self.port.start_offset < self._told[1]

    @property
    def start_moved(self) -> bool:
        """Whether the leader is to be told that its log has been shortened."""
        return self.port.start_offset != self.start

    def unanswered(self) -> None:
        """The request that was outstanding will not be answered."""
        self._asked = None

    # --- answers

    async def take(self, answer: Message) -> None:
        """Takes the answer to the request that is outstanding. Raises nothing."""
        asked, self._asked = self._asked, None
        if asked is not None and self.stands and self.port.position() == self._at:
            due = self.due
            await self._guarded(self._take, asked, answer)
            if self.due == due:
                self._pause, self._failed, self.doubts = 0.0, False, False

    async def finish(self) -> None:
        """Completes what was left undone by a failure, or before the partition followed this leader. To be called
        before the partition is asked for. Raises nothing."""
        if self.unfinished and self.stands:
            await self._guarded(self._finish)

    async def _take(self, asked: Asked, answer: Message) -> None:
        code, log_start = answer["error_code"], answer["log_start_offset"]
        diverging, records = answer["diverging_epoch"], answer["records"]
        if self._last is not None and code == Code.NONE and diverging["end_offset"] < 0:
            await self._compare(self._last, whole_batches(records), answer["high_watermark"], log_start)
            return
        if self._last is not None and code == Code.OFFSET_OUT_OF_RANGE:
            # The leader's log does not have where that batch begins. It may have the last event of it. Otherwise the
            # next request is for what is behind it.
            end, epoch = self._at
            self._last = Asked(end - 1, epoch) if self._last.offset < end - 1 else None
            return
        if code == Code.OFFSET_OUT_OF_RANGE and (log_start >= asked.offset or log_start >= 0 > asked.last_epoch):
            await self.port.start_over(self.epoch, log_start)
        elif code in DIFFERENT_IMAGES:
            self._wait()
        elif code != Code.NONE:
            self._fail(KrappyError(f"the leader answers {named_code(code)}"))
        elif diverging["end_offset"] >= 0:
            await self._part(diverging["epoch"], diverging["end_offset"], log_start, answer["high_watermark"])
        else:
            data = whole_batches(records)
            await self._append(data, answer["high_watermark"], log_start)
            if not data:
                return  # the leader told only its high watermark, or had no room for the first batch
        if self.stands and self.port.position() == self._at:
            self._wait()  # the same request would have the same answer

    async def _compare(self, last: Asked, data: bytes | memoryview, high_watermark: int, log_start: int) -> None:
        """Takes the answer to the request for its last batch."""
        if data:
            await self.port.compare(self.epoch, data, high_watermark)
        elif high_watermark > last.offset:  # there was no room for the batch
            self._wait()
            return
        self._looked_at_last()
        if self._looked:  # from the batch on, the logs may turn out to differ by the next request
            await self._append(b"", min(high_watermark, last.offset), log_start)

    def _looked_at_last(self) -> None:
        """Its last batch is the leader's, or its log was cut: then it has another last one."""
        self._last = None
        if self.port.position() != self._at:
            self._looked, self.unfinished = False, True

    async def _part(self, epoch: int, end: int, log_start: int, high_watermark: int) -> None:
        """Takes the answer that the two logs differ. `epoch`: the highest epoch of the leader's log up to ours; -1: it
        has none, or nothing of our log may stay. `end`: where this epoch ends there. From there on the logs differ."""
        try:
            if epoch >= 0 or end > log_start:
                await self.port.diverged(self.epoch, (epoch, end), high_watermark)
                self._looked_at_last()
                return
        except OffsetOutOfRange:  # the leader's log parts from ours before our log start
            pass
        await self.port.start_over(self.epoch, max(0, log_start))
        self._last = None

    async def _append(self, data: bytes | memoryview, high_watermark: int, log_start: int) -> None:
        self._told, self.unfinished = (high_watermark, log_start), True
        await self.port.append(self.epoch, data, high_watermark, log_start)
        await self.port.sync()
        self.unfinished = False

    async def _finish(self) -> None:
        if self._told is not None:
            await self.port.append(self.epoch, b"", *self._told)
        await self.port.sync()
        if not self._looked:
            found = await self.port.last_batch()
            self._last, self._looked = None if found is None else Asked(*found), True
        self.unfinished = False

    # --- failures

    async def _guarded(self, work: Callable[..., Any], *args: Any) -> None:
        """Runs `work` to its end, even if the task is cancelled. A failure is reported, and the partition pauses."""
        try:
            with trio.CancelScope(shield=True):
                await work(*args)
        except KrappyError as error:
            self.doubts = isinstance(error, CorruptBatch)
            self._fail(error)
        except Exception:
            self._report("internal_error", task=f"following {self}", exc_info=True)
            self._wait()

    def _fail(self, error: KrappyError) -> None:
        if not self._failed:
            self._failed = True
            self._report("following_failed", partition=str(self), leader=self.leader, error=str(error))
        self._wait()

    def _wait(self) -> None:
        self._pause = min(self._longest_s, max(FIRST_PAUSE_S, 2 * self._pause))
        self.due = trio.current_time() + self._pause


def is_quiet(answer: Message) -> bool:
    """Whether an answer tells only how far the leader is."""
    return not (answer["records"] or answer["error_code"] or answer["diverging_epoch"]["end_offset"] >= 0)


def whole_batches(records: memoryview | bytes | None) -> memoryview | bytes:
    """The whole batches that the bytes begin with: the leader may cut the last one short. Raises CorruptBatch for
    lengths that no batch can have."""
    if not records:
        return b""
    position, end, begins = 0, len(records), BEGINS.unpack_from
    try:
        while position < end:
            _, length = begins(records, position)
            if length < HEADER_SIZE - LENGTH_END:
                raise CorruptBatch(f"a batch of length {length} at position {position}")
            after = position + length + LENGTH_END
            if after > end:
                break
            position = after
    except struct.error:
        pass
    return records[:position]


def named_code(code: int) -> str:
    return Code(code).name if code in set(Code) else str(code)
