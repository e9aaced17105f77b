"""The console shares the event loop with the native port: how much it works at a stretch, counted rather than timed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import trio
import trio.abc

from krappy.console import api as api_module
from krappy.console import slices
from krappy.console.api import MAX_BODY, MAX_EVENT
from krappy.console.app import OPERATIONS
from krappy.console.events import NewEvent
from krappy.console.shown import WHOLE, HeaderRow, Shown
from krappy.console.table import MAX_PAGE, EntryShown, TablePage, _trim
from krappy.testing.running import RunningBroker
from tests.console.web import CHANGES, Web, api
from tests.served import BROKERS, alone


class Steps(trio.abc.Instrument):
    """How many turns all tasks together had."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: Any) -> None:
        self.count += 1


@pytest.mark.parametrize("binary", [False, True])
def test_an_answer_is_encoded_item_by_item(monkeypatch: pytest.MonkeyPatch, binary: bool) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0)  # so that every item is a slice
    entry = EntryShown(Shown("text", "k", 1), "value", 0, 1, 2, Shown("text", "ä\0", 3), [HeaderRow("h", None)])
    page = TablePage([entry] * 500, "cursor", {"0": 5}, "watch")
    steps = Steps()
    made = trio.run(lambda: slices.encode_in_slices(page, binary=binary), instruments=[steps])
    assert steps.count >= 500
    decode = msgspec.msgpack.decode if binary else msgspec.json.decode
    assert decode(made, type=TablePage) == page


def test_a_page_of_the_table_is_trimmed_while_it_is_read() -> None:
    """What is kept of all partitions read so far is one page. It is all that there is up to the key where
    it was cut."""
    found: list[tuple[bytes, int, bytes]] = []
    cut = None
    for index in range(100):
        found += [(b"%d" % key, index, bytes(MAX_PAGE // 4)) for key in range(3)]
        cut = _trim(found, 1000, cut)
        assert sum(len(entry) for _, _, entry in found) <= MAX_PAGE
    assert [each[:2] for each in found] == [(b"0", index) for index in range(4)]
    assert cut == (b"0", 3)
    assert _trim([(b"k", 0, bytes(2 * MAX_PAGE))], 1, None) is None  # a single entry, however large it is


def test_bodies_have_bounds_and_many_small_parts_a_lower_one(web: Web) -> None:
    path = web.topic("bodies", max_message_bytes=4 << 20)
    headers = {"Content-Type": "application/json", **CHANGES}
    text = "x" * (MAX_EVENT - 100)
    assert web.publish(path, "k", text)["offset"] == 0
    many = b"[" + b"1," * (MAX_EVENT // 4) + b"1]"
    answer = web.client.post(api(f"{path}/events"), content=b'{"value":{"json":%b}}' % many, headers=headers)
    assert answer.status_code == 201, "it is stored as it is, and not made into objects"
    dense = b'{"value":"x","headers":[' + b'["a",null],' * (MAX_BODY // 10) + b'["a",null]]}'
    for content in (dense, b'{"value":"' + b"x" * MAX_EVENT + b'"}'):
        answer = web.client.post(api(f"{path}/events"), content=content, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (413, "MESSAGE_TOO_LARGE")
    answer = web.client.post(api("/topics"), content=b'{"name":"%b"}' % (b"x" * MAX_BODY), headers=headers)
    assert answer.status_code == 413
    many_headers = {"value": "x", "headers": [["a", None]] * 1001}
    assert web.post(f"{path}/events", many_headers, status=400)["code"] == "INVALID_REQUEST"
    packed = msgspec.msgpack.encode({"value": {"json": [1] * MAX_BODY}})
    answer = web.client.post(
        api(f"{path}/events"), content=packed, headers={**CHANGES, "Content-Type": "application/msgpack"}
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "MESSAGE_TOO_LARGE")
    web.publish(path, None, {"text": "small"})
    packed = msgspec.msgpack.encode({"value": {"json": {"a": [1, None]}}})
    web.client.post(api(f"{path}/events"), content=packed, headers={**CHANGES, "Content-Type": "application/msgpack"})
    last = web.get(f"{path}/events", limit=1)["events"][0]
    assert json.loads(last["value"]["data"]) == {"a": [1, None]}


def test_pages_of_large_values_are_bounded_over_all_partitions(web: Web, console: RunningBroker) -> None:
    """Each of twenty partitions has a value of 900 kB: a page has as many as fit, and the pages together have all."""
    count, size = 20, 900_000
    path = web.topic("wide", count)
    with console.connect() as client, client.producer("wide") as producer:
        for partition in range(count):
            producer.send(b"v" * size, key=b"k%02d" % partition, partition=partition)
    views = [("events", "events", "after", "after")]
    if BROKERS == 1:  # these keys are not where murmur2 gives them: no broker of several has all rows of one
        views.append(("table", "entries", "cursor", "cursor"))
    for view, field, cursor, into in views:
        query = {"start": "earliest"} if view == "events" else {}
        seen: list[int] = []
        for page in web.pages(f"{path}/{view}", cursor, into, value_bytes=WHOLE, **query):
            assert len(page[field]) * size <= MAX_PAGE
            seen += [each["partition"] for each in page[field]]
            if page.get("at_end"):
                break
        assert sorted(seen) == list(range(count))


def test_no_value_is_shown_beyond_a_megabyte(web: Web) -> None:
    path = web.topic("huge", max_message_bytes=4 << 20)
    web.publish(path, "k", "ä" * (WHOLE // 2) + "b")
    for found in (web.get(f"{path}/partitions/0/events/0"), web.get(f"{path}/table/entry", key="k")):
        assert found["value"]["truncated"]
        assert (found["value"]["size"], found["value"]["data"]) == (WHOLE + 1, "ä" * (WHOLE // 2))
    web.get(f"{path}/events", status=400, value_bytes=WHOLE + 1)


FULL = b",".join(b'"%d":1' % number for number in range(200_000))[: MAX_EVENT - 1000].rpartition(b",")[0]


@alone
@pytest.mark.parametrize("packed", [False, True])
def test_a_large_body_of_many_fields_ends_at_the_first_that_is_unknown(web: Web, packed: bool) -> None:
    """Each field would be an object: 2 MB of them took 0.1 s of everybody's time."""
    path = web.topic(f"fields-{packed}")
    fields = {f"{number}": 1 for number in range(200_000)}
    content = msgspec.msgpack.encode(fields) if packed else b"{%b}" % FULL
    assert MAX_BODY < len(content) < MAX_EVENT
    kind = "application/msgpack" if packed else "application/json"
    made = api_module._decode
    kinds: list[Any] = []

    def noted(data: bytearray, kind: Any, packed: bool) -> Any:
        kinds.append(kind)
        return made(data, kind, packed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api_module, "_decode", noted)
        answer = web.client.post(api(f"{path}/events"), content=content, headers={**CHANGES, "Content-Type": kind})
    assert answer.status_code == 400
    assert "unknown field `0`" in answer.json()["detail"]
    assert [each.__struct_fields__ for each in kinds] == [NewEvent.__struct_fields__]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/topics", {"name": "x", "config": {str(number): 1 for number in range(1001)}}),
        ("POST", "/topics", {"name": "x", "config": {"x" * 32_768: 1}}),
        ("POST", "/topics", {"name": "x", "config": {"retention.ms": "9" * 32_768}}),
        ("PATCH", "/topics/lists", {"config": {str(number): None for number in range(1001)}}),
        ("POST", "/topics/lists/delete-records", {"confirm": "lists", "before": {"00": 0}}),
        ("POST", "/topics/lists/delete-records", {"confirm": "lists", "before": {"\u0661": 0}}),
        (
            "POST",
            "/topics/lists/delete-records",
            {"confirm": "lists", "before": {str(number): 0 for number in range(20_001)}},
        ),
        ("POST", "/topics/lists/delete-records", {"confirm": "x" * 32_768, "before": {}}),
        ("POST", "/topics/lists/table/lookup", {"keys": [""] * 1001}),
        ("POST", "/groups/g/reset", {"to": "earliest", "topic": "lists", "partitions": [0] * 20_001}),
        ("POST", "/groups/g/reset", {"to": "earliest", "topic": "x" * 32_768}),
        ("POST", "/topics", {"name": "x" * 1001}),
    ],
)
def test_lists_and_names_have_bounds(web: Web, method: str, path: str, body: Any) -> None:
    if "lists" not in {each["name"] for each in web.get("/topics")["topics"]}:
        web.topic("lists")
    refused = web.ask(method, path, body=body, status=400)
    assert (refused["code"], refused["detail"][:9]) == ("INVALID_REQUEST", "the body:")
    assert len(json.dumps(refused)) < 1000


def test_every_list_of_a_request_has_a_bound() -> None:
    """The lists of a query have the bound of the request's head."""
    unbounded: list[str] = []

    def look(kind: Any, where: str) -> None:
        if isinstance(kind, msgspec.inspect.StructType):
            for field in kind.fields:
                look(field.type, f"{where}.{field.name}")
        elif isinstance(kind, msgspec.inspect.UnionType):
            for each in kind.types:
                look(each, where)
        elif isinstance(kind, msgspec.inspect.ListType | msgspec.inspect.DictType):
            if kind.max_length is None:
                unbounded.append(where)
            if isinstance(kind, msgspec.inspect.ListType):
                look(kind.item_type, where)
            else:
                look(kind.key_type, where)
                look(kind.value_type, where)

    bodies = [each for each in OPERATIONS if each.body is not None]
    for operation in bodies:
        look(msgspec.inspect.type_info(operation.body), operation.name)
    assert len(bodies) >= 6
    assert not unbounded
