"""A committed position of a group in one partition."""

from __future__ import annotations

from typing import NamedTuple

At = tuple[str, int]  # topic, partition


class Offset(NamedTuple):
    """A committed offset. `leader_epoch` -1: not given. `committed`: when (ms). `expires`: when it lapses (ms), if the
    client said so (OffsetCommit before version 5); None: by the broker's retention of offsets."""

    offset: int
    leader_epoch: int
    metadata: str
    committed: int
    expires: int | None = None
