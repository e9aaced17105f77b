"""The broker itself, and what concerns any connection."""

from __future__ import annotations

from krappy.wire.schema import U32, Answer, Offset, RangeList, Request


class Ping(Request, kind=22):
    """Asks for a sign of life, and what one speaks to. A good first message on a connection, and a good one to send
    when nothing came for a while.
    """


class Pong(Answer, kind=22):
    version: str  # of the broker
    cluster: str  # its id
    time: int  # timestamp: the broker's clock
    max_frame: int  # the largest frame that it takes, in bytes


class Unregister(Request, kind=23):
    """Ends what a `handle` or a scan's `cursor` names. Leases of a member go to others at once; a watch sends its last
    answer; polls that wait end at once, with the error UNKNOWN_HANDLE. Closing the connection does the same for
    everything on it.

    A delivery that was not looked at is not counted: without that, events could go to the dead-letter topic because of
    members that took them ahead of time and left.
    """

    handle: U32  # of a producer, a consumer, a watch, or a scan's cursor
    unseen: RangeList | None = None  # members: what it was leased and nobody has looked at
    # members: how many polls that brought something it has taken; what a later one brought is unseen too
    polls: U32 | None = None


class Unregistered(Answer, kind=23):
    pass


class HoldBackup(Request, kind=60):
    """Links the broker's files of this moment aside, in a folder at the broker, to be copied by a program that can
    reach it there: `krappy backup`. They stay until Unregister of the handle, or the end of the connection.
    `manifest.json` in that folder lists as `files` each file's name and how many of its bytes count: one that is
    still being written may have more.
    """


class BackupHeld(Answer, kind=60):
    handle: U32  # for Unregister
    folder: str  # where the files are
    files: U32  # how many
    size: Offset  # bytes of them all that count
