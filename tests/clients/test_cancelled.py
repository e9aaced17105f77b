"""Whoever is cancelled in the middle of a wait, as by a time limit of their own, may go on afterwards."""

from __future__ import annotations

import anyio
import pytest

import krappy
from krappy.clients.aio.io import Tasks
from krappy.errors import ConnectionLost, InvalidRecord, UnknownTopic
from tests.clients.helpers import fill
from tests.clients.proxy import Proxy

pytestmark = pytest.mark.anyio


async def test_a_watch_goes_on_after_a_wait_that_ended_while_there_was_no_connection(
    lossy: Proxy, address: str, topic: str
) -> None:
    async with krappy.connect(address) as other, krappy.connect(lossy.address) as client:
        await other.create_topic(topic)
        async with other.producer(topic) as producer, client.table(topic).watch() as watch:
            assert isinstance(await anext(watch), krappy.SnapshotEnd)
            lossy.refuse()
            with anyio.move_on_after(0.5) as waited:
                await anext(watch)
            assert waited.cancelled_caught
            lossy.refuse(False)
            receipt = await producer.send(b"v", key=b"k")
            with anyio.fail_after(20):
                item = await anext(watch)
            assert isinstance(item, krappy.Entry)
            assert (item.value, item.offset) == (b"v", receipt.offset)


async def test_a_watch_whose_beginning_was_cancelled_begins_when_it_is_used_again(lossy: Proxy, topic: str) -> None:
    async with krappy.connect(lossy.address) as client:
        await client.create_topic(topic)
        watch = client.table(topic).watch()
        accepted = lossy.accepted
        for seconds in (0, 0.001, 0.002, 0.004):
            with anyio.move_on_after(seconds):
                await anext(watch)
                break
        else:
            with anyio.fail_after(20):
                assert isinstance(await anext(watch), krappy.SnapshotEnd)
        assert lossy.accepted == accepted + 1  # one connection, however often it was begun
        watch.close()


async def test_a_watch_that_met_an_error_does_not_wait_for_ever(lossy: Proxy, topic: str) -> None:
    async with krappy.connect(lossy.address) as client:
        absent = client.table(topic).watch()
        for _ in range(2):
            with anyio.fail_after(20), pytest.raises(UnknownTopic):
                await anext(absent)
        await client.create_topic(topic)
        with anyio.fail_after(20):
            assert isinstance(await anext(absent), krappy.SnapshotEnd)
        absent.close()
    async with krappy.connect(lossy.address, timeout=0.5) as client:
        lossy.refuse()
        alone = client.table(topic).watch()
        for _ in range(2):
            with anyio.fail_after(20), pytest.raises(ConnectionLost):
                await anext(alone)


async def test_what_registers_late_does_not_stay(lossy: Proxy, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer comes when nobody waits for it any more. Else registrations would stay, and a connection holds only so
    many."""
    monkeypatch.setattr("krappy.server.session.MAX_HANDLES", 10)
    async with krappy.connect(lossy.address) as client:
        await client.create_topic(topic)
        for number in range(20):
            for opened in (
                client.producer(topic),
                client.stage(topic, job=topic, task=1, attempt=number),
                client.consumer(topic),
                client.consumer(topic, group=topic),
            ):
                with anyio.move_on_after(0):
                    async with opened:
                        pass
            await client.ping()
        async with client.producer(topic) as producer:
            await producer.send(b"v")
        with anyio.fail_after(20):
            while any(job.attempts for job in await client.staged_jobs() if job.job == topic):
                await anyio.sleep(0.01)  # late answers are still on their way


async def test_who_was_cancelled_is_told_what_may_have_been_stored(lossy: Proxy, address: str, topic: str) -> None:
    async with krappy.connect(lossy.address) as client, krappy.connect(address) as other:
        await client.create_topic(topic)
        with anyio.CancelScope() as scope:
            async with client.producer(topic) as producer:
                lossy.deafen()
                sent = await producer.post(b"sent", key=b"k")
                while await other.table(topic).get(b"k") is None:
                    await anyio.sleep(0.01)
                waits = await producer.post(b"waits", key=b"k", expect="absent")  # for the event before
                scope.cancel()
                await anyio.sleep(1)
        assert "it may have been stored" in str(sent.error())
        assert "before this was sent" in str(waits.error())
        lossy.cut()


async def test_a_failure_that_came_after_somebody_looked_is_raised(lossy: Proxy, topic: str) -> None:
    async with krappy.connect(lossy.address) as client:
        await client.create_topic(topic, config={"cleanup.policy": "compact"})
        async with client.producer(topic) as producer:
            lossy.deafen()
            delivery = await producer.post(b"no key")
            assert delivery.error() is None
            lossy.cut()
            with pytest.raises(InvalidRecord):
                await producer.flush()


async def test_what_two_tasks_take_from_one_consumer_is_all_there_is(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        for group in (None, topic):
            async with client.consumer(topic, group=group) as consumer, client.producer(topic) as producer:
                got: list[int] = []

                async def take(consumer: krappy.Consumer = consumer, got: list[int] = got) -> None:
                    got.append((await anext(consumer)).offset)

                with anyio.fail_after(20):
                    async with anyio.create_task_group() as tasks:
                        for _ in range(3):
                            tasks.start_soon(take)
                        await anyio.wait_all_tasks_blocked()
                        if group is None:
                            await producer.send_many([(None, b"v")] * 10)  # one batch, and all tasks wait for it
                    got += [(await anext(consumer)).offset for _ in range(7)]
                assert got == list(range(10))


async def test_a_program_that_is_cancelled_still_talks_to_the_broker_on_its_way_out(address: str, topic: str) -> None:
    async with krappy.connect(address) as other:
        await fill(other, topic, 9)
        with anyio.CancelScope() as scope:
            async with (
                krappy.connect(address) as client,
                client.consumer(topic, group=topic, max_records=5) as consumer,
                client.producer(topic) as producer,
            ):
                for _ in range(3):
                    await consumer.ack(await anext(consumer))
                posted = await producer.post(b"v", partition=0)
                scope.cancel()
                try:
                    await anyio.sleep(60)
                finally:
                    with anyio.fail_after(20, shield=True):
                        await producer.flush()
        assert posted.result().offset == 9
        async with other.consumer(topic, group=topic) as consumer:
            # The acks were sent, and those events that it had not handed out do not count as delivered.
            with anyio.fail_after(20):
                found = [await anext(consumer) for _ in range(7)]
            assert [(event.offset, event.deliveries) for event in found] == [(offset, 1) for offset in range(3, 10)]


async def test_a_task_that_begins_while_its_client_ends_ends_too() -> None:
    begun = anyio.Event()

    async def late() -> None:
        begun.set()
        await anyio.sleep_forever()

    async def early() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            tasks.spawn(late, "late")

    with anyio.fail_after(20):
        tasks = Tasks()
        await tasks.open()
        tasks.spawn(early, "early")
        await anyio.wait_all_tasks_blocked()
        await tasks.close()
    assert begun.is_set()
