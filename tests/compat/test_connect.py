"""Kafka Connect: standalone, and distributed with a source that writes exactly once over a kill."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from krappy.blocking import Client
from krappy.errors import UnknownTopic
from tests.compat.programs import LONG_S, MADE, Program, jvm, saved
from tests.compat.servers import KrappyServer
from tests.process import free_ports

STANDALONE = "org.apache.kafka.connect.cli.ConnectStandalone"
DISTRIBUTED = "org.apache.kafka.connect.cli.ConnectDistributed"
SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
pytestmark = [MADE, pytest.mark.timeout(4 * LONG_S)]


def worker(note: str, broker: KrappyServer, folder: Path) -> tuple[Path, str]:
    """Saves the page's file with this note; returns (the file, the address of the worker's REST API)."""
    rest = f"http://127.0.0.1:{free_ports(1)[0]}"
    return saved(note, broker, folder, f"listeners={rest}\noffset.flush.interval.ms=500\n"), rest


def values(client: Client, topic: str) -> list[bytes]:
    """The values of all committed events, in their order."""
    try:
        with client.consumer(topic, end="now") as consumer:
            return [event.value or b"" for event in consumer]
    except UnknownTopic:
        return []


def test_files_through_a_topic_over_a_restart(broker: KrappyServer, native: Client, tmp_path: Path) -> None:
    properties, _ = worker("worker.properties", broker, tmp_path)
    came, went = tmp_path / "came.txt", tmp_path / "went.txt"
    source, sink = tmp_path / "source.properties", tmp_path / "sink.properties"
    source.write_text(f"name=came\nconnector.class={SOURCE}\nfile={came}\ntopic=lines\n")
    sink.write_text(f"name=went\nconnector.class={SINK}\nfile={went}\ntopics=lines\n")
    first, second = [f"line {n}\n" for n in range(500)], [f"line {n}\n" for n in range(500, 900)]
    came.write_text("".join(first))
    command = jvm("connect", STANDALONE, properties, source, sink)
    with Program(command, tmp_path, "standalone") as program:
        program.until(lambda: went.exists() and went.read_text() == "".join(first), "the lines have gone through")
        program.stop()
        came.write_text("".join(first + second))
        program.start()
        program.until(lambda: went.read_text() == "".join(first + second), "the later lines have, too")
    assert values(native, "lines") == [json.dumps(line.strip()).encode() for line in first + second]


def ask(method: str, url: str, body: object = None) -> Any:
    """Asks Connect's REST API. Returns None if it does not answer, or has no answer yet."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def test_a_source_writes_each_line_once_though_it_is_killed(
    broker: KrappyServer, native: Client, tmp_path: Path
) -> None:
    properties, rest = worker("connect.properties", broker, tmp_path)
    file = tmp_path / "lines.txt"
    # With small batches this connector keeps the file's last hundred lines or so until more come.
    lines = [f"line {n}" for n in range(2200)]
    connector = {
        "connector.class": SOURCE,
        "file": str(file),
        "topic": "once",
        "batch.size": "10",  # lines, and so a transaction
        "exactly.once.support": "required",
    }
    file.write_text("\n".join(lines[:1000]) + "\n")
    url = f"{rest}/connectors/once"
    with Program(jvm("connect", DISTRIBUTED, properties), tmp_path, "distributed") as program:
        program.until(lambda: ask("PUT", f"{url}/config", connector) is not None, "it takes a connector")
        program.until(lambda: len(values(native, "once")) >= 10, "it writes")
        program.kill()
        assert len(values(native, "once")) < 1000, "it was not killed in the midst"
        with file.open("a") as more:
            more.write("\n".join(lines[1000:]) + "\n")
        program.start()
        program.until(lambda: len(values(native, "once")) >= 2000, "the lines are there")
        assert [task["state"] for task in ask("GET", f"{url}/status")["tasks"]] == ["RUNNING"]
        program.stop()
    found = values(native, "once")
    assert found == [line.encode() for line in lines[: len(found)]], "each once, in their order"
