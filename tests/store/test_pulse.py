"""The count in `DATA/pulse`, by which an old copy of a data folder is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from krappy.store.pulse import Pulse


@pytest.mark.parametrize("content", [b"", b"odd", b"x" * 64])
def test_a_count_that_is_none_begins_anew_and_is_read_from_then_on(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pulse"
    path.write_bytes(content)
    pulse = Pulse(path)
    assert pulse.count == 0
    pulse.beat()
    pulse.beat()
    assert Pulse(path).count == 2
