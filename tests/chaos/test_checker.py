"""The checker finds each anomaly in a history that has it, and none in one that is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tests.chaos.checker import MOST, RESENT, Replica, Violation, check, check_equal
from tests.chaos.histories import Fate, History, Reading, Sent


@dataclass
class Case:
    """Six acknowledged events of writer a in partition 0, on three brokers, read by one reader. The offset of each
    event is its number. Tests change it."""

    history: History = field(default_factory=History)
    logs: dict[int, dict[int, bytes]] = field(default_factory=dict)
    reading: Reading = field(init=False)
    ends: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.history.once.add("a")
        self.reading = self.history.reading("r")
        for broker in (1, 2, 3):
            self.logs[broker] = {}
        for number in range(6):
            self.ack(self.history.send("a", number, 0), number)
            self.reading.note(0, number, b"a:%d" % number)
        self.reading.finished[0] = 6

    def ack(self, event: Sent, offset: int) -> None:
        self.history.ack(event, offset)
        self.put(offset, event.value)

    def put(self, offset: int, value: bytes, *brokers: int) -> None:
        for broker in brokers or self.logs:
            self.logs[broker][offset] = value

    def remove(self, offset: int, *brokers: int) -> None:
        for broker in brokers or self.logs:
            del self.logs[broker][offset]

    def replicas(self) -> Mapping[int, Mapping[int, Replica]]:
        return {
            0: {
                broker: Replica(0, self.ends.get(broker, max(values, default=-1) + 1), values)
                for broker, values in self.logs.items()
            }
        }

    def check(self) -> list[Violation]:
        return check(self.history, self.replicas())

    def kinds(self) -> set[str]:
        return {each.kind for each in self.check()}


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_right_history(case: Case) -> None:
    assert case.check() == []


def test_what_may_be(case: Case) -> None:
    """No violations: an event without an answer is there, or not; a writer without idempotence repeats an event; an
    aborted event is in the log, but no reader gets it; a reader has not come to the end."""
    for number in (6, 7):
        case.history.send("a", number, 0)
    case.put(6, b"a:6")
    case.history.send("b", 0, 0)
    case.put(7, b"b:0")
    case.put(8, b"b:0")
    aborted = case.history.send("t", 0, 0)
    case.put(9, aborted.value)
    case.history.settle([aborted], Fate.ABORTED)
    case.reading.finished[0] = 6
    assert case.check() == []


@pytest.mark.parametrize("brokers", [(), (2,)])
def test_lost(case: Case, brokers: tuple[int, ...]) -> None:
    case.remove(3, *brokers)
    assert "lost" in case.kinds()


def test_lost_at_the_end_of_all(case: Case) -> None:
    """All replicas lack the event, and the reader had not come so far."""
    case.remove(5)
    del case.reading.seen[0][5:]
    case.reading.finished[0] = 5
    assert case.kinds() == {"lost"}


def test_lost_for_another(case: Case) -> None:
    case.history.send("b", 0, 0)
    case.put(5, b"b:0")
    assert "lost" in case.kinds()


def test_lost_without_an_offset(case: Case) -> None:
    case.history.ack(case.history.send("a", 6, 0), -1)
    assert case.kinds() == {"lost"}
    case.put(6, b"a:6")
    assert case.check() == []


def test_duplicate(case: Case) -> None:
    case.put(6, b"a:2")
    assert case.kinds() == {"duplicate"}


def test_what_a_client_sent_again_in_a_new_epoch_is_told_apart() -> None:
    """An event that it sent again in the same epoch is a duplicate."""
    history = History()
    history.once.add("a")
    for number in range(2):
        history.send("a", number, 0)
    values = {0: b"a:0", 1: b"a:1", 2: b"a:0"}
    log = Replica(0, 3, values, {0: (7, 0), 1: (7, 0), 2: (7, 1)})
    assert [each.kind for each in check(history, {0: {1: log}})] == [RESENT]
    log = Replica(0, 3, values, {0: (7, 0), 1: (7, 0), 2: (7, 0)})
    assert [each.kind for each in check(history, {0: {1: log}})] == ["duplicate"]


def test_reordered(case: Case) -> None:
    for number in (6, 7):
        case.history.send("a", number, 0)
    case.put(6, b"a:7")
    case.put(7, b"a:6")
    assert case.kinds() == {"reordered"}


def test_a_reader_that_goes_back(case: Case) -> None:
    case.reading.note(0, 2, b"a:2")
    assert case.kinds() == {"reordered"}


def test_a_reader_that_gets_one_twice(case: Case) -> None:
    case.reading.note(0, 5, b"a:5")
    assert case.kinds() == {"reordered"}


def test_aborted(case: Case) -> None:
    event = case.history.send("t", 0, 0)
    case.put(6, event.value)
    case.reading.note(0, 6, event.value)
    case.history.settle([event], Fate.ABORTED)
    assert case.kinds() == {"aborted"}


def test_unseen(case: Case) -> None:
    del case.reading.seen[0][3]
    assert case.kinds() == {"unseen"}
    case.reading.finished[0] = 3
    assert case.check() == []


def test_vanished(case: Case) -> None:
    """A reader got an event that was not committed."""
    case.history.send("a", 6, 0)
    case.reading.note(0, 6, b"a:6")
    assert case.kinds() == {"vanished"}


def test_a_reader_that_was_moved(case: Case) -> None:
    case.reading.errors.append("its offset was out of range")
    assert case.kinds() == {"reader"}


def test_foreign(case: Case) -> None:
    case.put(6, b"x:1")
    assert case.kinds() == {"foreign"}


def test_of_another_partition(case: Case) -> None:
    case.history.send("a", 6, 1)
    case.put(6, b"a:6")
    assert case.kinds() == {"foreign"}


def test_replicas_that_differ(case: Case) -> None:
    for number in (6, 7):
        case.history.send("a", number, 0)
    case.put(6, b"a:6", 1, 2)
    case.put(6, b"a:7", 3)
    assert case.kinds() == {"differs"}


def test_replicas_that_end_apart(case: Case) -> None:
    case.ends[2] = 9  # as if broker 2 had control records at the end
    assert case.kinds() == {"differs"}


def test_a_replica_that_begins_later(case: Case) -> None:
    """One replica has already moved its log start, and the others have not yet."""
    logs = {broker: Replica(0, 6, values) for broker, values in case.logs.items()}
    logs[2] = Replica(2, 6, {offset: value for offset, value in case.logs[2].items() if offset >= 2})
    assert check(case.history, {0: logs}) == []


def test_thousands_are_counted() -> None:
    case = Case()
    for number in range(100, 200):
        case.history.ack(case.history.send("b", number, 0), number)
    found = [each for each in case.check() if each.kind == "lost"]
    assert len(found) == MOST + 1
    assert found[-1].text == f"and {300 - MOST} more"


def test_compacted_replicas() -> None:
    right = {1: Replica(0, 4, {0: b"x", 3: b"y"}), 2: Replica(0, 4, {3: b"y"})}
    assert check_equal({0: right}) == []
    assert [each.kind for each in check_equal({0: right | {3: Replica(0, 4, {3: b"z"})}})] == ["differs"]
    assert [each.kind for each in check_equal({0: right | {3: Replica(0, 3, {0: b"x"})}})] == ["differs"]
