"""A peer may ask to wait for weeks, but nobody waits for longer than ten minutes. The test sets the time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.broker.broker import LocalBroker
from krappy.handlers.kafka.fetch import fetch
from krappy.handlers.native import consume, staging
from krappy.handlers.waits import LONGEST_MS
from krappy.testing.sessions import kafka_session, native_session
from krappy.waiting import Later
from krappy.wire import messages as m
from krappy.wire.kafka import RANGES, ApiKey, decode_request, encode_request, parse_header
from tests import schedules
from tests.broker.engine import running

WEEKS = 2**31 - 1  # ms


async def poll(broker: LocalBroker, group: str | None) -> None:
    session = native_session(broker)
    consumer = await consume.register_consumer(session, m.ConsumerRegistration(["t"], group=group))
    answer: Any = consume.poll(session, m.Poll(consumer.handle, max_wait=WEEKS))
    assert (await answer).parts == []
    session.remove(consumer.handle)


async def poll_kafka(broker: LocalBroker) -> None:
    session: Any = kafka_session(broker)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topics = [{"topic": "t", "partitions": [partition]}]
    version = RANGES[ApiKey.FETCH][0]
    body = {"max_wait_ms": WEEKS, "min_bytes": 1, "max_bytes": 1000, "topics": topics}
    data = memoryview(encode_request(ApiKey.FETCH, version, 1, "x", body))[4:]
    answer: Any = fetch(session, decode_request(ApiKey.FETCH, version, data[parse_header(data).body_at :]), version)
    found = await (answer.wait() if isinstance(answer, Later) else answer)
    assert found["responses"][0]["partitions"][0]["error_code"] == 0


async def commit(broker: LocalBroker) -> None:
    """Commits a job whose publication the disk holds up."""
    token = (await broker.staging.stage("t", "j", "0", "1", 3_600_000, None)).id
    await broker.staging.seal("j", token, 0)
    broker.staging._start = lambda live: None  # type: ignore[method-assign]
    done = await staging.commit(native_session(broker), m.CommitStaged("j", [token], max_wait=WEEKS))
    assert not done.done


WAITS: dict[str, Callable[[LocalBroker], Awaitable[None]]] = {
    "a reader's poll": lambda broker: poll(broker, None),
    "a member's poll": lambda broker: poll(broker, "g"),
    "a fetch": poll_kafka,
    "a commit of staged events": commit,
}


@pytest.mark.parametrize("what", WAITS)
def test_nobody_waits_for_weeks(tmp_path: Path, what: str) -> None:
    async def main() -> None:
        async with running(tmp_path, retention_check_ms=10 * WEEKS) as broker:
            await broker.create_topic("t", 1, {})
            begun = trio.current_time()
            await WAITS[what](broker)
            waited = trio.current_time() - begun
            assert LONGEST_MS / 1000 - 1 < waited < LONGEST_MS / 1000 + 60

    schedules.run(main, 0)
