"""`krappy top` against a broker with its console."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as RichConsole

from krappy.cli import figures
from krappy.cli.figures import ConsoleFigures, latencies, looks, rates
from krappy.cli.main import run
from krappy.cli.screen import Figure, Trends, screen, spark
from krappy.testing.running import RunningBroker, run_broker
from krappy.types import TopicPartition
from tests.cli.test_terminal import at_terminal
from tests.process import child

OTHERS = (
    *("topics", "partitions", "groups", "log_bytes", "resident_bytes", "group_lag", "view_lag_events"),
    *("budget_used_bytes", "budget_bytes", "partitions_failed", "views_failed"),
)
TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder: Path = tmp_path_factory.mktemp("top")
    with run_broker(folder, listen_http="127.0.0.1:0", durability="os", console_token=TOKEN) as broker:
        with broker.connect() as client, client.producer("shown") as producer:
            producer.send("v", key="k")
            client.commit("readers", {TopicPartition("shown", 0): 0})
        yield broker


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options that give the console's token."""
    file: Path = tmp_path_factory.mktemp("token") / "console.token"
    file.write_text(f"{TOKEN}\n")
    return ["--console-token-file", str(file)]


def test_it_shows_one_interval(console: RunningBroker, known: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--once", "--interval", "0.2", "--url", console.http_address, *known]) == 0
    parts = [[line.split("\t") for line in part.splitlines()] for part in capfd.readouterr().out.split("\n\n")]
    figure, request, topic, group = parts
    assert {name for name, _ in figure} > {"appended_events_per_s", "requests_per_s", "group_lag", "resident_bytes"}
    assert request[0] == ["protocol", "request", "per second", "p50 ms", "p99 ms"]
    assert topic[1][0] == "shown"
    assert group[1] == ["readers", "1"]


def test_into_a_pipe_it_prints_a_line_for_each_interval(console: RunningBroker, known: list[str]) -> None:
    command = ["top", "--interval", "200ms", "--url", console.http_address, *known]
    with child([sys.executable, "-m", "krappy", *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        names, *lines = [process.stdout.readline().rstrip("\n").split("\t") for _ in range(3)]
        process.stdout.close()  # as `head -3` does
        assert process.wait(60) == 141
    assert names[:2] == ["time", "appended_events_per_s"]
    for line in lines:
        told = dict(zip(names, line, strict=True))
        assert int(told["resident_bytes"]) > 0
        assert told["group_lag"] == "1"


def test_at_a_terminal_the_figures_have_trends(console: RunningBroker, known: list[str]) -> None:
    command = ["top", "--interval", "200ms", "--url", console.http_address, *known]
    status, shown = at_terminal(*command, until="█", typed="\x03")
    assert status == 130
    for part in ("1 topics", "shown", "readers", "events in", "memory", "\x1b[35m"):
        assert part in shown


def test_a_sparkline() -> None:
    assert spark([0, 1, 2, 4, 8], 10) == "▁▂▃▅█"
    assert spark([5, 0, 8], 2) == "▁█"
    assert spark([0, 0], 4) == "▁▁"
    assert spark([], 4) == ""


def test_a_trend_takes_the_room_that_there_is(console: RunningBroker) -> None:
    told = ConsoleFigures(console.http_address, TOKEN).look()
    trends = Trends()
    for _ in range(300):
        trends.add([Figure("memory", 1.0, "B", "magenta")])
    widths = [rendered(screen(told, told, "", trends), width).count("█") for width in (60, 120)]
    assert 10 <= widths[0] < 60 <= widths[1] < 120


def test_json_is_for_programs(console: RunningBroker, known: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    url = f"http://{console.http_address}/"
    assert run(["top", "--json", "--interval", "0.2", "--url", url, *known]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["overview"]["topics"] == 1
    assert [each["name"] for each in told["topics"]] == ["shown"]
    assert told["rates"]["requests"] > 0  # the requests of `krappy top` itself
    assert told["latencies"]


def test_the_broker_says_where_its_console_is(
    console: RunningBroker, known: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the console is at another port than usual, as here."""
    asked = ["top", "--once", "--interval", "200ms", *known]
    assert run([*asked, "--address", console.address]) == 0
    assert "shown" in capfd.readouterr().out
    assert run([*asked, "--address", f"127.0.0.2:1,{console.address}"]) == 0  # of a cluster, the broker that answers
    assert "shown" in capfd.readouterr().out
    monkeypatch.setenv("KRAPPY_ADDRESS", "127.0.0.2:7091")  # nobody listens there
    assert run(asked) == 1
    assert "no console answers at http://127.0.0.2:8091" in capfd.readouterr().err
    assert run([*asked, "--url", console.http_address]) == 0


def test_a_broker_without_a_console_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with run_broker(tmp_path) as broker:
        assert run(["top", "--once", "--address", broker.address]) == 1
    assert "has no console" in capfd.readouterr().err


@pytest.mark.parametrize("command", [["top", "--once"], ["cluster"]])
@pytest.mark.parametrize("url", ["http://ada:battery-staple@127.0.0.1:1", "ada:battery-staple@127.0.0.1:1"])
def test_a_password_in_the_url_is_not_taken_and_not_repeated(
    command: list[str], url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--url", url]) == 1
    told = capfd.readouterr().err
    assert "--password-file" in told
    assert "battery-staple" not in told


def test_without_the_token_it_says_what_is_needed(console: RunningBroker, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--once", "--url", console.http_address]) == 1
    assert "KRAPPY_CONSOLE_TOKEN" in capfd.readouterr().err


def test_the_token_may_be_in_the_environment(console: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRAPPY_CONSOLE_TOKEN", TOKEN)
    assert run(["top", "--once", "--interval", "0.2", "--url", console.http_address]) == 0


@pytest.mark.parametrize("command", ["top", "cluster show"])
def test_the_token_is_not_given_on_the_command_line(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    """`ps` would show it to everybody on the machine."""
    assert run([*command.split(), "--token", TOKEN]) == 2
    assert "--token" in capfd.readouterr().err


def test_without_a_console_it_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--once", "--url", "127.0.0.1:1"]) == 1
    assert "krappy[console]" in capfd.readouterr().err


def test_what_is_no_console_is_told(console: RunningBroker, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--once", "--url", console.address]) == 1
    assert "refuses: This is the port of Krappy's native protocol. The console," in capfd.readouterr().err


def test_every_topic_and_group_is_walked(console: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with console.connect() as client:
        for number in range(7):
            client.create_topic(f"walked-{number}", if_absent=True)
            client.commit(f"walkers-{number}", {TopicPartition(f"walked-{number}", 0): 0})
    monkeypatch.setattr(figures, "PAGE", 3)
    told = ConsoleFigures(console.http_address, TOKEN).look()
    assert len(told["topics"]) == told["overview"]["topics"] >= 8
    assert len(told["groups"]) == told["overview"]["groups"] >= 8
    assert len({each["name"] for each in told["topics"]}) == len(told["topics"])


def test_a_broker_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    with run_broker(tmp_path, listen_http="127.0.0.1:0") as broker:
        watched = ConsoleFigures(broker.http_address, None)
        first = watched.look()
        seen = looks(watched, first, 0.0)
        assert next(seen)[1] == ""
    last, trouble = next(seen)
    assert "no console" in trouble
    assert trouble in rendered(screen(first, last, trouble), 200)
    with run_broker(tmp_path, listen_http="127.0.0.1:0") as broker:
        watched._url = f"http://{broker.http_address}"  # another process may have its port by now
        after, trouble = next(seen)
        assert trouble == ""
        assert after["overview"]["started_ms"] > first["overview"]["started_ms"]
        assert set(rates(last, after).values()) == {0.0}, "it counts anew"
        assert latencies(last, after) == []


def rendered(shown: Any, width: int) -> str:
    with io.StringIO() as text:
        RichConsole(file=text, width=width, height=50).print(shown)
        return text.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_a_terminal(console: RunningBroker, width: int) -> None:
    told = ConsoleFigures(console.http_address, TOKEN).look()
    lines = rendered(screen(told, told), width).splitlines()
    assert max(map(len, lines)) <= width
    assert any("topic" in line for line in lines)


def test_what_has_failed_is_told() -> None:
    overview = {**look(1000, 1, [0, 0, 0])["overview"], **dict.fromkeys(OTHERS, 0)}  # type: ignore[dict-item]
    told = {
        "overview": {**overview, "connections": {}, "views": {}, "partitions_failed": 2},
        "topics": [],
        "groups": [],
    }
    assert "2 partitions take no more events" in rendered(screen(told, told), 200)


def look(now_ms: int, events: int, counts: list[int]) -> dict[str, object]:
    latency = {"count": sum(counts), "sum": 0.0, "bounds": [0.001, 0.01], "counts": counts}
    names = ("appended_bytes", "stalls")
    overview = {
        "now_ms": now_ms,
        "started_ms": 500,
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
