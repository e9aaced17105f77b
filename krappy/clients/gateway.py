"""A broker as a client of its own cluster. For a simple client that knows only this broker, it asks the leaders of
other partitions and the coordinators of other groups.

It connects when it is first needed. Requests go straight to the leader or coordinator, so each makes one hop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Unpack

import anyio

from krappy.clients import admin, tables
from krappy.clients.aio.connection import ClientConnection
from krappy.clients.aio.io import Delivery
from krappy.clients.coordinator_way import ask_coordinator
from krappy.clients.producing import Producing
from krappy.clients.router import SURPRISES, Router
from krappy.clients.scanning import Scanning
from krappy.clients.security import SecurityOptions
from krappy.clients.tables import KeyRangeChoice
from krappy.clients.values import Expected
from krappy.clients.watching import Watching
from krappy.clients.writing import writer
from krappy.errors import ConnectionLost, InvalidRequest, KrappyError, RequestTimeout, UnknownTopic
from krappy.types import ABSENT, Entry, Receipt, Record
from krappy.wire import messages

TIMEOUT = 10.0  # seconds for one request, with all its tries; a person waits for it
LOOKING = 0.05  # seconds between two looks whether a producer has learnt of a partition
REFRESH = 2.0  # seconds between two checks of a watch for new partitions: this broker itself is asked


class Gateway:
    """Implements `GatewayPort`. `address`: HOST:PORT of this broker's native listener; `security`: as `ClientSecurity`
    has it."""

    def __init__(self, address: str, timeout: float = TIMEOUT, **security: Unpack[SecurityOptions]) -> None:
        self._connection = ClientConnection(address, timeout, **security)
        self._connection.security.is_broker = True
        self._timeout = timeout
        self._wanted, self._opened = anyio.Event(), anyio.Event()
        self._failed: KrappyError | None = None
        self.groups = GatewayGroups(self.router)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._wanted.wait()
            try:
                await self._connection.open()
            except KrappyError as error:  # this broker does not answer yet
                self._failed = error
            self._opened.set()
            if self._failed is None:
                break
            self._wanted, self._opened, self._failed = anyio.Event(), anyio.Event(), None
        try:
            await anyio.sleep_forever()
        finally:
            await self._connection.close()

    async def router(self) -> Router:
        """Raises ConnectionLost."""
        if not self._connection.is_open:
            self._wanted.set()
            opened = self._opened
            with anyio.move_on_after(self._timeout):
                await opened.wait()
            if not self._connection.is_open:
                raise ConnectionLost("the broker does not reach the others of its cluster now")
        router = self._connection.router
        router.known.several = True
        return router

    # --- partitions

    async def describe(self, topics: Sequence[str]) -> Mapping[str, Sequence[admin.PartitionInfo]]:
        router = await self.router()
        return {each.name: each.partitions for each in await admin.topics(router, topics)}

    async def read(self, topic: str, partition: int, start: int, end: int, max_bytes: int) -> tuple[Any, int]:
        router = await self.router()
        request = messages.ReadLog(topic, partition, start, end, max_bytes)
        found = await router.ask(request, messages.LogRead, topic, partition)
        return found.records, found.next_offset

    async def offsets_at(self, topic: str, timestamp: int) -> Mapping[int, int]:
        return await admin.all_offsets(await self.router(), topic, "timestamp", timestamp)

    async def publish(self, topic: str, partition: int, record: Record, expect: int | None) -> Receipt:
        core = await writer(await self.router(), topic)
        until = anyio.current_time() + self._timeout
        with anyio.CancelScope(deadline=until):
            while partition >= core.partitions:  # it was added: this broker knows it already
                core.recount()
                await anyio.sleep(LOOKING)
        with anyio.CancelScope(deadline=until):
            for _ in range(SURPRISES):
                # The producer may know a deleted topic. It learns of the topic that has the name now.
                with suppress(UnknownTopic):
                    return await self._published(core, partition, record, expect)
            return await self._published(core, partition, record, expect)
        raise RequestTimeout(f"no answer for {self._timeout:g} s: the event may have been written")

    async def _published(self, core: Producing, partition: int, record: Record, expect: int | None) -> Receipt:
        if not core.takes():
            await core.room()
        wanted: Expected | None = "absent" if expect == ABSENT else expect
        return await core.add(
            Delivery[Receipt](), record.value, record.key, record.headers, record.timestamp, partition, wanted
        )

    async def delete_records(self, topic: str, before: Mapping[int, int]) -> Mapping[int, int]:
        return await admin.delete_records(await self.router(), topic, before, None)

    # --- tables

    async def get(self, topic: str, key: bytes, partition: int | None, min_offset: int | None) -> Entry | None:
        return await tables.get(await self.router(), topic, key, partition, min_offset)

    async def get_many(self, topic: str, keys: Sequence[bytes], partition: int | None) -> list[Entry | None]:
        return await tables.get_many(await self.router(), topic, keys, partition)

    async def scan(
        self, topic: str, partition: int, start: bytes, end: bytes | None, *, tombstones: bool, limit: int, room: int
    ) -> tuple[list[Entry], int, bool]:
        chosen = KeyRangeChoice(None, start, end)
        core = Scanning(await self.router(), topic, chosen, [partition], tombstones, limit + 1)
        found: list[Entry] = []
        size = 0
        try:
            while len(found) <= limit and size < room:
                page = await core.page()
                if page is None:
                    return found, core.offsets[partition], True
                found += page
                size += sum(len(each.key) + len(each.value or b"") for each in page)
            return found[:limit], core.offsets[partition], False
        finally:
            core.close()

    async def history(self, topic: str, key: bytes, partition: int, start: int) -> tuple[list[Entry], int | None]:
        core = tables.KeyHistory(await self.router(), topic, key, partition, start)
        page = await core.page()
        return page or [], core.next

    async def holders(self, topic: str, key: bytes) -> list[int]:
        [found] = await tables.get_everywhere(await self.router(), topic, [key])
        return [index for index, each in enumerate(found) if each is not None]

    def watch(
        self,
        topic: str,
        prefix: bytes | None,
        start: bytes | None,
        end: bytes | None,
        partitions: Sequence[int] | None,
        *,
        tombstones: bool,
        offsets: Mapping[int, int] | None,
    ) -> GatewayWatch:
        chosen = KeyRangeChoice(prefix, start, end)
        return GatewayWatch(self, topic, chosen, partitions, tombstones, offsets)

    async def watching(
        self,
        topic: str,
        chosen: KeyRangeChoice,
        partitions: Sequence[int] | None,
        tombstones: bool,
        offsets: Mapping[int, int] | None,
    ) -> Watching:
        what = topic, chosen, partitions, tombstones, offsets
        return Watching(await self.router(), self._connection.new_link, *what, refresh=REFRESH, progress=True)


class GatewayGroups:
    """Implements `GatewayGroupsPort`."""

    def __init__(self, router: Callable[[], Awaitable[Router]]) -> None:
        self._router = router

    async def all(self) -> list[Any]:
        return list(map(_facts, await admin.groups(await self._router())))

    async def describe(self, name: str) -> Any:
        return _facts(await admin.group(await self._router(), name))

    async def reset(
        self,
        name: str,
        topic: str | None,
        partitions: Sequence[int] | None,
        start: str,
        start_at: int | None,
        *,
        dry_run: bool,
        owner: str,
    ) -> list[tuple[str, int, int, int]]:
        some = None if partitions is None else list(partitions)
        request = messages.ResetGroup(name, topic, some, start, start_at, dry_run, owner)
        router = await self._router()
        try:
            return (await ask_coordinator(router, request, messages.GroupReset)).positions
        except InvalidRequest as error:
            if error.details.get("field") != "owner":
                raise
        del request.owner  # an older broker does not know the field
        return (await ask_coordinator(router, request, messages.GroupReset)).positions

    async def delete(self, name: str) -> None:
        await admin.delete_group(await self._router(), name)


def _facts(group: admin.GroupInfo) -> dict[str, Any]:
    return {
        **group._asdict(),
        "members": [each._asdict() for each in group.members],
        "partitions": [each._asdict() for each in group.partitions],
    }


class GatewayWatch:
    """A watch that is opened when its first items are asked for."""

    def __init__(self, gateway: Gateway, *what: Any) -> None:
        self._gateway, self._what = gateway, what
        self._core: Watching | None = None

    @property
    def offsets(self) -> Mapping[int, int] | None:
        return None if self._core is None else self._core.offsets

    async def more(self) -> list[Any]:
        if self._core is None:
            self._core = await self._gateway.watching(*self._what)
        await self._core.more()
        return list(self._core.items)

    def close(self) -> None:
        if self._core is not None:
            self._core.close()
