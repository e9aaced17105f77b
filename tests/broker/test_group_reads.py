"""What a member of a group is sent of a batch."""

from __future__ import annotations

from krappy.broker.groups.group_reads import LogPiece
from krappy.core.leases import Lease
from krappy.records import batch
from tests.calls import counted


def test_cutting_a_batch_that_compaction_made_sparse_looks_at_each_lease_once() -> None:
    count = 2_000
    offsets = range(0, 2 * count, 2)
    data = batch.encode([b"k"] * count, [b"value"] * count, timestamps=0, base_offset=0, offsets=list(offsets))
    piece = LogPiece(batch.read_header(data), memoryview(data), 0)
    columns = piece.opened(1 << 20)
    assert columns is not None
    piece.look(columns, keys=True)
    wanted = offsets[::9]

    cut, calls = counted(lambda: piece.cut([Lease(offset, offset, 1) for offset in wanted], 1 << 20))
    assert cut is not None
    assert list(batch.decode(cut).offsets) == list(wanted)
    assert calls < 10 * count
