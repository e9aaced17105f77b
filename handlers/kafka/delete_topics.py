"""DeleteTopics (20): by name, and from version 6 on also by id (KIP-516)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.refusals import DONE, NO, SHOWN, RefusedApi, more_than_once, refusal
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.sources import check_not_internal
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import UUID_ZERO, ApiKey, Code

Message = dict[str, Any]
BY_ID_SINCE = 6


@serves(ApiKey.DELETE_TOPICS, 1, 6, needs=needs.topic(Op.DELETE))
async def delete_topics(session: KafkaSessionPort, request: Message, version: int) -> Message:
    broker = session.broker
    if version < BY_ID_SINCE:
        asked = [{"name": name, "topic_id": UUID_ZERO} for name in request["topic_names"]]
    else:
        asked = list(request["topics"])
    timeout = request["timeout_ms"]
    deadline = broker.clock.steady_ms() + timeout if timeout > 0 else None
    meant = [_name(session, topic) for topic in asked]  # before any of them is deleted
    twice = more_than_once(name for name in meant if name is not None)
    answers: list[Message] = []
    answered: set[str] = set()
    for topic, name in zip(asked, meant, strict=True):
        if name in answered:
            continue
        answers.append({"name": topic["name"], "topic_id": topic["topic_id"]})
        try:
            if topic["name"] is not None and topic["topic_id"] != UUID_ZERO:
                raise RefusedApi(Code.INVALID_REQUEST, "a topic is deleted by its name or by its id, not by both")
            if name is None:
                if topic["topic_id"] == UUID_ZERO:
                    raise RefusedApi(Code.INVALID_REQUEST, "the request gives neither the topic's name nor its id")
                raise RefusedApi(Code.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            answered.add(name)
            if name in twice:
                raise RefusedApi(Code.INVALID_REQUEST, f"the request names the topic '{name:.{SHOWN}}' twice")
            check_not_internal(session, name, Op.DELETE)
            found = session.access.find_topic(name, Op.DELETE)
            if found is None:
                raise RefusedApi(Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
            if deadline is not None and broker.clock.steady_ms() >= deadline:
                raise RefusedApi(Code.REQUEST_TIMED_OUT, "the time allowed was over before this topic's turn came")
            if topic["name"] is None and found.id != topic["topic_id"]:  # created anew while others were deleted
                raise RefusedApi(Code.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            await session.access.delete_topic(name, found.id)
            answers[-1] |= {"name": name, "topic_id": found.id, **DONE}
        except NO as error:
            answers[-1] |= refusal(error)
        await session.pause()
    return {"throttle_time_ms": 0, "responses": answers}


def _name(session: KafkaSessionPort, topic: Message) -> str | None:
    """The name of the topic that an entry of the request means; None when no topic has its id."""
    if topic["name"] is not None:
        return str(topic["name"])
    found = session.access.find_topic_by_id(topic["topic_id"], Op.DELETE)
    return None if found is None else str(found.name)
