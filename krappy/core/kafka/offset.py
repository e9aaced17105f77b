"""A committed position of a group in one partition."""

from __future__ import annotations

from typing import NamedTuple

At = tuple[str, int]  # topic, partition


class Offset(NamedTuple):
    """A committed offset. `leader_epoch` -1: not given. `committed`: when (ms). `expires`: when it lapses (ms), if the
    client said so (OffsetCommit before version 5); None: the broker's retention of offsets decides. `topic_id`: the id
    of its topic, for another topic may have the same name later; empty: not known. `owner`: whose memory it takes
    (`Principal.owner`); "": it was loaded. `turn`: in which order it came, among those of its group
    since that was loaded; 0: it was loaded. The last two are not stored."""

    offset: int
    leader_epoch: int
    metadata: str
    committed: int
    expires: int | None = None
    topic_id: bytes = b""
    owner: str = ""
    turn: int = 0
