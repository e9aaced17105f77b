"""Random histories of transactions in one log, compared with lists: what is open, what is decided, what was aborted.

Producers write, commit and abort in any order, with others between them. The log is closed, loses power, loses its
checkpoint, and its start moves up. Cleanings take any of its events, and are killed at any of their steps. What the log
then knows of transactions is what the plain lists say, and that is what a consumer gets that reads committed events.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from krappy.core.stability import Hidden, Stability, commits, marker, without
from krappy.records import batch
from krappy.records.batch import BatchHeader
from krappy.settings.topic import TopicConfig
from krappy.store.cleaner import Candidate
from krappy.store.format import CHECKPOINT, CHECKPOINT_COPY
from krappy.store.log import Log
from tests.store.faulty_disk import Everything, FaultyDisk, PowerLoss
from tests.store.logs import FOLDER, rows
from tests.store.read_committed import read_committed

DAY_MS = 86_400_000  # delete.retention.ms
CONFIG = TopicConfig(segment_bytes=500, index_interval_bytes=100)
PRODUCERS = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), PRODUCERS, st.integers(1, 3), st.sampled_from([0, 4])),
        st.tuples(st.just("plain"), PRODUCERS, st.integers(1, 3), st.just(0)),
        st.tuples(st.just("commit"), PRODUCERS, st.just(0), st.just(0)),
        st.tuples(st.just("abort"), PRODUCERS, st.just(0), st.just(0)),
        st.tuples(st.sampled_from(["close", "crash", "forget"]), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("retain"), st.just(0), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("clean"), st.just(0), st.integers(1, 4), st.sampled_from([0, 1])),
        st.tuples(st.just("kill a clean"), st.integers(0, 40), st.integers(1, 4), st.sampled_from([0, 1])),
    ),
    max_size=40,
)


class Model:
    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.log = Log.open(FOLDER, CONFIG, disk=self.disk)
        self.events: list[tuple[int | None, int, str]] = []  # producer of a transaction, its number, what it is
        self.open: dict[int, tuple[int, int]] = {}  # producer -> its transaction's number and first offset
        self.ended: list[tuple[int, int, int, bool]] = []  # producer, first offset, its marker, committed
        self.number = 0
        self.cleaned: set[int] = set()  # offsets that are gone
        self.compacted = False
        self.days = 0

    def write(self, producer: int, count: int, codec: int, *, transactional: bool) -> None:
        data = batch.encode(
            None,
            [b"%d" % (len(self.events) + row) for row in range(count)],
            timestamps=5,
            codec=codec,
            producer_id=producer,
            producer_epoch=0,
            transactional=transactional,
        )
        self.append(data)
        if transactional and producer not in self.open:
            self.number += 1
            self.open[producer] = self.number, len(self.events)
        number = self.open[producer][0] if transactional else 0
        self.events += [(producer if transactional else None, number, "event")] * count

    def append(self, data: bytes) -> None:
        assert self.log.append([(batch.check(data), data)], 0, 1_000) == len(self.events)

    def end(self, producer: int, commit: bool) -> None:
        self.append(marker(producer, 0, commit, 7))
        if producer in self.open:
            self.ended.append((producer, self.open.pop(producer)[1], len(self.events), commit))
        self.events.append((None, 0, "marker"))

    def run(self, kind: str, producer: int, count: int, codec: int) -> None:
        match kind:
            case "write" | "plain":
                self.write(producer, count, codec, transactional=kind == "write")
            case "commit" | "abort":
                self.end(producer, kind == "commit")
            case "retain":
                self.log.delete_before(min(count, len(self.events)))
            case "clean":
                self.days += 2 * codec
                self.clean(lambda offset: bool(offset % count))
            case "kill a clean":  # `producer`: the step of the kill
                self.days += 2 * codec
                self.log.sync()
                self.disk.dies_at = self.disk.operations + producer
                before = self.cleaned.copy()
                with suppress(PowerLoss):
                    self.clean(lambda offset: bool(offset % count))
                self.disk.crash(Everything())
                self.log = Log.open(FOLDER, CONFIG, disk=self.disk)
                self.cleaned -= {row.offset for row in rows(self.log)} - before
            case "close":
                self.log.close()
                self.log = Log.open(FOLDER, CONFIG, disk=self.disk)
            case "crash" | "forget":
                self.log.sync()
                start = self.log.start_offset
                self.disk.crash()
                if kind == "forget" and not start:  # a checkpoint that says where the log starts must not be lost
                    self.disk.unlink(FOLDER / CHECKPOINT)
                    self.disk.unlink(FOLDER / CHECKPOINT_COPY)
                self.log = Log.open(FOLDER, CONFIG, disk=self.disk)

    def clean(self, survives: Callable[[int], bool]) -> None:
        def verdicts(candidates: list[Candidate]) -> list[bool]:
            self.cleaned |= {offset for _, offset, _, _ in candidates if not survives(offset)}
            return [survives(offset) for _, offset, _, _ in candidates]

        self.compacted = True
        self.log.clean(verdicts, self.log.end_offset, self.days * DAY_MS)

    def batches(self) -> list[BatchHeader]:
        """All batches that the log has."""
        found: list[BatchHeader] = []
        at = self.log.start_offset
        while (span := self.log.read_span(at, 300)).data:
            found += [header for header, _ in batch.split(span.data)]
            at = span.next_offset
        return found

    def check(self) -> None:
        known = self.log.producers.stability
        start, end = self.log.start_offset, len(self.events)
        assert list(known.open.items()) == [(producer, first) for producer, (_, first) in self.open.items()]
        assert known.first_open(end) == min([first for _, first in self.open.values()], default=end)
        aborted = [(producer, first, last) for producer, first, last, commit in self.ended if not commit]
        there = [header for header in self.batches() if header.is_transactional]
        batches = [(header.producer_id, header.base_offset) for header in there if not header.is_control]
        left = [
            (producer, first, last)
            for producer, first, last in aborted
            if not self.compacted or any(who == producer and first <= at < last for who, at in batches)
        ]
        markers = {header.base_offset for header in there if header.is_control}
        assert all(each[2] in markers for each in left if each[2] >= start), "what is left of it has its marker"
        for low in range(start, end + 1, 3):
            for high in range(low, end + 1, 4):
                told = [each[:3] for each in known.between(low, high)]
                assert [each for each in told if each in left] == [
                    each for each in left if each[2] >= low and each[1] < high
                ]
                assert set(told) <= set(aborted)
        self.check_readers(known, start, end)

    def check_readers(self, known: Stability, start: int, end: int) -> None:
        """Asserts what a reader that skips aborted transactions gets: all but their events, with every offset accounted
        for."""
        hidden = {
            offset
            for producer, first, last, commit in self.ended
            if not commit
            for offset in range(first, last)
            if self.events[offset][0] == producer
        }
        seen, at = [], start
        while at < end:
            span = self.log.read_span(at, 300)
            data = memoryview(span.data)
            following = at
            for header, view in batch.split(without(data, known.between(at, span.next_offset))):
                following = header.next_offset
                if not header.is_control:
                    seen += [offset for offset in batch.offsets(view) if offset >= start]
            assert following == span.next_offset
            at = span.next_offset
        gone = hidden | self.cleaned
        wanted = [at for at in range(start, end) if self.events[at][2] == "event" and at not in gone]
        assert seen == wanted
        for first in (start, (start + end) // 2):
            given_out = [row.offset for row in read_committed(self.log, known, first)]
            assert given_out == [at for at in wanted if at >= first]


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_the_log_knows_its_transactions_whatever_happens(steps: list[tuple[str, int, int, int]]) -> None:
    model = Model()
    for step in steps:
        model.run(*step)
    model.check()
    assert Stability.unpack(model.log.producers.stability.pack()) == model.log.producers.stability


@given(st.lists(st.tuples(st.sampled_from(["write", "commit", "abort"]), st.integers(0, 1))), st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_the_cleaning_that_takes_markers_is_killed_at_any_step(steps: list[tuple[str, int]], at: int) -> None:
    """It is the third cleaning: the first takes events, the second gives a horizon to the markers whose events are
    gone."""
    model = Model()
    for kind, producer in steps:
        model.run(kind, producer, 1, 0)
    for producer in (0, 1):
        model.end(producer, commit=True)
    model.write(2, 1, 0, transactional=False)  # the last batch of a segment stays
    model.log.roll()
    for kind in ("clean", "clean", "kill a clean"):
        model.run(kind, at, 99, 1)
        model.check()


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_goes_when_nothing_is_left_and_its_time_is_over(commit: bool) -> None:
    """As with Kafka's cleaner (KIP-534), whose markers also wait for a cleaning that finds none of their events."""
    model = Model()
    model.write(1, 2, 0, transactional=True)
    model.end(1, commit)
    model.write(1, 1, 0, transactional=True)
    model.end(1, commit)
    model.write(2, 1, 0, transactional=False)  # a segment's last batch stays
    model.log.roll()

    def markers() -> dict[int, int | None]:
        return {each.base_offset: each.delete_horizon for each in model.batches() if each.is_control}

    model.clean(lambda offset: offset == 5)
    assert markers() == {2: None, 4: None}, "their batches were there until now"
    assert len(model.log.producers.stability) == (0 if commit else 2)
    model.days = 1
    model.clean(lambda offset: True)
    assert markers() == {2: 2 * DAY_MS, 4: 2 * DAY_MS}
    model.log.close()
    model.log = Log.open(FOLDER, CONFIG, disk=model.disk)
    model.log.clean(lambda candidates: [True] * len(candidates), model.log.end_offset, 2 * DAY_MS - 1)
    assert markers() == {2: 2 * DAY_MS, 4: 2 * DAY_MS}
    model.days = 2
    model.clean(lambda offset: True)
    assert markers() == {}
    assert not len(model.log.producers.stability)
    model.check()


def test_a_marker_stays_while_a_producers_last_batch_does() -> None:
    """The batch's header is left, for its sequence; a log that is read anew begins a transaction with it."""
    model = Model()
    sent = batch.encode(
        [b"k"], [b"v"], timestamps=5, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    model.append(sent)
    model.events.append((1, 1, "event"))
    model.open[1] = 1, 0
    model.end(1, commit=False)
    model.write(2, 1, 0, transactional=False)
    model.log.roll()
    for days in (0, 2, 4, 6):
        model.days = days
        model.clean(lambda offset: offset == 2)
    assert [(header.base_offset, header.count) for header in model.batches()] == [(0, 0), (1, 1), (2, 1)]
    model.run("forget", 0, 0, 0)
    model.check()
    assert not model.log.producers.stability.open


def test_a_marker_is_what_kafka_writes() -> None:
    """`EndTransactionMarker.java`: key version 0 and type, value version 0 and the coordinator's epoch."""
    data = marker(7, 3, True, 1_700_000_000_000)
    header = batch.check(data)
    assert (header.attributes, header.producer_id, header.producer_epoch) == (0x30, 7, 3)
    assert (header.base_sequence, header.count) == (-1, 1)
    columns = batch.decode(data)
    assert (columns.keys, columns.values) == ([b"\0\0\0\1"], [b"\0\0\0\0\0\0"])
    assert commits(data) is True
    assert commits(marker(7, 3, False, 5)) is False


def test_a_control_batch_of_another_kind_ends_nothing() -> None:
    data = batch.encode([b"\0\0\0\2"], [b""], timestamps=5, producer_id=1, control=True, transactional=True)
    assert commits(data) is None
    assert commits(batch.encode([None], [b""], timestamps=5, control=True)) is None


def test_only_transactional_batches_of_the_producer_are_aborted() -> None:
    known = Stability()
    data = batch.encode(None, [b"x"], timestamps=5, producer_id=1, producer_epoch=0, transactional=True)
    plain = batch.encode(None, [b"x"], timestamps=5, producer_id=1, producer_epoch=0, base_offset=1)
    known.apply(batch.check(data), 0, None)
    end = marker(1, 0, False, 5)
    known.apply(batch.check(end), 2, end)
    (aborted,) = known.between(0, 3)
    assert (aborted.first, aborted.last, aborted.stable) == (0, 2, 3)
    hidden = Hidden([aborted])
    assert hidden.holds(batch.read_header(data))
    assert not hidden.holds(batch.read_header(plain))
    assert not hidden.holds(batch.read_header(end)._replace(base_offset=2))
