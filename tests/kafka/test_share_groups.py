"""Share groups (KIP-932), message by message: members, sessions, acquiring, acknowledging, tools' requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from krappy.errors import WrongGroupKind
from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw, create
from tests.kafka.shares import ACCEPT, REJECT, RELEASE, RENEW, Member, beat, earliest, fill, position
from tests.kafka.transactional import Transactional
from tests.peer import Peer
from tests.process import BrokerProcess, Launcher, broker_process, wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("shares") / "data"
    with broker_process(data, launch=launcher, durability="os") as running:
        yield running
        assert not running.events("internal_error"), running.last_words()
        assert running.stop() == 0


def test_a_member_acquires_and_acknowledges(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "t1")
    earliest(raw, "g1")
    fill(raw, "t1", 10)
    one = Member(raw, "g1", "one", "t1")
    assert one.acquired(max_records=4) == [(0, 3, 1)]
    assert one.acquired((0, 1, [ACCEPT]), (2, 3, [RELEASE, REJECT]), max_records=4) == [(2, 2, 2), (4, 6, 1)]
    assert one.acknowledge((2, 2, [ACCEPT]), (4, 6, [ACCEPT])) == 0
    assert one.acquired() == [(7, 9, 1)]
    assert position(raw, "g1", "t1") == (7, 3)


def test_two_members_share_a_partition(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "t2")
    earliest(raw, "g2")
    fill(raw, "t2", 10)
    with Raw(broker.kafka) as second:
        one, two = Member(raw, "g2", "one", "t2"), Member(second, "g2", "two", "t2")
        assert one.acquired(max_records=3) == [(0, 2, 1)]
        assert two.acquired(max_records=3) == [(3, 5, 1)]
        assert two.acknowledge((0, 2, [ACCEPT])) == Code.INVALID_RECORD_STATE  # another member has them
        assert two.acknowledge((2, 3, [ACCEPT])) == Code.INVALID_RECORD_STATE  # some are another's: nothing is taken
        assert two.acknowledge((3, 5, [ACCEPT])) == 0
        assert two.acknowledge((3, 5, [ACCEPT])) == Code.INVALID_RECORD_STATE  # twice: they are settled
        assert two.acknowledge((6, 9, [ACCEPT])) == Code.INVALID_RECORD_STATE  # nobody has them
        assert position(raw, "g2", "t2") == (0, 7)
        assert one.acknowledge((0, 2, [ACCEPT])) == 0
        assert position(raw, "g2", "t2") == (6, 4)


def test_what_a_dead_member_had_goes_to_others_and_counts(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "t3")
    earliest(raw, "g3")
    fill(raw, "t3", 3)
    one = Member(raw, "g3", "one", "t3")
    with Raw(broker.kafka) as second:
        assert Member(second, "g3", "two", "t3").acquired() == [(0, 2, 1)]
        assert one.acquired() == []
    assert one.acquired(max_wait_ms=20_000) == [(0, 2, 2)]


def test_what_a_member_has_when_it_ends_its_session_was_delivered(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "t4")
    earliest(raw, "g4")
    fill(raw, "t4", 3)
    with Raw(broker.kafka) as second:
        one, two = Member(raw, "g4", "one", "t4"), Member(second, "g4", "two", "t4")
        assert two.acquired() == [(0, 2, 1)]
        answer = second.ask(ApiKey.SHARE_ACKNOWLEDGE, two.body([(0, 0, [ACCEPT])], epoch=-1))
        assert (answer["error_code"], answer["responses"][0]["partitions"][0]["error_code"]) == (0, 0)
        assert one.acquired() == [(1, 2, 2)]  # a program that fails on a record closes its consumer
        answer = second.ask(ApiKey.SHARE_ACKNOWLEDGE, two.body([], epoch=-1))
        assert answer["error_code"] == Code.SHARE_SESSION_NOT_FOUND


def test_epochs_of_a_share_session(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "t5")
    earliest(raw, "g5")
    one = Member(raw, "g5", "one", "t5")
    for epoch, expected in (
        (1, Code.SHARE_SESSION_NOT_FOUND),
        (-1, Code.SHARE_SESSION_NOT_FOUND),
        (-2, Code.INVALID_SHARE_SESSION_EPOCH),
        (0, 0),
        (0, 0),  # a new session
        (2, Code.INVALID_SHARE_SESSION_EPOCH),
        (1, 0),
        (1, Code.INVALID_SHARE_SESSION_EPOCH),  # the same epoch once more
        (2, 0),
        (-1, 0),
        (3, Code.SHARE_SESSION_NOT_FOUND),
    ):
        assert one.ask_fetch(epoch=epoch)["error_code"] == expected, epoch
    assert one.ask_fetch((0, 0, [ACCEPT]), epoch=0)["error_code"] == Code.INVALID_REQUEST
    begun = raw.ask(ApiKey.SHARE_ACKNOWLEDGE, one.body([], epoch=0))
    assert begun["error_code"] == Code.INVALID_SHARE_SESSION_EPOCH
    for head in (
        {"group_id": None},
        {"group_id": ""},
        {"member_id": None},
        {"member_id": ""},
        {"member_id": "x" * 256},
    ):
        assert raw.ask(ApiKey.SHARE_FETCH, one.body([]) | head)["error_code"] == Code.INVALID_REQUEST
    stranger = raw.ask(ApiKey.SHARE_FETCH, one.body([], epoch=0) | {"group_id": "nobody"})
    assert stranger["error_code"] == Code.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    "acks",
    [
        [(3, 2, [ACCEPT])],
        [(-1, 0, [ACCEPT])],
        [(0, 1, [ACCEPT, ACCEPT, ACCEPT])],
        [(0, 1, [])],
        [(0, 1, [9])],
        [(0, 1, [-1])],
        [(0, 1, [ACCEPT]), (1, 1, [ACCEPT])],
        [(1, 1, [ACCEPT]), (0, 0, [ACCEPT])],
        [(0, 0, [RENEW])],  # renewing without the field that says so
        [(0, 2**62, [ACCEPT] * 3)],
    ],
)
def test_acknowledgements_that_make_no_sense(raw: Raw, broker: BrokerProcess, acks: Any) -> None:
    name = f"odd{abs(hash(str(acks)))}"
    create(broker, name)
    earliest(raw, name)
    fill(raw, name, 3)
    one = Member(raw, name, "one", name)
    assert one.acquired() == [(0, 2, 1)]
    assert one.acknowledge(*acks) == Code.INVALID_REQUEST
    assert one.acknowledge((0, 2**62, [ACCEPT])) == Code.INVALID_RECORD_STATE
    assert one.acknowledge((0, 2, [ACCEPT])) == 0


def test_a_record_is_delivered_five_times_at_most(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "t6")
    earliest(raw, "g6")
    fill(raw, "t6", 3)
    one = Member(raw, "g6", "one", "t6")
    counts = [one.acquired()]
    while counts[-1]:
        first, last = counts[-1][0][0], counts[-1][-1][1]
        counts.append(one.acquired((first, last, [RELEASE])))
    # The last time, each record comes alone: it may be what kills members.
    assert counts == [*([(0, 2, n)] for n in range(1, 5)), [(0, 0, 5)], [(1, 1, 5)], [(2, 2, 5)], []]
    assert position(raw, "g6", "t6") == (3, 0)


def test_a_lock_ends_and_is_renewed(raw: Raw, broker: BrokerProcess) -> None:
    """A renewed lock lasts from now for as long as the group's setting says. In this test that is shorter than the rest
    of the lock: so nothing depends on how fast the test is."""
    create(broker, "t7")
    earliest(raw, "g7", share_record_lock_duration_ms="600000")
    fill(raw, "t7", 4)
    with Raw(broker.kafka) as second:
        one, two = Member(raw, "g7", "one", "t7"), Member(second, "g7", "two", "t7")
        got = one.ask_fetch()
        one.epoch += 1
        assert got["acquisition_lock_timeout_ms"] == 600_000
        assert two.acquired() == []
        earliest(raw, "g7", share_record_lock_duration_ms="1000")
        assert one.acknowledge((0, 1, [RENEW]), (2, 3, [RENEW]), is_renew_ack=True) == 0
        assert two.acquired(max_wait_ms=20_000) == [(0, 3, 2)]
        assert one.acknowledge((0, 1, [ACCEPT])) == Code.INVALID_RECORD_STATE
        assert one.acknowledge((0, 1, [RENEW]), is_renew_ack=True) == Code.INVALID_RECORD_STATE
        earliest(raw, "g7", share_renew_acknowledge_enable="false")
        assert two.acknowledge((0, 1, [RENEW]), is_renew_ack=True) == Code.INVALID_REQUEST


def test_a_fetch_waits_for_records_and_for_what_others_release(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "t8")
    with Raw(broker.kafka) as second:
        one, two = Member(raw, "g8", "one", "t8"), Member(second, "g8", "two", "t8")
        assert one.acquired() == []  # the group begins at the end
        assert two.acquired() == []
        limits = {"max_wait_ms": 20_000, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100}
        second.send(ApiKey.SHARE_FETCH, two.body([], **limits))
        fill(raw, "t8", 3)
        (part,) = second.receive()["responses"][0]["partitions"]
        two.epoch += 1
        assert [(a["first_offset"], a["last_offset"]) for a in part["acquired_records"]] == [(0, 2)]
        raw.send(ApiKey.SHARE_FETCH, one.body([], **limits))
        assert two.acknowledge((0, 2, [ACCEPT, RELEASE, ACCEPT])) == 0
        (part,) = raw.receive()["responses"][0]["partitions"]
        assert part["acquired_records"] == [{"first_offset": 1, "last_offset": 1, "delivery_count": 2}]


def test_where_a_group_begins(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "t9")
    fill(raw, "t9", 3)
    for start, expected in (("latest", []), ("earliest", [(0, 2, 1)]), ("by_duration:P9999D", [(0, 2, 1)])):
        group = f"g9-{start[:8]}"
        earliest(raw, group, share_auto_offset_reset=start)
        assert Member(raw, group, "one", "t9").acquired() == expected, start
    earliest(raw, "g9-short", share_auto_offset_reset="by_duration:PT0.001S")
    assert Member(raw, "g9-short", "one", "t9").acquired() == []


def test_uncommitted_records_come_at_once_or_committed_ones_alone(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "t10")
    earliest(raw, "gu")
    earliest(raw, "gc", share_isolation_level="read_committed")
    with Raw(broker.kafka) as other:
        producer = Transactional(other).init()
        assert producer.add(("t10", 0)) == [0]
        assert [producer.write("t10", b"v") for _ in range(3)] == [0, 0, 0]
        one, two = Member(raw, "gu", "one", "t10"), Member(raw, "gc", "one", "t10")
        assert one.acquired() == [(0, 2, 1)]
        assert two.acquired() == []
        assert producer.end(commit=False) == 0
        assert producer.add(("t10", 0)) == [0]
        assert [producer.write("t10", b"v") for _ in range(2)] == [0, 0]  # offset 3 has the marker
        assert producer.end(commit=True) == 0
    fill(raw, "t10", 1)
    assert two.acquired(max_wait_ms=20_000, max_records=2) == [(4, 5, 1)]
    assert two.acquired((4, 5, [ACCEPT])) == [(7, 7, 1)]
    assert one.acquired((0, 2, [ACCEPT])) == [(4, 5, 1), (7, 7, 1)]
    assert two.acknowledge((7, 7, [ACCEPT])) == 0
    assert position(raw, "gc", "t10") == (8, 0)


def test_sessions_know_their_partitions(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "t11", 2)
    earliest(raw, "g11")
    one = Member(raw, "g11", "one", "t11")
    assert one.acquired() == []
    fill(raw, "t11", 1, 0)
    fill(raw, "t11", 1, 1)
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100}

    def ask(topics: list[Any], forgotten: list[Any]) -> list[int]:
        body = one.body([]) | {"topics": topics, "forgotten_topics_data": forgotten} | limits
        answer = raw.ask(ApiKey.SHARE_FETCH, body)
        assert answer["error_code"] == 0, answer
        one.epoch += 1
        return [part["partition_index"] for topic in answer["responses"] for part in topic["partitions"]]

    both = [{"topic_id": one.id, "partitions": [0, 1]}]
    assert ask([], both) == []
    assert ask([{"topic_id": one.id, "partitions": [{"partition_index": 1}]}], []) == [1]
    assert ask([{"topic_id": one.id, "partitions": [{"partition_index": 0}]}], []) == [0]
    assert ask([], []) == []
    strange = [{"topic_id": bytes(range(16)), "partitions": [{"partition_index": 0}]}]
    strange += [{"topic_id": one.id, "partitions": [{"partition_index": 5}, {"partition_index": -1}]}]
    answer = raw.ask(ApiKey.SHARE_FETCH, one.body([]) | {"topics": strange} | limits | {"max_wait_ms": 20_000})
    codes = [part["error_code"] for topic in answer["responses"] for part in topic["partitions"]]
    assert codes == [Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_partition_is_forgotten_by_a_request_that_acknowledges_records_of_it(raw: Raw, broker: BrokerProcess) -> None:
    """Kafka's consumer sends such a request when it is assigned other partitions, or has unsubscribed a topic. It must
    get no more records of them."""
    create(broker, "t14")
    earliest(raw, "g14")
    fill(raw, "t14", 3)
    one = Member(raw, "g14", "one", "t14")
    forgotten = [{"topic_id": one.id, "partitions": [0]}]
    assert one.acquired() == [(0, 2, 1)]
    assert one.acquired((0, 1, [ACCEPT]), forgotten_topics_data=forgotten) == []
    assert position(raw, "g14", "t14") == (2, 1)
    fill(raw, "t14", 1)
    assert one.fetch(topics=[]) == {}
    assert one.acknowledge((2, 2, [ACCEPT])) == 0  # which it still has
    assert one.acknowledge((3, 3, [ACCEPT])) == Code.INVALID_RECORD_STATE
    assert Member(raw, "g14", "two", "t14").acquired() == [(3, 3, 1)]


def test_a_session_ends_where_a_request_acknowledges_records_of_a_partition_that_is_not_in_it(
    raw: Raw, broker: BrokerProcess
) -> None:
    """Kafka's consumer may not know that the partition is in the session again, and would throw its records away."""
    create(broker, "t15")
    earliest(raw, "g15")
    fill(raw, "t15", 3)
    one = Member(raw, "g15", "one", "t15")
    assert one.acquired() == [(0, 2, 1)]
    assert one.fetch(topics=[], forgotten_topics_data=[{"topic_id": one.id, "partitions": [0]}]) == {}
    fill(raw, "t15", 1)
    assert one.acquired((0, 2, [ACCEPT])) == []
    assert position(raw, "g15", "t15") == (3, 1)
    assert one.ask_fetch()["error_code"] == Code.SHARE_SESSION_NOT_FOUND
    one.epoch = 0
    assert one.acquired() == [(3, 3, 1)]
    one.epoch = 0  # the answer was lost: it has seen nothing of this session, and begins another
    assert one.acquired() == [(3, 3, 1)]


def test_two_rows_of_one_partition_are_both_taken(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "rows", 1)
    earliest(raw, "rows-group")
    fill(raw, "rows", 10)
    member = Member(raw, "rows-group", "m", "rows")
    assert member.acquired() == [(0, 9, 1)]

    def acknowledged(*acks: Any) -> int:
        body = member.body([acks[0]])
        body["topics"] += [part for ack in acks[1:] for part in member.body([ack])["topics"]]
        answer = raw.ask(ApiKey.SHARE_ACKNOWLEDGE, body)
        member.epoch += 1
        [part] = [part for topic in answer["responses"] for part in topic["partitions"]]
        return int(part["error_code"])

    assert acknowledged((5, 9, [ACCEPT]), (0, 4, [ACCEPT])) == Code.INVALID_REQUEST  # as in one row
    assert position(raw, "rows-group", "rows") == (0, 10)
    assert acknowledged((0, 4, [ACCEPT]), (5, 9, [ACCEPT])) == 0
    assert position(raw, "rows-group", "rows") == (10, 0)


def test_a_session_of_two_connections(raw: Raw, broker: BrokerProcess) -> None:
    """One connection waits for records, and gets some of a partition that the other adds to the session meanwhile."""
    create(broker, "shared", 2)
    earliest(raw, "shared-group")
    fill(raw, "shared", 3)
    with Raw(broker.kafka) as first, Raw(broker.kafka) as second:
        member = Member(first, "shared-group", "m", "shared")
        assert member.acquired() == [(0, 2, 1)]
        limits = {"max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100, "batch_size": 100}
        first.send(ApiKey.SHARE_FETCH, member.body([], **limits))
        member.raw, member.index = second, 1
        member.epoch += 1
        wait_until(lambda: member.ask_fetch()["error_code"] == 0, "the first request was taken")
        raw.produce("shared", batch.encode([None], [b"v"], timestamps=1), 1)
        raw.produce("shared", batch.encode([None], [b"v"], timestamps=1), 0)  # this wakes who waits
        told = first.receive()
        parts = {part["partition_index"]: part for topic in told["responses"] for part in topic["partitions"]}
        assert [row["first_offset"] for row in parts[1]["acquired_records"]] == [0]
    assert broker.events("internal_error") == []


def test_a_topic_that_is_deleted_and_made_anew(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "t12")
    earliest(raw, "g12")
    fill(raw, "t12", 3)
    one = Member(raw, "g12", "one", "t12")
    assert one.acquired(max_records=1) == [(0, 0, 1)]
    old = one.id
    (gone,) = raw.ask(ApiKey.DELETE_TOPICS, {"topics": [{"name": "t12"}], "timeout_ms": 10_000})["responses"]
    assert gone["error_code"] == 0
    create(broker, "t12")
    fill(raw, "t12", 5)
    assert one.acknowledge((0, 0, [ACCEPT])) in (Code.UNKNOWN_TOPIC_ID, Code.INVALID_RECORD_STATE)
    assert one.fetch()["error_code"] == Code.UNKNOWN_TOPIC_ID
    one.id = raw.topic_id("t12")
    assert one.id != old
    assert one.acquired() == [(0, 4, 1)]


# --- members


def test_members_share_out_partitions_and_keep_epochs(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "m1", 3)
    id = raw.topic_id("m1")

    def assigned(told: dict[str, Any]) -> list[int] | None:
        assert told["error_code"] == 0, told
        given = told["assignment"]
        if given is None:
            return None
        return [
            index for topic in given["topic_partitions"] for index in topic["partitions"] if topic["topic_id"] == id
        ]

    told = beat(raw, "mg", "one", 0, ["m1", "nowhere"])
    assert (told["member_epoch"], told["member_id"], assigned(told)) == (1, "one", [0, 1, 2])
    assert assigned(beat(raw, "mg", "one", 1)) is None
    second = beat(raw, "mg", "two", 0, ["m1", "nowhere"])
    told = beat(raw, "mg", "one", 1)
    assert told["member_epoch"] == second["member_epoch"] == 2
    first = assigned(told)
    assert sorted([*(first or []), *(assigned(second) or [])]) == [0, 1, 2]
    assert beat(raw, "mg", "one", 1)["error_code"] == 0  # the answer with its new epoch may have been lost
    for epoch in (3, 7):
        assert beat(raw, "mg", "one", epoch)["error_code"] == Code.FENCED_MEMBER_EPOCH
    assert beat(raw, "mg", "nobody", 1)["error_code"] == Code.UNKNOWN_MEMBER_ID
    assert beat(raw, "mg", "nobody", -1)["error_code"] == Code.UNKNOWN_MEMBER_ID
    assert beat(raw, "mg", "two", -1)["member_epoch"] == -1
    assert assigned(beat(raw, "mg", "one", 2)) == [0, 1, 2]
    for number in range(5):
        told = beat(raw, "mg", f"more{number}", 0, ["m1"])
        assert assigned(told), number


def test_heartbeats_that_make_no_sense(raw: Raw, broker: BrokerProcess) -> None:
    for asked, expected in (
        (("", "one", 0, ["t"]), Code.INVALID_REQUEST),
        (("bad", "", 0, ["t"]), Code.INVALID_REQUEST),
        (("bad", "one", 0, None), Code.INVALID_REQUEST),
        (("bad", "one", 0, []), Code.INVALID_REQUEST),
        (("bad", "one", -2, None), Code.INVALID_REQUEST),
        (("bad", "one", 1, None), Code.GROUP_ID_NOT_FOUND),
        (("x" * 1001, "one", 0, ["t"]), Code.INVALID_GROUP_ID),
        (("bad", "x" * 9000, 0, ["t"]), Code.INVALID_REQUEST),
    ):
        assert beat(raw, *asked)["error_code"] == expected, asked
    body = {"group_id": "bad", "member_id": "one", "member_epoch": 0, "rack_id": "", "subscribed_topic_names": ["t"]}
    assert raw.ask(ApiKey.SHARE_GROUP_HEARTBEAT, body)["error_code"] == Code.INVALID_REQUEST


def test_a_name_is_one_groups(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "n1")
    assert beat(raw, "shared", "one", 0, ["n1"])["error_code"] == 0
    join = {"group_id": "shared", "member_id": "", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
    join |= {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"meta"}]}
    assert raw.ask(ApiKey.JOIN_GROUP, join, 3)["error_code"] == Code.INCONSISTENT_GROUP_PROTOCOL
    modern = {"group_id": "shared", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 1000}
    modern |= {"subscribed_topic_names": ["n1"], "topic_partitions": []}
    assert raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, modern)["error_code"] != 0
    asked = {"group_id": "shared", "topics": [{"name": "n1", "partition_indexes": [0]}]}
    assert raw.ask(ApiKey.OFFSET_FETCH, asked, 5)["error_code"] != 0
    assert raw.ask(ApiKey.JOIN_GROUP, join | {"group_id": "classic"}, 3)["error_code"] == 0
    assert beat(raw, "classic", "one", 0, ["n1"])["error_code"] == Code.GROUP_ID_NOT_FOUND
    with Peer(broker.address) as peer:
        with pytest.raises(WrongGroupKind):
            peer.ask(m.ConsumerRegistration(["n1"], group="shared"), m.ConsumerRegistered)
        peer.ask(m.ConsumerRegistration(["n1"], group="native"), m.ConsumerRegistered)
        assert beat(raw, "native", "one", 0, ["n1"])["error_code"] == Code.GROUP_ID_NOT_FOUND


# --- tools


def test_groups_are_listed_described_and_deleted(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "d1", 2)
    earliest(raw, "dg")
    fill(raw, "d1", 3)
    one = Member(raw, "dg", "one", "d1")
    assert one.acquired() == [(0, 2, 1)]
    listed = raw.ask(ApiKey.LIST_GROUPS, {"types_filter": ["Share"]})["groups"]
    expected = {"group_id": "dg", "protocol_type": "share", "group_state": "Stable", "group_type": "share"}
    assert expected in listed
    assert {each["group_type"] for each in listed} == {"share"}
    (told,) = raw.ask(ApiKey.SHARE_GROUP_DESCRIBE, {"group_ids": ["dg"], "include_authorized_operations": True})[
        "groups"
    ]
    assert (told["error_code"], told["group_state"], told["assignor_name"]) == (0, "Stable", "simple")
    (member,) = told["members"]
    assert (member["member_id"], member["client_id"], member["subscribed_topic_names"]) == ("one", "raw", ["d1"])
    assert member["assignment"]["topic_partitions"] == [{"topic_id": one.id, "topic_name": "d1", "partitions": [0, 1]}]
    for key, field, name in (
        (ApiKey.SHARE_GROUP_DESCRIBE, "group_ids", "no"),
        (ApiKey.DESCRIBE_GROUPS, "groups", "dg"),
    ):
        assert raw.ask(key, {field: [name]})["groups"][0]["error_code"] == Code.GROUP_ID_NOT_FOUND
    (told,) = raw.ask(ApiKey.DELETE_GROUPS, {"groups_names": ["dg"]})["results"]
    assert told["error_code"] == Code.NON_EMPTY_GROUP
    move = [{"topic_name": "d1", "partitions": [{"partition_index": 0, "start_offset": 1}]}]
    assert raw.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, {"group_id": "dg", "topics": move})["error_code"] == 68
    forget = {"group_id": "dg", "topics": [{"topic_name": "d1"}]}
    assert raw.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, forget)["error_code"] == Code.NON_EMPTY_GROUP
    assert beat(raw, "dg", "one", -1)["error_code"] == 0
    (told,) = raw.ask(ApiKey.DELETE_GROUPS, {"groups_names": ["dg"]})["results"]
    assert told["error_code"] == 0
    assert all(each["group_id"] != "dg" for each in raw.ask(ApiKey.LIST_GROUPS)["groups"])
    assert one.ask_fetch()["error_code"] == Code.SHARE_SESSION_NOT_FOUND
    assert Member(raw, "dg", "two", "d1").acquired() == [(0, 2, 1)]  # with a beginning of its own


def test_offsets_are_told_moved_and_deleted(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "o1", 2)
    earliest(raw, "og")
    fill(raw, "o1", 10)
    one = Member(raw, "og", "one", "o1")
    assert one.acquired(max_records=6) == [(0, 5, 1)]
    assert one.acknowledge((1, 5, [ACCEPT])) == 0
    assert position(raw, "og", "o1") == (0, 5)
    assert position(raw, "og", "o1", 1) == (-1, -1)  # the group has not read this partition yet
    assert beat(raw, "og", "one", -1)["error_code"] == 0
    rows = [{"partition_index": 0, "start_offset": 4}, {"partition_index": 1, "start_offset": 99}]
    rows += [{"partition_index": 2, "start_offset": 0}, {"partition_index": 3, "start_offset": -1}]
    topics = [{"topic_name": "o1", "partitions": rows}, {"topic_name": "no", "partitions": rows[:1]}]
    told = raw.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, {"group_id": "og", "topics": topics})
    codes = [part["error_code"] for topic in told["responses"] for part in topic["partitions"]]
    assert (told["error_code"], codes) == (0, [0, 0, 3, Code.INVALID_REQUEST, 3])
    assert (position(raw, "og", "o1"), position(raw, "og", "o1", 1)) == ((4, 6), (0, 0))
    with Raw(broker.kafka) as second:
        assert Member(second, "og", "two", "o1").acquired() == [(4, 9, 1)]
        assert beat(second, "og", "two", -1)["error_code"] == 0
    forget = {"group_id": "og", "topics": [{"topic_name": "o1"}, {"topic_name": "no"}]}
    told = raw.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, forget)
    assert (told["error_code"], [each["error_code"] for each in told["responses"]]) == (0, [0, 3])
    assert position(raw, "og", "o1") == (-1, -1)
    for key in (ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS):
        assert raw.ask(key, {"group_id": "no", "topics": []})["error_code"] == Code.GROUP_ID_NOT_FOUND
    (told,) = raw.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, {"groups": [{"group_id": "no", "topics": None}]})["groups"]
    assert told["error_code"] == Code.GROUP_ID_NOT_FOUND


def test_a_group_can_be_moved_before_anybody_joins(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "b1")
    fill(raw, "b1", 5)
    move = [{"topic_name": "b1", "partitions": [{"partition_index": 0, "start_offset": 3}]}]
    assert raw.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, {"group_id": "bg", "topics": move})["error_code"] == 0
    assert position(raw, "bg", "b1") == (3, 2)
    (told,) = raw.ask(ApiKey.SHARE_GROUP_DESCRIBE, {"group_ids": ["bg"]})["groups"]
    assert (told["error_code"], told["group_state"]) == (0, "Empty")
    assert Member(raw, "bg", "one", "b1").acquired() == [(3, 4, 1)]


def test_settings_of_share_groups_are_checked(raw: Raw) -> None:
    def alter(name: str, value: str) -> int:
        configs = [{"name": name, "value": value, "config_operation": 0}]
        body = {"resources": [{"resource_type": 32, "resource_name": "checked", "configs": configs}]}
        return int(raw.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, body)["responses"][0]["error_code"])

    for name, value in (
        ("share.auto.offset.reset", "none"),
        ("share.auto.offset.reset", "by_duration:-PT1S"),
        ("share.auto.offset.reset", "by_duration:P"),
        ("share.isolation.level", "serializable"),
        ("share.delivery.count.limit", "1"),
        ("share.record.lock.duration.ms", "999"),
        ("share.partition.max.record.locks", "10001"),
        ("share.session.timeout.ms", "5000"),  # not longer than the interval between heartbeats
        ("share.renew.acknowledge.enable", "perhaps"),
    ):
        assert alter(name, value) == Code.INVALID_CONFIG, (name, value)
    assert alter("share.delivery.count.limit", "2") == 0


def test_the_feature_is_told(raw: Raw) -> None:
    told = raw.ask(ApiKey.API_VERSIONS, {"client_software_name": "x", "client_software_version": "1"})
    assert {"name": "share.version", "max_version_level": 1, "min_version_level": 1} in told["finalized_features"]


def test_locks_of_a_partition_are_bounded(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "l1")
    earliest(raw, "lg", share_partition_max_record_locks="100")
    fill(raw, "l1", 300)
    one = Member(raw, "lg", "one", "l1")
    assert one.acquired(max_records=1000) == [(0, 99, 1)]
    assert one.acquired(max_records=1000) == []
    assert one.acquired((0, 49, [ACCEPT]), max_records=1000) == [(100, 149, 1)]


def test_an_answer_has_no_more_bytes_than_asked_for_but_one_batch(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "y1", 2)
    earliest(raw, "yg")
    for _ in range(3):
        data = batch.encode([None], [bytes(1000)], timestamps=1_700_000_000_000)
        assert raw.produce("y1", data)["error_code"] == 0
    one = Member(raw, "yg", "one", "y1")
    assert one.acquired(max_bytes=10) == [(0, 0, 1)]
    assert one.acquired(max_bytes=1500) == [(1, 1, 1)]
    assert one.acquired((0, 1, [RELEASE]), max_bytes=2500) == [(0, 1, 2)]
    assert one.acquired(max_bytes=10_000) == [(2, 2, 1)]


def test_a_member_without_heartbeats_is_out(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "s1")
    earliest(raw, "sg", share_heartbeat_interval_ms="100", share_session_timeout_ms="400")
    told = beat(raw, "sg", "one", 0, ["s1"])
    assert told["heartbeat_interval_ms"] == 100

    def members() -> int:
        return len(raw.ask(ApiKey.SHARE_GROUP_DESCRIBE, {"group_ids": ["sg"]})["groups"][0]["members"])

    wait_until(lambda: members() == 0, "the member is out")
    assert beat(raw, "sg", "one", 1)["error_code"] == Code.UNKNOWN_MEMBER_ID
