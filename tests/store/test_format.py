"""FORMAT.md, compared with what is written; and our files, read by other people's readers."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest
from aiokafka.record.memory_records import MemoryRecords

import krappy.store
from krappy.store import format as constants
from krappy.store.checkpoint import Checkpoint
from krappy.store.index import OffsetIndex, TimeIndex
from tests.compat import tools
from tests.store.compacted import Table
from tests.store.logs import filled, log_files, made, opened, rows

DOCUMENT = Path(krappy.store.__file__ or "").with_name("FORMAT.md").read_text("utf-8")


def test_the_names_in_the_document() -> None:
    assert constants.file_name(4711, constants.LOG) in DOCUMENT
    assert constants.base_offset("00000000000000004711.log", ".log") == 4711
    for name in ("4711.log", "00000000000000004711.index", "0000000000000000471x.log", "x00000000000000004711.log"):
        assert constants.base_offset(name, ".log") is None
    for suffix in (*constants.SUFFIXES, constants.CLEANED, constants.SWAP, constants.SET_ASIDE, constants.TEMPORARY):
        assert suffix in DOCUMENT


def test_the_examples_in_the_document() -> None:
    examples = [bytes.fromhex(found) for found in re.findall(r"`((?:[0-9a-f]{2} +){7,}[0-9a-f]{2})`", DOCUMENT)]
    offsets, times = OffsetIndex(), TimeIndex()
    offsets.append(130 - 100, 5000)
    times.append(1_700_000_000_000, 130 - 100)
    assert examples == [offsets.pack(), times.pack()]
    assert constants.CHECKPOINT_MAGIC.hex(" ") in DOCUMENT
    assert constants.CHECKPOINT_MAGIC == b"KRAPPYC1"


def test_every_field_of_the_checkpoint_is_in_the_document() -> None:
    table = DOCUMENT[DOCUMENT.index("| key | type") :]
    named = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert named == set(Checkpoint._fields)


def test_aiokafka_reads_our_segments(tmp_path: Path) -> None:
    log = filled(tmp_path / "plain-0", 40)
    log.append([made(b"a", b"b", codec=codec, producer=5, sequence=2 * codec) for codec in range(5)], 3, 1)
    table = Table(tmp_path / "cleaned-0")
    table.fill(100, 25)
    table.clean()
    for one in (log, table.log):
        found = []
        for path in log_files(one.folder):
            records = MemoryRecords(path.read_bytes())
            while records.has_next():
                batch = records.next_batch()
                assert batch.validate_crc()
                found += [(record.offset, record.timestamp, record.key, record.value) for record in batch]
        assert found == rows(one)


def test_indexes_point_at_batches(tmp_path: Path) -> None:
    log = filled(tmp_path, 60)
    log.close()
    for path in log_files(tmp_path):
        data = path.read_bytes()
        base = int(path.stem)
        entries = list(struct.iter_unpack(">ii", path.with_suffix(".index").read_bytes()))
        for offset, position in entries:
            first, delta = struct.unpack_from(">q15xi", data, position)
            assert first + delta == base + offset
        assert len(entries) >= len(data) // 100 // 3
        times = list(struct.iter_unpack(">qi", path.with_suffix(".timeindex").read_bytes()))
        assert all(timestamp == 1000 + base + offset for timestamp, offset in times)
    assert opened(tmp_path).recovery.clean


def test_kafkas_own_tool_reads_our_segments(tmp_path: Path) -> None:
    """`kafka-dump-log.sh` finds every batch valid, every index entry true, and no offset out of order."""
    try:
        tools.wanted("kafka-dump-log.sh")
        java, path = tools.java("kafka")
    except tools.Missing as reason:
        pytest.skip(str(reason))
    log = filled(tmp_path / "plain-0", 40)
    log.append([made(b"a", b"b", codec=codec, producer=5, sequence=2 * codec) for codec in range(5)], 3, 1)
    log.close()
    table = Table(tmp_path / "cleaned-0")
    table.fill(100, 25)
    table.clean(now=1000, kept_ms=4000)
    assert table.horizons
    table.log.close()
    for folder, count in ((log.folder, len(rows(opened(log.folder)))), (table.log.folder, len(table.rows))):
        names = [str(path) for suffix in (".log", ".index", ".timeindex") for path in log_files(folder, suffix)]
        tool = [java, "-cp", path, "org.apache.kafka.tools.DumpLogSegments"]
        done = subprocess.run(
            [*tool, "--deep-iteration", "--files", ",".join(names)], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0
        said = done.stdout + done.stderr
        assert "isvalid: true" in said
        assert "isvalid: false" not in said
        assert said.count("| offset: ") == count
        assert "Mismatches in" not in said  # it would say so of an index entry that names no batch
        horizons = {} if folder == log.folder else table.horizons
        assert said.count("deleteHorizonMs: OptionalLong[5000]") == len(horizons)
        if folder == log.folder:  # where records are gone, a batch still has the largest timestamp that it had before
            assert "mismatch" not in said
            before = set(re.findall(r"(-?\d+) is followed by", said))
            assert before <= {"-1"}  # it says so of every file that does not begin with offset 0
