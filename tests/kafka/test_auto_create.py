"""Metadata that makes topics: not very many for one request, and none for a client that has left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from krappy.handlers.kafka.cluster import MOST_CREATED, metadata
from krappy.testing.sessions import kafka_session
from krappy.wire.kafka import UUID_ZERO, ApiKey, Code
from tests.broker.engine import running
from tests.kafka.raw import Raw
from tests.process import BrokerProcess


def test_one_request_makes_so_many_topics_and_the_next_makes_more(raw: Raw, broker: BrokerProcess) -> None:
    names = [f"many-{number:03}" for number in range(MOST_CREATED + 30)]
    for known in (MOST_CREATED, len(names)):
        answer = raw.ask(ApiKey.METADATA, {"topics": [{"name": name} for name in names]})
        codes = [topic["error_code"] for topic in answer["topics"]]
        assert codes == [0] * known + [Code.UNKNOWN_TOPIC_OR_PARTITION] * (len(names) - known)


def test_nothing_is_made_for_a_client_that_has_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as broker:
            session: Any = kafka_session(broker)
            made = broker.topic_for_producer

            async def leave_after_three(name: str) -> Any:
                found = await made(name)
                if len(broker.topics) == 3:
                    session.close()
                return found

            broker.topic_for_producer = leave_after_three  # type: ignore[method-assign]
            asked = [{"name": f"t{number}", "topic_id": UUID_ZERO} for number in range(50)]
            request = {
                "topics": asked,
                "allow_auto_topic_creation": True,
                "include_topic_authorized_operations": False,
                "include_cluster_authorized_operations": False,
            }
            answer = metadata(session, request, 9)
            assert not isinstance(answer, dict)
            await answer
            assert len(broker.topics) == 3

    trio.run(main)
