"""A damaged block of a table file: RocksDB ends an iteration there as it does at the end of the data. Nobody may take
it for the end: topics and groups would be gone without a word."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from krappy.store.keys import view_end, view_prefix
from krappy.store.meta import Meta
from krappy.store.rocks import Damaged
from krappy.store.views import Views

ROWS = {b"%05d" % number: b"%0100d" % number for number in range(2_000)}


def flip(folder: Path) -> None:
    """Flips a bit in the middle of the keys of each table file."""
    for file in folder.glob("*.sst"):
        content = bytearray(file.read_bytes())
        content[len(content) // 3] ^= 4
        file.write_bytes(content)


def test_a_catalog_does_not_end_there(tmp_path: Path) -> None:
    meta = Meta(tmp_path / "meta")
    meta.write(ROWS)
    meta.close()
    Meta(tmp_path / "meta").close()  # this puts the content of the write-ahead log into a table
    flip(tmp_path / "meta")
    meta = Meta(tmp_path / "meta")
    seen = []
    with pytest.raises(Damaged, match="Restore a backup"):
        seen += [key for key, _ in meta.items(b"")]
    with pytest.raises(Damaged):
        seen.extend(key for key, _ in meta.items(b"0"))
    assert 0 < len(seen) < len(ROWS)
    gc.collect()
    meta.close()


def all_keys(views: Views) -> object:
    return views.keys(view_prefix(1), view_end(1), 10_000)[0]


@pytest.mark.parametrize("read", [all_keys, lambda views: views.highest_number()], ids=["keys", "highest"])
def test_views_do_not_end_there(tmp_path: Path, read: Callable[[Views], object]) -> None:
    views = Views(tmp_path / "views")
    views.apply(1, ROWS, 2_000)
    views.close()
    (file,) = (tmp_path / "views").glob("*.sst")
    content = bytearray(file.read_bytes())
    for at in range(100, len(content) * 2 // 3, 1000):  # a bit of every block
        content[at] ^= 4
    file.write_bytes(content)
    views = Views(tmp_path / "views")
    with pytest.raises(Damaged):
        read(views)
    assert views.damaged
