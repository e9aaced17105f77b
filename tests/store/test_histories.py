"""Random histories of a log on a disk that loses power, compared with a list.

Whatever happens, in whatever order, also in the middle of an operation: what was synced is there, at its offset. The
log's events are a prefix of what was appended. An offset that was synced is never given again. Only what retention or
the cleaner were told to take is missing. And no segment counts as older than what it holds.
"""

from __future__ import annotations

import random
from contextlib import suppress

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from krappy.errors import StorageError
from krappy.settings.topic import TopicConfig
from krappy.store.log import Log
from tests.store.faulty_disk import Chance, Everything, FaultyDisk, Keep, PowerLoss
from tests.store.logs import FOLDER, made, rows

CONFIG = TopicConfig(segment_bytes=300, index_interval_bytes=100)


class Model:
    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.log = Log.open(FOLDER, CONFIG, disk=self.disk)
        self.appended_ms: dict[int, int] = {}  # when each offset was given
        self.values: dict[int, bytes] = {}  # every offset below `end` that must be there
        self.start = 0
        self.end = 0  # end of what was appended
        self.synced = 0
        self.count = 0
        self.maybe_start = 0  # what an operation that was cut short may have done
        self.maybe_gone: set[int] = set()
        self.maybe_values: dict[int, bytes] = {}
        self.refused: dict[int, list[bytes]] = {}  # what appends that failed since the last sync were to write

    # ---------------------------------------------------------------- operations

    def append(self, number: int) -> None:
        chance = random.Random(number)
        batches, offset = [], self.end
        self.maybe_values = {}
        for _ in range(chance.randrange(1, 6)):
            values = []
            for _ in range(chance.randrange(1, 4)):
                self.count += 1
                values.append(b"%d " % self.count + b"x" * chance.randrange(60))
            self.disk.clock_ms += 1000
            at = chance.choice([-1, self.disk.clock_ms])
            batches.append(made(*values, at=at, codec=chance.choice([0, 0, 3])))
            self.maybe_values.update(enumerate(values, offset))
            self.appended_ms.update(dict.fromkeys(range(offset, offset + len(values)), self.disk.clock_ms))
            offset += len(values)
        assert self.log.append(batches, 0, self.disk.clock_ms) == self.end
        self.values.update(self.maybe_values)
        self.end = offset

    def sync(self, number: int) -> None:
        assert self.log.sync() == self.end
        self.all_synced()

    def all_synced(self) -> None:
        self.synced = self.end
        self.refused = {}

    def roll(self, number: int) -> None:
        self.log.roll()

    def checkpoint(self, number: int) -> None:
        self.log.checkpoint()
        self.all_synced()

    def delete_before(self, number: int) -> None:
        offset = self.start + (self.end - self.start) * (number % 100) // 99
        self.maybe_start = offset
        self.log.delete_before(offset)
        self.start = max(self.start, offset)
        self.values = {key: value for key, value in self.values.items() if key >= self.start}

    def clean(self, number: int) -> None:
        upto = self.start + (self.end - self.start) * (number % 100) // 99
        upto = max([info.next_offset for info in self.log.segments[:-1] if info.next_offset <= upto], default=0)

        def goes(offset: int) -> bool:
            return (offset * 7919 + number) % 3 == 0

        self.maybe_gone = {offset for offset in self.values if offset < upto and goes(offset)}
        self.log.clean(lambda some: [not goes(offset) for _, offset, _, _ in some], upto, 0)
        self.values = {key: value for key, value in self.values.items() if key not in self.maybe_gone}

    def close(self, number: int) -> None:
        self.log.close()
        self.log = Log.open(FOLDER, CONFIG, disk=self.disk)
        assert self.log.recovery.clean, str(self.log.recovery)
        assert self.log.recovery.checked_bytes == 0
        self.all_synced()

    def fill_up(self, number: int) -> None:
        """The disk becomes full in the middle of an append, and then has room again."""
        self.disk.room = number % 700
        before = self.end
        try:
            self.append(number)
        except StorageError:
            assert self.end == before
            for offset, value in self.maybe_values.items():
                self.refused.setdefault(offset, []).append(value)
        finally:
            self.disk.room = None

    def read(self, number: int) -> None:
        if self.start < self.end:
            self.check(self.start + number % (self.end - self.start))

    # ---------------------------------------------------------------- crashes

    def crash(self, keep: Keep, again: tuple[int, Keep] | None = None) -> None:
        """Asserts that the log holds what it may hold; afterwards the model holds the same. `again`: the operation of
        the recovery at which there is another crash, and what that crash leaves."""
        self.disk.crash(keep)
        if again is not None:
            self.disk.dies_at, then = again
            with suppress(PowerLoss):
                Log.open(FOLDER, CONFIG, disk=self.disk)
            self.disk.crash(then)
            keep = keep if isinstance(then, Everything) else then
        self.log = log = Log.open(FOLDER, CONFIG, disk=self.disk)
        report = log.recovery
        note(str(report))
        assert not report.damage
        assert not (report.lost_offsets and isinstance(keep, Everything))
        assert log.start_offset in (self.start, max(self.start, self.maybe_start))
        least = self.end if isinstance(keep, Everything) else self.synced
        known = {**self.values, **{key: value for key, value in self.maybe_values.items() if key >= self.end}}
        assert least <= log.end_offset <= max([self.end, *[key + 1 for key in (*self.maybe_values, *self.refused)]])
        found = {row.offset: row.value or b"" for row in rows(log)}
        for offset, value in found.items():
            # An append that was refused may be there after all, until a sync has made the refusal durable.
            assert value == known.get(offset) or (offset >= self.synced and value in self.refused.get(offset, []))
        missing = {key for key in known if log.start_offset <= key < log.end_offset} - found.keys()
        lost = missing - self.maybe_gone  # a loss of power left gaps: what is behind them is kept aside, and not served
        assert not lost or (min(lost) >= self.synced and min(lost) > max(found, default=-1)), lost
        self.start, self.end, self.values = log.start_offset, log.end_offset, found
        self.all_synced()
        self.settle()

    def settle(self) -> None:
        self.maybe_gone, self.maybe_values, self.maybe_start = set(), {}, 0

    def check(self, start: int) -> None:
        assert (self.log.start_offset, self.log.end_offset) == (self.start, self.end)
        for info in self.log.segments:
            held = [self.appended_ms[offset] for offset in range(info.base_offset, info.next_offset)]
            assert not held or (info.latest_ms is not None and info.latest_ms >= min(held)), info
        found = [(row.offset, row.value) for row in rows(self.log, start, max_bytes=400)]
        assert found == [(offset, self.values[offset]) for offset in sorted(self.values) if offset >= start]


STEP = st.tuples(
    st.sampled_from(
        [
            *["append"] * 6,
            *["sync"] * 3,
            "roll",
            "checkpoint",
            "delete_before",
            "clean",
            "clean",
            "close",
            "fill_up",
            "read",
        ]
    ),
    st.integers(0, 10**6),
    st.one_of(st.just(None), st.just(None), st.just(None), st.integers(0, 30)),  # the power goes at this operation
)
KEEPS = st.one_of(st.builds(Keep), st.builds(Everything), st.builds(Chance, st.integers(0, 1000)))
AGAIN = st.one_of(st.none(), st.tuples(st.integers(0, 12), KEEPS))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(STEP, KEEPS, AGAIN, st.booleans()), min_size=5, max_size=40))
def test_any_history(
    steps: list[tuple[tuple[str, int, int | None], Keep, tuple[int, Keep] | None, bool]],
) -> None:
    model = Model()
    for (what, number, dies), keep, again, crash_after in steps:
        note(f"{what} {number} dies={dies} crash={crash_after} {type(keep).__name__} again={again}")
        if dies is not None:
            model.disk.dies_at = model.disk.operations + dies
        try:
            getattr(model, what)(number)
            model.settle()
        except PowerLoss:
            model.crash(keep, again)
        else:
            model.disk.dies_at = None
            if crash_after:
                model.crash(keep, again)
    model.check(model.start)
    model.close(0)
    model.check(model.start)
