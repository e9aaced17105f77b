"""Keys and values for people and programs. They are bytes; JSON has only text.

In JSON a key or value is `{"as": "text"|"json"|"base64", "data": …, "size": …}`: text if it is UTF-8, else base64; or
the JSON that it holds, if the request asks for that. In msgpack it is `{"as": "bytes", "data": <bin>, "size": …}`. If
it was cut (at most a megabyte is shown), it has `"truncated": true`. `size` is that of the whole, in bytes.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from krappy.errors import InvalidRequest, RecordTooLarge
from krappy.types import Headers

WHOLE = 1 << 20  # a key, a value or a header is cut to so many bytes, whatever the request asks for
PACKED_JSON = 256 << 10  # more bytes of msgpack are not made into JSON
JSON_SHOWN = 256 << 10  # a value of more bytes is not parsed as JSON
Form = Literal["auto", "text", "json", "base64"]
FORM = "how bytes are shown in JSON: auto (text if they are UTF-8, else base64), text, json (as the JSON that they \
hold, else as auto), base64"
ShownAs = Annotated[Form, Meta(description=FORM)]


class Shown(msgspec.Struct, omit_defaults=True):
    """A key or a value."""

    kind: Literal["text", "json", "base64", "bytes"] = msgspec.field(name="as")
    data: Any
    size: Annotated[int, Meta(ge=0, description="bytes of the whole")]
    truncated: bool = False


class HeaderRow(msgspec.Struct):
    name: str
    value: Shown | None


class Given(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes as a request gives them: exactly one of the four (`bytes` in msgpack only)."""

    text: str | msgspec.UnsetType = msgspec.UNSET
    json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # not decoded: it may have very many parts
    base64: str | msgspec.UnsetType = msgspec.UNSET
    binary: bytes | msgspec.UnsetType = msgspec.field(name="bytes", default=msgspec.UNSET)


class Viewer:
    """How one request wants bytes to be shown."""

    def __init__(self, *, binary: bool, keys: Form = "auto", values: Form = "auto", limit: int = WHOLE) -> None:
        self._binary = binary
        self._keys = keys
        self._values = values
        self._limit = limit

    def key(self, data: bytes | None) -> Shown | None:
        return self._show(data, self._keys)

    def value(self, data: bytes | None) -> Shown | None:
        return self._show(data, self._values)

    def headers(self, headers: Headers | None) -> list[HeaderRow]:
        return [HeaderRow(name, self._show(value, self._values)) for name, value in headers or ()]

    def _show(self, data: bytes | None, form: Form) -> Shown | None:
        if data is None:
            return None
        size, limit = len(data), self._limit
        cut = size > limit
        part = data[:limit] if cut else data
        if self._binary:
            return Shown("bytes", part, size, cut)
        if form == "json" and not cut and size <= JSON_SHOWN and is_json(data):
            return Shown("json", msgspec.Raw(data), size)
        if form != "base64":
            text = as_text(part, cut=cut)
            if text is not None:
                return Shown("text", text, size, cut)
            if form == "text":
                return Shown("text", part.decode(errors="replace"), size, cut)
        return Shown("base64", base64.b64encode(part).decode(), size, cut)


def as_text(part: bytes, *, cut: bool) -> str | None:
    """The text of bytes; None if they are not UTF-8. `cut`: they may end inside a character, which is left out."""
    try:
        return part.decode()
    except UnicodeDecodeError as error:
        if cut and error.reason == "unexpected end of data":
            return part[: error.start].decode()
        return None


def is_json(data: bytes) -> bool:
    """Whether bytes are a JSON text."""
    try:
        msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return False
    return True


def bytes_of(given: Given | str | None, field: str, *, packed: bool = False) -> bytes | None:
    """The bytes that a request gives. `packed`: the request is msgpack. Raises InvalidRequest, RecordTooLarge."""
    if given is None:
        return None
    if isinstance(given, str):
        return given.encode()
    told = [name for name in given.__struct_fields__ if getattr(given, name) is not msgspec.UNSET]
    if len(told) != 1:
        raise InvalidRequest(f"'{field}' needs exactly one of text, json, base64 or bytes", field=field)
    if isinstance(given.text, str):
        return given.text.encode()
    if isinstance(given.binary, bytes):
        return given.binary
    if isinstance(given.base64, str):
        return from_base64(given.base64, field)
    assert isinstance(given.json, msgspec.Raw)
    return _from_msgpack(given.json, field) if packed else bytes(given.json)


def _from_msgpack(packed: msgspec.Raw, field: str) -> bytes:
    if len(packed) > PACKED_JSON:
        raise RecordTooLarge(f"'{field}': more than {PACKED_JSON} bytes of msgpack are not made into JSON: send bytes")
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(packed))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"'{field}' can't be JSON: {error}", field=field) from None


def from_base64(text: str, field: str) -> bytes:
    """Decodes base64 of either alphabet, padded or not. Raises InvalidRequest."""
    plain = text.strip().replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"'{field}' is not base64", field=field) from None


KeyEncoding = Annotated[
    Literal["text", "base64"],
    Meta(description="how the keys in the query are written: text (as UTF-8), or base64"),
]


def query_bytes(text: str, encoding: Literal["text", "base64"], field: str) -> bytes:
    """The bytes of a key in a query. Raises InvalidRequest."""
    return text.encode(errors="surrogateescape") if encoding == "text" else from_base64(text, field)
