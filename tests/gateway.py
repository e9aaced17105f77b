"""`krappy` for a cluster whose first broker is to lead nothing: the other brokers get new partitions first."""

from __future__ import annotations

from collections import Counter

from krappy.cli import main
from krappy.core.cluster import placement
from krappy.core.cluster.image import Image

GATEWAY = 1
MANY = 1_000_000

_counted = placement._load


def _load(image: Image) -> tuple[Counter[int], Counter[int]]:
    held, led = _counted(image)
    led[GATEWAY] += MANY
    return held, led


def run(arguments: list[str]) -> int:
    placement._load = _load
    return main.run(arguments)
