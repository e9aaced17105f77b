"""ProducerRegistration, Message, Batch: events on their way in."""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import Grant, Op, Resource
from krappy.errors import InvalidRequest, UnknownTopic
from krappy.handlers.handles import ProducerHandle, Stager
from krappy.handlers.registry import serves
from krappy.partitioner import home_of
from krappy.ports import SessionPort
from krappy.types import Record
from krappy.waiting import Later
from krappy.wire import messages

LONGEST_NAME = 1000  # characters of a producer's name


@serves(messages.ProducerRegistration, needs=needs.topic(Op.WRITE, Op.CREATE) + needs.cluster(Op.IDEMPOTENT_WRITE))
async def register_producer(
    session: SessionPort, request: messages.ProducerRegistration
) -> messages.ProducerRegistered:
    if request.name is not None and len(request.name) > LONGEST_NAME:
        raise InvalidRequest(
            f"a producer's name has at most {LONGEST_NAME} characters, not {len(request.name)}", field="name"
        )
    topic = await session.access.topic_for_producer(request.topic)
    id, epoch = request.producer_id, request.producer_epoch
    if request.idempotent and id < 0:
        id, epoch = await session.access.cluster(Op.IDEMPOTENT_WRITE).new_producer_id(), 0
    return messages.ProducerRegistered(
        handle=session.add(ProducerHandle(topic, request.name), [Grant(Resource.TOPIC, topic.name, Op.WRITE)]),
        partitions=topic.count,
        producer_id=id,
        producer_epoch=epoch,
        max_message_bytes=topic.config.max_message_bytes,
    )


@serves(messages.Message, needs=needs.topic(Op.WRITE))
def message(session: SessionPort, request: messages.Message) -> Later[messages.MessageStored]:
    producer = _producer(session, request.handle)
    topic = producer.topic
    count = topic.count
    if request.partition is not None:
        index = request.partition
    elif count == 1:
        index = 0
    elif request.key is not None:
        index = home_of(request.key, topic.count)
    else:
        index = producer.next_partition()
    headers = tuple((name, value) for name, value in request.headers) if request.headers else ()
    record = Record(request.payload, request.key, headers, request.timestamp)
    later = topic.led(index).publish_record(record, request.expect)
    producer.bytes += len(request.payload or b"") + len(request.key or b"")
    return later.map(lambda stored: messages.MessageStored(index, stored.offset, stored.timestamp))


@serves(messages.Batch, needs=needs.topic(Op.WRITE))
def batch(session: SessionPort, request: messages.Batch) -> Later[messages.BatchStored]:
    found = session.registration(request.handle)
    if isinstance(found, Stager):
        if request.expect:
            raise InvalidRequest("staged events have no conditions")
        later = found.attempt.publish(request.partition, request.records)
    else:
        producer = _producer(session, request.handle)
        partition = producer.topic.led(request.partition)
        later = partition.publish(request.records, request.expect, refused=producer.refused)
        producer.bytes += len(request.records)
    return later.map(lambda stored: messages.BatchStored(stored.offset, stored.timestamp))


def _producer(session: SessionPort, handle: int) -> ProducerHandle:
    producer = session.find(handle, ProducerHandle)
    if producer.topic.deleted:
        raise UnknownTopic(f"the topic '{producer.topic.name}' was deleted; register again")
    return producer
