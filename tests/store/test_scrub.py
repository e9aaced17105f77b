"""What doctor finds, and what a rebuild of the indexes repairs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from krappy.store.log import Log
from tests.store.compacted import Table
from tests.store.logs import filled, forget_checkpoint, log_files, made, offsets, opened, rows


def problems(log: Log) -> list[str]:
    return [text for _, found in log.scrub() for text in found]


def test_a_sound_log(tmp_path: Path) -> None:
    log = filled(tmp_path, 60)
    log.append([made(b"x", at=10)], 0, 1)
    assert problems(log) == []
    assert [info for info, _ in log.scrub()] == list(log.segments)
    log.close()
    assert problems(opened(tmp_path)) == []
    empty = opened(tmp_path / "empty-0")
    assert problems(empty) == []


def test_a_sound_log_after_a_clean_and_a_kill(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.fill(200, 10)
    table.clean()
    assert problems(table.log) == []
    assert problems(opened(tmp_path)) == []
    table = Table(tmp_path / "b-0")
    table.fill(200, 10)
    forget_checkpoint(tmp_path / "b-0")
    assert problems(opened(tmp_path / "b-0")) == []


def test_every_flipped_byte_of_a_segment_is_found(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    log.close()
    file = log_files(tmp_path)[1]
    whole = file.read_bytes()
    size = len(log.folder.name) and len(whole) // 10
    for position in range(0, size):
        data = bytearray(whole)
        data[position] ^= 1 << position % 8
        file.write_bytes(data)
        found = problems(opened(tmp_path))
        assert found
        assert str(file) in found[0]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_every_flipped_byte_of_an_index_is_found_and_put_right(tmp_path: Path, suffix: str) -> None:
    log = filled(tmp_path, 40)
    log.close()
    file = log_files(tmp_path, suffix)[1]
    whole = file.read_bytes()
    assert len(whole) >= 24
    spoilt: list[bytes | None] = [None, b"", whole[:-1], whole[:-12], whole + whole[-12:], bytes(len(whole))]
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        spoilt.append(bytes(flipped))
    for data in spoilt:
        if data is None:
            file.unlink()
        else:
            file.write_bytes(data)
        log = opened(tmp_path)
        found = problems(log)
        if data is None:
            assert found == []  # opening the log has made the index anew
        elif suffix == ".index" and data in (b"", whole[:-12]):
            assert bool(found) == (data == whole[:-12])  # an index with few entries is slow, not wrong
        else:
            assert len(found) >= 1
            assert str(file) in found[0]
        log.rebuild_indexes()
        assert problems(log) == []
        assert offsets(rows(log)) == list(range(120))
        log.close()
        assert file.read_bytes() == whole


def test_a_segment_of_another_size_is_found(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    log.close()
    file = log_files(tmp_path)[1]
    whole = file.read_bytes()
    for data in (whole[:-1], whole + b"x", b""):
        file.write_bytes(data)
        found = problems(opened(tmp_path))
        assert any(f"it has {len(data)} bytes, {len(whole)} are expected" in text for text in found)


def test_what_is_inside_of_batches_is_looked_at(tmp_path: Path) -> None:
    """A checksum may be right over records that are damaged: no client of ours sends such a batch."""
    import struct

    from crc32c import crc32c

    from krappy.records import batch

    header, data = made(b"value")
    rubbish = bytearray(data)
    rubbish[61:] = random.Random(1).randbytes(len(data) - 61)
    rubbish[17:21] = struct.pack(">I", crc32c(bytes(rubbish[21:])))
    log = opened(tmp_path)
    log.append([(header, data), (batch.check(rubbish), bytes(rubbish))], 0, 1)
    (found,) = problems(log)
    assert f"at position {len(data)}:" in found
