"""The memory of a request is free again once the request is answered, before any garbage collection."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from krappy.handlers.kafka import registry
from krappy.records import batch
from krappy.testing.sessions import kafka_session
from krappy.wire.kafka import RANGES, ApiKey, decode_request, encode_request, parse_header
from tests.broker.engine import running
from tests.kafka.raw import produce


@pytest.mark.parametrize("partitions", [1, 2])
def test_an_answered_publish_keeps_nothing(tmp_path: Path, partitions: int) -> None:
    """The batches of a producer, a megabyte each, once stayed in memory until a garbage collection: they and their
    answers referred to each other."""
    version = RANGES[ApiKey.PRODUCE][1] - 1  # the last version that names topics
    body = produce("t", batch.encode(None, [b"v" * 1000], timestamps=1))
    (asked,) = body["topic_data"][0]["partition_data"]
    body["topic_data"][0]["partition_data"] = [{**asked, "index": index} for index in range(partitions)]
    frame = bytearray(encode_request(ApiKey.PRODUCE, version, 1, "c", body)[4:])

    async def publish(broker: Any) -> None:
        view = memoryview(frame)
        request = decode_request(ApiKey.PRODUCE, version, view[parse_header(view).body_at :])
        handler: Any = registry().find(ApiKey.PRODUCE, version)
        answer = await handler(kafka_session(broker), request, version).wait()
        assert [each["error_code"] for each in answer["responses"][0]["partition_responses"]] == [0] * partitions

    async def main() -> None:
        async with running(tmp_path) as broker:
            await broker.create_topic("t", partitions, {"view.enable": "false"})
            gc.collect()
            gc.disable()
            try:
                await publish(broker)
                await trio.testing.wait_all_tasks_blocked()
                frame.append(0)  # BufferError if a view of it is still there
            finally:
                gc.enable()

    trio.run(main)
