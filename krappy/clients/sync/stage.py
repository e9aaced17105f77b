# Written by tests/clients/mirror.py from krappy/clients/aio/stage.py: change that one, and run `make generate`.

"""Staged writes of the blocking client."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from krappy.clients.accumulator import Limits
from krappy.clients.attempt import Attempt, StagingProducing
from krappy.clients.receipts import Stored
from krappy.clients.runtime import run
from krappy.clients.sync.connection import ClientConnection
from krappy.clients.sync.io import Delivery
from krappy.clients.sync.producer import Sender
from krappy.clients.values import HeadersIn, Text, Time
from krappy.errors import KrappyError
from krappy.types import Receipt


class Stage(Sender[StagingProducing]):
    """Stages the events of one attempt of a task for one topic. Any number of threads may use it.

    Leaving its `with` without `seal` drops what was staged.
    """

    _what = "stage"

    def __init__(self, connection: ClientConnection, topic: str, attempt: Attempt, limits: Limits) -> None:
        super().__init__(connection, topic, limits)
        self._attempt = attempt

    def __enter__(self) -> Stage:
        self._open(StagingProducing(self._connection.router, self.topic, self._attempt, self._limits))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        core, self._opened = self._opened, None
        if core is not None:
            core.close()
            with suppress(KrappyError):
                core.give_up()

    @property
    def partitions(self) -> int:
        """How many partitions the topic had at the last registration."""
        return self._core.partitions

    def send(
        self,
        value: Text | None,
        key: Text | None = None,
        *,
        headers: HeadersIn | None = None,
        timestamp: Time | None = None,
        partition: int | None = None,
    ) -> None:
        """Stages one event. Waits only for room in the buffer. For the arguments see `TopicProducer.post`.

        Raises InvalidRecord and UnknownPartition for this event, InvalidRequest when sealed, and the first error of an
        event before it.
        """
        core = self._ready(partition)
        core.add(Delivery[Receipt](self._failures), value, key, headers, timestamp, partition)
        core.count(1)

    def send_columns(
        self,
        keys: Sequence[Text | None] | None,
        values: Sequence[Text | None],
        *,
        headers: Sequence[HeadersIn | None] | None = None,
        timestamps: Sequence[Time] | Time | None = None,
        partition: int | None = None,
    ) -> None:
        """Stages many events, given as columns of equal length: the fast path. Waits and raises as `send`."""
        core = self._ready(partition)
        delivery = Delivery[list[Stored]](self._failures)
        core.add_columns(delivery, keys, values, headers=headers, timestamps=timestamps, partition=partition)
        core.count(len(values))

    def _ready(self, partition: int | None) -> StagingProducing:
        core = self._core
        core.check()
        self._failures.check()
        if not core.takes(partition):
            run(core.room(partition))
        return core

    def seal(self) -> str:
        """Makes everything that was sent durable and returns the token for `commit_staged`. After that, nothing can be
        sent.

        Sealing again gives the same token. Raises the first error of anything that was sent (then it can't be sealed),
        StagingFenced when the job was aborted in the meantime, StagingExpired, and UnknownStaging when the broker was
        restarted in the meantime: then stage the attempt again.
        """
        self.flush()
        return run(self._core.seal())
