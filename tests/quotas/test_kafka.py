"""Quotas in Kafka's protocol: how they are set, and what they do to clients that are over them."""

from __future__ import annotations

import select
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from krappy.broker.client_quotas import ClientQuotas
from krappy.core.security.quota import Payer, QuotaPlace
from krappy.core.security.quota_entities import QuotaKey
from krappy.server import throttled
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire.kafka import ApiKey, Code, encode_request
from tests.batches import Row, encode_rows
from tests.kafka.raw import Raw, fetch, produce
from tests.kafka.shares import Member
from tests.process import Stopwatch, wait_until
from tests.quotas.quotas import Quotas, throttled_seconds

EXACT, DEFAULT, ANY = 0, 1, 2
KB = 1000
NAMED = 12  # the last version of Produce that names topics; later ones have ids


def batch_of(value: bytes) -> bytes:
    return encode_rows([Row(b"k", value)])


# --- how they are set (KIP-546)


def test_what_is_set_is_described(quotas: Quotas) -> None:
    quotas.set({"user": "set-ada"}, producer_byte_rate=1024.0, request_percentage=12.5)
    quotas.set({"user": "set-ada", "client-id": "set web&é%"}, consumer_byte_rate=5.0)
    quotas.set({"user": None, "client-id": "set web&é%"}, controller_mutation_rate=0.5)
    quotas.set({"ip": "10.1.2.3"}, connection_creation_rate=7.0)
    ada = ({"user": "set-ada"}, {"producer_byte_rate": 1024.0, "request_percentage": 12.5})
    both = ({"user": "set-ada", "client-id": "set web&é%"}, {"consumer_byte_rate": 5.0})
    default = ({"user": None, "client-id": "set web&é%"}, {"controller_mutation_rate": 0.5})
    ip = ({"ip": "10.1.2.3"}, {"connection_creation_rate": 7.0})
    assert quotas.found(("user", EXACT, "set-ada")) == [ada, both]
    assert quotas.found(("user", EXACT, "set-ada"), strict=True) == [ada]
    assert quotas.found(("user", DEFAULT, None)) == [default]
    assert quotas.found(("client-id", EXACT, "set web&é%"), ("user", ANY, None)) == [both, default]
    assert quotas.found(("ip", ANY, None)) == [ip]
    assert [each for each in quotas.found() if each in (ada, both, default, ip)] == [ada, both, default, ip]
    quotas.alter({"user": "set-ada"}, producer_byte_rate=None, consumer_byte_rate=3.0)
    assert quotas.found(("user", EXACT, "set-ada"), strict=True) == [
        ({"user": "set-ada"}, {"request_percentage": 12.5, "consumer_byte_rate": 3.0})
    ]
    quotas.alter({"user": "set-ada"}, request_percentage=None, consumer_byte_rate=None)
    assert quotas.found(("user", EXACT, "set-ada"), strict=True) == []


def test_the_largest_long_stands_for_no_limit(quotas: Quotas) -> None:
    """With it, users of Kafka except somebody from a default quota. Kafka's tools send it as a double."""
    most = float(2**63 - 1)
    quotas.set({"user": "set-eve"}, producer_byte_rate=most, consumer_byte_rate=most)
    assert quotas.found(("user", EXACT, "set-eve")) == [
        ({"user": "set-eve"}, {"producer_byte_rate": most, "consumer_byte_rate": most})
    ]


def test_what_is_only_checked_is_not_set(quotas: Quotas) -> None:
    assert quotas.alter({"user": "eve"}, True, producer_byte_rate=1.0)["error_code"] == 0
    assert quotas.found(("user", EXACT, "eve")) == []


def test_quotas_that_can_not_be_are_refused(quotas: Quotas) -> None:
    for parts, rates in (
        ({}, {"producer_byte_rate": 1.0}),
        ({"planet": "mars"}, {"producer_byte_rate": 1.0}),
        ({"user": ""}, {"producer_byte_rate": 1.0}),
        ({"ip": "10.0.0.1", "user": "ada"}, {"connection_creation_rate": 1.0}),
        ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}),
        ({"user": "ada"}, {"connection_creation_rate": 1.0}),
        ({"user": "ada"}, {"producer_byte_rate": 0.0}),
        ({"user": "ada"}, {"producer_byte_rate": float("nan")}),
        ({"user": "ada"}, {"producer_byte_rate": 0.5}),
        ({"user": "a" * 256}, {"producer_byte_rate": 1.0}),
        ({"client-id": "a" * 250}, {"producer_byte_rate": 1.0}),
    ):
        answer = quotas.alter(parts, **rates)  # type: ignore[arg-type]
        assert answer["error_code"] == Code.INVALID_REQUEST, (parts, rates)
        assert 0 < len(answer["error_message"]) < 1000
    for component, code in (
        (("", EXACT, "x"), Code.INVALID_REQUEST),
        (("planet", EXACT, "mars"), Code.UNSUPPORTED_VERSION),
        (("user", EXACT, None), Code.INVALID_REQUEST),
        (("user", DEFAULT, "x"), Code.INVALID_REQUEST),
        (("user", 3, None), Code.INVALID_REQUEST),
    ):
        answer = quotas.describe(component)
        assert (answer["error_code"], answer["entries"]) == (code, None)
    twice = quotas.describe(("user", EXACT, "ada"), ("user", EXACT, "bob"))
    assert twice["error_code"] == Code.INVALID_REQUEST
    assert quotas.describe(("user", EXACT, "ada"), ("ip", ANY, None))["error_code"] == Code.INVALID_REQUEST


def test_quotas_are_there_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        with run_broker(tmp_path, durability="os") as broker:
            quotas = Quotas(broker.kafka_address)
            if not quotas.found():
                assert quotas.alter({"client-id": "kept"}, producer_byte_rate=1.0)["error_code"] == 0
                kept = quotas.found()
            quotas.raw.close()
    with run_broker(tmp_path, durability="os") as broker, Raw(broker.kafka_address, client_id="kept") as raw:
        raw.make("t")
        assert raw.ask(ApiKey.PRODUCE, produce("t", batch_of(b"x" * 100)), NAMED)["throttle_time_ms"] > 10_000
    assert kept == [({"client-id": "kept"}, {"producer_byte_rate": 1.0})]


# --- what they do (KIP-219)


# The last two writes of [3, 1, 1] come alone, because nobody else waits any more.
@pytest.mark.parametrize(("most", "turns"), [(500, [5]), (2, [3, 1, 1])])
def test_small_writes_have_one_place_beside_large_ones(
    broker: RunningBroker, quotas: Quotas, monkeypatch: pytest.MonkeyPatch, most: int, turns: list[int]
) -> None:
    """Otherwise a producer of small batches would get little of the quota beside other producers of its user."""
    monkeypatch.setattr(throttled, "MOST_TOGETHER", most)
    quotas.set({"user": "ANONYMOUS"}, producer_byte_rate=100.0 * KB)
    places, place = [], ClientQuotas.place

    def placed(its: ClientQuotas, key: QuotaKey, payer: Payer, amount: float, most: float) -> QuotaPlace | None:
        places.append((payer.client_id, amount))
        return place(its, key, payer, amount, most)

    monkeypatch.setattr(ClientQuotas, "place", placed)
    large, small = (produce("together", batch_of(bytes(size * KB))) for size in (400, 5))
    with Raw(broker.kafka_address, client_id="large") as one, Raw(broker.kafka_address, client_id="small") as other:
        one.make("together")
        one.ask(ApiKey.PRODUCE, large, NAMED)
        sent = [encode_request(ApiKey.PRODUCE, NAMED, id, "small", small) for id in range(5)]
        other.send_bytes(b"".join(sent))
        for id in range(5):
            assert int.from_bytes(other.receive_frame()[:4], "big") == id
    assert places[1:] == [("small", turn * len(sent[0])) for turn in turns]


def test_a_quota_of_others_that_changes_counts_no_write_twice(
    broker: RunningBroker, quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas.set({"user": "ANONYMOUS"}, producer_byte_rate=100.0 * KB)
    places, place = [], ClientQuotas.place

    def placed(its: ClientQuotas, key: QuotaKey, payer: Payer, amount: float, most: float) -> QuotaPlace | None:
        places.append(payer.client_id)
        return place(its, key, payer, amount, most)

    monkeypatch.setattr(ClientQuotas, "place", placed)
    large, small = (produce("unmoved", batch_of(bytes(size * KB))) for size in (300, 5))
    with Raw(broker.kafka_address, client_id="large") as one, Raw(broker.kafka_address, client_id="small") as other:
        one.make("unmoved")
        one.ask(ApiKey.PRODUCE, large, NAMED)
        other.send_bytes(encode_request(ApiKey.PRODUCE, NAMED, 7, "small", small))
        wait_until(lambda: len(places) == 2, "it is in line")
        for rate in (1.0, 2.0, 3.0):
            quotas.set({"user": "bob"}, producer_byte_rate=rate * KB)
        assert int.from_bytes(other.receive_frame()[:4], "big") == 7
    assert places == ["large", "small"]


def test_a_producer_is_answered_at_once_and_then_not_read(broker: RunningBroker, quotas: Quotas) -> None:
    quotas.set({"client-id": "writer"}, producer_byte_rate=100.0 * KB)
    with Raw(broker.kafka_address, client_id="writer") as raw:
        raw.make("written")
        before, watch = time.monotonic(), Stopwatch()
        answer = raw.ask(ApiKey.PRODUCE, produce("written", batch_of(bytes(350 * KB))), NAMED)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
        assert watch.seconds < 2
        assert 2300 < answer["throttle_time_ms"] < 2600  # 100 of the 350 KB may come at once
        assert raw.ask(ApiKey.DESCRIBE_CLUSTER)["error_code"] == 0
        assert time.monotonic() - before >= 2.3
        assert watch.seconds < 20


def test_one_who_has_no_quota_is_not_throttled(broker: RunningBroker, quotas: Quotas) -> None:
    quotas.set({"client-id": "writer"}, producer_byte_rate=1.0)
    with Raw(broker.kafka_address, client_id="another") as raw:
        raw.make("free")
        watch = Stopwatch()
        for _ in range(3):
            assert raw.ask(ApiKey.PRODUCE, produce("free", batch_of(bytes(150 * KB))), NAMED)["throttle_time_ms"] == 0
        assert watch.seconds < 2


def test_a_silenced_client_goes_on_when_the_quota_is_removed(broker: RunningBroker, quotas: Quotas) -> None:
    quotas.set({"client-id": "freed"}, producer_byte_rate=1.0)
    with Raw(broker.kafka_address, client_id="freed") as raw:
        raw.make("freed")
        assert raw.ask(ApiKey.PRODUCE, produce("freed", batch_of(bytes(KB))), NAMED)["throttle_time_ms"] > 500_000
        raw.send(ApiKey.DESCRIBE_CLUSTER)
        raw.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            raw.receive_frame()
        raw.socket.settimeout(30)
        quotas.alter({"client-id": "freed"}, producer_byte_rate=None)
        assert raw.receive_frame()


def test_acks_0_counts_too(broker: RunningBroker, quotas: Quotas) -> None:
    quotas.set({"client-id": "unanswered"}, producer_byte_rate=100.0 * KB)
    with Raw(broker.kafka_address, client_id="unanswered") as raw:
        raw.make("unanswered")
        before = time.monotonic()
        raw.send(ApiKey.PRODUCE, produce("unanswered", batch_of(bytes(150 * KB)), acks=0), NAMED)
        raw._asked.clear()
        raw.ask(ApiKey.DESCRIBE_CLUSTER)
        assert time.monotonic() - before >= 0.4


def test_a_fetch_over_the_quota_is_answered_empty(broker: RunningBroker, quotas: Quotas) -> None:
    with Raw(broker.kafka_address, client_id="reader") as raw, Raw(broker.kafka_address, client_id="reader") as other:
        id = raw.make("read")
        for _ in range(4):
            raw.produce("read", batch_of(bytes(120 * KB)))
        quotas.set({"client-id": "reader"}, consumer_byte_rate=40.0 * KB)
        wanted = fetch([(id, 0, 0)])
        first = raw.ask(ApiKey.FETCH, wanted)
        [records] = [each["records"] for topic in first["responses"] for each in topic["partitions"]]
        assert 120 * KB <= len(records) < 240 * KB  # one batch, although it is more than a second allows
        assert first["throttle_time_ms"] > 100
        watch = Stopwatch()
        second = other.ask(ApiKey.FETCH, wanted)
        assert (second["responses"], second["error_code"]) == ([], 0)
        assert second["throttle_time_ms"] > 50
        assert watch.seconds < 1.5  # the answer does not wait; it tells the client to wait for 2 s
        third = raw.ask(ApiKey.FETCH, wanted)  # it is answered once the broker reads this connection again
        assert third["responses"]


def test_members_of_share_groups_that_waited_together_get_no_more_than_one(
    broker: RunningBroker, quotas: Quotas
) -> None:
    """When an event came, each of them got it: whether the quota allows that had been looked at before the wait."""
    with Raw(broker.kafka_address) as producer, ExitStack() as stack:
        producer.make("shared")
        raws = [stack.enter_context(Raw(broker.kafka_address, client_id="sharer")) for _ in range(5)]
        members = [Member(raw, f"sharers-{at}", "m" * 22, "shared") for at, raw in enumerate(raws)]
        for member in members:
            assert member.acquired() == []
        quotas.set({"client-id": "sharer"}, consumer_byte_rate=20.0 * KB)
        for member in members:
            head = {"group_id": member.group, "member_id": member.member, "share_session_epoch": 1, "topics": []}
            limits = {"max_bytes": 1 << 20, "max_records": 100, "batch_size": 100, "max_wait_ms": 30_000}
            member.raw.send(ApiKey.SHARE_FETCH, {**head, **limits, "min_bytes": 1})
        assert producer.produce("shared", batch_of(bytes(60 * KB)))["error_code"] == 0
        answers = [raw.receive() for raw in raws]
        assert [each["error_code"] for each in answers] == [0] * 5
        assert [bool(each["responses"]) for each in answers].count(True) == 1
        assert min(each["throttle_time_ms"] for each in answers) > 100


def test_a_client_that_leaves_is_noticed_while_it_is_not_read(broker: RunningBroker, quotas: Quotas) -> None:
    """The broker frees what the client holds; here that is its connection."""
    quotas.set({"client-id": "leaver"}, producer_byte_rate=1.0)
    with Raw(broker.kafka_address, client_id="leaver") as raw:
        raw.make("left")
        raw.ask(ApiKey.PRODUCE, produce("left", batch_of(bytes(KB))), NAMED)
        raw.send(ApiKey.DESCRIBE_CLUSTER)
        raw.socket.shutdown(socket.SHUT_WR)
        assert raw.closed()


# --- requests and changes of topics


def test_time_is_counted(broker: RunningBroker, quotas: Quotas) -> None:
    quotas.set({"client-id": "busy"}, request_percentage=1.0)
    with Raw(broker.kafka_address, client_id="busy") as raw:
        told = [raw.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [{"resource_type": 4, "resource_name": "0"}]})]
        began = time.monotonic()
        while not told[-1]["throttle_time_ms"]:
            told.append(raw.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [{"resource_type": 4, "resource_name": "0"}]}))
            assert time.monotonic() - began < 20
        assert 0 < told[-1]["throttle_time_ms"] <= 1001


TOPIC = {"num_partitions": 2, "replication_factor": 1}


def create(raw: Raw, version: int, *names: str) -> tuple[list[int], int]:
    topics = [{"name": name, **TOPIC} for name in names]
    answer = raw.ask(ApiKey.CREATE_TOPICS, {"topics": topics, "timeout_ms": 30_000}, version)
    return [each["error_code"] for each in answer["topics"]], answer["throttle_time_ms"]


def test_changes_of_topics_are_refused_to_clients_that_know_the_refusal(broker: RunningBroker, quotas: Quotas) -> None:
    """At 0.2 partitions a second, 2.2 partitions may be made at once (KIP-599)."""
    quotas.set({"client-id": "maker"}, controller_mutation_rate=0.2)
    with Raw(broker.kafka_address, client_id="maker") as raw:
        codes, wait = create(raw, 7, "made-0", "made-1", "made-2")
        assert sorted(codes) == [0, 0, Code.THROTTLING_QUOTA_EXCEEDED]
        assert 5000 < wait < 10_000
    with Raw(broker.kafka_address, client_id="maker") as raw:
        asked = {"topics": [{"name": "made-0"}]}
        [deleted] = raw.ask(ApiKey.DELETE_TOPICS, asked, 6)["responses"]
        assert deleted["error_code"] == Code.THROTTLING_QUOTA_EXCEEDED
    with Raw(broker.kafka_address, client_id="maker") as raw:
        asked = {"topics": [{"name": "made-0", "count": 3}]}  # type: ignore[dict-item]
        [grown] = raw.ask(ApiKey.CREATE_PARTITIONS, asked, 3)["results"]
        assert grown["error_code"] == Code.THROTTLING_QUOTA_EXCEEDED
    with Raw(broker.kafka_address, client_id="maker") as raw:  # Metadata would create the topic that it names
        [topic] = raw.ask(ApiKey.METADATA, {"topics": [{"name": "made-9"}], "allow_auto_topic_creation": True})[
            "topics"
        ]
        assert topic["error_code"] != 0
    with Raw(broker.kafka_address, client_id="other") as raw:
        assert create(raw, 7, "made-3") == ([0], 0)


def test_changes_by_other_clients_are_done_and_then_they_are_not_read(broker: RunningBroker, quotas: Quotas) -> None:
    quotas.set({"client-id": "old-maker"}, controller_mutation_rate=0.5)
    with Raw(broker.kafka_address, client_id="old-maker") as raw:
        codes, wait = create(raw, 5, *(f"old-{number}" for number in range(6)))
        assert codes == [0] * 6
        assert 1000 < wait <= 13_001  # 5.5 of the 12 partitions may be made at once


# --- attempts to evade them


def test_many_connections_and_client_ids_are_one_user(
    broker: RunningBroker, quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty connections, each with a client id of its own, together write at the rate of one user, however long they
    wait. A write whose turn does not come soon is refused, and its client is told to be silent. Producers try again
    after this error."""
    monkeypatch.setattr(throttled, "HELD", 1.2)
    with Raw(broker.kafka_address) as raw:
        raw.make("evaded")
    quotas.set({"user": "ANONYMOUS"}, producer_byte_rate=100.0 * KB)
    connections = {raw.socket: raw for raw in (Raw(broker.kafka_address, client_id=f"e-{n}") for n in range(30))}
    codes: list[int] = []
    began, last = time.monotonic(), 0.0
    for raw in connections.values():
        raw.send(ApiKey.PRODUCE, produce("evaded", batch_of(bytes(50 * KB))), NAMED)
    waiting = set(connections)
    while (taken := time.monotonic() - began) < 3.0:
        answered, _, _ = select.select(waiting, [], [], 3.0 - taken)
        waiting -= set(answered)
        for each in answered:
            answer = connections[each].receive()
            [code] = [each["error_code"] for topic in answer["responses"] for each in topic["partition_responses"]]
            codes.append(code)
            assert code == 0 or answer["throttle_time_ms"] > 1000
            if code == 0:
                last = time.monotonic() - began
    for raw in connections.values():
        raw.close()
    assert len(codes) == 30
    assert 4 <= codes.count(0) <= 2 + last * 2 + 1  # each has 50 KB: two may come at once, and then two a second
    assert set(codes) == {0, Code.REQUEST_TIMED_OUT}


def test_new_connections_write_no_more(broker: RunningBroker, quotas: Quotas, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections come one after another, each with one write; one of them is to many partitions. Nothing of a refused
    write is stored."""
    monkeypatch.setattr(throttled, "HELD", 0.2)
    with broker.connect() as client:
        client.create_topic("anew", partitions=300)
    with Raw(broker.kafka_address) as raw:
        quotas.set({"user": "ANONYMOUS"}, producer_byte_rate=10.0 * KB)
        large = batch_of(bytes(150 * KB))
        assert raw.ask(ApiKey.PRODUCE, produce("anew", large), NAMED)["throttle_time_ms"] > 3000
    for parts in (
        [{"index": 0, "records": large}],
        [{"index": index, "records": batch_of(b"v")} for index in range(300)],
    ):
        with Raw(broker.kafka_address) as raw:
            asked = {"acks": -1, "timeout_ms": 9000, "topic_data": [{"name": "anew", "partition_data": parts}]}
            watch = Stopwatch()
            [topic] = raw.ask(ApiKey.PRODUCE, asked, NAMED)["responses"]
            assert watch.seconds < 2
        assert {each["error_code"] for each in topic["partition_responses"]} == {Code.REQUEST_TIMED_OUT}
        assert "producer_byte_rate" in topic["partition_responses"][0]["error_message"]
    quotas.alter({"user": "ANONYMOUS"}, producer_byte_rate=None)
    with Raw(broker.kafka_address) as raw:
        assert len(raw.values("anew")) == 1


def test_a_write_without_answer_waits_for_a_place(
    broker: RunningBroker, quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not refused, because the client would not be told. All such writes are stored at last, also those of a
    client that has left meanwhile, and the connection of the other client stays."""
    monkeypatch.setattr(throttled, "HELD", 0.2)
    with Raw(broker.kafka_address) as raw, Raw(broker.kafka_address) as left, Raw(broker.kafka_address) as other:
        other.make("mute")
        quotas.set({"user": "ANONYMOUS"}, producer_byte_rate=10.0 * KB)
        other.ask(ApiKey.PRODUCE, produce("mute", batch_of(bytes(150 * KB))), NAMED)
        for each in (raw, left):
            for value in (b"1", b"2"):
                each.send(ApiKey.PRODUCE, produce("mute", batch_of(value), acks=0), NAMED)
            each._asked.clear()
        left.close()
        raw.send(ApiKey.DESCRIBE_CLUSTER)
        raw.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            raw.socket.recv(1)
        raw.socket.settimeout(30)
        quotas.alter({"user": "ANONYMOUS"}, producer_byte_rate=None)
        raw.receive()
        wait_until(lambda: len(raw.values("mute")) == 5, "all are written")


def test_the_metric_tells_how_long_a_write_waits_for_a_place(
    broker: RunningBroker, quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write without a place looks for one again when a quarter of its expected wait is over."""
    monkeypatch.setattr(throttled, "HELD", 0.2)
    with Raw(broker.kafka_address) as raw, Raw(broker.kafka_address) as other:
        other.make("muted")
        quotas.set({"user": "ANONYMOUS"}, producer_byte_rate=1.0 * KB)
        # Later writes have to wait for 11 seconds.
        other.ask(ApiKey.PRODUCE, produce("muted", batch_of(bytes(13 * KB))), NAMED)
        before, began = throttled_seconds(broker), time.monotonic()
        raw.send(ApiKey.PRODUCE, produce("muted", batch_of(b"1"), acks=0), NAMED)
        wait_until(lambda: throttled_seconds(broker) - before > 4, "it looks again")
        assert throttled_seconds(broker) - before < time.monotonic() - began + 3
