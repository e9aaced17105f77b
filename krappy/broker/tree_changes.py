"""Changes of the tree that all brokers agree on. Each is one atomic write, made from what was read before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from krappy.core.cluster import paths, znodes
from krappy.core.cluster.tree import Create, Delete, Operation, Put, RefusedMulti, Znode
from krappy.errors import StorageError
from krappy.ports.store import Store

TRIES = 100  # of one change, while others keep changing the same znodes


async def change(store: Store, make: Callable[[], Awaitable[Sequence[Operation]]]) -> None:
    """Writes the operations that `make` gives, if there are any. If they are refused, what `make` read has changed
    since, and `make` is called again. Raises StorageError, ConnectionLost as `Store.multi`."""
    for _ in range(TRIES):
        operations = await make()
        if not operations:
            return
        try:
            await store.multi(operations)
            return
        except RefusedMulti as error:
            refused = error
    raise StorageError(f"others change it all the time: {refused}")


async def change_registration(store: Store, broker: int, change_data: Callable[[bytes], bytes]) -> None:
    """Changes the registration of this broker, if it has one. Raises as `change`."""
    path = paths.broker(broker)

    async def made() -> list[Operation]:
        found = await store.read(path)
        return [] if found is None else [Put(path, change_data(found.data), found.version)]

    await change(store, made)


def config_change(path: str, before: Znode | None, settings: Mapping[str, str]) -> list[Operation]:
    """The operations that make `settings` the content of the znode at `path`; without settings it is deleted. `before`:
    the znode as it is now."""
    if before is None:
        return [Create(path, znodes.config(settings))] if settings else []
    return [Put(path, znodes.config(settings, before.data), before.version)] if settings else [Delete(path)]
