"""The messages of shared groups over a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from krappy import errors
from krappy.records import batch
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from tests.handlers.raw import Raw
from tests.process import wait_until

FOREVER = 60_000  # ms; a poll that waits so long has failed


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with run_broker(tmp_path / "data", durability="os", group_max_members=3) as running:
        yield running


@pytest.fixture
def raw(broker: RunningBroker) -> Iterator[Raw]:
    with Raw(broker.address) as client:
        client.call(m.CreateTopic("t", 2))
        yield client


def publish(raw: Raw, count: int, partition: int = 0, key: bytes | None = None) -> None:
    handle = raw.producer("t").handle
    keys = [key] * count
    data = batch.encode(keys, [b"%d" % number for number in range(count)], timestamps=1_000)
    raw.call(m.Batch(handle, partition, data))


def join(raw: Raw, group: str = "g", **more: Any) -> Any:
    return raw.call(m.ConsumerRegistration(["t"], group=group, **more))


def test_a_member_is_named_and_told_where_the_group_stands(raw: Raw) -> None:
    publish(raw, 4)
    first = join(raw)
    assert first.member == "g_0"
    assert first.positions == [["t", 0, 0], ["t", 1, 0]]
    assert first.ends == [["t", 0, 4], ["t", 1, 0]]
    assert join(raw).member == "g_1"


def test_poll_ack_nack_extend(raw: Raw) -> None:
    publish(raw, 6)
    handle = join(raw).handle
    polled = raw.call(m.Poll(handle, max_records=4))
    assert polled.leases == [["t", 0, 0, 3, 1]]
    (topic, partition, first, high_watermark, data) = polled.parts[0]
    assert (topic, partition, first, high_watermark) == ("t", 0, 0, 6)
    assert next(iter(batch.split(data)))[0].count == 6
    raw.call(m.Ack(handle, [("t", 0, 0, 1)]))
    raw.call(m.Extend(handle, [("t", 0, 3, 3)], 60_000))
    raw.call(m.Nack(handle, [("t", 0, 2, 2)]))
    assert raw.call(m.Poll(handle)).leases == [["t", 0, 2, 2, 2], ["t", 0, 4, 5, 1]]
    assert raw.call(m.Poll(handle)).leases == []
    assert raw.call(m.Positions("g")).offsets == [["t", 0, 2], ["t", 1, 0]]


def test_what_is_lost_is_named_and_the_rest_is_done(raw: Raw) -> None:
    publish(raw, 6)
    one, two = join(raw).handle, join(raw).handle
    raw.call(m.Poll(one, max_records=2))
    raw.call(m.Poll(two, max_records=2))
    with pytest.raises(errors.LeaseLost) as refused:
        raw.call(m.Ack(one, [("t", 0, 0, 4), ("t", 1, 0, 0), ("u", 0, 7, 8)]))
    assert refused.value.lost == [["u", 0, 7, 8], ["t", 0, 2, 3], ["t", 0, 4, 4], ["t", 1, 0, 0]]
    assert raw.call(m.Positions("g")).offsets[0] == ["t", 0, 2]
    requests: list[m.Request] = [m.Nack(one, [("t", 0, 0, 3)]), m.Extend(one, [("t", 0, 0, 3)], 10)]
    for request in requests:
        with pytest.raises(errors.LeaseLost) as refused:
            raw.call(request)
        assert refused.value.lost == [["t", 0, 2, 3]]
    requests = [m.Ack(two, [("t", 0, 3, 2)]), m.Nack(two, [("t", 0, 3, 2)])]
    for request in requests:
        with pytest.raises(errors.InvalidRequest):
            raw.call(request)
    raw.call(m.Ack(two, [("t", 0, 2, 3)]))


def test_only_members_may_settle(raw: Raw) -> None:
    publish(raw, 2)
    reader = raw.call(m.ConsumerRegistration(["t"])).handle
    producer = raw.producer("t").handle
    for handle in (reader, producer, 12345):
        requests: list[m.Request] = [m.Ack(handle, []), m.Nack(handle, []), m.Extend(handle, [], 1)]
        for request in requests:
            with pytest.raises(errors.UnknownHandle):
                raw.call(request)
    with pytest.raises(errors.UnknownHandle):
        raw.call(m.Poll(producer))
    member = join(raw).handle
    raw.call(m.Poll(member))
    raw.call(m.Unregister(member))
    with pytest.raises(errors.UnknownHandle):
        raw.call(m.Ack(member, [("t", 0, 0, 1)]))
    assert raw.call(m.Poll(join(raw).handle)).leases == [["t", 0, 0, 1, 2]]


def test_who_acknowledges_what_is_in_the_dead_letter_topic_is_told(raw: Raw) -> None:
    """The member was too late. That its events were given up it may say again, after a lost connection."""
    publish(raw, 4)
    handle = join(raw, max_deliveries=1).handle
    for _ in range(4):
        raw.call(m.Poll(handle))
    raw.call(m.Ack(handle, [("t", 0, 0, 0)]))
    raw.call(m.Nack(handle, [("t", 0, 1, 2)]))
    wait_until(lambda: raw.call(m.Positions("g")).offsets[0] == ["t", 0, 3], "they are in the dead-letter topic")
    requests: list[m.Request] = [m.Ack(handle, [("t", 0, 0, 3)]), m.Extend(handle, [("t", 0, 0, 3)], 10)]
    for request in requests:
        with pytest.raises(errors.LeaseLost) as refused:
            raw.call(request)
        assert refused.value.lost == [["t", 0, 1, 2]]
    assert raw.call(m.Positions("g")).offsets[0] == ["t", 0, 4]
    raw.call(m.Nack(handle, [("t", 0, 1, 2)]))


def test_a_member_has_no_part_in_a_topic_that_is_made_anew(raw: Raw) -> None:
    raw.call(m.CreateTopic("other"))
    publish(raw, 2)
    handle = raw.call(m.ConsumerRegistration(["t", "other"], group="g")).handle
    raw.call(m.Poll(handle))
    waiting = raw.send(m.Poll(handle, max_wait=FOREVER))
    raw.call(m.DeleteTopic("t"))
    raw.call(m.CreateTopic("t"))
    publish(raw, 2)
    theirs = raw.call(m.ConsumerRegistration(["t"], group="g")).handle
    assert raw.call(m.Poll(theirs)).leases == [["t", 0, 0, 1, 1]]
    raw.call(m.Nack(theirs, [("t", 0, 0, 1)]))
    requests: list[m.Request] = [each(handle, [("t", 0, 0, 1)]) for each in (m.Ack, m.Nack)]
    for request in [*requests, m.Extend(handle, [("t", 0, 0, 1)], lease_ms=1000)]:
        with pytest.raises(errors.LeaseLost):
            raw.call(request)
    with pytest.raises(errors.UnknownTopic, match="'t' was deleted, and made anew"):
        raw.receive(waiting)
    assert raw.call(m.Poll(theirs)).leases == [["t", 0, 0, 1, 2]]


def test_what_a_member_has_not_looked_at_and_a_poll_that_it_did_not_see_are_not_counted(raw: Raw) -> None:
    publish(raw, 6)
    handle = join(raw).handle
    for _ in range(2):
        raw.call(m.Poll(handle, max_records=3))
    raw.call(m.Unregister(handle, [("t", 0, 1, 2)], polls=1))
    assert raw.call(m.Poll(join(raw).handle)).leases == [["t", 0, 0, 0, 2], ["t", 0, 1, 5, 1]]


@pytest.mark.parametrize("group", ["g", None])
def test_a_poll_that_waits_ends_with_its_registration(raw: Raw, group: str | None) -> None:
    publish(raw, 1)
    handle = raw.call(m.ConsumerRegistration(["t"], group=group, start="latest")).handle
    polls = [raw.send(m.Poll(handle, max_wait=FOREVER)) for _ in range(2)]
    raw.call(m.Ping())  # so they are waiting by now
    raw.call(m.Unregister(handle))
    for poll in polls:
        with pytest.raises(errors.UnknownHandle, match="unregistered while"):
            raw.receive(poll)


def test_a_connection_that_ends_gives_everything_back(broker: RunningBroker, raw: Raw) -> None:
    publish(raw, 3)
    handle = join(raw).handle
    with Raw(broker.address) as other:
        theirs = join(other).handle
        assert other.call(m.Poll(theirs)).leases == [["t", 0, 0, 2, 1]]
        waiting = raw.send(m.Poll(handle, max_wait=FOREVER))
        raw.call(m.Ping())  # so the poll is waiting by now
    assert raw.receive(waiting).leases == [["t", 0, 0, 2, 2]]


def test_members_wait_for_events_on_one_connection(raw: Raw) -> None:
    handles = [join(raw).handle for _ in range(3)]
    waiting = [raw.send(m.Poll(handle, max_records=1, max_wait=FOREVER)) for handle in handles]
    publish(raw, 3)
    assert sorted(raw.receive(id).leases[0][2] for id in waiting) == [0, 1, 2]
    assert raw.call(m.Poll(handles[0], max_wait=1)).leases == []


def test_the_last_member_of_all_is_refused(raw: Raw) -> None:
    for _ in range(3):
        join(raw)
    with pytest.raises(errors.GroupFull):
        join(raw)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"group": ""}, errors.InvalidRequest),
        ({"group": "g" * 250}, errors.InvalidRequest),
        ({"order": "time"}, errors.InvalidRequest),
        ({"start": "now"}, errors.InvalidRequest),
        ({"start": "offset"}, errors.InvalidRequest),
        ({"partitions": [0]}, errors.InvalidRequest),
        ({"positions": [("t", 0, 0)]}, errors.InvalidRequest),
        ({"dead_letter": "t"}, errors.InvalidRequest),
        ({"dead_letter": "a/b"}, errors.InvalidTopic),
        ({"lease_ms": 0}, errors.InvalidRequest),
        ({"max_deliveries": 0}, errors.InvalidRequest),
    ],
)
def test_registrations_that_can_not_be(raw: Raw, wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        raw.call(m.ConsumerRegistration(**{"topics": ["t"], "group": "g", **wrong}))
    assert raw.call(m.Groups()).groups == []


def test_groups_are_listed_and_described(raw: Raw) -> None:
    publish(raw, 5)
    handle = join(raw, order="key").handle
    raw.call(m.Poll(handle, max_records=3))
    raw.call(m.Ack(handle, [("t", 0, 0, 0)]))
    raw.call(m.Nack(handle, [("t", 0, 2, 2)]))
    (listed,) = raw.call(m.Groups()).groups
    (described,) = raw.call(m.Groups("g")).groups
    assert "members" not in listed
    members = described.pop("members")
    assert described == listed
    assert (listed["group"], listed["kind"], listed["order"], listed["topics"]) == ("g", "shared", "key", ["t"])
    assert [(member["name"], member["leased"]) for member in members] == [("g_0", 1)]
    assert members[0]["client"]
    assert listed["partitions"] == [
        {
            "topic": "t",
            "partition": 0,
            "floor": 1,
            "end": 5,
            "lag": 4,
            "leased": 1,
            "redelivering": 1,
            "dead": 0,
        },
        {
            "topic": "t",
            "partition": 1,
            "floor": 0,
            "end": 0,
            "lag": 0,
            "leased": 0,
            "redelivering": 0,
            "dead": 0,
        },
    ]
    with pytest.raises(errors.UnknownGroup):
        raw.call(m.Groups("nobody"))


def test_commit_positions_reset_delete(raw: Raw) -> None:
    publish(raw, 5)
    raw.call(m.Commit("r", [("t", 0, 3), ("t", 1, 0)]))
    assert raw.call(m.Positions("r")).offsets == [["t", 0, 3], ["t", 1, 0]]
    with pytest.raises(errors.OffsetOutOfRange):
        raw.call(m.Commit("r", [("t", 1, 0), ("t", 0, 6)]))
    moved = raw.call(m.ResetGroup("r", start="latest", dry_run=True)).positions
    assert moved == [["t", 0, 3, 5], ["t", 1, 0, 0]]
    assert raw.call(m.Positions("r")).offsets == [["t", 0, 3], ["t", 1, 0]]
    moved = raw.call(m.ResetGroup("r", topic="t", partitions=[0], start="offset", start_at=2)).positions
    assert moved == [["t", 0, 3, 2]]
    member = join(raw, "r")
    assert member.positions == [["t", 0, 2], ["t", 1, 0]]
    requests: list[m.Request] = [m.Commit("r", [("t", 0, 0)]), m.ResetGroup("r"), m.DeleteGroup("r")]
    for request in requests:
        with pytest.raises(errors.GroupNotEmpty):
            raw.call(request)
    raw.call(m.Unregister(member.handle))
    raw.call(m.DeleteGroup("r"))
    requests = [m.Positions("r"), m.ResetGroup("r"), m.DeleteGroup("r"), m.ResetGroup("r", dry_run=True)]
    for request in requests:
        with pytest.raises(errors.UnknownGroup):
            raw.call(request)
    with pytest.raises(errors.InvalidRequest):
        raw.call(m.ResetGroup("r", start="then"))


def test_a_member_that_does_not_read_does_not_hold_up_the_others(broker: RunningBroker, raw: Raw) -> None:
    """Hundreds of polls are sent, and no answer is read: other members get the events that are left, and the rest when
    leases end."""
    big = b"x" * 100_000
    handle = raw.producer("t").handle
    for _ in range(200):
        raw.call(m.Message(handle, big, partition=0))
    with Raw(broker.address) as lazy:
        theirs = join(lazy, lease_ms=1000).handle
        for _ in range(500):
            lazy.send(m.Poll(theirs, max_records=1, max_wait=FOREVER))
        mine = join(raw).handle
        seen: set[int] = set()
        deadline = time.monotonic() + 60
        while len(seen) < 200 and time.monotonic() < deadline:
            leases = raw.call(m.Poll(mine, max_records=50, max_wait=1000)).leases
            for topic, partition, first, last, _ in leases:
                raw.call(m.Ack(mine, [(topic, partition, first, last)]))
                seen.update(range(first, last + 1))
    assert len(seen) == 200


def test_many_acks_at_once_are_all_answered(broker: RunningBroker, raw: Raw) -> None:
    publish(raw, 500)
    handle = join(raw).handle
    raw.call(m.Poll(handle))
    ids = [raw.send(m.Ack(handle, [("t", 0, offset, offset)])) for offset in range(500)]
    for id in ids:
        raw.receive(id)
    assert raw.call(m.Positions("g")).offsets[0] == ["t", 0, 500]


def test_the_work_of_threads_is_shared_and_done_once(broker: RunningBroker, raw: Raw) -> None:
    publish(raw, 3000)
    publish(raw, 3000, partition=1)
    done: list[tuple[int, int]] = []

    def work() -> None:
        with Raw(broker.address) as mine:
            handle = join(mine).handle
            while leases := mine.call(m.Poll(handle, max_records=70, max_wait=200)).leases:
                for topic, partition, first, last, deliveries in leases:
                    assert deliveries == 1
                    mine.call(m.Ack(handle, [(topic, partition, first, last)]))
                    done.extend((partition, offset) for offset in range(first, last + 1))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [(partition, offset) for partition in (0, 1) for offset in range(3000)]
    assert all(each["lag"] == 0 for each in raw.call(m.Groups("g")).groups[0]["partitions"])
