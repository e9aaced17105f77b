"""A broker that is killed by SIGKILL at random moments loses nothing that it acknowledged (promises 1, 2 and 4).

Each life has a data folder of its own and random settings. `tests/crash/soak.py` runs the same for hours.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.crash.life import Life
from tests.long import LONG
from tests.process import Launcher

LIVES, CYCLES = (6, 16) if LONG else (2, 10)


@pytest.mark.parametrize("number", range(LIVES))
def test_nothing_acknowledged_is_lost(number: int, launch: Launcher, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or Random().getrandbits(32))
    life = Life(tmp_path, seed, launch)
    life.run(CYCLES)
    print(f"seed {seed}: {life.kills} kills, {life.acknowledged} events and changes acknowledged")  # noqa: T201
    assert life.acknowledged > 100, "hardly anything was tried"
