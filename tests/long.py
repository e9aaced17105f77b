"""Marks tests that take long: `make test-long` (KRAPPY_LONG=1) runs them, `make test` does not.

`make test` tests each promise. It leaves out the tests that try a promise more often, at more moments or in more ways,
and those that take more than half a minute where another test shows the same in less.
"""

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
