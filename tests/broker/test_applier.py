"""The view follows when more is published than is kept in memory for it: what was not kept is read from the log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from krappy import batch
from krappy.broker.applier import Applier
from krappy.entry import entry_offset
from krappy.store.views import Views


def test_batches_that_were_not_kept_leave_no_gap(tmp_path: Path) -> None:
    """Offsets 5 to 9 were too much to keep: the batches in memory end before them, whatever is kept behind."""
    views = Views(tmp_path / "views")
    partition: Any = SimpleNamespace(views=views, number=1, high_watermark=15)
    columns = batch.decode(batch.encode([b"a", b"b", b"c", b"d", b"e"], [b"v"] * 5, timestamps=1))

    async def apply() -> int:
        applier = Applier(partition, 0)
        applier._fresh.extend([(0, columns, 100), (10, columns, 100)])
        await applier._apply_fresh()
        return applier.applied

    assert trio.run(apply) == 5
    found = views.get(1, b"e")
    assert found is not None
    assert entry_offset(found) == 4
    views.close()
