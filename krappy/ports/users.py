"""The port to the users who log in with a password."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from krappy.core.security.scram import ScramCredential

Credentials = Mapping[str, ScramCredential]  # by mechanism
Took = Callable[[float], None]  # is told for how many seconds a core was busy


def untold(seconds: float) -> None:
    """For work that nobody pays for."""


class UsersPort(Protocol):
    """Users have a credential for each mechanism of SCRAM that they may log in with; PLAIN is checked against these."""

    @property
    def all(self) -> Mapping[str, Credentials]:
        """The users in the tree and those of `users_dir`, by name."""

    def credential(self, user: str, mechanism: str) -> ScramCredential:
        """The credential of the user. An unknown user has one that no password fits, always the same."""

    async def check(self, user: str, password: str, host: str, took: Took = untold) -> bool:
        """Whether this is the user's password. The check takes some ms, whether there is such a user or not; `took` is
        told how long. `host`: the peer's address. Addresses take turns with their checks. Raises Overloaded when too
        many of that address wait."""

    def stamp(self, user: str) -> bytes:
        """A stamp that changes with each change of the user's password; empty: there is no such user."""

    async def alter(self, user: str, changes: Mapping[str, ScramCredential | None]) -> None:
        """Sets or removes (None) credentials, durably. Raises UnknownUser when a credential that is to be removed does
        not exist, InvalidRequest for an impossible name and for a user of `users_dir`, whose file would count all the
        same, StorageError, ConnectionLost."""
