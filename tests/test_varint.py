"""Zigzag varints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.errors import CorruptBatch
from krappy.records import varint, writer


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints(number: int) -> None:
    raw = varint.encode(number)
    assert raw == writer.encoded(number)
    assert varint.decode(raw, 0, 10) == (number, len(raw))
    assert varint.delta_of(raw) == number
    for size in range(len(raw)):
        with pytest.raises(IndexError):
            varint.decode(raw[:size], 0, 10)


@pytest.mark.parametrize(
    ("raw", "widest"),
    [
        (b"\x80\x80\x80\x80\x10", 5),  # 33 bits
        (b"\xff\xff\xff\xff\x7f", 5),
        (b"\x80\x80\x80\x80\x80\x00", 5),
        (b"\x80" * 9 + b"\2", 10),  # 65 bits
        (b"\x80" * 10 + b"\0", 10),
    ],
)
def test_varints_that_do_not_fit(raw: bytes, widest: int) -> None:
    with pytest.raises(CorruptBatch):
        varint.decode(raw, 0, widest)
