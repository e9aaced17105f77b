"""Frames, however their bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.errors import FrameTooLarge, ProtocolError
from krappy.wire.frames import FrameReader, check_size, frame

LIMIT = 100_000
FRAMES = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=200) | st.integers(8000, 40_000).map(bytes)), max_size=6
)


def read_all(reader: FrameReader) -> list[tuple[int, bytes]]:
    return [(kind, bytes(body)) for kind, body in reader.frames()]


@given(FRAMES, st.lists(st.integers(1, 60_000), min_size=1), st.binary(max_size=7))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    frames: list[tuple[int, bytes]], cuts: list[int], rest: bytes
) -> None:
    data = b"".join(frame(kind, body) for kind, body in frames) + frame(1, b"x" * 50)[: len(rest)]
    reader, found, position, turn = FrameReader(LIMIT), [], 0, 0
    while position < len(data):
        size = cuts[turn % len(cuts)]
        reader.feed(data[position : position + size])
        found += read_all(reader)
        position += size
        turn += 1
    assert found == frames
    assert reader.pending == len(rest)


@given(FRAMES)
def test_one_byte_at_a_time(frames: list[tuple[int, bytes]]) -> None:
    small = [(kind, body[:50]) for kind, body in frames]
    reader, found = FrameReader(LIMIT), []
    for byte in b"".join(frame(kind, body) for kind, body in small):
        reader.feed(bytes((byte,)))
        found += read_all(reader)
    assert found == small


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_is_fed_may_be_changed_afterwards_unless_it_is_bytes(kind: type) -> None:
    data = bytearray(frame(5, b"abc") * 2)
    reader = FrameReader()
    reader.feed(kind(data))
    if kind is not bytes:
        data[:] = b"\xff" * len(data)
    assert read_all(reader) == [(5, b"abc")] * 2


def test_more_may_be_fed_while_frames_are_taken() -> None:
    reader = FrameReader()
    reader.feed(frame(1, b"a") + frame(2, b"b") + frame(3, b"c")[:5])
    found = []
    for kind, body in reader.frames():
        found.append((kind, bytes(body)))
        if kind == 1:
            reader.feed(frame(3, b"c")[5:] + frame(4, b"d"))
    assert found == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]


def test_frames_not_taken_are_kept() -> None:
    reader = FrameReader()
    reader.feed(frame(1, b"a") + frame(2, b"b"))
    assert next(reader.frames())[0] == 1
    reader.feed(frame(3, b"c"))
    assert [kind for kind, _ in reader.frames()] == [2, 3]


def test_a_large_body_outlives_what_comes_after_it() -> None:
    reader = FrameReader()
    first, second = b"x" * 20_000, b"y" * 20_000
    reader.feed(frame(1, first) + frame(2, second)[:3000])
    [(_, body)] = reader.frames()
    reader.feed(frame(2, second)[3000:])
    [(_, other)] = reader.frames()
    assert (bytes(body), bytes(other)) == (first, second)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_frame_has_room_for_its_type(size: int) -> None:
    reader = FrameReader()
    reader.feed(size.to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match=f"size {size}"):
        list(reader.frames())


@pytest.mark.parametrize("size", [LIMIT + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("cut", [4, 3])
def test_a_frame_over_the_limit_is_refused_by_its_first_four_bytes(size: int, cut: int) -> None:
    reader = FrameReader(LIMIT)
    head = size.to_bytes(4, "big")
    if cut < 4:
        reader.feed(frame(1, b"a") + head[:cut])
        assert read_all(reader) == [(1, b"a")]
        reader.feed(head[cut:])
    else:
        reader.feed(frame(1, b"a") + head)
    with pytest.raises(FrameTooLarge) as caught:
        list(reader.frames())
    assert caught.value.limit == LIMIT


def test_the_limit_itself_is_allowed() -> None:
    reader = FrameReader(LIMIT)
    reader.feed(frame(1, bytes(LIMIT - 4)))
    assert [len(body) for _, body in reader.frames()] == [LIMIT - 4]


@given(st.integers(0, 2**32 - 1))
def test_sizes(size: int) -> None:
    if 4 <= size <= LIMIT:
        assert check_size(size, LIMIT) == size
    else:
        with pytest.raises(ProtocolError):
            check_size(size, LIMIT)
