"""Staged writes of the async client."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from krappy.clients.accumulator import Limits
from krappy.clients.aio.connection import ClientConnection
from krappy.clients.aio.io import Delivery
from krappy.clients.attempt import Attempt, StagingProducing
from krappy.clients.receipts import Failures, Stored
from krappy.clients.values import HeadersIn, Text, Time
from krappy.errors import KrappyError
from krappy.types import Receipt


class Stage:
    """What one attempt of a task stages for one topic. Any number of tasks may use it.

    Leaving its `async with` unsealed drops what was staged.
    """

    def __init__(self, connection: ClientConnection, topic: str, attempt: Attempt, limits: Limits) -> None:
        self.topic = topic
        self._connection = connection
        self._attempt = attempt
        self._limits = limits
        self._failures = Failures()
        self._opened: StagingProducing | None = None

    async def __aenter__(self) -> Stage:
        core = StagingProducing(self._connection.link, self.topic, self._attempt, self._limits)
        await core.open()
        self._opened = core
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        core, self._opened = self._opened, None
        if core is not None:
            core.close()
            with suppress(KrappyError):
                core.give_up()

    @property
    def _core(self) -> StagingProducing:
        if self._opened is None:
            raise KrappyError("this stage is not open: use `async with`")
        return self._opened

    @property
    def partitions(self) -> int:
        """How many the topic has, as far as is known here."""
        return self._core.partitions

    async def send(
        self,
        value: Text | None,
        key: Text | None = None,
        *,
        headers: HeadersIn | None = None,
        timestamp: Time | None = None,
        partition: int | None = None,
    ) -> None:
        """Stages one event, with the arguments of `TopicProducer.send`. Waits only for room in the buffer.

        Raises what is wrong with this event, and what was wrong with one before.
        """
        core = await self._ready()
        core.add(Delivery[Receipt](self._failures), value, key, headers, timestamp, partition)
        core.count(1)

    async def send_columns(
        self,
        keys: Sequence[Text | None] | None,
        values: Sequence[Text | None],
        *,
        headers: Sequence[HeadersIn | None] | None = None,
        timestamps: Sequence[Time] | Time | None = None,
        partition: int | None = None,
    ) -> None:
        """Stages many events, given by columns: the fast path. Waits only for room in the buffer, raises as `send`."""
        core = await self._ready()
        delivery = Delivery[list[Stored]](self._failures)
        core.add_columns(delivery, keys, values, headers=headers, timestamps=timestamps, partition=partition)
        core.count(len(values))

    async def _ready(self) -> StagingProducing:
        core = self._core
        core.check()
        self._failures.check()
        if core.full:
            await core.room()
        return core

    async def flush(self) -> None:
        """Waits until everything given so far is staged. Raises the first error that was not raised yet."""
        done = Delivery[None]()
        await self._core.flush(done)
        await done
        self._failures.check()

    async def seal(self) -> str:
        """Makes everything that was sent durable; the token for `commit_staged`. Nothing can be sent after it.

        Sealing again gives the same token. Raises what went wrong with anything that was sent (it can't be sealed
        then), StagingFenced when the job was aborted meanwhile, StagingExpired, UnknownStaging when the broker was
        started anew in the middle: stage the attempt again then.
        """
        await self.flush()
        return await self._core.seal()
