"""Arrays of native requests are bounded where they are read, every one that the messages declare."""

from __future__ import annotations

import typing
from dataclasses import MISSING, fields
from typing import Any

import pytest

from krappy.errors import InvalidRequest
from krappy.wire.messages import REQUESTS, parse
from krappy.wire.schema import MOST, check_for

ITEMS: dict[Any, Any] = {str: "x", int: 1, bytes: b"x"}
# Arrays of keys: what they take on the wire, and an answer's room, bound them.
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
            hint = hints[field.name]
            for each in (hint, *typing.get_args(hint)):
                if typing.get_origin(each) is list and typing.get_args(each)[0] is not Any:
                    found.append((cls, field.name, typing.get_args(each)[0]))
    return found


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
    assert len(getattr(parse(cls, dict(values)), name)) == MOST
    values[name] = [item(of)] * (MOST + 1)
    if (cls.__name__, name) in OF_BYTES:
        parse(cls, dict(values))
        return
    with pytest.raises(InvalidRequest) as error:
        parse(cls, dict(values))
    assert error.value.details["field"] == name
    assert len(error.value.text) < 300
