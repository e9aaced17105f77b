"""Batches that are much larger once they are opened: they are opened off the event loop, in their order, and counted at
their true size."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.broker.broker import LocalBroker
from krappy.broker.partition import applier, large
from krappy.broker.partition.partition import Partition
from krappy.core import admission
from krappy.errors import CorruptBatch, InvalidRecord
from krappy.records import batch, codecs
from tests.broker import engine
from tests.test_hostile import raw_batch

KEYS = [b"k%d" % number for number in range(30)]


def of_zeros(codec: int) -> bytes:
    return batch.encode(KEYS, [bytes(100_000)] * 30, timestamps=1, codec=codec)


def of_headers(codec: int) -> bytes:
    head = (("h", b"x"),)
    return batch.encode([b"k"] * 20_000, [b""] * 20_000, timestamps=1, codec=codec, headers=[head] * 20_000)


def of_many_headers(codec: int) -> bytes:
    return batch.encode([b"k"], [b""], timestamps=1, codec=codec, headers=[(("h", b"x"),) * 100_000])


def of_records(codec: int) -> bytes:
    return batch.encode([b"k%d" % (n % 90) for n in range(40_000)], [b"v" * (n % 5) for n in range(40_000)],
                        timestamps=1, codec=codec)  # fmt: skip


LARGE = [of_zeros, of_headers, of_many_headers, of_records]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each batch that is opened in a thread. The event loop reads no more than is allowed there."""
    found: list[int] = []
    real, decode, validate = large.opened, batch.decode, batch.validate

    async def counting(work: Callable[[], Any], owner: str | None = None) -> Any:
        found.append(1)
        return await real(work, owner)

    def on_loop() -> bool:
        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            return False
        return True

    def checked(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(data: Any, *, limit: int = codecs.DEFAULT_LIMIT, **more: Any) -> Any:
            if on_loop() and (batch.read_header(data).compressed or len(data) > admission.SMALL):
                assert limit <= admission.INLINE, "a batch of any size is opened on the event loop"
            return read(data, limit=limit, **more)

        return reading

    monkeypatch.setattr(large, "opened", counting)
    monkeypatch.setattr(batch, "decode", checked(decode))
    monkeypatch.setattr(batch, "validate", checked(validate))
    return found


async def one_partition(broker: LocalBroker, **config: Any) -> Partition:
    topic, _ = await broker.create_topic("t", 1, {"max.message.bytes": 8 << 20, **config})
    return topic.led(0)


@pytest.mark.parametrize("codec", [codecs.NONE, codecs.GZIP, codecs.ZSTD])
@pytest.mark.parametrize("make", LARGE)
@pytest.mark.parametrize("config", [{}, {"view.enable": False}, {"compression.type": "lz4"}], ids=str)
def test_large_batches_are_opened_in_a_thread(
    tmp_path: Path, opened: list[int], make: Callable[[int], bytes], codec: int, config: dict[str, Any]
) -> None:
    data = make(codec)

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            partition = await one_partition(broker, **config)
            laters = [
                partition.publish(batch.encode([b"before"], [b"v"], timestamps=1)),
                partition.publish(data),
                partition.publish(batch.encode([b"after"], [b"v"], timestamps=1)),
            ]
            with trio.fail_after(60):
                stored = [await later.wait() for later in laters]
                if config.get("view.enable", True):
                    await broker.wait_for_views([partition])
                    assert partition.look_up(b"after") is not None
            count = batch.read_header(data).count
            assert [each.offset for each in stored] == [0, 1, 1 + count]

    trio.run(main)
    assert opened or (codec == codecs.NONE and make is of_zeros), "few records that are not compressed are cheap"


@pytest.mark.parametrize("codec", [codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD])
def test_honest_batches_are_opened_at_once(tmp_path: Path, opened: list[int], codec: int) -> None:
    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            partition = await one_partition(broker)
            for count in (1, 100, 10_000):
                await engine.publish(partition, count, [b"k%d" % number for number in range(count)], codec=codec)
            await broker.wait_for_views([partition])

    trio.run(main)
    assert not opened


def test_what_is_wrong_with_a_large_batch_is_told_and_harms_no_other(tmp_path: Path, opened: list[int]) -> None:
    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            partition = await one_partition(broker, **{"cleanup.policy": "compact"})
            whole = of_zeros(codecs.GZIP)
            members = raw_batch(codecs.compress(codecs.GZIP, b"") * 5_000, 1, codecs.GZIP)
            keyless = batch.encode(None, [bytes(100_000)] * 30, timestamps=1, codec=codecs.GZIP)
            laters = [
                partition.publish(whole),
                partition.publish(members),
                partition.publish(keyless),
                partition.publish(whole, [(30, 0)]),
                partition.publish(whole, [(2, 2)]),
            ]
            with trio.fail_after(60):
                assert (await laters[0].wait()).offset == 0
                with pytest.raises(CorruptBatch, match="more than 1000 parts"):
                    await laters[1].wait()
                with pytest.raises(InvalidRecord, match="has no key"):
                    await laters[2].wait()
                with pytest.raises(InvalidRecord, match="a condition on record 30"):
                    await laters[3].wait()
                assert (await laters[4].wait()).offset == 30

    trio.run(main)
    assert opened


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD])
def test_a_refused_batch_leaves_nothing_behind(tmp_path: Path, codec: int) -> None:
    """Its error used to hold what it had opened to, until the garbage was collected: 512 MiB for 16 of them."""
    keyless = batch.encode(None, [bytes(15 << 20)], timestamps=1, codec=codec)
    too_large = batch.encode([b"k"], [bytes(40 << 20)], timestamps=1, codec=codec)

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            partition = await one_partition(broker, **{"cleanup.policy": "compact"})
            gc.collect()
            gc.disable()
            tracemalloc.start()
            try:
                for data in [keyless, too_large] * 3:
                    with contextlib.suppress(InvalidRecord, CorruptBatch):
                        await partition.publish(data).wait()
                        pytest.fail("it was taken")
                assert tracemalloc.get_traced_memory()[0] < 4 << 20
            finally:
                tracemalloc.stop()
                gc.enable()

    trio.run(main)


def test_what_waits_for_its_view_is_counted_as_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a transaction that somebody has left open: 7 MiB of zstd took 700 MiB."""
    data = batch.encode([b"key%05d" % n for n in range(900)], [b'{"status": "ok"}' * 12] * 900, timestamps=1, codec=4)

    async def main() -> None:
        async with engine.running(tmp_path, memory_bytes=32 << 20) as broker:
            topic, _ = await broker.create_topic("t", 2, {})
            for partition in topic.local.values():
                partition._stable = 0
                monkeypatch.setattr(partition.stability, "first_open", lambda end: 0)
            tracemalloc.start()
            try:
                for _ in range(60):
                    for partition in topic.local.values():
                        await partition.publish(bytes(data)).wait()
                held = tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()
            kept = broker.measures.kept_bytes
            assert held <= 1.2 * kept + (1 << 20)
            assert kept <= broker.measures.kept_limit == 4 << 20
            assert kept == sum(partition.applier._kept for partition in topic.local.values())
            monkeypatch.undo()
            for partition in topic.local.values():
                await engine.publish(partition, 1, [b"last"])
            await broker.wait_for_views(topic.all_led())
            assert broker.measures.kept_bytes == 0
            assert topic.led(1).look_up(b"key00899") is not None

    trio.run(main)


def test_a_deleted_topic_gives_back_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            partition = await one_partition(broker)
            partition._stable = 0
            monkeypatch.setattr(partition.stability, "first_open", lambda end: 0)
            await engine.publish(partition, 5, [b"k"] * 5)
            assert broker.measures.kept_bytes > applier.PLACE
            await broker.delete_topic("t")
            assert broker.measures.kept_bytes == 0

    trio.run(main)


@pytest.mark.parametrize("order", ["none", "key"])
def test_a_group_opens_few_of_many_large_batches_at_a_time(tmp_path: Path, opened: list[int], order: Any) -> None:
    """There are 12 that open to 8 MB each. Reading all at once took 96 MB for each poll, and as much for the dead."""
    data = batch.encode([b"k%d" % key for key in range(8)], [bytes(1_000_000)] * 8, timestamps=1, codec=codecs.ZSTD)

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            partition = await one_partition(broker)
            for _ in range(12):
                await partition.publish(data).wait()
            await broker.wait_for_views([partition])
            member = await broker.groups.join("g", "a", ["t"], order=order, max_deliveries=1)
            tracemalloc.start()
            try:
                seen: list[int] = []
                while len(seen) < 96:
                    polled = await member.poll(1000, 1 << 20, 100)
                    seen += [at for _, _, first, last, _ in polled.leases for at in range(first, last + 1)]
                    member.nack([lease[:4] for lease in polled.leases])
                assert seen == list(range(96))
                await engine.until(lambda: "t.g.dead" in broker.topics)
                dead = broker.topic("t.g.dead").led(0)
                await engine.until(lambda: dead.high_watermark == 96)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < 60 << 20, f"{peak >> 20} MiB"

    trio.run(main)


def test_the_dead_of_compressed_batches_fit_into_their_topic(tmp_path: Path) -> None:
    """A batch of a few KB may hold events that are larger than any that the topic takes."""

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            value = bytes(5 << 20)
            data = batch.encode([None] * 2, [value, b"small"], timestamps=1_000, codec=codecs.GZIP)
            await topic.led(0).publish(data).wait()
            member = await broker.groups.join("g", "a", ["t"], max_deliveries=1)
            member.nack(engine.ranges(await member.poll(1000, 1 << 20)))
            await engine.until(lambda: broker.groups.positions("g") == [("t", 0, 2)])
            dead = await engine.read_all(broker.topic("t.g.dead").led(0))
            assert sorted((event.value or b"", event.timestamp) for event in dead) == [
                (value, 1_000),
                (b"small", 1_000),
            ]
            assert dict(dead[0].headers)["krappy-origin-topic"] == b"t"

    trio.run(main)
