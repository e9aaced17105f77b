"""The check of groups finds each way in which a history can be wrong."""

from __future__ import annotations

from tests.chaos.groups import Delivery, GroupHistory, Resumption, check_group
from tests.chaos.histories import Fate, Sent


def history(*deliveries: tuple[int, int, bytes | None], settled: dict[int, float] | None = None) -> GroupHistory:
    """A history with these deliveries: (session, offset, key). Session n began at time n."""
    made = GroupHistory("g")
    made.began = {session: float(session) for session in range(10)}
    made.deliveries = [Delivery(session, 0, offset, key) for session, offset, key in deliveries]
    made.settled = {(0, offset): at for offset, at in (settled or {}).items()}
    return made


def kinds(made: GroupHistory, *sent: Sent) -> list[str]:
    return [each.kind for each in check_group(made, sent)]


def acked(offset: int) -> Sent:
    return Sent("w", offset, 0, Fate.ACKED, offset)


def test_what_is_settled_does_not_come_to_a_later_session() -> None:
    assert kinds(history((1, 0, None), (2, 0, None), settled={0: 2.5})) == []  # both sessions began before the ack
    assert kinds(history((1, 0, None), (3, 0, None), settled={0: 2.5})) == ["again"]
    assert kinds(history((1, 0, None), (3, 1, None), settled={0: 2.5})) == []


def test_events_of_a_key_first_come_in_their_order() -> None:
    assert kinds(history((1, 0, b"a"), (2, 1, b"a"), (3, 0, b"a"))) == []  # offset 0 is delivered again
    assert kinds(history((1, 1, b"a"), (2, 0, b"a"))) == ["reordered"]
    assert kinds(history((1, 1, b"a"), (2, 0, b"b"))) == []
    assert kinds(history((1, 1, None), (2, 0, None))) == []


def test_a_position_does_not_go_back() -> None:
    made = history()
    made.committed = [(0, 5, 1.0), (0, 9, 3.0), (1, 7, 1.0)]
    made.resumed = [Resumption(0, 5, 2.0), Resumption(0, 9, 2.0), Resumption(1, 7, 4.0)]
    assert kinds(made) == []
    made.resumed = [Resumption(0, 4, 2.0), Resumption(0, 5, 4.0)]
    assert kinds(made) == ["position", "position"]


def test_a_commit_that_was_sent_twice_may_be_stored_late() -> None:
    made = history()
    made.committed = [(0, 5, 1.0), (0, 9, 3.0), (0, 7, 5.0), (0, 8, 7.0)]
    made.resumed = [Resumption(0, 5, 4.0), Resumption(0, 7, 6.0)]
    assert kinds(made) == ["position", "position"]
    made.doubt({0: 5})
    assert kinds(made) == []
    made.resumed.append(Resumption(0, 7, 8.0))  # 8 was committed after the late copy of 7 was stored
    assert kinds(made) == ["position"]


def test_every_acknowledged_event_is_delivered() -> None:
    assert kinds(history((1, 0, None)), acked(0)) == []
    assert kinds(history((1, 0, None)), acked(0), acked(1)) == ["unseen"]
    assert kinds(history((1, 0, None)), acked(0), Sent("w", 1, 0)) == []
