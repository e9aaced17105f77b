from __future__ import annotations

import pytest

from krappy.core import refused_batches
from krappy.core.refused_batches import KEPT_S, MANY, MAX_SEQUENCE, MOST, NextBatch, RefusedBatches
from krappy.records import batch
from krappy.records.batch import BatchHeader

LATER = 1.0  # seconds


def sent(sequence: int, epoch: int = 0, id: int = 7) -> BatchHeader:
    data = batch.encode([b"k"], [b"v"], timestamps=1, producer_id=id, producer_epoch=epoch, base_sequence=sequence)
    return batch.read_header(data)


def refused(*headers: BatchHeader, partitions: int = 10) -> RefusedBatches[int, str]:
    """Refused batches, each with a reason of its own: its sequence."""
    made = RefusedBatches[int, str](lambda: partitions)
    for header in headers:
        made.note(header.producer_id, header, str(header.base_sequence), 0.0)
    return made


@pytest.mark.parametrize("first", [0, 5, MAX_SEQUENCE])
@pytest.mark.parametrize("known", [False, True])
def test_those_behind_it_wait_until_it_comes_again(first: int, known: bool) -> None:
    """`known`: the log has the batch before it."""
    following = NextBatch(0, first) if known else None
    behind = [(first + each) & MAX_SEQUENCE for each in (1, 2)]
    made = refused(sent(first), *(sent(each) for each in behind))
    for each in behind:
        assert made.find(7, sent(each), following, LATER) == str(first)
    assert made.find(7, sent(first), following, LATER) is None
    assert not made
    assert made.find(7, sent(behind[0]), following, LATER) is None


def test_they_do_not_wait_for_what_is_stored() -> None:
    made = refused(sent(5))
    assert made.find(7, sent(9), NextBatch(0, 9), LATER) is None
    assert not made


def test_they_do_not_wait_for_what_was_given_up() -> None:
    assert refused(sent(5)).find(7, sent(0, epoch=1), NextBatch(0, 5), LATER) is None
    assert refused(sent(5)).find(7, sent(6), NextBatch(1, 3), LATER) is None
    assert refused(sent(5)).find(7, sent(6), None, KEPT_S + 1) is None


@pytest.mark.parametrize("following", [None, NextBatch(0, 5)])
def test_they_do_not_wait_when_one_behind_it_comes_again_before_it(following: NextBatch | None) -> None:
    made = refused(sent(5))
    for each in (6, 8):
        assert made.find(7, sent(each), following, LATER) == "5"
    assert made.find(7, sent(6), following, LATER) is None
    assert not made


def test_one_of_an_earlier_epoch_changes_nothing() -> None:
    made = refused(sent(0, epoch=1), sent(3))
    assert made.find(7, sent(1), NextBatch(0, 0), LATER) is None
    assert made.find(7, sent(1, epoch=1), NextBatch(0, 3), LATER) == "0"


def test_producers_wait_each_for_itself() -> None:
    made = refused(sent(0), sent(0, id=-1))
    assert made.find(8, sent(1, id=8), None, LATER) is None
    assert len(made) == 1


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_batches, "MANY", 2)
    made = refused(*(sent(0, id=id) for id in (7, 8, 9, 7)), partitions=0)
    assert [made.find(id, sent(1, id=id), None, LATER) for id in (7, 8, 9)] == ["0", None, "0"]


@pytest.mark.parametrize(("partitions", "kept"), [(MANY + 500, MANY + 500), (MOST + 500, MOST)])
def test_but_one_producer_may_have_one_in_each_partition(partitions: int, kept: int) -> None:
    made = RefusedBatches[int, str](lambda: partitions)
    for each in range(kept):
        made.note(each, sent(0), "refused", 0.0)
    assert len(made) == kept
    assert made.find(0, sent(1), None, LATER) == "refused"
    made.note(kept, sent(0), "refused", 0.0)
    assert len(made) == kept + 1 - kept // 10


@pytest.mark.parametrize("first", [3, MAX_SEQUENCE])
def test_the_log_may_have_what_was_refused(first: int) -> None:
    """The batch was refused after it had been appended, and the batch behind it was not appended."""
    second, third, fourth = ((first + each) & MAX_SEQUENCE for each in (1, 2, 3))
    made, following = refused(sent(first), sent(second)), NextBatch(0, second)
    assert made.find(7, sent(third), following, LATER) == str(first)
    assert made.find(7, sent(fourth), following, LATER) == str(first)
    assert made.find(7, sent(third), following, LATER) is None, "the second one was given up"


def test_the_log_may_have_all_between() -> None:
    assert refused(sent(3)).find(7, sent(6), NextBatch(0, 6), LATER) is None
