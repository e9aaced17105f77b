"""SIGKILL to a process that writes views: what is left is the fold of the history up to the applied offset.

Run as a program, this file is that process. Its memtables are tiny, so that many flushes and compactions are under
way when it dies; it has no write-ahead log.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from krappy.store.views import Views
from tests.store.view_model import Model, read_all, step

NUMBERS = (1, 2, 3)
RECORDS, KEYS, VALUE = 50, 3000, 200
ROUNDS = 5
ROOT = Path(__file__).parent.parent.parent


def opened(folder: Path) -> Views:
    return Views(folder, cache_bytes=1 << 20, memtable_bytes=256 << 10)


def write_on(folder: Path, seed: int) -> None:
    """Goes on from what the views hold, without an end; prints a line for each 10 steps."""
    views = opened(folder)
    chance = random.Random()
    offsets = {number: views.applied(number) for number in NUMBERS}
    steps = 0
    while True:
        number = chance.choice(NUMBERS)
        views.apply(number, step(seed + number, offsets[number], RECORDS, KEYS, VALUE), offsets[number] + RECORDS)
        offsets[number] += RECORDS
        steps += 1
        if chance.random() < 0.002:
            views.flush()
        if steps % 10 == 0:
            os.write(1, b".")


def test_what_a_killed_writer_leaves_is_a_fold_of_the_history(tmp_path: Path) -> None:
    chance = random.Random()
    seed = chance.randrange(2**32)
    folded: dict[int, tuple[int, Model]] = {number: (0, {}) for number in NUMBERS}
    for _ in range(ROUNDS):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.test_views_crash", str(tmp_path / "views"), str(seed)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        dots = process.stdout.read(chance.randrange(20, 120))
        process.send_signal(signal.SIGKILL)
        assert dots, "the writer died by itself"
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        views = opened(tmp_path / "views")
        snapshot = views.snapshot()
        for number, (offset, model) in folded.items():
            applied = views.applied(number)
            assert applied >= offset, f"seed {seed}: the view of {number} went back"
            assert applied % RECORDS == 0
            for first in range(offset, applied, RECORDS):
                model |= step(seed + number, first, RECORDS, KEYS, VALUE)
            folded[number] = applied, model
            assert read_all(snapshot, number, 500, tombstones=True) == model, f"seed {seed}, partition {number}"
        views.close()
    assert all(offset for offset, _ in folded.values())


if __name__ == "__main__":
    write_on(Path(sys.argv[1]), int(sys.argv[2]))
