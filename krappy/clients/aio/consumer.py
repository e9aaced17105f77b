"""The consumer of the async client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from krappy.clients.acks import Acknowledged
from krappy.clients.aio.connection import ClientConnection
from krappy.clients.aio.items import Items
from krappy.clients.choice import Choice, ConsumerOptions
from krappy.clients.consuming import Consuming
from krappy.clients.events import EventBatch
from krappy.clients.reading import Reading
from krappy.clients.sharing import Sharing
from krappy.clients.values import Addresses, StartAt, names
from krappy.errors import KrappyError
from krappy.types import Event, TopicPartition
from krappy.wire.messages import Extend


class Consumer:
    """Reads events: `async for event in consumer`, or `consumer.batches()` for columns. `Client.consumer` makes one and
    explains the arguments. Made directly, it has its own connection: `async with krappy.Consumer("my-topic")`.

    After a lost connection a reader without a group goes on exactly where it was: every event once. A member of a
    group gets a new name, and what it had leased is delivered again, to it or to another member: at least once.
    """

    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        to: Addresses | None = None,
        timeout: float = 30.0,
        connection: ClientConnection | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._connection = connection or ClientConnection(to, timeout)
        self._owns = connection is None
        self._choice = Choice(names(topics), **options)
        self._choice.check()
        self._opened: Consuming | None = None

    async def __aenter__(self) -> Consumer:
        if self._opened is not None:
            raise KrappyError("this consumer is open already")
        if self._owns:
            await self._connection.open()
        try:
            kind = Reading if self._choice.group is None else Sharing
            core: Consuming = kind(self._connection.router, self._choice)
            await core.open()
        except BaseException:
            if self._owns:
                await self._connection.close()
            raise
        self._opened = core
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        core, self._opened = self._opened, None
        try:
            if core is not None:
                await core.leave(kind)
        finally:
            if self._owns:
                await self._connection.close()

    @property
    def _core(self) -> Consuming:
        if self._opened is None:
            raise KrappyError("this consumer is not open: use `async with`")
        return self._opened

    @property
    def member(self) -> str | None:
        """Its name in the group; it gets another one after a lost connection. None without a group."""
        return self._core.member

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """By partition, the offset of the next event. Only for readers without a group."""
        return self._core.positions()

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Event:
        core = self._opened or self._core
        received = core.received
        while True:
            if not received.leased or received.now() < received.until:
                for event in received.events:  # not by next(): an interrupt may come with a call, and lose it
                    return event
            if not await core.next_events():
                raise StopAsyncIteration

    def batches(self) -> Items[EventBatch]:
        """The same events as columns: `async for batch in consumer.batches()`."""
        return Items(self._core.next_batch)

    async def poll(self, seconds: float = 0.0) -> list[Event]:
        """Waits up to `seconds` for the next events, of one partition or several: all that the last answer had.

        Returns none at the end, or if none came."""
        return await self._core.poll(seconds)

    async def ack(self, events: Acknowledged, *, wait: bool = False) -> None:
        """Acknowledges an event, several, or a batch: they will not be delivered again.

        Returns at once. The ack is sent with others: within milliseconds, before the next poll, or when the consumer is
        left. Leaving waits until they are durable. If the program dies before, the events are delivered again. An ack
        that comes after another member got the event does nothing. Raises the error for which earlier acks were given
        up, if there is one; so do the next poll and leaving.

        `wait`: returns when these and all earlier acks are durable. Raises LeaseLost when another member has one of
        the events by now, or it went to the dead-letter topic; the others are acknowledged all the same.
        """
        core = self._opened or self._core
        if wait:
            await core.ack(events)
        else:
            core.note(events)

    async def nack(self, events: Acknowledged, *, delay_ms: int = 0) -> None:
        """Gives events back, to be delivered again `delay_ms` from now at the earliest. Raises LeaseLost as `ack`.

        With order="key" the later events of their keys that this member has go back too, and come after them.
        """
        await self._core.nack(events, delay_ms)

    async def extend(self, events: Acknowledged, *, lease_ms: int | None = None) -> None:
        """Extends leases: they end `lease_ms` from now (None: the consumer's own). Raises LeaseLost as `ack`."""
        core = self._core
        await core.settle(Extend, events, lease_ms=core.choice.lease_ms if lease_ms is None else lease_ms)

    async def seek(self, partition: int, to: StartAt, *, topic: str | None = None) -> int:
        """Goes on from `to` in a partition; returns the offset found. `topic` None: the consumer's only one.

        Raises OffsetOutOfRange, UnknownTopic, and InvalidRequest in a group.
        """
        return await self._core.seek(self._choice.one(topic), partition, to)
