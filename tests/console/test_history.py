"""The hour of figures that the broker keeps: what is in it, its bounds, and that it is kept even if nobody looks."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
import trio

from krappy.console import history as history_module
from krappy.console.history import KEPT, MOST_GROUPS, FigureHistory, quantile
from krappy.console.numbers import Latency, Numbers, RequestNumbers, Totals
from krappy.ports.sessions import ServerNumbers
from krappy.testing.running import run_broker
from krappy.types import TopicPartition
from tests.broker.engine import running
from tests.console.web import Web
from tests.process import PATIENCE, wait_until

BOUNDS = [0.001, 0.01, 0.1]


def latency(*counts: int) -> Latency:
    return Latency(sum(counts), 0.0, BOUNDS, list(counts))


def reading(now_ms: int, events: int = 0, writes: Latency | None = None, lags: dict[str, int] | None = None) -> Numbers:
    """What `gather` would tell, with zeros where a test says nothing."""
    zeros: dict[str, Any] = {}
    for field in msgspec.structs.fields(Totals):
        kind = str(field.type)
        zeros[field.name] = {} if "dict" in kind else latency(0, 0, 0, 0) if "Latency" in kind else 0
    requests = [RequestNumbers("native", "Batch", writes or latency(0, 0, 0, 0))]
    given = {
        "now_ms": now_ms,
        "appended_events": events,
        "received_bytes": {"native": events * 10},
        "requests": requests,
    }
    groups: Any = [{"group": name, "partitions": [{"topic": "t", "lag": lag}]} for name, lag in (lags or {}).items()]
    return Numbers(Totals(**{**zeros, **given}), [], groups)


def test_a_point_is_what_changed_since_the_reading_before() -> None:
    kept = FigureHistory()
    kept.take(reading(1_000, 100, latency(9, 0, 0, 0)))
    assert not kept.points, "there is nothing to compare the first reading with"
    kept.take(reading(11_000, 600, latency(9, 100, 0, 0), {"mail": 7}))
    [point] = kept.points
    assert (point.at, point.events, point.received, point.group_lag) == (11_000, 50.0, 500.0, 0)
    assert point.write50 == pytest.approx(0.0055)
    assert point.write99 == pytest.approx(0.00991)
    assert point.sync99 is None
    kept.take(reading(10_000, 700))
    assert len(kept.points) == 1, "the clock was set back"


def test_a_reading_while_the_broker_ends_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's tables are closed by then; the task that reads goes on until it is cancelled."""
    monkeypatch.setattr(history_module, "EVERY_SECONDS", 0.001)
    numbers = ServerNumbers({}, 0, 0, {}, {}, 0, 0, 0, 0, 0, None, None)
    server: Any = SimpleNamespace(measure=lambda: numbers, request_times=lambda: iter(()))

    async def main() -> None:
        async with running(tmp_path) as broker:
            pass
        kept = FigureHistory()
        with trio.move_on_after(0.1) as scope:
            await kept.record(broker, server)
        assert scope.cancelled_caught
        assert not kept.points

    trio.run(main)


def test_an_hour_is_kept_and_no_more() -> None:
    kept = FigureHistory()
    for at in range(KEPT + 20):
        kept.take(reading(at * 10_000, at, lags={f"g{n}": n for n in range(MOST_GROUPS + 50)}))
    assert len(kept.points) == KEPT
    assert kept.points[-1].at == (KEPT + 19) * 10_000
    lags = kept.lags([f"g{n}" for n in range(MOST_GROUPS + 50)])
    assert len(lags) == MOST_GROUPS
    assert next(iter(lags)) == f"g{MOST_GROUPS + 49}", "the furthest behind come first"
    assert {len(series) for series in lags.values()} == {KEPT}
    held = sum(sys.getsizeof(series) for series in kept._lags.values())
    assert held < 2 * 8 * KEPT * MOST_GROUPS


def test_a_group_that_came_later_was_unknown_before() -> None:
    kept = FigureHistory()
    kept.take(reading(0))
    kept.take(reading(10_000, lags={"old": 1}))
    kept.take(reading(20_000, lags={"old": 2, "new": 5}))
    assert kept.lags(["old", "new"]) == {"new": [None, 5], "old": [1, 2]}
    kept.take(reading(30_000, lags={"new": 4}))
    assert kept.lags(["old", "new"]) == {"new": [None, 5, 4]}


def test_a_quantile_between_two_readings() -> None:
    assert quantile(latency(0, 0, 0, 0), None, 0.5) is None
    assert quantile(latency(10, 0, 0, 0), None, 0.5) == pytest.approx(0.0005)
    assert quantile(latency(10, 0, 0, 4), latency(10, 0, 0, 0), 0.99) == 0.1, "above all bounds: the highest"


def test_it_is_kept_from_the_start_on_and_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "EVERY_SECONDS", 0.2)  # so that all of the test is within what is kept
    take, taken = FigureHistory.take, threading.Event()

    def noted(self: FigureHistory, numbers: Numbers) -> None:
        take(self, numbers)
        taken.set()

    monkeypatch.setattr(FigureHistory, "take", noted)
    with run_broker(tmp_path, listen_http="127.0.0.1:0", durability="os") as broker:
        assert taken.wait(PATIENCE), "a first reading, with which later ones are compared"
        with broker.connect() as client, client.producer("t") as producer:
            producer.send("v", key="k").result()
            client.commit("mail", {TopicPartition("t", 0): 0})
            client.commit("other", {TopicPartition("t", 0): 1})
        with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60.0, trust_env=False) as http:
            web = Web(http)
            wait_until(lambda: len(web.get("/history/groups")["groups"]) == 2, "both groups are kept")
            told = web.get("/history")
            assert any(point["events"] > 0 for point in told["points"]), "from before the first request"
            assert told["points"][-1]["group_lag"] == 1
            groups = web.get("/history/groups")
            assert [each["group"] for each in groups["groups"]] == ["mail", "other"]
            assert groups["groups"][0]["lags"][-1] == 1
            assert len(groups["at"]) == len(groups["groups"][0]["lags"])
            [only] = web.get("/history/groups", group="other")["groups"]
            assert only["lags"][-1] == 0
            assert web.get("/history/groups", group="nobody")["groups"] == []
