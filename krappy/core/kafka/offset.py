"""A committed position of a group in one partition."""

from __future__ import annotations

from typing import NamedTuple

At = tuple[str, int]  # topic, partition


class Offset(NamedTuple):
    """A committed offset. `leader_epoch` -1: not given. `committed`: when (ms). `expires`: when it lapses (ms), if the
    client said so (OffsetCommit before version 5); None: by the broker's retention of offsets. `topic_id`: of the topic
    that it is an offset of, for another one may have its name later; empty: not known."""

    offset: int
    leader_epoch: int
    metadata: str
    committed: int
    expires: int | None = None
    topic_id: bytes = b""
