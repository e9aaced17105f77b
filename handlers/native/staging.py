"""Stage, SealStaged, CommitStaged, AbortStaged, StagedJobs: writes that are published as a whole, once."""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import Grant, Op, Resource
from krappy.core.staging import JobState
from krappy.handlers.handles import Stager
from krappy.handlers.registry import serves
from krappy.handlers.waits import bounded_ms
from krappy.ports import SessionPort
from krappy.wire import messages


@serves(messages.Stage, needs=needs.transactional_id(Op.WRITE) + needs.topic(Op.WRITE, Op.CREATE))
async def stage(session: SessionPort, request: messages.Stage) -> messages.Staged:
    if session.access.find_topic(request.topic, Op.WRITE) is None:
        session.access.check(Resource.TOPIC, request.topic, Op.CREATE)
        session.access.mutate(session.broker.config.default_partitions)
    job = session.access.job(request.job, Op.WRITE)
    opened = await job.stage(request.topic, request.job, request.task, request.attempt, request.ttl_ms, request.stage)
    handle, topic = 0, opened.attempt.topic
    try:
        if topic is not None:  # an attempt that goes on may be for another topic
            session.access.check_topics([topic.name], Op.WRITE, "the job")
        name = request.topic if topic is None else topic.name
        grants = [Grant(Resource.TRANSACTIONAL_ID, request.job, Op.WRITE), Grant(Resource.TOPIC, name, Op.WRITE)]
        handle = session.add(Stager(opened.attempt), grants)
    finally:
        if not handle and request.stage is None:  # refused, or the peer left: nobody knows of this attempt
            job.give_up(request.job, opened.id)
    return messages.Staged(
        handle=handle,
        stage=opened.id,
        partitions=0 if topic is None else topic.count,  # None: the attempt was sealed before the broker's start
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
        max_message_bytes=0 if topic is None else topic.config.max_message_bytes,
    )


@serves(messages.SealStaged, needs=needs.transactional_id(Op.WRITE))
async def seal(session: SessionPort, request: messages.SealStaged) -> messages.StagedSealed:
    staging = session.access.job(request.job, Op.WRITE)
    return messages.StagedSealed(await staging.seal(request.job, request.stage, request.records))


@serves(messages.CommitStaged, needs=needs.transactional_id(Op.WRITE) + needs.topic(Op.WRITE))
async def commit(session: SessionPort, request: messages.CommitStaged) -> messages.StagedCommitted:
    staging = session.access.job(request.job, Op.WRITE)
    session.access.check_topics(staging.topics(request.job), Op.WRITE, "the job")
    job, done, total = await staging.commit(request.job, request.tokens, bounded_ms(request.max_wait))
    over = job.state is JobState.COMMITTED
    if over:  # it may have been committed before: then its topics were not known
        session.access.check_topics(dict.fromkeys(each.topic for each in job.published), Op.WRITE, "the job")
    return messages.StagedCommitted(over, done, total, [tuple(each) for each in job.published] if over else [])  # type: ignore[misc]


@serves(messages.AbortStaged, needs=needs.transactional_id(Op.WRITE))
async def abort(session: SessionPort, request: messages.AbortStaged) -> messages.StagedAborted:
    await session.access.job(request.job, Op.WRITE).abort(request.job, request.stage)
    return messages.StagedAborted()


@serves(messages.StagedJobs, needs=needs.transactional_id(Op.DESCRIBE))
def jobs(session: SessionPort, request: messages.StagedJobs) -> messages.StagedJobsFound:
    return messages.StagedJobsFound([each._asdict() for each in session.access.jobs(Op.DESCRIBE)])
