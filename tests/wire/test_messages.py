"""The codec of messages, tested as a table: each case is read whole, byte by byte, and with more bytes behind it."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy import errors
from krappy.entries.entry import pack_entry
from krappy.errors import InvalidRequest, KrappyError, ProtocolError
from krappy.wire import messages as m
from krappy.wire.frames import ANSWER, ERROR, FrameReader, frame
from krappy.wire.messages import Answer, Request, error_frame, parse, read_answer, read_error, take_id, unpack
from krappy.wire.schema import by_kind

NIL = b"\xc0"
ENTRY = pack_entry(7, 1000, b"v", (("h", None),))
READ = [7, 1000, b"v", [["h", None]]]
DEAD = pack_entry(8, -1, None)
READ_DEAD = [8, -1, None, None]


def packed(id: int, **fields: Any) -> bytes:
    body: bytes = msgpack.packb({"id": id, **fields})
    return body


# (message, id, the fields that travel)
REQUESTS: list[tuple[Request, int, dict[str, Any]]] = [
    (m.Ping(), 0, {"broker": False}),
    (m.Ping(True), 2**63 - 1, {"broker": True}),
    (m.Unregister(2**32 - 1), 1, {"handle": 2**32 - 1, "unseen": None, "polls": None}),
    (m.Unregister(5, [("t", 0, 3, 9)], 7), 1, {"handle": 5, "unseen": [["t", 0, 3, 9]], "polls": 7}),
    (m.DeleteTopic("thé"), 1, {"topic": "thé"}),
    (
        m.Message(1, None, b"k", 5, [("a", b"b"), ("c", None)], 0, -1),
        3,
        {"handle": 1, "payload": None, "key": b"k", "timestamp": 5, "headers": [["a", b"b"], ["c", None]]}
        | {"partition": 0, "expect": -1},
    ),
    (
        m.Batch(1, 2, b"\x00" * 300, [(0, 5)]),
        3,
        {"handle": 1, "partition": 2, "records": b"\x00" * 300, "expect": [[0, 5]]},
    ),
    (m.Ack(1, [("t", 0, 1, 2)], [7]), 4, {"handle": 1, "ranges": [["t", 0, 1, 2]], "epochs": [7]}),
    (m.Get("t", b""), 5, {"topic": "t", "key": b"", "partition": None, "min_offset": None, "among": None}),
    (
        m.MultiGet("t", [b"a", b"b"], 0, among=3),
        5,
        {"topic": "t", "keys": [b"a", b"b"], "partition": 0, "min_offsets": None, "among": 3},
    ),
    (
        m.CreateTopic("t", 3, {"a": 1, "b": None}, True, 2),
        6,
        {"topic": "t", "partitions": 3, "config": {"a": 1, "b": None}, "if_absent": True, "replication_factor": 2},
    ),
    (m.DescribeTopics(None), 7, {"topics": None}),
    (m.CommitStaged("j", ["a", "b"]), 8, {"job": "j", "tokens": ["a", "b"], "max_wait": 0}),
]
ANSWERS: list[tuple[Answer, int, dict[str, Any]]] = [
    (m.Unregistered(), 1, {}),
    (m.BatchStored(2**40, -1), 2, {"offset": 2**40, "timestamp": -1}),
    (m.Got(0, [NIL]), 3, {"partition": 0, "entry": [None]}),
    (m.Got(3, [ENTRY]), 3, {"partition": 3, "entry": [READ]}),
    (m.MultiGot(None, [ENTRY, NIL, DEAD]), 3, {"partitions": None, "entries": [READ, None, READ_DEAD]}),
    (m.MultiGot(None, [NIL] * 15), 3, {"partitions": None, "entries": [None] * 15}),
    (m.MultiGot(None, [NIL] * 16), 3, {"partitions": None, "entries": [None] * 16}),
    (
        m.HistoryFound(0, None, [DEAD] * 70_000),
        4,
        {"partition": 0, "next_offset": None, "entries": [READ_DEAD] * 70_000},
    ),
    (
        m.Scanned(0, 4, [(0, 1)], [b"\xc4\x01k", ENTRY]),
        5,
        {"partition": 0, "cursor": 4, "offsets": [[0, 1]], "entries": [b"k", READ]},
    ),
    (m.Polled([("t", 0, 5, 9, b"records")]), 6, {"parts": [["t", 0, 5, 9, b"records"]], "leases": None, "waited": 0}),
    (
        m.Pong("1", "c", 5, 6),
        7,
        {
            "version": "1",
            "cluster": "c",
            "time": 5,
            "max_frame": 6,
            "console": None,
            "brokers": 1,
            "mechanisms": None,
            "principal": None,
            "throttled": 0,
        },
    ),
]


def check_case(message: Request | Answer, id: int, fields: dict[str, Any]) -> None:
    """A message has these fields when it is written, and is itself when it is read: whole, one byte at a time, and with
    trailing data."""
    data = message.frame(id)
    answer = ANSWER if isinstance(message, Answer) else 0

    def check(kind: int, body: bytes | memoryview) -> None:
        assert kind == message.kind | answer
        values = unpack(body)
        assert values == {"id": id, **fields}
        assert take_id(values) == id
        found = parse(type(message), values)
        assert (type(found), found.__dict__) == (type(message), fields)

    whole = FrameReader()
    whole.feed(data)
    [found] = whole.frames()
    check(*found)
    assert whole.pending == 0

    dribble = FrameReader()
    step = 1 if len(data) < 10_000 else 997
    for position in range(0, len(data), step):
        assert list(dribble.frames()) == []
        dribble.feed(data[position : position + step])
    [found] = dribble.frames()
    check(*found)

    followed = FrameReader()
    followed.feed(data + data + b"\x00\x00\x00")
    first, second = followed.frames()
    check(*first)
    check(*second)
    assert followed.pending == 3


def names(case: tuple[Request | Answer, int, dict[str, Any]]) -> str:
    return type(case[0]).__name__


@pytest.mark.parametrize("case", [*REQUESTS, *ANSWERS], ids=names)
def test_case(case: tuple[Request | Answer, int, dict[str, Any]]) -> None:
    check_case(*case)


def test_every_type_number_is_one_request_and_its_answer() -> None:
    assert m.REQUESTS.keys() == m.ANSWERS.keys()
    with pytest.raises(TypeError, match="share type number"):
        by_kind([m.Get, type("Other", (Request,), {"__annotations__": {}}, kind=m.Get.kind)])


@pytest.mark.parametrize("cls", m.REQUESTS.values(), ids=lambda cls: cls.__name__)
def test_fields_with_a_default_may_be_left_out(cls: type[Request]) -> None:
    if cls is m.GetColumns:
        assert parse(cls, {"topic": "t", "offsets": b"", "keys": b""}) == m.GetColumns("t", b"", b"")
        return
    examples: dict[str, Any] = {
        "topic": "t", "topics": ["t"], "handle": 1, "payload": b"", "partition": 0, "records": b"", "ranges": [],
        "start": "latest", "lease_ms": 1, "group": "g", "offsets": [], "key": b"k", "keys": [],
        "before": [], "snapshot": "s", "offset": 0, "end": 0,
        "job": "j", "task": "3", "attempt": "1", "stage": "ab", "tokens": [],
        "mechanism": "m", "data": b"", "user": "u", "credentials": {}, "acls": [], "rates": {},
            "name": "n", "size": 1,
    }  # fmt: skip
    if cls is m.SealStaged:
        examples["records"] = 7
    required = {name: examples[name] for name, _, _, default in cls.table if type(default).__name__ == "_MISSING_TYPE"}
    found = parse(cls, dict(required))
    assert {**found.__dict__, **required} == found.__dict__
    for name in required:
        with pytest.raises(InvalidRequest, match=f"needs the field '{name}'") as caught:
            parse(cls, {key: value for key, value in required.items() if key != name})
        assert caught.value.field == name
    with pytest.raises(InvalidRequest, match="has no field 'bogus'"):
        parse(cls, {**required, "bogus": 1})


@pytest.mark.parametrize(
    ("cls", "field", "wrong"),
    [
        (m.Get, "topic", b"t"),
        (m.Get, "topic", None),
        (m.Get, "key", "k"),
        (m.Get, "partition", -1),
        (m.Get, "partition", 2**32),
        (m.Get, "partition", True),
        (m.Get, "partition", 1.0),
        (m.Get, "min_offset", -2),
        (m.MultiGet, "keys", b"ab"),
        (m.MultiGet, "keys", [b"a", "b"]),
        (m.Message, "headers", [["a"]]),
        (m.Message, "headers", [["a", b"b", b"c"]]),
        (m.Message, "headers", [[b"a", b"b"]]),
        (m.Message, "headers", {"a": b"b"}),
        (m.Message, "timestamp", -1),
        (m.Message, "timestamp", 2**63),
        (m.Message, "expect", -2),
        (m.Poll, "max_wait", 2**31),
        (m.Poll, "max_records", -1),
        (m.Ack, "ranges", [["t", 0, 1]]),
        (m.Ack, "ranges", [["t", 0, 1, -2]]),
        (m.Ack, "ranges", [("t", 0, 1, "x")]),
        (m.Extend, "lease_ms", 0),
        (m.ConsumerRegistration, "start", "now"),
        (m.ConsumerRegistration, "order", "offset"),
        (m.ConsumerRegistration, "start_at", 2**63),
        (m.ConsumerRegistration, "topics", ["a", 1]),
        (m.CreateTopic, "config", {b"a": 1}),
        (m.CreateTopic, "config", []),
        (m.CreateTopic, "partitions", 0),
        (m.ProducerRegistration, "producer_epoch", 2**15),
        (m.ProducerRegistration, "idempotent", 1),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(cls: type[Request], field: str, wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"'{field}' is wrong") as caught:
        parse(cls, {**{name: default for name, _, _, default in cls.table}, **GOOD.get(cls, {}), field: wrong})
    assert caught.value.field == field


GOOD: dict[type[Request], dict[str, Any]] = {
    m.Get: {"topic": "t", "key": b"k"},
    m.MultiGet: {"topic": "t", "keys": []},
    m.Message: {"handle": 1, "payload": b""},
    m.Poll: {"handle": 1},
    m.Ack: {"handle": 1, "ranges": []},
    m.Extend: {"handle": 1, "ranges": [], "lease_ms": 1},
    m.ConsumerRegistration: {"topics": ["t"]},
    m.CreateTopic: {"topic": "t"},
    m.ProducerRegistration: {"topic": "t"},
}


@pytest.mark.parametrize("cls", GOOD, ids=lambda cls: cls.__name__)
def test_the_good_fields_of_the_case_above_are_good(cls: type[Request]) -> None:
    parse(cls, dict(GOOD[cls]))


def test_arrays_may_be_read_as_tuples() -> None:
    message = m.Polled([("t", 0, 5, 9, b"records")], [("t", 0, 5, 8, 1)])
    values = unpack(message.body(1), lists=False)
    assert values.pop("id") == 1
    assert read_answer(m.Polled, values) == m.Polled((("t", 0, 5, 9, b"records"),), (("t", 0, 5, 8, 1),))  # type: ignore[arg-type]


def test_what_is_said_of_a_wrong_value_is_short() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(m.Get, {"topic": b"x" * 10_000_000, "key": b"k"})
    assert len(caught.value.text) < 200


def test_an_answer_may_have_fields_that_are_not_known_yet() -> None:
    assert read_answer(m.BatchStored, {"offset": 1, "timestamp": 2, "new": 3}) == m.BatchStored(1, 2)
    with pytest.raises(ProtocolError, match="needs the field 'timestamp'"):
        read_answer(m.BatchStored, {"offset": 1})
    with pytest.raises(ProtocolError, match="'offset' is wrong"):
        read_answer(m.BatchStored, {"offset": "1", "timestamp": 2})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x80\x80",
        b"\x90",
        b"\x01",
        b"\xa3abc",
        b"\x81\x01\x02",
        b"\x81\xa2id",
        b"\x81\xa1\xff\x01",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x81\xa1a" + b"\x91" * 2000,
        b"\xdd\x00\xff\xff\xff" * 500,
    ],
)
def test_a_body_that_is_no_map_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(body)


@pytest.mark.parametrize("id", [None, -1, 2**63, 1.5, "1", b"1", True, [1]])
def test_an_id_is_a_number(id: Any) -> None:
    with pytest.raises(ProtocolError, match="correlation id"):
        take_id({"id": id})
    with pytest.raises(ProtocolError, match="correlation id"):
        take_id({})


@pytest.mark.parametrize("cls", errors.BY_NAME.values(), ids=lambda cls: cls.__name__)
def test_an_error_comes_out_as_it_went_in(cls: type[KrappyError]) -> None:
    reader = FrameReader()
    reader.feed(error_frame(9, cls("why", current=None, self=1, text="t", field="f")))
    [(kind, body)] = reader.frames()
    assert kind == ERROR
    values = unpack(body)
    assert (take_id(values), values["code"], values["retriable"]) == (9, cls.code, cls.retriable)
    found = read_error(values)
    assert (type(found), found.text) == (cls, "why")
    assert found.details == {"current": None, "self": 1, "text": "t", "field": "f"}


@given(
    st.dictionaries(
        st.text(max_size=8) | st.sampled_from(["name", "text", "details"]),
        st.none() | st.integers() | st.text() | st.dictionaries(st.text() | st.binary(), st.integers()),
    )
)
def test_an_error_of_any_shape_is_an_error(values: dict[str, Any]) -> None:
    assert isinstance(read_error(values), KrappyError)


def test_an_unknown_error_is_the_brokers() -> None:
    found = read_error({"name": "NEWER_THAN_US", "text": "x", "details": {}})
    assert type(found) is errors.BrokerError


def test_a_frame_by_hand() -> None:
    body = packed(1, topic="t", key=b"k", partition=None, min_offset=None, among=None)
    assert m.Get("t", b"k").frame(1) == frame(12, body)
