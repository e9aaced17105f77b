"""Every message of the native protocol: its type number, its fields, their types and limits.

The broker decodes requests by these classes, the clients encode them by the same, and `make generate` writes
PROTOCOL.md from their docstrings and comments, for users.
A request's map carries its correlation id as `id` beside the fields of its class; an answer repeats it. Requests are
read strictly: a missing, unknown or ill-typed field is an `InvalidRequest` that names the field. Answers are read
leniently: a newer broker may add fields.

An `entry` is what a table holds for a key: `[offset, timestamp, value or nil, headers or nil]`. It is stored in this
form and sent as stored (`Raw`). Headers are a list of `[name, value or nil]`.
"""

# ruff: noqa: F403 - the modules hold only messages, and all of them are imported from here

from __future__ import annotations

from typing import Any

from krappy.errors import LONGEST_TEXT, KrappyError, from_wire
from krappy.wire.frames import ERROR, frame
from krappy.wire.messages.acls import *
from krappy.wire.messages.columns import *
from krappy.wire.messages.consume import *
from krappy.wire.messages.groups import *
from krappy.wire.messages.publish import *
from krappy.wire.messages.quotas import *
from krappy.wire.messages.server import *
from krappy.wire.messages.staging import *
from krappy.wire.messages.table import *
from krappy.wire.messages.topics import *
from krappy.wire.schema import Answer as Answer
from krappy.wire.schema import Request as Request
from krappy.wire.schema import by_kind, pack
from krappy.wire.schema import parse as parse
from krappy.wire.schema import read_answer as read_answer
from krappy.wire.schema import take_id as take_id
from krappy.wire.schema import unpack as unpack

REQUESTS: dict[int, type[Request]] = by_kind(Request.__subclasses__())
ANSWERS: dict[int, type[Answer]] = by_kind(Answer.__subclasses__())


def error_frame(id: int, error: KrappyError) -> bytes:
    """The answer that says why a request was refused. Long names in its details are cut."""
    details = {
        name: value[:LONGEST_TEXT] if isinstance(value, str | bytes) else value for name, value in error.details.items()
    }
    values = {"id": id, "code": error.code, "name": error.name, "text": error.text, "retriable": error.retriable}
    return frame(ERROR, pack({**values, "details": details}))


def read_error(values: dict[str, Any]) -> KrappyError:
    """The exception for an error frame's map. Never raises, whatever the map holds."""
    details = values.get("details")
    named = {str(key): value for key, value in details.items()} if type(details) is dict else {}
    return from_wire(str(values.get("name")), str(values.get("text", "")), named)
