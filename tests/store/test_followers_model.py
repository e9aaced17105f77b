"""Random histories of a log that leads at times and follows at others, compared with a plain list of its batches.

The log appends its own batches, and takes others as they are, with holes and epochs. It is cut, retained, compacted,
closed and killed. The list says what it must then hold: its batches, where each epoch begins, what it knows of
producers and transactions, and what a consumer of committed events gets.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from krappy.core.stability import commits, marker
from krappy.errors import OffsetOutOfRange
from krappy.records import batch
from krappy.records.batch import BatchHeader
from krappy.settings.topic import TopicConfig
from krappy.store.cleaner import Candidate
from krappy.store.log import Log
from krappy.store.producers import ProducerStates
from tests.long import some
from tests.store.faulty_disk import Everything, FaultyDisk, PowerLoss
from tests.store.logs import FOLDER, rows
from tests.store.read_committed import read_committed

CONFIG = TopicConfig(segment_bytes=500, index_interval_bytes=100)
DAY_MS = 86_400_000


class Kept(NamedTuple):
    header: BatchHeader
    data: bytes
    values: dict[int, bytes]  # by offset; a marker has none


class Model:
    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.log = Log.open(FOLDER, CONFIG, disk=self.disk)
        self.batches: list[Kept] = []  # all batches that were not cut
        self.start = self.high_watermark = self.count = self.days = 0
        self.epoch = -1  # the highest epoch that there ever was
        self.sequences: dict[int, int] = {}
        self.gone: set[int] = set()  # offsets that a cleaning took
        self.exact = True  # nothing was retained or compacted, so that all batches can be read again

    @property
    def end(self) -> int:
        return self.batches[-1].header.next_offset if self.batches else 0

    def states(self) -> ProducerStates:
        """The states of producers by all batches."""
        return self.states_at(self.end)

    def states_at(self, end: int) -> ProducerStates:
        found = ProducerStates()
        for header, data, _ in self.batches:
            if header.base_offset < end:
                found.apply(header, header.base_offset, 0, data)
        return found

    # ---------------------------------------------------------------- operations

    def made(self, chance: random.Random) -> bytes:
        producer = chance.choice([-1, 0, 1, 2, 3])  # 0 and 1 write in transactions always, the others never
        kind = chance.choice(["transactional", "transactional", "end"]) if producer in (0, 1) else "plain"
        if kind == "end":
            return marker(producer, 0, chance.random() < 0.5, 7)
        values = []
        for _ in range(chance.randrange(1, 4)):
            self.count += 1
            values.append(b"%d " % self.count + b"x" * chance.randrange(60))
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        self.sequences[producer] = sequence + len(values)
        return batch.encode(
            None,
            values,
            timestamps=1000 + self.count,
            codec=chance.choice([0, 0, 4]),
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
            transactional=kind == "transactional",
        )

    def placed(self, data: bytes, offset: int, epoch: int) -> Kept:
        header = batch.check(data)
        data = batch.stamp(header, offset, epoch) + data[batch.STAMPED :]
        header = batch.check(data)
        values = [] if header.is_control else [value or b"" for value in batch.decode(data).values]
        return Kept(header, data, dict(enumerate(values, offset)))

    def lead(self, number: int) -> None:
        self.epoch += 1 + number % 2
        self.log.epochs.lead(self.epoch, self.end)

    def append(self, number: int) -> None:
        if self.epoch < 0:
            self.lead(0)
        epoch = max(self.epoch, self.log.epochs.at(self.end))
        chance = random.Random(number)
        some, offset = [], self.end
        for _ in range(chance.randrange(1, 5)):
            some.append(self.placed(self.made(chance), offset, epoch))
            offset = some[-1].header.next_offset
        plain = [(batch.check(data := b"\0" * 8 + each.data[8:]), data) for each in some]
        assert self.log.append(plain, epoch, 1) == self.end
        self.batches += some

    def append_as_is(self, number: int) -> None:
        chance = random.Random(number)
        some, offset = [], self.end
        epoch = max([each.header.leader_epoch for each in self.batches], default=-1)
        for _ in range(chance.randrange(1, 5)):
            offset += chance.choice([0, 0, 1, 5, 2000])
            epoch += chance.choice([0, 0, 0, 1, 2])
            some.append(self.placed(self.made(chance), offset, epoch if chance.random() < 0.9 else -1))
            offset = some[-1].header.next_offset
        self.epoch = max(self.epoch, epoch)
        assert self.log.append_as_is([(each.header, each.data) for each in some], 1) == offset
        self.batches += some

    def truncate(self, number: int) -> None:
        least = self.start if self.exact and number % 4 == 0 else self.high_watermark  # an unclean election, or not
        chance = random.Random(number)
        offset = chance.choice([chance.randint(max(0, least - 1), self.end + 2), self.some_end(least, chance)])
        left = [each for each in self.batches if each.header.next_offset <= offset]
        end = left[-1].header.next_offset if left else 0
        if offset < self.start or end < self.start:
            with pytest.raises(OffsetOutOfRange):
                self.log.truncate(offset)
            return
        try:
            assert self.log.truncate(offset) == end
        except PowerLoss:
            self.maybe = left
            raise
        self.batches = left
        self.high_watermark = min(self.high_watermark, end)

    def some_end(self, least: int, chance: random.Random) -> int:
        return chance.choice(
            [each.header.next_offset for each in self.batches if each.header.base_offset >= least] or [0]
        )

    def mark(self, number: int) -> None:
        ends = [each.header.next_offset for each in self.batches if each.header.next_offset >= self.high_watermark]
        if ends:
            self.high_watermark = self.log.high_watermark = ends[number % len(ends)]

    def roll(self, number: int) -> None:
        self.log.roll()

    def checkpoint(self, number: int) -> None:
        self.log.checkpoint()

    def delete_before(self, number: int) -> None:
        offset = self.start + (self.high_watermark - self.start) * (number % 100) // 99
        if offset > self.start:
            self.exact = False
            self.log.delete_before(offset)
            self.start = offset

    def clean(self, number: int) -> None:
        stable = self.states_at(self.high_watermark).stability.first_open(self.high_watermark)
        self.days += 2 * (number % 2)
        self.exact = False

        def verdicts(candidates: list[Candidate]) -> list[bool]:
            went = {offset for _, offset, _, _ in candidates if (offset * 7919 + number) % 3 == 0}
            self.gone |= went
            return [offset not in went for _, offset, _, _ in candidates]

        self.log.clean(verdicts, stable, self.days * DAY_MS)

    def close(self, number: int) -> None:
        self.log.close()
        self.open()
        assert self.log.recovery.clean, str(self.log.recovery)
        assert self.log.recovery.checked_bytes == 0

    def kill(self, number: int) -> None:
        self.disk.crash(Everything())
        self.open()

    def open(self) -> None:
        self.log = Log.open(FOLDER, CONFIG, disk=self.disk)
        assert not self.log.recovery.damage
        assert not self.log.recovery.cut_bytes
        assert not self.log.recovery.lost_offsets
        assert self.log.high_watermark is None or self.log.high_watermark <= self.high_watermark

    # ---------------------------------------------------------------- what is there

    def check(self) -> None:
        log = self.log
        assert (log.start_offset, log.end_offset) == (self.start, self.end)
        values = {at: value for each in self.batches for at, value in each.values.items() if at >= self.start}
        found = {row.offset: row.value for row in rows(log, max_bytes=400) if row.value in values.values()}
        assert found.keys() <= values.keys()
        assert all(values[offset] == value for offset, value in found.items())
        aborted = {at for at in values if at not in self.committed()}
        assert values.keys() - found.keys() <= self.gone | aborted
        self.check_epochs()
        self.check_producers()
        told = log.producers.stability
        stable = told.first_open(self.end)
        seen = [row.value for row in read_committed(log, told) if row.offset < stable]
        assert seen == [values[at] for at in sorted(found) if at < stable and at in self.committed()]
        for segment in log._segments.closed:
            assert not segment.disk.names_now[segment.path()].data[segment.size :]  # type: ignore[attr-defined]

    def committed(self) -> set[int]:
        """The events that belong to no transaction, or to one that was committed."""
        waiting: dict[int, set[int]] = {}
        found: set[int] = set()
        for header, data, values in self.batches:
            if header.is_control:
                ended = waiting.pop(header.producer_id, set())
                if commits(data):
                    found |= ended
            elif header.is_transactional:
                waiting.setdefault(header.producer_id, set()).update(values)
            else:
                found |= set(values)
        return found

    def check_epochs(self) -> None:
        epoch = -1
        for header, _, _ in self.batches:
            epoch = max(epoch, header.leader_epoch)
            if header.base_offset >= self.start and epoch >= 0:
                assert self.log.epochs.at(header.last_offset) == epoch

    def check_producers(self) -> None:
        expected, found = self.states(), self.log.producers
        if self.exact:
            assert {number for number, _ in found.items()} == {number for number, _ in expected.items()}
        for number, state in found.items():  # after a cut, fewer than five of a producer's batches are known
            known = expected.get(number)
            assert known is not None
            assert state.epoch == known.epoch
            assert known.sent[-len(state.sent) :] == state.sent
        left, opened = found.stability.open, expected.stability.open
        assert left.keys() <= opened.keys()
        # A transaction that began before the start, and whose end was cut, may be known by a later batch, or not at
        # all.
        assert all(left[number] == first for number, first in opened.items() if first >= self.start)
        assert list(left.values()) == sorted(left.values())
        aborted, told = list(expected.stability), list(found.stability)
        if self.exact:
            assert told == aborted
        assert {(each.producer_id, each.last) for each in told} <= {(each.producer_id, each.last) for each in aborted}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["append", "append_as_is", "append_as_is", "truncate", "truncate", "mark", "mark"] * 2,
                *["lead", "roll", "checkpoint", "delete_before", "clean", "close", "kill"],
            ]
        ),
        st.integers(0, 10**6),
        st.one_of(st.none(), st.none(), st.integers(0, 40)),  # a truncation is killed at this operation of the disk
    ),
    min_size=5,
    max_size=40,
)


def run(steps: Sequence[tuple[str, int, int | None]]) -> None:
    model = Model()
    for what, number, dies in steps:
        if what == "truncate" and dies is not None:
            model.disk.dies_at = model.disk.operations + dies
            with suppress(PowerLoss):
                model.truncate(number)
            if model.disk.off:
                model.disk.crash(Everything())
                model.open()
                if model.log.end_offset != model.end:
                    model.batches = model.maybe
                    model.high_watermark = min(model.high_watermark, model.end)
            model.disk.dies_at = None
        else:
            getattr(model, what)(number)
        model.check()
    model.close(0)
    model.check()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_any_history(steps: list[tuple[str, int, int | None]]) -> None:
    run(steps)


@pytest.mark.parametrize("seed", [*some(range(30), 4), 1008, 1053, 1206])  # the last ones have found something
def test_long_histories(seed: int) -> None:
    """The same, drawn by plain chance: these histories are longer than those of Hypothesis, which are made to be
    shrunk."""
    chance = random.Random(seed)
    kinds = ["append", "append_as_is", "append_as_is", "truncate", "mark", "mark", "lead", "roll"]
    kinds += ["checkpoint", "delete_before", "clean", "close", "kill"]
    run([(chance.choice(kinds), chance.randrange(10**6), chance.choice([None, None, *range(40)])) for _ in range(120)])
