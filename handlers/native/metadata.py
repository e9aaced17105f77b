"""Metadata: the brokers of the cluster, and who leads the partitions of topics."""

from __future__ import annotations

from typing import Any

from krappy.core.cluster.image import PartitionImage, Registration
from krappy.core.cluster.state import NOBODY
from krappy.core.security import needs
from krappy.core.security.operations import Op, Resource
from krappy.handlers.native.table import MAX_ANSWER, check_size
from krappy.handlers.registry import serves
from krappy.ports import SessionPort, TopicPort
from krappy.types import text_id
from krappy.wire import messages

NATIVE, HTTP = "NATIVE", "HTTP"  # the names of a broker's listeners that are not Kafka's
MANY = 250  # partitions that are described in one turn
ROW, ID = 64, 6  # about how many bytes a partition takes in an answer, and each id of a broker in it


@serves(messages.Metadata, needs=needs.topic(Op.DESCRIBE))
async def metadata(session: SessionPort, request: messages.Metadata) -> messages.MetadataFound:
    broker, access = session.broker, session.access
    names = sorted(access.topics(Op.DESCRIBE)) if request.topics is None else request.topics
    topics: list[dict[str, Any]] = []
    size, turn = 0, 0
    async with session.answering(MAX_ANSWER) as room:
        for name in names:
            denied = not access.may(Resource.TOPIC, name, Op.DESCRIBE)
            topic = None if denied else access.find_topic(name, Op.DESCRIBE)
            if topic is None:
                if request.topics is not None:
                    absent: dict[str, Any] = {"name": name, "id": None, "scattered": False, "partitions": []}
                    topics.append({**absent, "denied": True} if denied else absent)
                turn += 1
            else:
                rows: list[dict[str, Any]] = []
                topics.append(_topic(topic, rows))
                for each in topic.image.partitions:
                    rows.append(_partition(each))
                    size += ROW + ID * (len(each.replicas) + len(each.state.isr))
                    turn += 1
                    if turn % MANY == 0:
                        check_size(size, room, "topics")
                        await session.pause()
            size += ROW + len(name)
            if turn % MANY == 0:
                await session.pause()
        check_size(size, room, "topics")
    image = broker.image
    return messages.MetadataFound(
        broker.cluster_id,
        broker.id,
        NOBODY if image.controller is None else image.controller,
        [_broker(each, session) for each in image.brokers.values()],
        topics,
    )


def _topic(topic: TopicPort, rows: list[dict[str, Any]]) -> dict[str, Any]:
    unsure = {} if topic.unsure is None else {"unsure": topic.unsure}
    return {"name": topic.name, "id": text_id(topic.id), "scattered": topic.scattered, **unsure, "partitions": rows}


def _partition(partition: PartitionImage) -> dict[str, Any]:
    state = partition.state
    return {
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "replicas": partition.replicas,
        "isr": state.isr,
    }


def _broker(broker: Registration, session: SessionPort) -> dict[str, Any]:
    told = {name: _address(*endpoint) for name, endpoint in broker.endpoints.items()}
    native, http = told.pop(NATIVE, None), told.pop(HTTP, None)
    if broker.id == session.broker.id:
        native = session.address or native  # the peer has reached this one already, by the address that it used
    return {"id": broker.id, "native": native, "kafka": told, "http": http, "rack": broker.rack}


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
