"""Fixtures of the tests that drive a broker without a network."""

from __future__ import annotations

import pytest

from krappy.broker.latest import latest_sets, table_file
from krappy.core import latest, live_offsets


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small limits: blocks of 8 offsets, files in parts of 40 bytes, and a reader that is 3 offsets behind when it
    returns counts as far behind.

    New readers get the table as it is now, however slow the machine is.
    """
    monkeypatch.setattr(latest_sets, "SLACK", 0.0)
    monkeypatch.setattr(table_file, "MARK", 40)
    monkeypatch.setattr(live_offsets, "BLOCK", 8)
    monkeypatch.setattr(latest, "RAW_LAG", 3)
