# Written by tests/clients/mirror.py from krappy/clients/aio/security.py: change that one, and run `make generate`.

"""Who may log in: users and their passwords."""

from __future__ import annotations

import os
from collections.abc import Sequence

from krappy.clients import admin
from krappy.clients.admin import UserInfo
from krappy.clients.runtime import run
from krappy.clients.sync.connection import ClientConnection
from krappy.core.security.scram import HASHES, SALT, ScramCredential


class Security:
    """`Client.security` gives it."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def users(self) -> list[UserInfo]:
        """Those who may log in with a password, by name."""
        return run(admin.users(self._connection.link))

    def set_password(self, user: str, password: str, mechanisms: Sequence[str] = tuple(HASHES)) -> None:
        """Sets a user's password; a user who is not there is made. The password itself is not sent."""
        made = {each: ScramCredential.of(each, password, os.urandom(SALT)).text() for each in mechanisms}
        run(admin.alter_user(self._connection.link, user, made))

    def delete_user(self, user: str) -> None:
        """Raises UnknownUser."""
        known = {each.name: each.iterations for each in self.users()}
        mechanisms = known.get(user) or dict.fromkeys(HASHES)
        run(admin.alter_user(self._connection.link, user, dict.fromkeys(mechanisms)))
