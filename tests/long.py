"""What takes long, and is run by `make test-long` (KRAPPY_LONG=1), not by `make test`.

`make test` tests each promise. What tests one more often, at more moments or in more ways is left out there, and so is
what takes more than half a minute where something else tests the same in less."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

LONG = bool(os.environ.get("KRAPPY_LONG"))
long = pytest.mark.skipif(not LONG, reason="takes long: `make test-long` runs it (KRAPPY_LONG=1)")


def some(cases: Sequence[T], every: int, first: int = 0) -> list[T]:
    """One of each `every` cases, from the `first` on; all of them in long runs."""
    return list(cases) if LONG else list(cases[first::every])
