"""`krappy top` against a broker with its console."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy.cli.main import run
from krappy.cli.top import latencies, rates
from krappy.testing.running import RunningBroker, run_broker
from krappy.types import TopicPartition

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder: Path = tmp_path_factory.mktemp("top")
    with run_broker(folder, listen_http="127.0.0.1:0", durability="os", console_token=TOKEN) as broker:
        with broker.connect() as client, client.producer("shown") as producer:
            producer.send("v", key="k")
            client.commit("readers", {TopicPartition("shown", 0): 0})
        yield broker


def test_it_shows_one_interval(console: RunningBroker, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--once", "--interval", "0.2", "--url", console.http_address, "--token", TOKEN]) == 0
    said = capfd.readouterr().out
    for part in ("1 topics", "shown", "readers", "events/s", "memory"):
        assert part in said


def test_json_is_for_programs(console: RunningBroker, capfd: pytest.CaptureFixture[str]) -> None:
    url = f"http://{console.http_address}/"
    assert run(["top", "--json", "--interval", "0.2", "--url", url, "--token", TOKEN]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["overview"]["topics"] == 1
    assert [each["name"] for each in told["topics"]] == ["shown"]
    assert told["rates"]["requests"] > 0  # its own
    assert told["latencies"]


def test_without_the_token_it_says_what_is_needed(console: RunningBroker, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--once", "--url", console.http_address]) == 1
    assert "KRAPPY_CONSOLE_TOKEN" in capfd.readouterr().err


def test_without_a_console_it_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--once", "--url", "127.0.0.1:1"]) == 1
    assert "krappy[console]" in capfd.readouterr().err


def look(now_ms: int, events: int, counts: list[int]) -> dict[str, object]:
    latency = {"count": sum(counts), "sum": 0.0, "bounds": [0.001, 0.01], "counts": counts}
    names = ("appended_bytes", "stalls")
    overview = {
        "now_ms": now_ms,
        "appended_events": events,
        **dict.fromkeys(names, 0),
        "received_bytes": {"native": events},
        "sent_bytes": {},
        "requests": [{"protocol": "native", "request": "Get", "latency": latency}],
    }
    return {"overview": overview}


def test_rates_and_latencies_are_of_the_interval() -> None:
    before, after = look(1000, 100, [50, 0, 0]), look(3000, 300, [50, 99, 1])
    assert rates(before, after)["appended_events"] == 100.0
    assert rates(before, after)["requests"] == 50.0
    assert latencies(before, after) == [
        {"protocol": "native", "request": "Get", "per_second": 50.0, "p50": 0.01, "p99": 0.01}
    ]
    assert latencies(before, look(3000, 300, [50, 0, 9]))[0]["p50"] is None
