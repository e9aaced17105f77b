"""Keeps a loss of power in a file, from which the files that it left can be made again, on any machine.

A record differs from run to run, so a seed alone is not enough. The file has the record up to that moment, and the seed
of what was lost. `python -m tests.power.replay KEPT TARGET` makes the new folder TARGET from it.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from pathlib import Path
from random import Random
from struct import Struct

from tests.power.disk import Disk
from tests.power.record import Entry, Kind

PLACE = "KRAPPY_POWER_KEEP"  # environment variable: the folder for kept losses; by default the temporary folder
ENTRY = Struct("=IQQQI")  # kind, inode, other, end, bytes of data


def keep(disk: Disk, mood: float, seed: int) -> Path:
    """Keeps the loss of power that `disk.write(…, mood, Random(seed))` makes now, in a file of its own."""
    place = Path(os.environ.get(PLACE) or tempfile.gettempdir())
    place.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(".loss", "krappy-power-", place)
    with os.fdopen(fd, "wb") as raw, gzip.open(raw, "wb", compresslevel=1) as out:
        out.write(json.dumps({"root": disk.inode, "mood": mood, "seed": seed}).encode() + b"\n")
        for entry in disk.played:
            out.write(ENTRY.pack(entry.kind, entry.inode, entry.other, entry.end, len(entry.data)) + entry.data)
    return Path(name)


def replay(kept: Path, target: Path) -> None:
    """Makes the new folder `target` as the loss left it."""
    with gzip.open(kept, "rb") as file:
        told = json.loads(file.readline())
        disk = Disk(told["root"])
        while head := file.read(ENTRY.size):
            kind, inode, other, end, size = ENTRY.unpack(head)
            disk.play(Entry(end, Kind(kind), inode, other, file.read(size)))
    disk.write(target, told["mood"], Random(told["seed"]))


def how_to(kept: Path) -> str:
    """The line in a failing test's message that says how to make the files again."""
    return f"to have the same files again: python -m tests.power.replay {kept} TARGET"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m tests.power.replay KEPT TARGET")
    replay(Path(sys.argv[1]), Path(sys.argv[2]))
