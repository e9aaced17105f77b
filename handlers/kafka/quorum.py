"""DescribeQuorum (55): who keeps the cluster's metadata, and how far the replicas are of partitions led here.

Kafka answers only for the log of its metadata. This broker answers for any partition that it leads: only the leader
knows how far its followers are, and brokers ask each other by this API to show it. The voters are the replicas in sync,
the observers are the others.
"""

from __future__ import annotations

from krappy.core.cluster.state import NOBODY
from krappy.core.security import needs
from krappy.core.security.operations import Op, Resource
from krappy.errors import KrappyError, UnknownTopic
from krappy.handlers.kafka.refusals import denied_on_cluster
from krappy.handlers.kafka.registry import Message, serves
from krappy.ports import KafkaSessionPort, TopicPort
from krappy.wire.kafka import ApiKey, code_for

METADATA = ("__cluster_metadata", 0)
FEW = 100  # partitions that are described in one turn


@serves(ApiKey.DESCRIBE_QUORUM, needs=needs.cluster(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def describe_quorum(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """The keepers of the cluster's metadata (KIP-595, KIP-853): the controller, always up to date. The metadata is a
    tree, not a log with offsets, so all its offsets are 0. For a topic's partition: its replicas."""
    if (denied := denied_on_cluster(session, Op.DESCRIBE)) is not None:
        return {**denied, "topics": [], "nodes": []}
    topics = []
    for topic in request["topics"]:
        name = topic["topic_name"]
        may = session.access.may(Resource.TOPIC, name, Op.DESCRIBE)
        found = session.access.find_topic(name, Op.DESCRIBE) if may else None
        rows = []
        for number, each in enumerate(topic["partitions"], 1):
            index = each["partition_index"]
            if (name, index) == METADATA:
                rows.append(_of_metadata(session, index))
            else:
                rows.append(_of_partition(session, found, name, index))
            if number % FEW == 0:
                await session.pause()
        topics.append({"topic_name": name, "partitions": rows})
    nodes = [
        {"node_id": node.node_id, "listeners": [{"name": session.listener, "host": node.host, "port": node.port}]}
        for node in session.nodes().values()
    ]
    return {"topics": topics, "nodes": nodes}


def _of_metadata(session: KafkaSessionPort, index: int) -> Message:
    controller, now = session.broker.image.controller, session.broker.now_ms()
    leader = NOBODY if controller is None else controller
    voter = {"replica_id": leader, "last_fetch_timestamp": now, "last_caught_up_timestamp": now}
    return {"partition_index": index, "leader_id": leader, "current_voters": [voter]}


def _of_partition(session: KafkaSessionPort, topic: TopicPort | None, name: str, index: int) -> Message:
    try:
        if topic is None:
            raise UnknownTopic(f"there is no topic '{name}'", topic=name)
        partition = topic.led(index)
    except KrappyError as error:
        return {
            "partition_index": index,
            "error_code": code_for(error),
            "error_message": error.text,
            "leader_id": NOBODY,
            "leader_epoch": -1,
            "high_watermark": -1,
        }
    image, now, own = topic.image.partitions[index], session.broker.now_ms(), session.broker.id
    lags = partition.lags()
    voters: list[Message] = []
    observers: list[Message] = []
    for replica in image.replicas:
        lag = lags.get(replica)
        if replica == own:
            row = {"log_end_offset": partition.end_offset, "last_fetch_timestamp": now, "last_caught_up_timestamp": now}
        elif lag is None:
            row = {"log_end_offset": -1}
        else:
            row = {"log_end_offset": lag.offset, "last_fetch_timestamp": int(now - lag.fetched_ms)}
            row["last_caught_up_timestamp"] = -1 if lag.caught_up_ms is None else int(now - lag.caught_up_ms)
        (voters if replica in image.state.isr else observers).append({"replica_id": replica, **row})
    return {
        "partition_index": index,
        "leader_id": own,
        "leader_epoch": partition.epoch,
        "high_watermark": partition.high_watermark,
        "current_voters": voters,
        "observers": observers,
    }
