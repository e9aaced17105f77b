"""A producer's memory: its rules one by one, then random lives of it against a broker that checks sequences.

The broker here is KIP-98's check, written down plainly. Connections are lost at random. What was under way on a lost
connection may still arrive, before or after what is sent on the next one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from krappy.clients.accumulator import Accumulator, Limits
from krappy.clients.lane import LaneBatch, Settled, cut, too_large
from krappy.errors import (
    KrappyError,
    NotLeader,
    OffsetMismatch,
    OutOfOrderSequence,
    Overloaded,
    RecordTooLarge,
    RequestTimeout,
    UnknownProducer,
)
from krappy.records import batch as record_batch


class Told:
    """A ticket that remembers what it was told."""

    def __init__(self) -> None:
        self.at: tuple[int, int] | None = None  # partition, offset
        self.error: KrappyError | None = None
        self.times = 0

    def stored(self, settled: Settled, first: int, count: int) -> None:
        self.at = (settled.batch.partition, settled.offset + first)
        self.times += 1

    def failed(self, error: KrappyError, count: int) -> None:
        self.error = error
        self.times += 1


def accumulator(*, known: Sequence[int] = (0,), **limits: Any) -> Accumulator:
    """`known`: the partitions in which the broker has stored batches of the producer id before."""
    found = Accumulator(Limits(**limits))
    found.registered(3, 7, 0, 1_000_000)
    for partition in known:
        found._lane(partition).known = True
    return found


def add(
    a: Accumulator, value: bytes, partition: int = 0, now: float = 0.0, expect: int | None = None, key: bytes = b"k"
) -> Told:
    told = Told()
    a.add(partition, key, value, (), 1000, told, now, expect)
    return told


def values(a: Accumulator, batch: LaneBatch) -> list[bytes | None]:
    return record_batch.decode(a.encode(batch)).values


def settle(a: Accumulator) -> None:
    for settled in a.collect():
        settled.tell()


def test_the_first_record_leaves_at_once_and_what_comes_meanwhile_travels_together() -> None:
    a = accumulator(linger=1.0)
    first = add(a, b"1")
    [batch] = a.take(0.0)
    assert values(a, batch) == [b"1"]
    add(a, b"2", now=0.1)
    add(a, b"3", now=0.2)
    assert a.take(0.2) == []
    assert a.next_due() == 0.1 + 1.0
    a.stored(batch, 5, 1000)
    settle(a)
    assert first.at == (0, 5)
    [batch] = a.take(0.3)
    assert values(a, batch) == [b"2", b"3"]


def test_a_record_lingers_no_longer_than_told() -> None:
    a = accumulator(linger=1.0)
    add(a, b"1")
    a.take(0.0)
    add(a, b"2", now=0.5)
    assert a.take(1.4) == []
    assert [values(a, batch) for batch in a.take(1.5)] == [[b"2"]]


def test_a_full_batch_leaves_at_once() -> None:
    a = accumulator(linger=9.0, batch_bytes=400)
    add(a, b"1")
    a.take(0.0)
    for _ in range(5):
        add(a, b"x" * 100)
    assert [len(batch) for batch in a.take(0.0)] == [2, 2]


def test_nothing_is_sent_beside_the_first_batch_of_a_producer_id() -> None:
    """If the broker refused the first batch, as it did not lead the partition yet, it would take the next one."""
    a = accumulator(known=(), batch_bytes=1)
    for value in (b"1", b"2", b"3"):
        add(a, value)
    [first] = a.take(0.0)
    assert a.take(0.0) == []
    a.refused(first, NotLeader("not yet"), 0.0)
    [again] = a.take(1.0)
    assert (again, again.sequence) == (first, 0)
    a.stored(first, 0, -1)
    assert [values(a, each) for each in a.take(1.0)] == [[b"2"], [b"3"]]


def test_nothing_is_sent_beside_the_first_batch_of_a_new_producer_id() -> None:
    a = accumulator(batch_bytes=1)
    for value in (b"1", b"2", b"3", b"4"):
        add(a, value)
    first, *others = a.take(0.0)
    a.refused(first, OffsetMismatch("no"), 0.0)
    for each in others:
        a.refused(each, OutOfOrderSequence("gap"), 0.0)
    assert a.renew
    a.registered(3, 8, 0, 1_000_000)
    [following] = a.take(1.0)
    assert (following.sequence, values(a, following)) == (0, [b"2"])


def test_no_more_than_five_of_a_partition_are_in_flight() -> None:
    a = accumulator(batch_bytes=1)
    for number in range(8):
        add(a, b"%d" % number)
    taken = a.take(0.0)
    assert [values(a, batch) for batch in taken] == [[b"%d" % number] for number in range(5)]
    assert a.take(99.0) == []
    a.stored(taken[0], 0, 1000)
    assert [values(a, batch) for batch in a.take(0.0)] == [[b"5"]]
    assert [values(a, batch) for batch in a.take(0.0)] == []


def test_sequences_count_records_of_each_partition() -> None:
    a = accumulator(batch_bytes=1)
    a.add_columns(0, None, [b"a", b"b", b"c"], None, [1, 1, 1], Told(), 0.0)
    add(a, b"d")
    add(a, b"e", partition=1)
    headers = [record_batch.check(a.encode(batch)) for batch in a.take(0.0)]
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers] == [
        (7, 0, 0),
        (7, 0, 1),
        (7, 0, 2),
        (7, 0, 3),
        (7, 0, 0),
    ]


def test_after_a_lost_connection_the_very_same_bytes_go_again_in_the_same_order() -> None:
    a = accumulator(batch_bytes=1)
    for number in range(4):
        add(a, b"%d" % number)
    before = [a.encode(batch) for batch in a.take(0.0)]
    a.lost()
    assert [a.encode(batch) for batch in a.take(0.0)] == before


def test_a_retriable_refusal_stops_the_partition_until_all_are_answered_then_they_go_again() -> None:
    a = accumulator(batch_bytes=1)
    for number in range(4):
        add(a, b"%d" % number)
    one, two, three, four = a.take(0.0)
    a.refused(one, Overloaded("later"), 10.0)
    add(a, b"4")
    assert a.take(20.0) == []
    for batch in (two, three, four):
        a.refused(batch, OutOfOrderSequence("gap"), 10.0)
    due = a.next_due()
    assert due is not None
    assert 10.0 < due < 11.0
    assert a.take(10.0) == []
    assert [values(a, batch) for batch in a.take(due)] == [[b"0"], [b"1"], [b"2"], [b"3"], [b"4"]]
    assert not a.renew


def test_a_refusal_for_good_with_others_behind_needs_a_new_producer_id() -> None:
    a = accumulator(batch_bytes=1)
    bad, good = add(a, b"bad"), add(a, b"good")
    first, second = a.take(0.0)
    before = record_batch.check(a.encode(second)).base_sequence
    a.refused(first, RecordTooLarge("no"), 0.0)
    assert (a.in_flight, a.renew, a.producer) == (1, False, (7, 0))
    a.refused(second, OutOfOrderSequence("gap"), 0.0)
    assert (a.in_flight, a.renew, a.producer) == (0, True, (-1, -1))
    assert a.take(0.0) == []
    a.registered(3, 8, 0, 1_000_000)
    [batch] = a.take(0.0)
    header = record_batch.check(a.encode(batch))
    assert (before, header.producer_id, header.base_sequence) == (1, 8, 0)
    a.stored(batch, 0, 1000)
    settle(a)
    assert isinstance(bad.error, RecordTooLarge)
    assert good.at == (0, 0)


def test_an_id_that_the_broker_does_not_know_is_replaced() -> None:
    """As when the broker's folder was emptied: one batch is refused, and what comes after it goes under a new id."""
    a = accumulator(batch_bytes=1)
    lost = add(a, b"lost")
    [batch] = a.take(0.0)
    a.refused(batch, UnknownProducer("nobody's"), 0.0)
    assert (a.renew, a.producer) == (True, (-1, -1))
    after = add(a, b"after")
    a.registered(3, 8, 0, 1_000_000)
    [batch] = a.take(0.0)
    assert record_batch.check(a.encode(batch)).producer_id == 8
    a.stored(batch, 0, 1000)
    settle(a)
    assert isinstance(lost.error, UnknownProducer)
    assert after.at == (0, 0)


def test_a_new_producer_id_is_for_the_partition_that_needs_it_alone() -> None:
    """The other partition may have a copy under way that would not be recognized under another id."""
    a = accumulator(batch_bytes=1)
    for partition in (0, 0, 1):
        add(a, b"x", partition)
    bad, behind, other = a.take(0.0)
    before = a.encode(other)
    a.refused(bad, RecordTooLarge("no"), 0.0)
    a.refused(behind, OutOfOrderSequence("gap"), 0.0)
    a.lost()
    a.registered(3, 8, 0, 1_000_000)
    again = {batch.partition: a.encode(batch) for batch in a.take(0.0)}
    assert again[1] == before
    assert record_batch.check(again[0]).producer_id == 8


def test_a_hole_is_a_gap_only_if_the_broker_says_so() -> None:
    for stored in (True, False):
        a = accumulator(timeout=10.0)
        add(a, b"1", now=0.0)
        [_] = a.take(0.0)
        a.expire(10.0)
        add(a, b"2", now=11.0)
        [batch] = a.take(11.0)
        assert record_batch.check(a.encode(batch)).base_sequence == 1
        assert not a.renew
        if stored:
            a.stored(batch, 1, 1000)
            assert a.empty
        else:
            a.refused(batch, OutOfOrderSequence("gap"), 11.0)
            assert a.renew
            a.registered(3, 8, 0, 1_000_000)
            [batch] = a.take(11.0)
            assert record_batch.check(a.encode(batch)).base_sequence == 0


def test_what_was_refused_the_second_time_it_was_sent_does_not_leave_its_numbers_to_the_next() -> None:
    """The first copy may still arrive and be stored. Then the next record, with the same numbers, would be taken for
    it."""
    a = accumulator()
    add(a, b"1", expect=5)
    a.take(0.0)
    a.lost()
    [batch] = a.take(0.0)
    a.refused(batch, OffsetMismatch("no", current=4), 0.0)
    assert a.renew


def test_a_refusal_for_good_with_nothing_behind_leaves_its_numbers_to_the_next() -> None:
    a = accumulator()
    add(a, b"1", expect=5)
    [batch] = a.take(0.0)
    a.encode(batch)
    a.refused(batch, OffsetMismatch("no", current=4), 0.0)
    add(a, b"2")
    [batch] = a.take(0.0)
    assert record_batch.check(a.encode(batch)).base_sequence == 0
    assert not a.renew


def test_an_event_with_an_expectation_travels_alone_and_in_order() -> None:
    a = accumulator(linger=0.0)
    add(a, b"1")
    add(a, b"2", expect=-1)
    add(a, b"3")
    seen = []
    for _ in range(3):
        [batch] = a.take(0.0)
        seen.append((values(a, batch), batch.expects))
        a.stored(batch, 0, 1000)
    assert seen == [([b"1"], None), ([b"2"], {b"k": -1}), ([b"3"], None)]


def test_expectations_about_different_keys_travel_together() -> None:
    a = accumulator(linger=1.0)
    for key, value, expect in ((b"k", b"1", -1), (b"l", b"2", 7), (b"k", b"3", 9), (b"m", b"4", -1)):
        add(a, value, expect=expect, key=key)
    add(a, b"5", key=b"n")
    [first] = a.take(0.0)
    assert (values(a, first), first.expects) == ([b"1", b"2"], {b"k": -1, b"l": 7})
    assert a.take(2.0) == []  # a key's second event waits for its first, and all else for conditions
    a.stored(first, 0, 1000)
    [second] = a.take(2.0)
    assert (values(a, second), second.expects) == ([b"3", b"4"], {b"k": 9, b"m": -1})


def test_of_expectations_that_travel_together_only_those_that_do_not_hold_fail() -> None:
    a = accumulator(linger=0.0)
    told = [add(a, b"%d" % number, expect=number, key=b"%d" % number) for number in range(6)]
    flushed = Told()
    a.fence(flushed)
    buffered = a.buffered
    [batch] = a.take(0.0)
    a.encode(batch)
    error = OffsetMismatch("one", current=8, index=1, others=[[3, "three", None], [5, "five", 9]])
    a.refused(batch, error, 0.0)
    settle(a)
    for number, text, current in ((1, "one", 8), (3, "three", None), (5, "five", 9)):
        refused = told[number].error
        assert isinstance(refused, OffsetMismatch)
        assert (refused.text, refused.current, told[number].times) == (text, current, 1)
    assert (told[0].times, flushed.times) == (0, 0)
    assert 0 < a.buffered < buffered
    [rest] = a.take(0.0)
    assert (values(a, rest), rest.expects) == ([b"0", b"2", b"4"], {b"0": 0, b"2": 2, b"4": 4})
    assert record_batch.check(a.encode(rest)).base_sequence == 0
    a.stored(rest, 40, 1000)
    settle(a)
    assert [each.at for each in told] == [(0, 40), None, (0, 41), None, (0, 42), None]
    assert [each.times for each in told] == [1] * 6
    assert (a.empty, flushed.times) == (True, 1)


def test_when_no_expectation_of_a_batch_holds_a_flush_ends() -> None:
    a = accumulator()
    told = [add(a, b"v", expect=1, key=key) for key in (b"a", b"b")]
    flushed = Told()
    a.fence(flushed)
    [batch] = a.take(0.0)
    a.refused(batch, OffsetMismatch("a", current=None, index=0, others=[[1, "b", 2]]), 0.0)
    settle(a)
    assert [str(each.error) for each in told] == ["a", "b"]
    assert (a.empty, flushed.times, a.take(1.0)) == (True, 1, [])


@pytest.mark.parametrize(
    "details",
    [{}, {"index": 2}, {"index": -1}, {"index": "0"}, {"index": 0, "others": 5}, {"index": 0, "others": [[1, "b"]]}],
)
def test_a_refusal_that_does_not_tell_which_expectation_it_is_about_fails_them_all(details: dict[str, Any]) -> None:
    a = accumulator()
    told = [add(a, b"v", expect=1, key=key) for key in (b"a", b"b")]
    [batch] = a.take(0.0)
    a.refused(batch, OffsetMismatch("no", current=None, **details), 0.0)
    settle(a)
    assert [str(each.error) for each in told] == ["no", "no"]
    assert a.empty


def test_what_waits_too_long_fails_and_says_whether_it_may_have_been_stored() -> None:
    a = accumulator(timeout=10.0, batch_bytes=1, max_in_flight=1)
    sent, unsent = add(a, b"1", now=0.0), add(a, b"2", now=0.0)
    late = add(a, b"3", now=5.0)
    [batch] = a.take(0.0)
    assert a.next_expiry() == 10.0
    a.expire(10.0)
    settle(a)
    assert "may have been stored" in str(sent.error)
    assert "not sent" in str(unsent.error)
    assert isinstance(sent.error, RequestTimeout)
    assert late.times == 0
    a.stored(batch, 3, 1000)  # the answer that comes too late changes nothing
    settle(a)
    assert (sent.at, sent.times) == (None, 1)


def test_the_brokers_own_time_is_told() -> None:
    a = accumulator()
    found: list[int | None] = []
    for time in (1000, 1234, -1):
        add(a, b"1")
        [batch] = a.take(0.0)
        a.encode(batch)
        a.stored(batch, 0, time)
        found += [settled.append_time for settled in a.collect()]
    assert found == [None, 1234, None]


def test_the_buffer_counts_what_is_not_settled() -> None:
    a = accumulator(buffer_bytes=1000)
    assert a.empty
    for _ in range(12):
        add(a, b"x" * 60)
    assert a.full
    for batch in a.take(0.0):
        a.stored(batch, 0, 1000)
    assert a.empty
    assert not a.full


def test_columns_are_cut_into_batches_with_all_their_rows() -> None:
    a = accumulator(batch_bytes=1000, max_in_flight=99)
    rows: list[bytes | None] = [b"x" * (number % 300) if number % 7 else None for number in range(100)]
    headers = [(("h", b"v"),) if number % 3 == 0 else () for number in range(100)]
    a.add_columns(0, rows, rows, headers, list(range(100)), Told(), 0.0)
    batches = a.take(0.0)
    decoded = [record_batch.decode(a.encode(batch)) for batch in batches]
    assert all(len(a.encode(batch)) <= 1000 for batch in batches)
    assert len(batches) > 10
    assert [value for columns in decoded for value in columns.values] == rows
    assert [key for columns in decoded for key in columns.keys] == rows
    assert [time for columns in decoded for time in columns.timestamps] == list(range(100))
    told = [each for columns in decoded for each in (columns.headers or [()] * len(columns))]
    assert told == headers
    assert [batch.row for batch in batches] == [sum(len(c) for c in decoded[:at]) for at in range(len(batches))]


def test_keyless_records_take_turns_a_batch_each() -> None:
    a = accumulator(batch_bytes=10_000)
    seen = []
    for _ in range(3):
        for _ in range(2):
            partition = a.next_partition()
            seen.append(partition)
            add(a, b"x", partition)
        a.take(0.0)
    assert seen == [1, 1, 2, 2, 0, 0]


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(0, 100), st.integers(0, 5), st.data())
def test_a_cut_takes_as_much_as_fits(sizes: list[int], room: int, overhead: int, data: st.DataObject) -> None:
    ends = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    first = data.draw(st.integers(0, len(sizes) - 1))
    last = cut(ends, first, room, overhead)

    def taken(to: int) -> int:
        return sum(sizes[first:to]) + overhead * (to - first)

    assert first < last <= len(sizes)
    assert taken(last) <= room or last == first + 1
    assert last == len(sizes) or taken(last + 1) > room


# --- random lives ------------------------------------------------------------------------------------------------


class Broker:
    """The check of KIP-98: a gap is refused, one of the last five batches is answered again, all else is stored. From
    an unknown producer id any sequence is taken (KIP-360)."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.logs: dict[int, list[bytes | None]] = {0: [], 1: []}
        self.seen: dict[tuple[int, int], deque[tuple[int, int, int]]] = {}  # last five: first, last sequence, offset
        self.at: dict[tuple[int, bytes], int] = {}  # the offset of each key
        self.ids = 0

    def publish(self, data: bytes, partition: int, expects: dict[bytes, int] | None) -> int | KrappyError:
        header = record_batch.check(data)
        if self.chance.random() < 0.03:
            return Overloaded("not now")
        batches = self.seen.setdefault((header.producer_id, partition), deque(maxlen=5))
        last = header.base_sequence + header.count - 1
        for first_seen, last_seen, offset in batches:
            if (first_seen, last_seen) == (header.base_sequence, last):
                return offset
        if batches and header.base_sequence != batches[-1][1] + 1:
            return OutOfOrderSequence("gap")
        rows = record_batch.decode(data).values
        wrong = [
            [row, "not there", None]
            for row, (key, wanted) in enumerate((expects or {}).items())
            if self.at.get((partition, key), -1) != wanted
        ]
        if wrong:
            return OffsetMismatch("not there", current=None, index=wrong[0][0], others=wrong[1:])
        if any((value or b"").startswith(b"huge") for value in rows):
            return RecordTooLarge("huge")
        log = self.logs[partition]
        for row, key in enumerate(record_batch.decode(data).keys):
            if key is not None:
                self.at[partition, key] = len(log) + row
        batches.append((header.base_sequence, last, len(log)))
        log.extend(rows)
        return batches[-1][2]


class Life:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.broker = Broker(self.chance)
        self.now = 0.0
        limits = Limits(linger=0.01, batch_bytes=self.chance.choice([1, 150, 400]), timeout=1e9)
        self.a = Accumulator(limits)
        self.line: deque[tuple[LaneBatch, bytes]] = deque()  # what is under way on the connection that lives
        self.ghosts: list[deque[tuple[LaneBatch, bytes]]] = []  # what is under way on connections that were lost
        self.told: list[tuple[int, bytes, Told]] = []
        self.register()

    def register(self) -> None:
        id, epoch = self.a.producer
        if id < 0:
            self.broker.ids += 1
            id, epoch = self.broker.ids, 0
        self.a.registered(2, id, epoch, 1_000_000)

    def add(self) -> None:
        partition = self.chance.randrange(2)
        value = b"%s%d" % (self.chance.choice([b"v", b"v", b"v", b"v", b"huge"]), len(self.told))
        key = b"%d" % self.chance.randrange(9)
        expect = None
        if self.chance.random() < 0.3:
            expect = self.chance.choice([-1, self.broker.at.get((partition, key), -1)])
        self.told.append((partition, value, add(self.a, value, partition, self.now, expect, key)))

    def columns(self) -> None:
        partition = self.chance.randrange(2)
        for _ in range(self.chance.randint(1, 9)):
            told = Told()
            value = b"c%d" % len(self.told)
            self.a.add_columns(partition, None, [value], None, [1000], told, self.now)
            self.told.append((partition, value, told))

    def send(self) -> None:
        if self.a.renew:
            self.register()
        for batch in self.a.take(self.now):
            self.line.append((batch, self.a.encode(batch)))

    def answer(self) -> None:
        if self.line:
            batch, data = self.line.popleft()
            found = self.broker.publish(data, batch.partition, batch.expects)
            if isinstance(found, KrappyError):
                self.a.refused(batch, found, self.now)
            else:
                self.a.stored(batch, found, 1000)

    def lose(self) -> None:
        self.ghosts.append(self.line)
        self.line = deque()
        self.a.lost()
        self.register()

    def haunt(self) -> None:
        """The broker gets something that was sent over a lost connection, and its answer reaches nobody."""
        for ghost in self.ghosts:
            if ghost and self.chance.random() < 0.5:
                batch, data = ghost.popleft()
                self.broker.publish(data, batch.partition, batch.expects)
                return

    def live(self, steps: int) -> None:
        deeds = [self.add] * 4 + [self.columns] + [self.send] * 4 + [self.answer] * 4 + [self.haunt, self.lose]
        for _ in range(steps):
            self.now += self.chance.random() / 20
            self.chance.choice(deeds)()
            settle(self.a)
        for _ in range(10_000):
            if self.a.empty:
                break
            self.now += 0.1
            self.send()
            self.answer()
            self.haunt()
            settle(self.a)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_happens_what_was_acknowledged_is_stored_once_and_in_order(seed: int) -> None:
    life = Life(seed)
    life.live(200)
    assert life.a.empty
    assert all(told.times == 1 for _, _, told in life.told)
    for partition, log in life.broker.logs.items():
        assert len(set(log)) == len(log), "stored twice"
        mine = [(value, told) for at, value, told in life.told if at == partition]
        assert [value for value, told in mine if told.at is not None] == [
            value for value in log if value in {value for value, told in mine if told.at is not None}
        ], "out of order"
        for value, told in mine:
            if told.at is not None:
                assert log[told.at[1]] == value
            elif not isinstance(told.error, OffsetMismatch):
                assert value not in log


@pytest.mark.parametrize("seed", range(3))
def test_random_lives_are_not_dull(seed: int) -> None:
    """Else the test above would also hold for a producer that stores nothing."""
    life = Life(seed)
    life.live(400)
    assert sum(len(log) for log in life.broker.logs.values()) > 50
    assert life.broker.ids > 1


class Interrupt(BaseException):
    pass


class Interrupted(list[Any]):
    """A list in which the first `append` is the last thing that is done before a signal's exception."""

    def append(self, item: Any) -> None:
        before = len(self)
        super().append(item)
        if not hasattr(self, "at"):
            self.at = before
            raise Interrupt


@pytest.mark.parametrize("column", ["headers", "keys", "values", "timestamps", "tickets"])
def test_an_interrupt_mixes_no_records(column: str) -> None:
    a = accumulator()
    told = [Told() for _ in range(3)]
    a.add(0, b"first", b"1", (("h", b"1"),), 1, told[0], 0.0)
    [lane] = a._lanes.values()
    batch = lane.filling
    assert batch is not None
    setattr(batch, column, Interrupted(getattr(batch, column)))
    with pytest.raises(Interrupt):
        a.add(0, b"lost", b"2", (("h", b"2"),), 2, told[1], 0.0)
    a.add(0, b"last", b"3", (), 3, told[2], 0.0)
    [sent] = a.take(1.0)
    columns = record_batch.decode(a.encode(sent))
    assert (list(columns.keys), list(columns.values)) == ([b"first", b"last"], [b"1", b"3"])
    assert columns.headers is not None
    assert (list(columns.timestamps), list(columns.headers)) == ([1, 3], [(("h", b"1"),), ()])
    a.stored(sent, 7, -1)
    for settled in a.collect():
        settled.tell()
    assert [each.at for each in told] == [(0, 7), None, (0, 8)]
    assert a.empty


def test_an_interrupt_before_a_batch_has_a_record_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    a = accumulator()
    real = LaneBatch.add

    def interrupted(*arguments: Any) -> None:
        raise Interrupt

    monkeypatch.setattr(LaneBatch, "add", interrupted)
    for expect in (None, 3):
        with pytest.raises(Interrupt):
            add(a, b"1", expect=expect)
    monkeypatch.setattr(LaneBatch, "add", real)
    assert a.empty
    add(a, b"2")
    assert [batch.values for batch in a.take(1.0)] == [[b"2"]]


def test_an_interrupt_while_a_batch_is_closed_does_not_leave_it_open() -> None:
    class Full(deque[LaneBatch]):
        def append(self, batch: LaneBatch) -> None:
            super().append(batch)
            raise Interrupt

    a = accumulator(batch_bytes=200)
    add(a, b"x" * 100)
    [lane] = a._lanes.values()
    lane.ready = Full()
    with pytest.raises(Interrupt):
        add(a, b"y" * 100)
    lane.ready = deque(lane.ready)
    add(a, b"z" * 100)
    assert [batch.values for batch in lane.batches()] == [[b"x" * 100], [b"z" * 100]]


def test_of_a_batch_too_large_the_largest_record_is_named() -> None:
    batch = LaneBatch(2, 0.0)
    for key, value, headers in (
        (b"a", b"x" * 600, ()),
        (b"b", b"", (("h", b"x" * 700), ("n", None))),
        (None, None, ()),
    ):
        batch.add(key, value, headers, 0, Told())
    error = too_large(RecordTooLarge("a batch of 9 bytes", limit=5), "t", batch)
    assert str(error).endswith("t-2: a batch of 9 bytes; its largest event, of 701 bytes, has the key b'b'")
    assert (error.limit, error.topic, error.partition, error.key) == (5, "t", 2, b"b")
