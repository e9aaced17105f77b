"""What the Fetches of consumers and of replicas have in common: find the partitions, answer at once, or wait."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Protocol, TypeVar

from krappy.errors import KrappyError
from krappy.handlers.kafka.registry import Message
from krappy.ports import KafkaSessionPort, Raw

MAX_BYTES = 55 << 20  # of records in one answer, as Kafka's fetch.max.bytes
LONG_MS = 100  # an answer with WORTH bytes that took so long to make is sent without the partitions that are left
WORTH = 64 << 10  # bytes of records
T = TypeVar("T")


class FetchRead(Protocol):
    """One read of a partition. Raises KrappyError."""

    def now(self) -> Raw:
        """Raises BlockingIOError if it would have to wait for the disk."""

    async def read(self) -> Raw: ...


Reads = Generator[FetchRead | None, Raw | None, T]
"""The reads that a request needs, one after the other. It takes the result of each by `send`, or its KrappyError by
`throw`. It yields None when others should have a turn."""


class FetchWork(Protocol):
    """One request."""

    def find(self) -> Iterator[None]:
        """Finds the partitions asked for; yields after some, so that others have their turn."""

    def now(self) -> Message | None:
        """The answer; None: the request has to wait. Raises BlockingIOError if it would have to wait for the disk."""

    async def wait(self) -> Message: ...


def room_of(request: Message) -> int:
    """How many bytes of records the answer may have."""
    return max(0, min(int(request["max_bytes"]), MAX_BYTES))


def never_late(got: int) -> bool:
    return False


def read_now(reads: Reads[T]) -> T:
    """Does all reads from memory. Raises BlockingIOError if it would have to wait for the disk."""
    try:
        read = next(reads)
        while True:
            assert read is not None, "so many partitions that others should have a turn"
            try:
                raw = read.now()
            except KrappyError as error:
                read = reads.throw(error)
            else:
                read = reads.send(raw)
    except StopIteration as done:
        result: T = done.value
        return result


async def read_all(
    session: KafkaSessionPort, room: int, reads_in: Callable[[int, Callable[[int], bool]], Reads[T]]
) -> T:
    """Does all reads of `reads_in(room, late)`, about `room` bytes at most in all. `late(got)`: whether the answer has
    taken so long that it is sent with the `got` bytes that it has, so that the peer can work on them."""
    clock = session.broker.clock
    begun = clock.steady_ms()
    reads = reads_in(room, lambda got: got >= WORTH and clock.steady_ms() - begun > LONG_MS)
    try:
        read = next(reads)
        while True:
            if read is None:
                await session.pause()
                read = next(reads)
                continue
            try:
                raw = await read.read()
            except KrappyError as error:
                read = reads.throw(error)
            else:
                read = reads.send(raw)
    except StopIteration as done:
        result: T = done.value
        return result


def answered(session: KafkaSessionPort, work: FetchWork) -> Message | Coroutine[Any, Any, Message]:
    finding = work.find()
    for _ in finding:
        return _find_many(session, work, finding)
    if session.ready:
        try:
            answer = work.now()
            if answer is not None:
                return answer
        except BlockingIOError:
            pass
    return work.wait()


async def _find_many(session: KafkaSessionPort, work: FetchWork, finding: Iterator[None]) -> Message:
    for _ in finding:
        await session.pause()
    return await work.wait()
