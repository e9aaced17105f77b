"""A committed position of a group in one partition."""

from __future__ import annotations

from typing import NamedTuple

At = tuple[str, int]  # topic, partition


class Offset(NamedTuple):
    """`leader_epoch` -1: not said. `committed`: when (ms). `expires`: when it lapses, for clients that still say so
    (OffsetCommit before version 5); None: as the broker's retention has it."""

    offset: int
    leader_epoch: int
    metadata: str
    committed: int
    expires: int | None = None
