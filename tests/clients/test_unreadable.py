"""A broker can't read some events for now, and says so again and again. Who waits for them is told why."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import krappy
from krappy.store.format import INDEX
from krappy.testing.running import run_broker


@pytest.mark.parametrize("group", [None, "g"])
def test_who_waits_for_events_that_the_disk_refuses_is_told_why(tmp_path: Path, group: str | None) -> None:
    with run_broker(tmp_path) as broker, broker.connect() as client:
        client.create_topic("t", 1, {"segment.bytes": 2000})
        with client.producer("t") as producer:
            for number in range(30):
                producer.send(b"%d" % number * 100).result(30)
    index = sorted((tmp_path / "topics" / "t-0").glob(f"*{INDEX}"))[1]
    index.unlink()
    index.mkdir()
    with run_broker(tmp_path) as broker, broker.connect() as client, warnings.catch_warnings():
        warnings.simplefilter("error")
        told = pytest.raises(krappy.StillRefused, match=f"asked again and again: .*{index.name}")
        with client.consumer("t", group=group, start="earliest") as consumer, told:
            for _ in consumer:
                pass
