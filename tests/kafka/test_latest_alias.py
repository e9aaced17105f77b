"""`latest_alias`: a second name of `TOPIC@latest`, for clients that do not allow `@`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy.errors import ConfigError
from krappy.settings.server import load
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw, create, produce
from tests.kafka.test_latest_wire import records, rows
from tests.process import ROOT, BrokerProcess, Launcher, broker_process

LIVE = [(1, "b", "1"), (2, "a", "2")]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> Iterator[BrokerProcess]:
    """It has the topics `events` and `taken`, and also `taken.latest`, which was made before the setting was used."""
    data = tmp_path_factory.mktemp("alias") / "data"
    with broker_process(data, launch=launcher, durability="os") as running, Raw(running.kafka) as raw:
        for name in ("events", "taken", "taken.latest"):
            create(running, name, 1)
            raw.produce(name, records(("a", "1"), ("b", "1"), ("a", "2")))
    with broker_process(data, launch=launcher, durability="os", latest_alias=".latest") as running:
        yield running
        assert not running.events("internal_error"), running.last_words()


def commit(raw: Raw, group: str, name: str, offset: int) -> int:
    partitions = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": name, "partitions": partitions}],
    }
    answer = raw.ask(ApiKey.OFFSET_COMMIT, body, 8)
    return int(answer["topics"][0]["partitions"][0]["error_code"])


def positions(raw: Raw, group: str) -> dict[str, int]:
    answer = raw.ask(ApiKey.OFFSET_FETCH, {"group_id": group, "topics": None}, 7)
    return {each["name"]: each["partitions"][0]["committed_offset"] for each in answer["topics"]}


@pytest.mark.parametrize("group", [None, "of-kafka-python"])
def test_kafka_python_reads_a_table_by_it(group: str | None, broker: BrokerProcess) -> None:
    program = [sys.executable, "-m", "tests.kafka.kafka_python_table", broker.kafka, "events.latest", str(len(LIVE))]
    done = subprocess.run([*program, *filter(None, [group])], cwd=ROOT, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["events.latest", *row] for row in LIVE]
    if group:
        with Raw(broker.kafka) as raw:
            assert positions(raw, group) == {"events.latest": 3}


def test_both_names_stand_side_by_side(raw: Raw) -> None:
    ids = [raw.topic_id(name) for name in ("events", "events@latest", "events.latest")]
    assert len(set(ids)) == 3
    asked = [{"name": None, "topic_id": each} for each in ids]
    found = raw.ask(ApiKey.METADATA, {"topics": asked}, 13)["topics"]
    assert [each["name"] for each in found] == ["events", "events@latest", "events.latest"]
    for name in ("events@latest", "events.latest"):
        assert rows(raw.fetch(name, 0)["records"]) == LIVE
    for offset, name in enumerate(("events", "events@latest", "events.latest")):
        assert commit(raw, "g", name, offset) == 0
    assert positions(raw, "g") == {"events": 0, "events@latest": 1, "events.latest": 2}
    everything = raw.ask(ApiKey.METADATA, {"topics": None}, 12)["topics"]
    assert "events.latest" not in [each["name"] for each in everything]


def test_it_can_not_be_written_to_or_made(raw: Raw) -> None:
    found = raw.produce("events.latest", records(("a", "1")))
    assert found["error_code"] == Code.INVALID_TOPIC_EXCEPTION
    body = produce("", records(("a", "1")))
    body["topic_data"][0]["topic_id"] = raw.topic_id("events.latest")
    (found,) = raw.ask(ApiKey.PRODUCE, body, 13)["responses"][0]["partition_responses"]
    assert found["error_code"] == Code.INVALID_TOPIC_EXCEPTION
    wanted: list[dict[str, object]] = [
        {"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("events.latest", "new.latest")
    ]
    there, made = raw.ask(ApiKey.CREATE_TOPICS, {"topics": wanted, "timeout_ms": 1000})["topics"]
    assert there["error_code"] == Code.TOPIC_ALREADY_EXISTS
    assert made["error_code"] == Code.INVALID_TOPIC_EXCEPTION
    assert "latest_alias" in made["error_message"]
    asked = {"topics": [{"name": "new.latest"}], "allow_auto_topic_creation": True}
    (absent,) = raw.ask(ApiKey.METADATA, asked, 12)["topics"]
    assert absent["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION, "it may come to be, as the table of a topic"


def test_a_topic_that_has_such_a_name_is_meant_by_it(raw: Raw) -> None:
    assert [row[0] for row in rows(raw.fetch("taken.latest", 0)["records"])] == [0, 1, 2]
    assert rows(raw.fetch("taken@latest", 0)["records"]) == LIVE
    assert commit(raw, "h", "taken.latest", 1) == commit(raw, "h", "taken@latest", 2) == 0
    (gone,) = raw.ask(ApiKey.DELETE_TOPICS, {"topics": [{"name": "taken"}], "timeout_ms": 60_000})["responses"]
    assert gone["error_code"] == 0
    assert positions(raw, "h") == {"taken.latest": 1}


@pytest.mark.parametrize("given", ["latest", ".", "@table", ".läst", "." + "x" * 49])
def test_what_no_alias_can_be(given: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="latest_alias"):
        load({"data": tmp_path, "latest_alias": given}, {})
