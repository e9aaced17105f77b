"""CreateTopic, AlterTopic, DeleteTopic, DeleteRecords, DescribeTopics, Ping, Unregister."""

from __future__ import annotations

from krappy.handlers.native import groups
from krappy.ports import SessionPort
from krappy.wire import messages


async def create_topic(session: SessionPort, request: messages.CreateTopic) -> messages.TopicCreated:
    topic, created = await session.broker.create_topic(
        request.topic, request.partitions, request.config or {}, if_absent=request.if_absent
    )
    return messages.TopicCreated(created, len(topic.partitions))


async def alter_topic(session: SessionPort, request: messages.AlterTopic) -> messages.TopicAltered:
    await session.broker.alter_topic(request.topic, request.config, request.partitions)
    return messages.TopicAltered()


async def delete_topic(session: SessionPort, request: messages.DeleteTopic) -> messages.TopicDeleted:
    await session.broker.delete_topic(request.topic)
    return messages.TopicDeleted()


async def delete_records(session: SessionPort, request: messages.DeleteRecords) -> messages.RecordsDeleted:
    topic = session.broker.topic(request.topic)
    wanted = [(topic.partition(index), before) for index, before in dict(request.before).items()]
    for partition, before in wanted:  # all of it or, as far as it can be told beforehand, nothing
        partition.check_deletable(before)
    return messages.RecordsDeleted(
        [(partition.index, await partition.delete_records(before)) for partition, before in wanted]
    )


async def describe_topics(session: SessionPort, request: messages.DescribeTopics) -> messages.TopicsDescribed:
    broker = session.broker
    names = sorted(broker.topics) if request.topics is None else list(dict.fromkeys(request.topics))
    described = []
    for name in names:
        if request.topics is not None or name in broker.topics:  # one may go while others are described
            described.append(broker.topic(name).describe())
        await session.pause()
    return messages.TopicsDescribed(described)


def ping(session: SessionPort, request: messages.Ping) -> messages.Pong:
    broker = session.broker
    return messages.Pong(broker.version, broker.cluster_id, broker.now_ms(), session.max_frame)


def unregister(session: SessionPort, request: messages.Unregister) -> messages.Unregistered:
    if request.unseen is not None or request.polls is not None:
        groups.uncount(session, request)
    session.remove(request.handle)
    return messages.Unregistered()
