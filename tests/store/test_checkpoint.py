"""The checkpoint file: it is read whole or not at all."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.core.retention import SegmentInfo
from krappy.store import checkpoint as checkpoints
from krappy.store.checkpoint import BadCheckpoint, Checkpoint, ProducersAt
from krappy.store.disk import OS_DISK
from krappy.store.format import CHECKPOINT_HEAD, CHECKPOINT_MAGIC
from tests.store.logs import filled

OFFSET = st.integers(0, 2**63 - 1)
MAYBE = st.one_of(st.none(), st.integers(1, 2**62))
CHECKPOINTS = st.builds(
    Checkpoint,
    *[OFFSET] * 3,
    MAYBE,
    *[OFFSET] * (len(Checkpoint._fields) - 16),
    closed=st.lists(st.builds(SegmentInfo, OFFSET, OFFSET, OFFSET, st.integers(-1, 2**62), MAYBE, MAYBE)).map(tuple),
    producers=st.binary(),
    cache=st.text(),
    epochs=st.one_of(st.none(), st.lists(st.tuples(OFFSET, OFFSET)).map(tuple)),
    proofs=st.lists(st.tuples(OFFSET, st.integers(0, 2**32 - 1))).map(tuple),
    transactions=st.binary(),
    high_watermark=st.one_of(st.none(), OFFSET),
    earlier=st.one_of(st.none(), st.builds(ProducersAt, OFFSET, st.binary(), st.binary())),
    cut=st.booleans(),
    appended_ms=MAYBE,
    gone_below=OFFSET,
    noted=st.booleans(),
)


@given(CHECKPOINTS)
def test_what_is_packed_is_unpacked(checkpoint: Checkpoint) -> None:
    assert Checkpoint.unpack(checkpoint.pack()) == checkpoint


@given(CHECKPOINTS, st.data())
def test_any_damage_is_seen(checkpoint: Checkpoint, data: st.DataObject) -> None:
    packed = checkpoint.pack()
    position = data.draw(st.integers(0, len(packed) - 1))
    wrong = data.draw(st.integers(1, 255))
    changed = bytearray(packed)
    changed[position] ^= wrong
    for damaged in (bytes(changed), packed[:position], packed + bytes([wrong])):
        with pytest.raises(BadCheckpoint):
            Checkpoint.unpack(damaged)


@given(st.binary(max_size=100))
def test_garbage_is_a_bad_checkpoint(data: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        Checkpoint.unpack(data)


def test_one_of_another_version_is_a_bad_checkpoint() -> None:
    contents: list[object] = [{}, [], 5, {"closed": [[1]], "producers": b""}, {"closed": 7, "producers": b""}]
    for content in contents:
        body = msgpack.packb(content)
        head = b"KRAPPYC1" + zlib.crc32(body).to_bytes(4, "big") + len(body).to_bytes(4, "big")
        with pytest.raises(BadCheckpoint):
            Checkpoint.unpack(head + body)


@given(CHECKPOINTS)
def test_one_of_an_earlier_version_is_read(checkpoint: Checkpoint) -> None:
    packed = checkpoint.pack()
    fields = msgpack.unpackb(packed[CHECKPOINT_HEAD.size :])
    for name in ("high_watermark", "earlier", "cut", "appended_ms", "gone_below", "noted"):
        del fields[name]
    body = msgpack.packb(fields)
    found = Checkpoint.unpack(CHECKPOINT_HEAD.pack(CHECKPOINT_MAGIC, zlib.crc32(body), len(body)) + body)
    closed = tuple(info._replace(appended_ms=None) for info in checkpoint.closed)
    gone_below = min(checkpoint.sparse, checkpoint.recovery)
    assert found == checkpoint._replace(
        high_watermark=None,
        earlier=None,
        cut=False,
        appended_ms=None,
        closed=closed,
        gone_below=gone_below,
        noted=False,
    )


def test_on_disk(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    log.close()
    found, whole, problems = checkpoints.load(OS_DISK, tmp_path)
    assert (whole, problems) == (True, [])
    active = log.segments[-1]
    assert found.recovery == 120
    assert (found.segment, found.position, found.created_ms) == (active.base_offset, active.size, active.created_ms)
    assert (found.max_timestamp, found.max_timestamp_offset) == (1119, 119 - active.base_offset)
    assert found.closed == log.segments[:-1]
    assert (found.start, found.clean, found.sparse) == (0, 0, 0)
    assert found.entries * 8 == (tmp_path / f"{active.base_offset:020d}.index").stat().st_size
    assert found.time_entries * 12 == (tmp_path / f"{active.base_offset:020d}.timeindex").stat().st_size
    assert not list(tmp_path.glob("*.tmp"))
