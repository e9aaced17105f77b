"""The users of a cluster, in its ZooKeeper. They can be added before a broker runs, which may need one to reach
others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import trio

from krappy.app import first_error, zookeeper_client
from krappy.broker.tree_changes import config_change
from krappy.cli.stored_users import iterations
from krappy.clients.admin import UserInfo
from krappy.cluster.zk.client import ZooKeeper
from krappy.core.cluster import paths
from krappy.core.cluster.document import Document
from krappy.core.cluster.tree import Create, Znode
from krappy.errors import ConnectionLost, KrappyError, UnknownUser
from krappy.settings.server import ServerConfig

USERS = f"{paths.CONFIG}/{paths.USER_CONFIG}"
PATIENCE_S = 20.0
TROUBLED_S = 2.0  # that it goes on after the first trouble: another server may have none
T = TypeVar("T")


class ClusterUsers:
    """`config`: that of one of the cluster's brokers. Methods raise ConnectionLost, StorageError."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config

    def users(self) -> list[UserInfo]:
        async def read(client: ZooKeeper) -> list[UserInfo]:
            names = await client.children(USERS)
            return [UserInfo(name, iterations(_texts(await client.get(_path(name))))) for name in names]

        return self._do(read)

    def change(self, name: str, credentials: Mapping[str, str]) -> None:
        """As `StoredUsers.change`."""

        async def write(client: ZooKeeper) -> None:
            for path in (paths.CONFIG, USERS):
                if await client.get(path) is None:
                    await client.multi([Create(path)])
            before = await client.get(_path(name))
            await client.multi(config_change(_path(name), before, {**_texts(before), **credentials}))

        self._do(write)

    def delete(self, name: str) -> None:
        """Raises UnknownUser."""

        async def remove(client: ZooKeeper) -> None:
            before = await client.get(_path(name))
            if not _texts(before):
                raise UnknownUser(f"there is no user '{name}'", user=name)
            await client.multi(config_change(_path(name), before, {}))

        self._do(remove)

    def _do(self, work: Callable[[ZooKeeper], Awaitable[T]]) -> T:
        troubles: list[str] = []

        async def main() -> T:
            with trio.move_on_after(PATIENCE_S) as scope:

                def troubled(text: str) -> None:
                    troubles.append(text)
                    scope.deadline = min(scope.deadline, trio.current_time() + TROUBLED_S)

                client = zookeeper_client(self._config, troubled)()
                async with trio.open_nursery() as nursery:
                    await nursery.start(client.run)
                    found = await work(client)
                    await client.close()
                return found
            raise ConnectionLost(f"ZooKeeper does not answer: {'; '.join(troubles)}")

        try:
            return trio.run(main)
        except BaseExceptionGroup as group:
            error = first_error(group)
            if isinstance(error, KrappyError) and troubles:
                raise ConnectionLost(f"ZooKeeper: {'; '.join(troubles)}") from error
            raise error from None


def _path(name: str) -> str:
    return paths.config(paths.USER_CONFIG, name)


def _texts(found: Znode | None) -> dict[str, str]:
    return {} if found is None else Document.of(found.data).texts("config")
