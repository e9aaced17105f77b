"""The broker itself, and what concerns any connection."""

from __future__ import annotations

from krappy.wire.schema import U32, Answer, Offset, RangeList, Request


class Ping(Request, kind=22):
    pass


class Pong(Answer, kind=22):
    """Also how a client learns what it speaks to."""

    version: str
    cluster: str
    time: int
    max_frame: int


class Unregister(Request, kind=23):
    """Ends a registration, a watch or a scan's cursor, whose `handle` it is.

    A member of a group tells what it was leased and has not looked at: `unseen`, and what came with polls beyond the
    first `polls` that brought something.
    """

    handle: U32
    unseen: RangeList | None = None
    polls: U32 | None = None


class Unregistered(Answer, kind=23):
    pass


class HoldBackup(Request, kind=60):
    """Links the broker's files of this moment aside, until `Unregister` of the handle."""


class BackupHeld(Answer, kind=60):
    handle: U32
    folder: str  # at the broker; its `manifest.json` says what counts
    files: U32
    size: Offset  # bytes of them all
