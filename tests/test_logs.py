"""What an operator reads: each event has a level, nothing is said too often, and a line begins with the time and the
event."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from krappy import logs

ROOT = Path(__file__).parent.parent


class Logger:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __call__(self, level: str, event: str, facts: dict[str, Any]) -> None:
        self.lines.append((level, event, facts))


def _reported() -> set[str]:
    """Every event name that is given to a `report`, anywhere in the broker."""
    found: set[str] = set()
    for folder in ("krappy", "store", "handlers"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    if name in ("report", "_report") and isinstance(node.args[0].value, str):
                        found.add(node.args[0].value)
    return found


def test_every_event_has_a_level_and_every_level_an_event() -> None:
    reported = _reported()
    assert len(reported) > 30
    assert reported == set(logs.LEVELS)
    assert len(logs.LEVELS) == len(logs.ERROR) + len(logs.WARNING) + len(logs.INFO)
    assert reported > logs.ENDLESS


def test_a_peer_can_not_fill_the_log() -> None:
    logger, now = Logger(), 100.0
    report = logs.Reporter(logger, lambda: now)
    for _ in range(1000):
        report("kafka_connection_ended", reason="noise")
        report("append_failed", error="full")
    assert len(logger.lines) == 2 * logs.MANY
    now += logs.WINDOW
    report("append_failed", error="full")
    report("append_failed", error="full")
    assert [facts for _, _, facts in logger.lines[-2:]] == [
        {"error": "full", "left_out": 1000 - logs.MANY},
        {"error": "full"},
    ]


def test_a_line_that_can_not_be_written_ends_nothing() -> None:
    logger = Logger()
    full = True

    class Full(Logger):
        def __call__(self, level: str, event: str, facts: dict[str, Any]) -> None:
            if full:
                raise OSError(errno.ENOSPC, "No space left on device")
            logger(level, event, facts)

    report = logs.Reporter(Full())
    report("topic_created", topic="a")
    report("topic_created", topic="b")
    full = False
    report("topic_created", topic="c")
    report("topic_created", topic="d")
    assert [facts for _, _, facts in logger.lines] == [{"topic": "c", "unwritten": 2}, {"topic": "d"}]


@pytest.mark.parametrize("event", ["topic_created", "log_recovered"])
def test_what_happens_once_for_each_thing_is_always_told(event: str) -> None:
    logger = Logger()
    report = logs.Reporter(logger, lambda: 1.0)
    for number in range(100):
        report(event, topic=str(number))
    assert [facts["topic"] for _, _, facts in logger.lines] == [str(number) for number in range(100)]


def test_a_line_of_json_begins_with_when_and_what(capsys: pytest.CaptureFixture[str]) -> None:
    report = logs.Reporter(logs.Logger("warning", "json"))
    report("append_failed", partition="t-0", error="No space left on device")
    report("topic_created", topic="t")
    try:
        raise ValueError("a mistake")
    except ValueError:
        report("internal_error", exc_info=True)
    first, second = capsys.readouterr().err.splitlines()
    assert list(json.loads(first)) == ["timestamp", "level", "event", "partition", "error"]
    assert json.loads(second)["level"] == "error"
    assert "ValueError: a mistake" in json.loads(second)["exception"]


def test_a_line_is_one_write_also_where_nothing_is_buffered() -> None:
    """In the image Python's streams are unbuffered; whoever collects stdout and stderr puts writes in one file."""
    code = "from krappy import logs; log = logs.Logger('info', 'json'); log('info', 'a', {}); log('info', 'b', {})"
    read, write = os.pipe2(os.O_DIRECT)  # keeps writes apart
    try:
        subprocess.run([sys.executable, "-uc", code], stderr=write, check=True, timeout=60)
        writes = [os.read(read, 65536) for _ in range(2)]
    finally:
        os.close(write)
        os.close(read)
    assert [json.loads(each)["event"] for each in writes] == ["a", "b"]
    assert all(each.endswith(b"\n") for each in writes)


FACT = r' \w+=(?:"(?:[^"\\]|\\.)*"|[^ "=\']+)'  # of a line on a console: a value with anything special is in quotes
EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31mX\x9b\u202e\nkrappy: all is well\r"


@pytest.mark.parametrize("style", ["console", "json"])
def test_what_peers_name_does_not_speak_to_the_terminal(capsys: pytest.CaptureFixture[str], style: str) -> None:
    report = logs.Reporter(logs.Logger("info", style))
    report("transaction_timed_out", transactional_id=EVIL, others=[EVIL], raw=EVIL.encode("utf-8"))
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        report("internal_error", exc_info=error)
    report("kafka_connection_ended", reason=f"no such thing as {EVIL}")
    said = capsys.readouterr().err
    assert "owned" in said
    wrong = {each for each in said if not each.isprintable()} - {"\n"}
    assert not wrong
    assert not any(line.startswith("krappy: all is well") for line in said.splitlines())


@pytest.mark.parametrize(
    "name",
    [
        "x level=error event=shut_down",
        'x" user=admin reason="none',
        "x\\",
        'x\\" user=admin',
        "",
        "x\n2026-11-27T00:00:00Z [info   ] authenticated user=admin",
        "a user=admin\u2028",
        "'x' user=admin",
        "\x1b[2K",
    ],
)
def test_what_peers_name_does_not_pass_for_other_facts(capsys: pytest.CaptureFixture[str], name: str) -> None:
    report = logs.Reporter(logs.Logger("info", "console"))
    report("authentication_failed", client=name, reason=f"no user {name}", tried=[name], user="eve")
    said = capsys.readouterr().err
    [line] = said.splitlines()
    _, _, facts = line.partition("authentication_failed")
    assert re.fullmatch(rf" *({FACT})+", facts), facts
    assert [each.partition("=")[0] for each in re.findall(FACT, facts)] == [" client", " reason", " tried", " user"]
    assert facts.endswith(" user=eve")


def test_what_can_be_printed_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    report = logs.Reporter(logs.Logger("info", "console"))
    report("topic_created", topic="größe-日本", path="C:\\x")
    said = capsys.readouterr().err
    assert "größe-日本" in said
    assert "C:\\x" in said


def test_who_fails_to_log_in_hides_nobody_else() -> None:
    now, told = 0.0, list[str]()

    def log(level: str, event: str, facts: dict[str, Any]) -> None:
        told.append(facts["client"])

    report = logs.Reporter(log, lambda: now)
    for number in range(1000):
        report("authentication_failed", client=f"10.0.0.1:{number}", reason="")
    report("authentication_failed", client="10.0.0.2:7", reason="")
    report("authentication_failed", client="[::1]:7", reason="")
    report("authentication_failed", client="::2", reason="")
    assert len(told) == logs.MANY + 3
    assert told[logs.MANY :] == ["10.0.0.2:7", "[::1]:7", "::2"]
    told.clear()
    for number in range(3 * logs.ADDRESSES):
        report("authentication_failed", client=f"fd00::{number:x}", reason="")
    assert len(told) <= logs.ADDRESSES + logs.MANY
    assert len(report._windows) <= logs.ADDRESSES + 1
    now = 2 * logs.WINDOW
    told.clear()
    report("authentication_failed", client="10.0.0.9:1", reason="")
    assert told
