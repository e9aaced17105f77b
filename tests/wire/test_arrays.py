"""Every array that a message of a native request declares is bounded where it is read."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

import pytest

from krappy.errors import InvalidRequest
from krappy.wire import messages as m
from krappy.wire.messages import REQUESTS, parse
from krappy.wire.schema import MOST, check_for

ITEMS: dict[Any, Any] = {str: "x", int: 1, bytes: b"x"}
# Arrays of keys: they are bounded by the bytes that they take on the wire, and by an answer's room.
OF_BYTES = {("MultiGet", "keys")}


def item(hint: Any) -> Any:
    """A value of this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        words = getattr(arguments[1], "words", None)
        return next(iter(words)) if words else item(arguments[0])
    if origin is tuple:
        return tuple(item(each) for each in arguments)
    return ITEMS[hint] if hint in ITEMS else item(next(each for each in arguments if each is not type(None)))


def arrays() -> list[tuple[Any, str, Any]]:
    found = []
    for cls in REQUESTS.values():
        hints = typing.get_type_hints(cls, include_extras=True)
        for field in fields(cls):
            for each in parts(hints[field.name]):
                if typing.get_origin(each) is list and typing.get_args(each)[0] is not Any:
                    found.append((cls, field.name, typing.get_args(each)[0]))
    return found


def parts(hint: Any) -> Iterator[Any]:
    """The hint, and the types of which it is made: those of a union, and those that are annotated."""
    yield hint
    if typing.get_origin(hint) is not list:
        for each in typing.get_args(hint):
            yield from parts(each)


# Why an array of a request is no set. New arrays must be marked `Once`, or be listed here with their reason.
NOT_ONCE = {
    ("Ack", "ranges"): "ranges may overlap: the group settles each event once",
    ("Ack", "epochs"): "one for each range",
    ("Nack", "ranges"): "as in Ack",
    ("Extend", "ranges"): "as in Ack",
    ("Unregister", "unseen"): "as in Ack",
    ("MultiGet", "keys"): "answered for by place",
    ("Batch", "expect"): "all conditions must hold, and there may be as many as records",
    ("Message", "headers"): "an event may have a header twice",
    ("CommitStaged", "tokens"): "a token that is named twice is refused",
}


def test_there_are_arrays() -> None:
    assert {("Ack", "ranges"), ("ConsumerRegistration", "topics"), *OF_BYTES} <= {
        (cls.__name__, name) for cls, name, _ in arrays()
    }


@pytest.mark.parametrize(("cls", "name", "of"), arrays(), ids=lambda value: getattr(value, "__name__", str(value)))
def test_an_array_has_so_many_elements_and_no_more(cls: Any, name: str, of: Any) -> None:
    values: dict[str, Any] = {field.name: None for field in fields(cls) if field.default is MISSING}
    hints = typing.get_type_hints(cls, include_extras=True)
    for other in values:
        values[other] = [] if list in check_for(hints[other])[0] else item(hints[other])
    values[name] = [item(of)] * MOST
    once = (cls.__name__, name) not in NOT_ONCE
    assert len(getattr(parse(cls, dict(values)), name)) == (1 if once else MOST)
    values[name] = [item(of)] * (MOST + 1)
    if (cls.__name__, name) in OF_BYTES:
        parse(cls, dict(values))
        return
    with pytest.raises(InvalidRequest) as error:
        parse(cls, dict(values))
    assert error.value.details["field"] == name
    assert len(error.value.text) < 300


def test_every_array_of_a_request_is_a_set_or_says_why_not() -> None:
    marked = {(cls.__name__, name) for cls in REQUESTS.values() for name, _ in cls.once}
    assert marked.isdisjoint(NOT_ONCE)
    assert marked | set(NOT_ONCE) == {(cls.__name__, name) for cls, name, _ in arrays()}


def test_what_is_named_twice_is_read_once() -> None:
    """It is read at the place of the first one. Where the name is only a part of an element, the last
    element stands."""

    def read(cls: Any, **values: Any) -> Any:
        return parse(cls, values)

    consumer = read(m.ConsumerRegistration, topics=["b", "a", "b"], positions=[["t", 1, 5], ["t", 0, 6], ["t", 1, 7]])
    assert (consumer.topics, consumer.positions) == (["b", "a"], [["t", 1, 7], ["t", 0, 6]])
    assert read(m.DeleteRecords, topic="t", before=[[1, 5], [0, -1], [1, 7]]).before == [[1, 7], [0, -1]]
    assert read(m.Scan, topic="t", partitions=[2, 1, 2]).partitions == [2, 1]
    assert read(m.Scan, topic="t").partitions is None
