"""What the log knows of producers: by its rules a retry is stored once, and a gap is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.errors import CorruptBatch, OutOfOrderSequence, ProducerFenced
from krappy.records.batch import TRANSACTIONAL, BatchHeader
from krappy.store import producers
from krappy.store.producers import KEPT, MAX_SEQUENCE, ProducerStates
from tests.store.logs import made, opened

PID = 7


def sent(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = PID) -> BatchHeader:
    return made(*[b"v"] * count, producer=producer, epoch=epoch, sequence=sequence)[0]


def after(*batches: tuple[int, int]) -> ProducerStates:
    """States after batches of (sequence, count), each at an offset that is 10 times its sequence."""
    states = ProducerStates()
    for sequence, count in batches:
        header = sent(sequence, count)
        assert states.check(header) is None
        states.apply(header, sequence * 10, 1)
    return states


def test_batches_without_a_producer_pass() -> None:
    states = ProducerStates()
    header, _ = made(b"a")
    assert states.check(header) is None
    states.apply(header, 0, 1)
    assert len(states) == 0


def test_an_unknown_producer_may_start_anywhere() -> None:
    """The producer's state may have expired (KIP-360)."""
    assert ProducerStates().check(sent(41)) is None


def test_one_of_which_nothing_expires_starts_at_zero() -> None:
    states = ProducerStates()
    assert states.check(sent(0), from_zero=True) is None
    with pytest.raises(OutOfOrderSequence):
        states.check(sent(41), from_zero=True)
    assert after((41, 1)).check(sent(42), from_zero=True) is None


def test_the_next_sequence_is_taken_others_are_not() -> None:
    states = after((0, 3), (3, 2))
    assert states.check(sent(5)) is None
    for sequence in (6, 2, 4, 100):
        with pytest.raises(OutOfOrderSequence):
            states.check(sent(sequence))


def test_the_last_five_batches_are_known_as_duplicates() -> None:
    states = after(*[(sequence, 2) for sequence in range(0, 16, 2)])
    for sequence in range(6, 16, 2):
        assert states.check(sent(sequence, 2)) == sequence * 10
    for sequence in range(0, 6, 2):
        with pytest.raises(OutOfOrderSequence):
            states.check(sent(sequence, 2))
    with pytest.raises(OutOfOrderSequence):
        states.check(sent(14, 1))  # it is as long as another batch, but is not that one


def test_a_new_epoch_starts_at_zero() -> None:
    states = after((0, 1), (1, 1))
    with pytest.raises(OutOfOrderSequence):
        states.check(sent(2, epoch=1))
    header = sent(0, epoch=1)
    assert states.check(header) is None
    states.apply(header, 99, 1)
    assert states.check(header) == 99
    assert states.check(sent(1, epoch=1)) is None


def test_an_old_epoch_is_fenced() -> None:
    states = after((0, 1))
    states.apply(sent(0, epoch=2), 50, 1)
    for sequence in (0, 1):
        with pytest.raises(ProducerFenced):
            states.check(sent(sequence, epoch=1))


def test_sequences_wrap() -> None:
    states = ProducerStates()
    states.apply(sent(MAX_SEQUENCE - 1, 2), 5, 1)
    assert states.check(sent(0)) is None
    with pytest.raises(OutOfOrderSequence):
        states.check(sent(1))
    states = ProducerStates()
    states.apply(sent(MAX_SEQUENCE - 1, 5), 5, 1)
    assert states.check(sent(MAX_SEQUENCE - 1, 5)) == 5
    assert states.check(sent(3)) is None


def test_applying_twice_changes_nothing() -> None:
    states = after((0, 1), (1, 1))
    before = states.snapshot()
    states.apply(sent(1), 10, 1)
    states.apply(sent(0), 0, 1)
    assert states.snapshot() == before


def test_the_producers_silent_for_longest_are_forgotten_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "MOST", 20)
    states = ProducerStates()
    for number in range(100):
        states.apply(sent(0)._replace(producer_id=number), number, now_ms=number)
        assert len(states) <= 20
    assert states.get(99) is not None
    assert states.get(81) is not None
    assert states.get(50) is None
    assert states.check(sent(7)._replace(producer_id=50)) is None, "an unknown producer may go on (KIP-360)"


def test_a_producer_that_has_just_sent_is_not_forgotten_after_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "MOST", 20)
    states = ProducerStates()
    for number in range(21):
        states.apply(sent(0)._replace(producer_id=number), number, now_ms=1000 - number)
    assert states.check(sent(0)._replace(producer_id=20)) == 20, "its retry is not appended again"


def test_a_producer_with_an_open_transaction_is_forgotten_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a staged job would be published from its beginning again. But even such producers may not let the states
    grow without limit."""
    monkeypatch.setattr(producers, "MOST", 20)
    states = ProducerStates()
    for number in range(100):
        header = sent(0)._replace(producer_id=number, attributes=TRANSACTIONAL if number < 5 else 0)
        states.apply(header, number, now_ms=number)
    assert all(states.get(number) is not None for number in range(5))
    assert states.get(50) is None
    for number in range(100, 200):
        states.apply(sent(0)._replace(producer_id=number, attributes=TRANSACTIONAL), number, now_ms=number)
        assert len(states) <= 20


def test_expiry() -> None:
    states = ProducerStates()
    for producer, now in ((1, 1000), (2, 2000)):
        states.apply(sent(0, producer=producer), producer, now)
    assert states.expire(2500, 1000) == 1
    assert states.get(1) is None
    assert states.get(2) is not None
    assert states.expire(2500, 1000) == 0


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=60),
)
def test_snapshots_hold_everything(steps: list[tuple[int, int, int, bool]]) -> None:
    """After any history the restored states answer as the live ones do, and only admitted batches were stored."""
    states = ProducerStates()
    stored: dict[int, list[tuple[int, int]]] = {}
    offset = 0
    for producer, epoch, count, again in steps:
        known = states.get(producer)
        if known is None or epoch > known.epoch:
            sequence = 0
        else:
            epoch, last = known.epoch, known.sent[-1]
            sequence = last.base_sequence if again else last.last_sequence + 1
            count = last.last_sequence - last.base_sequence + 1 if again else count
        header = sent(sequence, count, epoch=epoch, producer=producer)
        original = states.check(header)
        if original is None:
            states.apply(header, offset, 1)
            stored.setdefault(producer, []).append((sequence, offset))
            offset += count
        else:
            assert (sequence, original) == stored[producer][-1]
    restored = ProducerStates()
    restored.restore(states.snapshot())
    assert restored == states
    assert all(len(state.sent) <= KEPT for state in map(states.get, stored) if state)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x93", b"\x01", b"\x91\x01", b"\x91\x94\x01\x00\x00\x90", b"\x91\x94\xa1x\x00\x00\x91\x95"]
)
def test_an_invalid_snapshot(data: bytes) -> None:
    with pytest.raises(CorruptBatch):
        ProducerStates().restore(data)


def test_the_log_keeps_them_up(tmp_path: Path) -> None:
    log = opened(tmp_path)
    one, two = made(b"a", b"b", producer=1, sequence=0), made(b"c", producer=1, sequence=2)
    log.append([one, two], 0, 77)
    assert log.producers.check(one[0]) == 0
    assert log.producers.check(two[0]) == 2
    assert log.producers.get(1).seen_ms == 77  # type: ignore[union-attr]


def transactional(sequence: int, *, epoch: int = 0) -> BatchHeader:
    header = sent(sequence, epoch=epoch)
    return header._replace(attributes=header.attributes | TRANSACTIONAL)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_first_transaction_replaces_what_was_written_outside_of_them(epoch: int) -> None:
    """Somebody else wrote it under the producer's id."""
    states = ProducerStates()
    for sequence in range(3):
        states.apply(sent(sequence, epoch=epoch), sequence, 1)
    assert not states.is_transactional(PID)
    states.apply(transactional(0), 3, 2)
    assert states.is_transactional(PID)
    assert states.following(PID) == (0, 1)
    assert states.check(transactional(0)) == 3
    assert states.check(transactional(1)) is None


def test_what_is_written_outside_of_transactions_later_changes_nothing() -> None:
    states = ProducerStates()
    states.apply(transactional(0), 0, 1)
    for epoch in (0, 1):
        states.apply(sent(1, epoch=epoch), 1 + epoch, 1)
    assert states.following(PID) == (0, 1)
    states.apply(transactional(1), 3, 1)
    assert states.check(transactional(1)) == 3


def test_a_batch_that_is_remembered_already_replaces_nothing() -> None:
    """As when a log is read again from before its checkpoint, which an earlier version wrote."""
    states = after((0, 1), (1, 1))
    states.apply(transactional(0), 0, 1)
    assert states.following(PID) == (0, 2)
