"""The message DeleteRecords over a real socket, and after kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from krappy import errors
from krappy.records import batch
from krappy.wire import messages as m
from tests.handlers.raw import Raw
from tests.process import broker_process


def fill(raw: Raw, topic: str, partitions: int = 2, **config: object) -> None:
    raw.call(m.CreateTopic(topic, partitions, {name.replace("_", "."): value for name, value in config.items()}))
    handle = raw.producer(topic).handle
    for partition in range(partitions):
        keys = [b"k%d" % number for number in range(10)]
        raw.call(m.Batch(handle, partition, batch.encode(keys, keys, timestamps=1_000)))


def starts(raw: Raw, topic: str) -> dict[int, int]:
    found: dict[int, int] = dict(raw.call(m.Offsets(topic, "earliest")).offsets)
    return found


def test_events_stay_deleted_when_the_broker_is_killed(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker:
        with Raw(broker.address) as raw:
            fill(raw, "t")
            assert raw.call(m.DeleteRecords("t", [(0, 4), (1, -1)])).starts == [[0, 4], [1, 10]]
            assert raw.call(m.DeleteRecords("t", [(0, 2)])).starts == [[0, 4]]
        broker.kill()
        broker.start()
        with Raw(broker.address) as raw:
            assert starts(raw, "t") == {0: 4, 1: 10}
            assert raw.call(m.Get("t", b"k3", 0)).entry == [None]
            assert raw.call(m.Get("t", b"k4", 0)).entry[0][0] == 4
            assert dict(raw.call(m.Offsets("t", "latest")).offsets) == {0: 10, 1: 10}


def test_a_wrong_request_deletes_nothing(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", durability="os") as broker, Raw(broker.address) as raw:
        fill(raw, "t")
        fill(raw, "compacted", 1, cleanup_policy="compact")
        for error, request in [
            (errors.UnknownPartition, m.DeleteRecords("t", [(0, 5), (2, 0)])),
            (errors.OffsetOutOfRange, m.DeleteRecords("t", [(0, 5), (1, 11)])),
            (errors.PolicyViolation, m.DeleteRecords("compacted", [(0, 5)])),
            (errors.UnknownTopic, m.DeleteRecords("other", [(0, 5)])),
            (errors.InvalidRequest, m.DeleteRecords("t", [(0, -2)])),
        ]:
            with pytest.raises(error):
                raw.call(request)
        assert starts(raw, "t") == {0: 0, 1: 0}
        assert starts(raw, "compacted") == {0: 0}
        assert raw.call(m.DeleteRecords("t", [])).starts == []
