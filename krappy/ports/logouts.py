"""The port to the logouts of browsers that count at all brokers of a cluster."""

from __future__ import annotations

from typing import Protocol

LogoutMarks = tuple[str, str]  # marks of the last logout of everybody, and of one user; empty: there was none


class LogoutsPort(Protocol):
    def marks(self, user: str) -> LogoutMarks:
        """The marks for a session of the user that is opened now. The session has not ended as long as these stay the
        same, or are removed."""

    def ended(self, user: str, marks: LogoutMarks) -> bool:
        """Whether a session of the user that was opened with these marks has ended since."""

    async def end(self, user: str | None) -> None:
        """Ends all sessions of this user, or of everybody (None), at all brokers, durably. At most one change a second
        is made, for all who wait. Raises StorageError, ConnectionLost: then sessions at other brokers go on until the
        change can be made, which is tried as long as this broker runs."""
