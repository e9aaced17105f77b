"""Who may log in, and how much clients may use: users and their passwords, quotas."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from krappy.clients import admin
from krappy.clients.admin import QuotaInfo, UserInfo
from krappy.clients.aio.connection import ClientConnection
from krappy.core.security.scram import HASHES, SALT, ScramCredential
from krappy.errors import UnknownUser


class Security:
    """`Client.security` gives it."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def users(self) -> list[UserInfo]:
        """The users who may log in with a password, by name."""
        return await admin.users(self._connection.link)

    async def set_password(self, user: str, password: str, mechanisms: Sequence[str] = tuple(HASHES)) -> None:
        """Sets a user's password; a user who is not there is made. The password itself is not sent."""
        made = {each: ScramCredential.of(each, password, os.urandom(SALT)).text() for each in mechanisms}
        await admin.alter_user(self._connection.router, user, made)

    async def delete_user(self, user: str) -> None:
        """Raises UnknownUser."""
        known = {each.name: each.iterations for each in await self.users()}
        if user not in known:
            raise UnknownUser(f"there is no user '{user:.80}'", user=user)
        await admin.alter_user(self._connection.router, user, dict.fromkeys(known[user]))

    async def quotas(
        self, user: str | None = None, client_id: str | None = None, ip: str | None = None
    ) -> list[QuotaInfo]:
        """The quotas of those who have all the names that are given; "" is the default."""
        return await admin.quotas(self._connection.link, user, client_id, ip)

    async def alter_quotas(
        self,
        rates: Mapping[str, float | None],
        *,
        user: str | None = None,
        client_id: str | None = None,
        ip: str | None = None,
    ) -> None:
        """Sets or removes (None) quotas of a user, a client id, both, or an address; "" is the default: all that have
        none of their own. `rates`: producer_byte_rate and consumer_byte_rate (bytes a second), request_percentage (of
        one core), controller_mutation_rate (partitions a second); of an address connection_creation_rate. Raises
        InvalidRequest."""
        await admin.alter_quotas(self._connection.router, rates, user, client_id, ip)
