"""The async client's methods for ACLs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from krappy.clients import acls
from krappy.clients.acls import AclInfo, AclMatch
from krappy.clients.aio.connection import ClientConnection


class AclMethods:
    """The methods of a client. They raise ClusterAuthorizationFailed, and SecurityDisabled when the broker has no
    authorizer."""

    _connection: ClientConnection

    async def add_acls(self, added: Iterable[AclInfo]) -> None:
        """Stores ACLs, all or none; those that are there already stay. Raises InvalidRequest."""
        await acls.add(self._connection.router, added)

    async def acls(self, **wanted: Unpack[AclMatch]) -> list[AclInfo]:
        """The ACLs that have all the values given, such as `acls(principal="User:ada")`; all if none is given. With
        `pattern="match"` those that concern the resource `name`: literally, by a prefix, or as *."""
        return await acls.find(self._connection.link, wanted)

    async def delete_acls(self, **wanted: Unpack[AclMatch]) -> list[AclInfo]:
        """Deletes the ACLs that have all the values given, as for `acls`; returns them."""
        return await acls.delete(self._connection.router, wanted)
