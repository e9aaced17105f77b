"""Probes and metrics."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import trio_test

from krappy.app import Broker
from krappy.broker import meta_sync
from krappy.broker.groups.groups import GroupCoordinator
from krappy.broker.meta_sync import MetaSync
from krappy.broker.tables.view_keeper import ViewKeeper
from krappy.console import health
from krappy.console import metrics as metrics_module
from krappy.errors import StorageError
from krappy.store.disk import Disk
from krappy.store.meta import Meta
from krappy.store.unsynced import Unsynced
from krappy.store.unwritten import Unwritten
from krappy.store.views import Views
from krappy.testing.running import RunningBroker, run_broker
from krappy.types import TopicPartition
from krappy.wire import messages as m
from tests.console.web import Web
from tests.peer import Peer
from tests.process import wait_until
from tests.served import alone


def test_alive_and_ready(web: Web) -> None:
    assert web.get("/healthz") == {"status": "ok"}
    assert web.get("/readyz") == {"status": "ready"}


def test_a_disk_that_refuses_is_told_and_reads_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with (
        run_broker(tmp_path, listen_http="127.0.0.1:0") as broker,
        httpx.Client(base_url=f"http://{broker.http_address}", timeout=60.0, trust_env=False) as client,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Disk, "write_file", refuse)
            answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
        [why] = answer.json()["refused"]
        assert "Read-only" in why
        assert client.get("/healthz").status_code == 200
    assert not (tmp_path / "probe").exists()


def test_a_catalog_that_takes_no_changes_is_told_until_it_is_open_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meta_sync, "LOOK_S", 0.01)

    def refuse(meta: Meta) -> None:
        raise meta._failed("syncing the catalog", Exception("IO error: injected"))

    with (
        run_broker(tmp_path, listen_http="127.0.0.1:0") as broker,
        httpx.Client(base_url=f"http://{broker.http_address}", timeout=60.0, trust_env=False) as client,
        Peer(broker.address) as native,
    ):

        def failed() -> bool:
            return "krappy_catalog_failed 1.0" in client.get("/metrics").text

        assert not failed()
        with monkeypatch.context() as patch:
            patch.setattr(Meta, "sync", refuse)
            patch.setattr(MetaSync, "_try_reopen", lambda _: False)
            with pytest.raises(StorageError):
                native.ask(m.CreateTopic("t"), m.TopicCreated)
            assert failed()
            wait_until(lambda: "refused" in client.get("/readyz").json(), "the probe tells")
            answer = client.get("/readyz")
            assert (answer.status_code, answer.json()["status"]) == (200, "ready")
            [why] = answer.json()["refused"]
            assert why.startswith("topics, groups and transactions: ")
            assert "takes no changes" in why
        wait_until(lambda: not failed(), "the catalog is open again")
        wait_until(lambda: client.get("/readyz").json() == {"status": "ready"}, "the probe tells")
        native.ask(m.CreateTopic("t"), m.TopicCreated)


@trio_test
async def test_while_the_store_is_recovered_it_lives_but_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = trio.Event(), trio.Event()
    opening = GroupCoordinator.open

    async def held(groups: GroupCoordinator) -> None:
        reached.set()
        await go_on.wait()
        await opening(groups)

    monkeypatch.setattr(GroupCoordinator, "open", held)  # logs and views are there by then, groups are not

    async def ask(broker: Broker, path: str) -> tuple[int, str]:
        url = f"http://{broker.http_address}{path}"
        answer = await trio.to_thread.run_sync(lambda: httpx.get(url, timeout=60.0, trust_env=False))
        return answer.status_code, answer.text

    broker = Broker(tmp_path, listen_http="127.0.0.1:0")
    started, done = trio.Event(), trio.Event()

    async def live() -> None:
        async with broker:
            started.set()
            await done.wait()

    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live)
            await reached.wait()
            assert (await ask(broker, "/healthz"))[0] == 200
            for path in ("/readyz", "/metrics", "/api/v1/topics", "/api/v1/overview", "/api/v1/topics/t/tail"):
                status, said = await ask(broker, path)
                assert (status, "recovered" in said) == (503, True), path
            go_on.set()
            await started.wait()
            for path in ("/healthz", "/readyz", "/metrics", "/api/v1/topics", "/api/v1/overview"):
                assert (await ask(broker, path))[0] == 200, path
            done.set()


def metrics(web: Web) -> dict[tuple[str, ...], float]:
    text = web.client.get("/metrics").text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@alone
def test_metrics_count_what_happened(web: Web, console: RunningBroker) -> None:
    before = metrics(web)
    path = web.topic("measured", 2)
    with console.connect() as client:
        with client.producer("measured") as producer:
            for number in range(100):
                producer.send(b"x" * 100, key=str(number))
        with client.consumer("measured", group="readers", max_records=10) as consumer:
            consumer.ack(next(iter(consumer)), wait=True)
        client.table("measured").get("1")
    web.get(f"{path}/table")  # waits for the views of all partitions
    after = metrics(web)
    assert after["krappy_topic_events_total", "measured"] == 100
    assert after["krappy_appended_events_total",] - before["krappy_appended_events_total",] == 100
    assert after["krappy_topic_log_bytes", "measured"] > 10_000
    assert after["krappy_group_lag_events", "readers", "measured"] == 99
    assert after["krappy_topic_view_lag_events", "measured"] == 0
    assert after["krappy_request_seconds_count", "native", "Get"] == 1
    assert after["krappy_request_seconds_bucket", "+Inf", "native", "Get"] == 1
    assert after["krappy_request_seconds_count", "http", "create_topic"] >= 1
    assert after["krappy_resident_memory_bytes",] > 1_000_000
    assert after["krappy_views", "file_bytes"] >= 0


@alone
def test_topics_without_lines_of_their_own_are_counted(web: Web, console: RunningBroker) -> None:
    with console.connect() as client:
        for number in range(3):
            client.create_topic(f"lines-{number}", if_absent=True)
            client.commit(f"lines-{number}", {TopicPartition(f"lines-{number}", 0): 0})
    count = web.get("/overview")["topics"]
    for most in (0, 2, 100_000):
        text = web.client.get("/metrics", params={"topics": most}).text
        families = list(text_string_to_metric_families(text))
        assert len({family.name for family in families}) == len(families), "each has one head"
        told = {family.name: family.samples for family in families}
        assert len(told["krappy_topic_log_bytes"]) == min(most, count) if most else "krappy_topic_log_bytes" not in told
        left = {sample.labels["kind"]: sample.value for sample in told["krappy_metrics_left_out"]}
        assert left["topic"] == max(0, count - most)
        assert told["krappy_topics"][0].value == count
    assert web.client.get("/metrics", params={"topics": "all"}).status_code == 400


@alone
def test_a_family_in_parts_is_one_family(web: Web, console: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with console.connect() as client:
        for number in range(5):
            client.create_topic(f"parts-{number}", if_absent=True)
    monkeypatch.setattr(metrics_module, "PART", 1)
    for accept in ("text/plain", "application/openmetrics-text; version=1.0.0"):
        text = web.client.get("/metrics", headers={"Accept": accept}).text
        assert text.count("# TYPE krappy_topic_log_bytes ") == 1
        assert text.count("# HELP krappy_topic_log_bytes ") == 1
        assert text.count("\nkrappy_topic_log_bytes{") == web.get("/overview")["topics"]
        assert text.count("# EOF") == (1 if "openmetrics" in accept else 0)
    for family in text_string_to_metric_families(web.client.get("/metrics").text):
        assert family.documentation, f"{family.name} says nothing of itself"


@contextmanager
def running(data: Path) -> Iterator[Web]:
    with (
        run_broker(data, listen_http="127.0.0.1:0") as broker,
        httpx.Client(base_url=f"http://{broker.http_address}", timeout=60.0, trust_env=False) as client,
    ):
        yield Web(client)


def test_a_log_that_could_not_be_synced_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log takes no more events until the next start. So the probe says it, and the metrics say how many such logs
    there are."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with running(tmp_path) as web:
        path = web.topic("lost", 2)
        monkeypatch.setattr(health, "FRESH_SECONDS", 0.0)
        assert web.get("/readyz") == {"status": "ready"}
        with monkeypatch.context() as patch:
            patch.setattr(Unsynced, "sync", refuse)
            refused = web.post(f"{path}/events", {"value": "x", "partition": 0}, status=503)
        assert "sync" in refused["detail"]
        assert "1 partitions" in web.get("/readyz")["refused"][0]
        assert metrics(web)["krappy_partitions_failed",] == 1
        assert web.get("/overview")["partitions_failed"] == 1
        assert web.publish(path, None, "x", partition=1)["offset"] == 0
    with running(tmp_path) as web:
        assert web.get("/readyz") == {"status": "ready"}
        web.publish("/topics/lost", None, "x", partition=0)


def test_tables_that_take_no_events_are_told_until_they_are_open_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any refusal of the disk but a lack of room, RocksDB takes no more writes until it is opened anew."""

    def refuse(views: Views, *_: Any) -> None:
        raise views._refusal("writing a view", Exception("IO error: injected"))

    async def not_yet(*_: Any) -> bool:
        return False

    with running(tmp_path) as web:
        path = web.topic("t")
        monkeypatch.setattr(health, "FRESH_SECONDS", 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(Views, "_commit", refuse)
            patch.setattr(ViewKeeper, "_passes", not_yet)  # so that they are not opened anew yet
            patch.setattr(Unwritten, "full", True)  # so that the second event has the first one written
            web.publish(path, "k", "v")
            assert web.get(f"{path}/table/entry", key="k")["offset"] == 0
            web.publish(path, "k", "w")
            wait_until(lambda: "refused" in web.get("/readyz"), "the probe tells")
            [why] = web.get("/readyz")["refused"]
            assert why.startswith("tables: ")
            assert "injected" in why
            assert [each["offset"] for each in web.get(f"{path}/events")["events"]] == [0, 1]
        wait_until(lambda: web.get("/readyz") == {"status": "ready"}, "the tables are open again")
        assert web.get(f"{path}/table/entry", key="k")["offset"] == 1


def test_syncs_are_timed(tmp_path: Path) -> None:
    with (
        run_broker(tmp_path, listen_http="127.0.0.1:0") as broker,
        httpx.Client(base_url=f"http://{broker.http_address}", timeout=60.0, trust_env=False) as client,
    ):
        web = Web(client)
        path = web.topic("synced")
        web.publish(path, "k", "v")
        found = metrics(web)
        assert found["krappy_log_sync_seconds_count",] >= 1
        assert found["krappy_log_sync_seconds_sum",] > 0


def test_metrics_speak_openmetrics_when_asked(web: Web) -> None:
    answer = web.client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.rstrip().endswith("# EOF")
    assert web.client.post("/metrics", headers={"Krappy-Request": "1"}).status_code == 405
