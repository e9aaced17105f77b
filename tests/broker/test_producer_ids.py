"""Who may write under which producer id; and what a stranger wrote under an id loses nobody's events."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.topics.catalog import FAR
from krappy.broker.transactions.producer_ids import ProducerIds
from krappy.core.cluster.znodes import PRODUCER_BLOCK
from krappy.core.staging import OWN
from krappy.errors import InvalidTransaction, UnknownProducer
from krappy.records import batch
from tests.broker.engine import publish, read_all, running
from tests.broker.staged import commit, made, staged, values


def written_by(producer_id: int, count: int = 10) -> bytes:
    return batch.encode(
        [b"evil"] * count,
        [b"evil"] * count,
        timestamps=1,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )


@trio_test
async def test_an_id_that_nobody_was_given_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        given = await broker.new_producer_id()
        for stranger in (given + 1, given + 500, OWN - 1):
            with pytest.raises(UnknownProducer):
                await partition.publish(written_by(stranger)).wait()
        for own in (OWN, OWN + given, 2**63 - 1):
            with pytest.raises(InvalidTransaction, match="the broker's own"):
                await partition.publish(written_by(own)).wait()
        assert partition.high_watermark == 0
        assert await publish(partition, 1, producer_id=given, producer_epoch=0, base_sequence=0) == 0
    async with running(tmp_path) as broker:  # it goes on with its id
        partition = broker.topic("t").led(0)
        assert await publish(partition, 1, producer_id=given, producer_epoch=0, base_sequence=1) == 1


async def spoil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[int]) -> None:
    """Makes a log in which strangers wrote under ids that nobody had, as they could before such writes were refused."""
    async with running(tmp_path) as broker:
        partition = await made(broker)
        with monkeypatch.context() as before:
            before.setattr(ProducerIds, "check", lambda self, id, transactional: None)
            for id in ids:
                await partition.publish(written_by(id)).wait()


@trio_test
async def test_a_job_is_published_whatever_stands_under_its_producer_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await spoil(tmp_path, monkeypatch, [OWN + number for number in range(10)])
    async with running(tmp_path) as broker:
        partition = broker.topic("t").led(0)
        job = await commit(broker, "j", await staged(broker, "j", *"abc"))
        assert [each.records for each in job.published] == [3]
        assert job.producer_id >= OWN + 10
        assert (await values(partition)) == [b"j:a", b"j:b", b"j:c"]


@trio_test
async def test_ids_that_stand_in_logs_are_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a damaged catalog went back: a producer with such an id would be told that its events are there."""
    await spoil(tmp_path, monkeypatch, [5, 2 * PRODUCER_BLOCK, 3 * FAR, OWN - 1])
    async with running(tmp_path) as broker:
        partition = broker.topic("t").led(0)
        given = await broker.new_producer_id()
        assert given == 2 * PRODUCER_BLOCK + 1
        await publish(partition, 1, producer_id=given, producer_epoch=0, base_sequence=0)
        assert (await read_all(partition))[-1].value == b"0"


@trio_test
async def test_ids_of_jobs_that_stand_in_logs_are_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster nobody asks all logs. A log that knew the id would take a job's batches for duplicates."""
    await spoil(tmp_path, monkeypatch, [OWN + 2 * PRODUCER_BLOCK])
    async with running(tmp_path) as broker:
        assert await broker.producer_ids.new_own(()) == OWN + 2 * PRODUCER_BLOCK + 1


@trio_test
async def test_no_two_producers_have_one_id(tmp_path: Path) -> None:
    found: list[int] = []

    async def some(broker: LocalBroker) -> None:
        partition = broker.topics["t"].led(0)
        found.extend([await broker.new_producer_id() for _ in range(3)])
        found.extend([await broker.producer_ids.new_own([partition]) for _ in range(3)])

    async with running(tmp_path) as broker:
        await made(broker)
        await some(broker)
    async with running(tmp_path) as broker:
        await some(broker)
    assert len(set(found)) == len(found)
    assert sum(id >= OWN for id in found) == 6
