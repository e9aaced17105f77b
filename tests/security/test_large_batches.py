"""Batches that are large once they are opened are decoded one at a time, in a thread; users take turns with that."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from krappy.broker.partition import large
from krappy.clients.acls import AclInfo
from krappy.records import batch, codecs
from krappy.wire.kafka import ApiKey
from tests.kafka.raw import Raw as Kafka
from tests.process import wait_until
from tests.security.test_ends import broker_of
from tests.security.test_sasl import address, log_in


def test_those_of_one_user_are_decoded_in_turn_with_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, tried = list[float](), large._tried

    def slow(work: Any) -> Any:
        began.append(time.monotonic())
        time.sleep(0.1)
        return tried(work)

    unpacks = batch.encode(None, [bytes(2 << 20)], timestamps=1000, codec=codecs.ZSTD)
    with broker_of(tmp_path) as (broker, client), Kafka(address(broker)) as bob, Kafka(address(broker)) as ada:
        log_in(bob, "bob", "b")
        log_in(ada)
        client.create_topic("bobs", 20, {"view.enable": False})
        client.create_topic("adas", 1, {"view.enable": False})
        client.add_acls([AclInfo("topic", "bobs", "User:bob", "write")])
        monkeypatch.setattr(large, "_tried", slow)
        data = [{"index": index, "records": unpacks} for index in range(20)]
        body = {"acks": -1, "timeout_ms": 30_000, "topic_data": [{"name": "bobs", "partition_data": data}]}
        bob.send(ApiKey.PRODUCE, body, 12)
        wait_until(lambda: bool(began), "the first of them is decoded")
        ada.produce("adas", unpacks)
        assert len(began) < 20
        assert bob.receive()["responses"]
