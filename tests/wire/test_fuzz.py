"""Whatever the bytes are, a peer of ours gets messages, ProtocolError or InvalidRequest, and nothing else."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack
from hypothesis import example, given, settings
from hypothesis import strategies as st

from krappy.clients.conversation import Conversation
from krappy.errors import ConnectionLost, InvalidRequest, ProtocolError
from krappy.wire import messages
from krappy.wire.frames import ANSWER, ERROR, FrameReader, frame

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=10)
    | st.binary(max_size=10)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.binary(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
FIELDS = sorted({name for cls in messages.REQUESTS.values() for name, *_ in cls.table} | {"id"})
MAPS = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), VALUES, max_size=8)


def as_a_broker(data: bytes) -> int:
    """Reads frames as a broker does; returns how many requests were understood."""
    reader = FrameReader(1 << 16)
    reader.feed(data)
    understood = 0
    try:
        for kind, body in reader.frames():
            values = messages.unpack(body)
            messages.take_id(values)
            cls = messages.REQUESTS.get(kind)
            if cls is not None:
                try:
                    messages.parse(cls, values).frame(1)
                    understood += 1
                except InvalidRequest:
                    pass
    except ProtocolError:
        pass
    return understood


def as_a_client(data: bytes) -> None:
    """Reads frames as a client does that waits for answers to every kind of request."""
    conversation = Conversation(limit=1 << 16)
    for cls in messages.ANSWERS.values():
        conversation.ask(messages.Ping(), cls, lambda answer: None)
    with suppress(ProtocolError, ConnectionLost):
        conversation.receive(data)


@given(st.binary(max_size=500))
@example(b"\x00\x00\x00\x04\xff\xff\xff\xff")
@example(b"\x7f\xff\xff\xff")
def test_random_bytes(data: bytes) -> None:
    as_a_broker(data)
    as_a_client(data)


@given(st.integers(0, 30), MAPS)
def test_random_maps(kind: int, values: dict[str, Any]) -> None:
    body = msgpack.packb(values)
    as_a_broker(frame(kind, body))
    as_a_client(frame(kind | ANSWER, body))
    as_a_client(frame(ERROR, body))


@st.composite
def _nearly_right(draw: st.DrawFn) -> bytes:
    """A request or answer with some of its fields right, by their types, and some not."""
    table = draw(st.sampled_from(list(messages.REQUESTS.values()) + list(messages.ANSWERS.values())))
    values: dict[str, Any] = {"id": draw(st.integers(0, 60) | st.just(-1))}
    for name, kinds, _, _ in table.table:
        good = [
            strategy
            for kind, strategy in (
                (int, st.integers(-2, 2**33)),
                (str, st.sampled_from(["earliest", "offset", "none", "t", ""])),
                (bytes, st.binary(max_size=20)),
                (bool, st.booleans()),
                (list, st.lists(VALUES, max_size=3)),
                (dict, st.dictionaries(st.text(max_size=5), SCALARS, max_size=3)),
                (type(None), st.none()),
            )
            if kind in kinds
        ]
        values[name] = draw(st.one_of(*good, VALUES) if draw(st.integers(0, 9)) == 0 else st.one_of(*good))
    answer = ANSWER if issubclass(table, messages.Answer) else 0
    return frame(table.kind | answer, msgpack.packb(values))


@settings(max_examples=300)
@given(_nearly_right())
def test_messages_that_are_nearly_right(data: bytes) -> None:
    as_a_broker(data)
    as_a_client(data)


@given(st.integers(0, 200), st.integers(0, 7))
def test_a_bit_flipped(position: int, bit: int) -> None:
    whole = b"".join(cls(*_some(cls)).frame(3) for cls in (messages.Message, messages.Ack, messages.Scan, messages.Got))
    flipped = bytearray(whole)
    flipped[position % len(whole)] ^= 1 << bit
    as_a_broker(bytes(flipped))
    as_a_client(bytes(flipped))


def _some(cls: type[Any]) -> tuple[Any, ...]:
    examples: dict[str, tuple[Any, ...]] = {
        "Message": (1, b"payload", b"key", 5, [("a", b"b")]),
        "Ack": (1, [("topic", 0, 1, 2)]),
        "Scan": ("topic", b"prefix"),
        "Got": (0, [b"\xc0"]),
    }
    return examples[cls.__name__]


def test_the_reader_understands_what_is_right() -> None:
    """Else the tests above would also hold for a reader that refuses everything."""
    assert as_a_broker(messages.Message(1, b"x").frame(1) + messages.Ping().frame(2)) == 2
