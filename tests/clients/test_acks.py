"""Acks are noted at once and sent together; leaving a consumer waits until they are stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

import krappy
from krappy import blocking
from krappy.broker.groups.member import Member
from krappy.clients import sharing
from krappy.clients.acks import ack_of, runs
from krappy.clients.link import Link
from krappy.errors import ConnectionLost, InvalidRequest, KrappyError, LeaseLost, StorageError
from krappy.types import Event
from krappy.wire.messages import Ack, Poll, Request
from tests.clients.helpers import fill
from tests.clients.proxy import Proxy
from tests.served import alone

pytestmark = pytest.mark.anyio


async def floor(client: krappy.Client, topic: str) -> int:
    return sum(row.floor for row in (await client.group(topic)).partitions)


async def until(done: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(20):
        while not await done():
            await anyio.sleep(0.01)


async def test_an_ack_is_sent_though_the_program_does_nothing_more(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, krappy.connect(address) as other:
        await fill(other, topic, 3)
        async with client.consumer(topic, group=topic) as consumer:
            for number in range(3):
                await consumer.ack(await anext(consumer))

                async def told(number: int = number) -> bool:
                    return await floor(other, topic) == number + 1

                await until(told)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that clients send, in order."""
    requests: list[Request] = []
    post = Link.post

    def noted(self: Link, request: Request, *more: Any) -> int:
        requests.append(request)
        return post(self, request, *more)

    monkeypatch.setattr(Link, "post", noted)
    return requests


async def test_acks_are_sent_together(address: str, topic: str, asked: list[Request]) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 400)
        async with client.consumer(topic, group=topic) as consumer:
            for _ in range(400):
                await consumer.ack(await anext(consumer))
        assert sum(isinstance(each, Ack) for each in asked) < 40
        assert await floor(client, topic) == 400


async def test_leaving_waits_until_acks_are_stored(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 20)
        for last in range(1, 6):
            async with client.consumer(topic, group=topic, max_records=4) as consumer:
                for _ in range(4):
                    await consumer.ack(await anext(consumer))
            assert await floor(client, topic) == last * 4


async def test_leaving_with_an_error_stores_what_was_acknowledged(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 5)
        with suppress(ZeroDivisionError):
            async with client.consumer(topic, group=topic) as consumer:
                await consumer.ack(await anext(consumer))
                raise ZeroDivisionError
        assert await floor(client, topic) == 1
        with anyio.CancelScope() as scope:
            async with client.consumer(topic, group=topic) as consumer:
                await consumer.ack(await anext(consumer))
                scope.cancel()
                await anyio.sleep_forever()

        async def told() -> bool:
            return await floor(client, topic) == 2

        await until(told)


async def test_acks_outlive_lost_connections(lossy: Proxy, address: str, topic: str) -> None:
    async with krappy.connect(address) as other, krappy.connect(lossy.address) as client:
        await fill(other, topic, 6)
        async with client.consumer(topic, group=topic) as consumer:
            first = await anext(consumer)
            lossy.refuse()  # cuts the connection before the ack is sent
            await consumer.ack(first)
            await anyio.sleep(0.1)
            lossy.refuse(False)

            async def told() -> bool:
                return await floor(other, topic) == 1

            await until(told)
            assert lossy.accepted > 1
            second = await anext(consumer)
            lossy.deafen()  # the ack arrives, but its answer does not
            await consumer.ack(second)
            await anyio.sleep(0.1)
            lossy.cut()
        assert await floor(other, topic) == 2


async def test_an_ack_that_comes_too_late_does_nothing(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, krappy.connect(address) as other:
        await fill(client, topic, 1)
        async with client.consumer(topic, group=topic, lease_ms=100) as slow:
            event = await anext(slow)
            await anyio.sleep(0.2)
            async with other.consumer(topic, group=topic) as quick:
                again = await anext(quick)
                assert (again.offset, again.deliveries) == (0, 2)
                await slow.ack(event)
                with pytest.raises(LeaseLost):
                    await slow.ack(event, wait=True)
                assert await floor(client, topic) == 0
                await quick.ack(again, wait=True)
                assert await floor(client, topic) == 1


async def test_acks_that_are_given_up_are_told(lossy: Proxy, address: str, topic: str) -> None:
    async with krappy.connect(address) as other, krappy.connect(lossy.address, timeout=2.5) as client:
        await fill(other, topic, 3)

        async def connected() -> bool:
            with suppress(ConnectionLost):
                await client.ping()
                return True
            return False

        left = client.consumer(topic, group=topic)
        consumer = await left.__aenter__()
        await consumer.ack(await anext(consumer))
        lossy.refuse()
        with pytest.raises(ConnectionLost):
            await left.__aexit__(None, None, None)
        lossy.refuse(False)
        await until(connected)
        async with client.consumer(topic, group=topic) as consumer:
            event = await anext(consumer)
            lossy.refuse()
            await consumer.ack(event)

            async def given_up() -> bool:
                try:
                    await consumer.ack(event)
                except ConnectionLost:
                    return True
                return False

            await until(given_up)
            lossy.refuse(False)
            await until(connected)
            await consumer.ack(event, wait=True)
        assert await floor(other, topic) == 1


@alone
@pytest.mark.parametrize("error", [StorageError, InvalidRequest])
async def test_what_the_broker_refuses_for_long_is_given_up(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch, error: type[KrappyError]
) -> None:
    """StorageError is retriable: the ack is tried again, and stored once the broker takes it."""
    async with krappy.connect(address, timeout=2.5) as client:
        await fill(client, topic, 3)
        left = client.consumer(topic, group=topic)
        consumer = await left.__aenter__()
        with monkeypatch.context() as refused:
            refused.setattr(Member, "ack", refuse(error))
            await consumer.ack(await anext(consumer))
            with pytest.raises(error, match="not now"), anyio.fail_after(10):
                await left.__aexit__(None, None, None)
        before = await floor(client, topic)  # leaving has sent the ack once more
    async with krappy.connect(address) as client:
        async with client.consumer(topic, group=topic) as consumer:
            with monkeypatch.context() as refused:
                refused.setattr(Member, "ack", refuse(StorageError))
                await consumer.ack(await anext(consumer))
                await anyio.sleep(0.1)
        assert await floor(client, topic) == before + 1


def refuse(error: type[KrappyError]) -> Callable[..., Any]:
    def ack(*_: object) -> None:
        raise error("not now")

    return ack


def test_no_lock_is_held_while_acks_are_sent(address: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reads answers needs the lock; a send may wait for the broker, which may wait for that thread."""
    held = []
    post = Link.post

    def noted(self: Link, request: Request, *more: Any) -> int:
        if isinstance(request, Ack):
            held.append(self.runtime.lock._is_owned())  # type: ignore[attr-defined]
        return post(self, request, *more)

    monkeypatch.setattr(Link, "post", noted)
    with blocking.connect(address) as client:
        client.create_topic(topic)
        with client.producer(topic) as producer:
            producer.send_many([(None, b"v")] * 1200)
        with client.consumer(topic, group=topic) as consumer:
            for _ in range(1200):
                consumer.ack(next(consumer))
    assert held
    assert not any(held)


async def test_waiting_for_one_ack_waits_for_those_before(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 10)
        async with client.consumer(topic, group=topic) as consumer:
            for number in range(10):
                await consumer.ack(await anext(consumer), wait=number == 9)
            assert await floor(client, topic) == 10


async def test_acks_that_never_pause_are_confirmed_all_the_same(address: str, topic: str) -> None:
    """The next ack is always noted before the last one is answered, for longer than the timeout."""
    told: list[str] = []
    async with krappy.connect(address, timeout=2.5) as client:
        await fill(client, topic, 1)
        left = client.consumer(topic, group=topic)
        consumer = await left.__aenter__()
        event = await anext(consumer)

        async def acknowledge() -> None:
            try:
                while True:
                    await consumer.ack(event)
                    await anyio.lowlevel.checkpoint()
            except KrappyError as error:
                told.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(acknowledge)
            await anyio.sleep(4.0)
            await consumer.ack(event, wait=True)
            await left.__aexit__(None, None, None)
        assert told == ["this consumer is not open: use `async with`"]
        assert await floor(client, topic) == 1


def test_threads_may_acknowledge_what_one_of_them_reads(address: str, topic: str) -> None:
    count = 3000
    with blocking.connect(address) as client:
        client.create_topic(topic)
        with client.producer(topic) as producer:
            producer.send_many([(None, b"%d" % number) for number in range(count)])
        with client.consumer(topic, group=topic) as consumer:
            read = [next(consumer) for _ in range(count)]

            def acknowledge(mine: list[Event]) -> None:
                for event in mine:
                    consumer.ack(event)

            threads = [threading.Thread(target=acknowledge, args=(read[at::4],)) for at in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
        assert [(row.floor, row.leased) for row in client.group(topic).partitions] == [(count, 0)]


def test_a_blocking_member_acknowledges_while_it_does_nothing(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        client.create_topic(topic)
        with client.producer(topic) as producer:
            producer.send(b"v").result()
        with client.consumer(topic, group=topic) as consumer:
            consumer.ack(next(consumer))
            end = time.monotonic() + 20
            while client.group(topic).lag and time.monotonic() < end:
                time.sleep(0.01)
            assert client.group(topic).lag == 0


async def test_a_member_that_is_quick_leases_more_with_each_poll(
    address: str, topic: str, asked: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "QUICK", 30.0)  # on a busy machine, too
    async with krappy.connect(address) as client:
        await fill(client, topic, 8000)
        for most, expected in ((None, [500, 1000, 2000, 4000]), (500, [500] * 4), (20, [20] * 4)):
            del asked[:]
            async with client.consumer(topic, group=f"{topic}-{most}", max_records=most) as consumer:
                while sum(isinstance(each, Poll) for each in asked) < 4:
                    await consumer.ack(await anext(consumer))
            assert [each.max_records for each in asked if isinstance(each, Poll)][:4] == expected  # one may follow


@pytest.mark.parametrize(
    ("pause", "choice", "ahead"),
    [(0.0, {}, True), (0.15, {}, False), (0.0, {"order": "key"}, False), (0.0, {"max_deliveries": 2}, False)],
)
async def test_who_was_quick_gets_the_next_events_ahead(
    address: str,
    topic: str,
    asked: list[Request],
    pause: float,
    choice: dict[str, Any],
    ahead: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not pause:
        monkeypatch.setattr(sharing, "QUICK", 30.0)  # on a busy machine, too
    async with krappy.connect(address) as client:
        await fill(client, topic, 60)
        async with client.consumer(topic, group=topic, max_records=20, **choice) as consumer:
            for _ in range(20):
                await consumer.ack(await anext(consumer))
            await anyio.sleep(pause)
            await consumer.ack(await anext(consumer))
            polls = [each.max_wait for each in asked if isinstance(each, Poll)]
            assert len(polls) == 2 + ahead
            assert (polls[-1] == 0) is ahead
            for _ in range(39):
                await consumer.ack(await anext(consumer))
            assert await consumer.poll() == []
        assert await floor(client, topic) == 60


def test_events_of_two_leader_epochs_are_in_two_runs() -> None:
    some = [Event("a", 0, offset, 0, None, None, leader_epoch=epoch) for offset, epoch in ((1, 3), (2, 3), (2, 4))]
    request = ack_of(7, runs(some), names_epochs=True)
    assert (request.ranges, request.epochs) == ([("a", 0, 1, 2), ("a", 0, 2, 2)], [3, 4])
    assert b"epochs" in request.frame(1)
    assert b"epochs" not in ack_of(7, runs(some), names_epochs=False).frame(1), "earlier brokers refuse it"


def test_runs_of_events_in_any_order() -> None:
    def event(topic: str, partition: int, offset: int) -> Event:
        return Event(topic, partition, offset, 0, None, None)

    mixed = [event("b", 1, 3), event("a", 0, 7), event("b", 1, 1), event("a", 1, 8), event("b", 1, 2)]
    mixed += [event("b", 1, 2), event("b", 1, 9)]
    assert [run for run, _ in runs(mixed)] == [("a", 0, 7, 7), ("a", 1, 8, 8), ("b", 1, 1, 3), ("b", 1, 9, 9)]
    assert runs([]) == []
