"""Bounds of what one transaction may grow to."""

from __future__ import annotations

import pytest

from krappy.core import transactions as core
from krappy.errors import InvalidRequest


def test_a_transaction_has_so_many_groups_at_most() -> None:
    found = core.begin(None, "a", 1000, 0, new_id=1)
    found = core.add(found, 1, 0, 0, groups=[f"g{number}" for number in range(core.MAX_GROUPS)])
    assert core.add(found, 1, 0, 0, groups=["g7"]) is found
    with pytest.raises(InvalidRequest):
        core.add(found, 1, 0, 0, groups=["one more"])
