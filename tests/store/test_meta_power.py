"""The catalog, groups and producer ids when the power goes: what was synced is there, and a beginning of the rest.

RocksDB syncs its table files itself. We have to prove when its write-ahead log was synced, and that a log that is cut
anywhere behind that point can be opened.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from krappy.store.meta import Meta

SYNCED = 20
LATER = 20


def wal(folder: Path) -> Path:
    return max(folder.glob("[0-9]*.log"))


@pytest.mark.parametrize("zeros", [False, True])
def test_the_write_ahead_log_is_cut_anywhere_behind_the_last_sync(tmp_path: Path, zeros: bool) -> None:
    """`zeros`: the file has its length, but not its data, as on file systems that write the size first."""
    meta = Meta(tmp_path / "meta")
    for number in range(SYNCED):
        meta.write({b"k%03d" % number: b"v" * number, b"twin%03d" % number: b"v"})
    meta.sync()
    durable = wal(meta.folder).stat().st_size
    for number in range(SYNCED, SYNCED + LATER):
        meta.write({b"k%03d" % number: b"v" * number, b"twin%03d" % number: b"v"})
    written = wal(meta.folder).stat().st_size
    assert 0 < durable < written
    stopped = tmp_path / "stopped"
    shutil.copytree(meta.folder, stopped)  # as SIGKILL leaves it: nothing is closed
    counts = set()
    for size in range(durable, written + 1, 37):
        folder = tmp_path / f"cut-{size}"
        shutil.copytree(stopped, folder)
        with wal(folder).open("r+b") as file:
            file.truncate(size)
            if zeros:
                file.truncate(written)
        again = Meta(folder)
        found = [key for key, _ in again.items(b"k")]
        assert found == [b"k%03d" % number for number in range(len(found))]
        assert SYNCED <= len(found) <= SYNCED + LATER
        assert len(list(again.items(b"twin"))) == len(found)  # a write is there as a whole or not at all
        again.put(b"after", b"1")
        again.sync()
        again.close()
        counts.add(len(found))
        shutil.rmtree(folder)
    assert len(counts) > 10
    meta.close()
