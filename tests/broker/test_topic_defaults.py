"""How long a topic keeps events if nobody has said how long; and settings for all topics with which a broker was
started."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.errors import ConfigError, InvalidConfig, StorageError, ViewDisabled
from krappy.records import batch
from krappy.store.catalog import FORMAT, LocalCatalog
from krappy.store.format_2 import TOPIC
from krappy.store.meta import Meta
from tests.broker.engine import publish, running
from tests.broker.test_catalog import OLD

WEEK_MS = 604_800_000
QUIET = {"retention_check_ms": 10**9, "cleaner_backoff_ms": 10**9}


async def kept(broker: LocalBroker, topic: str) -> bool:
    """Whether an event that is a year old outlives a look for what has expired."""
    partition = broker.topic(topic).led(0)
    data = batch.encode([b"k"], [b"v"], timestamps=broker.now_ms() - 365 * 86_400_000)
    stored = await partition.publish(data).wait()
    with trio.fail_after(60):
        assert await partition.view_wait(None, 60)
    assert partition.look_up(b"k") is not None
    await broker.housekeeper.retain(partition)
    return partition.start_offset <= stored.offset and partition.look_up(b"k") is not None


@trio_test
async def test_nothing_expires_unless_somebody_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, **QUIET) as broker:
        await broker.create_topic("forever", 1, {})
        await broker.create_topic("week", 1, {"retention.ms": WEEK_MS})
        assert await kept(broker, "forever")
        assert not await kept(broker, "week")
    async with running(tmp_path, log_retention_ms=WEEK_MS, **QUIET) as broker:
        await broker.create_topic("said", 1, {"retention.ms": -1})
        assert not await kept(broker, "forever"), "somebody says so"
        assert await kept(broker, "said")


@trio_test
async def test_tables_are_kept_unless_the_broker_is_told_otherwise(tmp_path: Path) -> None:
    async def look_up(broker: LocalBroker, topic: str) -> bytes | None:
        partition = broker.topic(topic).led(0)
        await broker.wait_for_views([partition])
        return partition.look_up(b"k")

    async with running(tmp_path, view_enable=False, **QUIET) as broker:
        await broker.create_topic("plain", 1, {})
        await broker.create_topic("table", 1, {"view.enable": True})
        for topic in ("plain", "table"):
            await publish(broker.topic(topic).led(0), 1, [b"k"])
        assert await look_up(broker, "table")
        with pytest.raises(ViewDisabled):
            await look_up(broker, "plain")
        with pytest.raises(InvalidConfig, match=r"needs view\.enable=true"):
            await broker.create_topic("compacted", 1, {"cleanup.policy": "compact"})
        await broker.dynamic.alter("", {"view.enable": "true"})
        assert await look_up(broker, "plain")
        await broker.dynamic.alter("", {"view.enable": None})
        with pytest.raises(ViewDisabled):
            await look_up(broker, "plain")
        broker.views.leave("they are made anew")
        with pytest.raises(StorageError, match="made anew"):
            await broker.dynamic.alter("", {"view.enable": "true"})
        await broker.dynamic.alter("", {"log.retention.ms": "5"})
        broker.views.leave("")
    async with running(tmp_path, **QUIET) as broker:
        assert await look_up(broker, "plain")
        assert await look_up(broker, "table")


@trio_test
async def test_a_topic_of_an_older_version_keeps_its_seven_days(tmp_path: Path) -> None:
    meta = Meta(tmp_path / "meta")
    LocalCatalog(meta)
    meta.write({TOPIC + b"plain": OLD[0]}, [FORMAT])
    meta.close()
    told: list[dict[str, object]] = []

    def report(event: str, **facts: object) -> None:
        if event == "old_default_retention":
            told.append(facts)

    for start in range(2):
        async with running(tmp_path, report, **QUIET) as broker:
            assert [(each["topics"], each["first"]) for each in told] == [(1, "plain")] * (start + 1)
            await broker.create_topic("new", 1, {}, if_absent=True)
            assert broker.topic("plain").config.retention_ms == WEEK_MS
            assert broker.topic("plain").describe_settings()["settings"]["retention.ms"] == str(WEEK_MS)
            assert not await kept(broker, "plain")
            assert await kept(broker, "new")
            await broker.alter_topic("plain", {"segment.bytes": 10_000}, None)
    async with running(tmp_path, **QUIET) as broker:
        await broker.dynamic.alter("", {"log.retention.ms": "-1"})
        assert broker.topic("plain").config.retention_ms is None
        await broker.dynamic.alter("", {"log.retention.ms": None})
        assert broker.topic("plain").config.retention_ms == WEEK_MS
        await broker.alter_topic("plain", {"retention.ms": -1}, None)
        assert await kept(broker, "plain")
    async with running(tmp_path, report, **QUIET) as broker:
        assert len(told) == 2


@trio_test
async def test_defaults_that_a_topic_cannot_have_are_told_with_its_name(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.create_topic("no-table", 1, {"view.enable": False})
    with pytest.raises(ExceptionGroup) as caught:
        async with running(tmp_path, log_cleanup_policy="compact"):
            pass
    told = caught.value
    while isinstance(told, ExceptionGroup):
        [told] = told.exceptions
    assert isinstance(told, ConfigError)
    why = "cleanup.policy=compact needs view.enable=true"
    assert f"the topic 'no-table' could not have these defaults: {why}" in str(told)
    async with running(tmp_path) as broker:
        assert not broker.topic("no-table").config.compact


@trio_test
async def test_defaults_wait_for_a_partition_that_is_out_of_service(tmp_path: Path) -> None:
    """What has expired in that partition is not known, so it can't be prepared. The broker runs, with the defaults of
    before."""
    async with running(tmp_path, **QUIET) as broker:
        for name in ("damaged", "well"):
            await broker.create_topic(name, 1, {})
            assert await kept(broker, name)
    away = tmp_path / "topics" / "damaged-0"
    away.rename(tmp_path / "away")
    told: list[str] = []

    def report(event: str, **facts: object) -> None:
        told.append(event)

    for _ in range(2):
        async with running(tmp_path, report, log_cleanup_policy="compact", **QUIET) as broker:
            assert told.count("partition_offline") == told.count("topic_defaults_wait") > 0
            assert not broker.topic("well").config.compact
            assert await kept(broker, "well")
    (tmp_path / "away").rename(away)
    told.clear()
    async with running(tmp_path, report, log_cleanup_policy="compact", **QUIET) as broker:
        assert "topic_defaults_wait" not in told
        assert broker.topic("damaged").config.compact
        assert broker.topic("well").config.compact
