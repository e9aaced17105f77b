"""Stage, SealStaged, CommitStaged, AbortStaged, StagedJobs: writes that are published as a whole, once."""

from __future__ import annotations

from krappy.core.staging import State
from krappy.handlers.handles import Stager
from krappy.handlers.waits import bounded_ms
from krappy.ports import SessionPort
from krappy.wire import messages


async def stage(session: SessionPort, request: messages.Stage) -> messages.Staged:
    opened = await session.broker.staging.stage(
        request.topic, request.job, request.task, request.attempt, request.ttl_ms, request.stage
    )
    topic = opened.attempt.topic
    return messages.Staged(
        handle=session.add(Stager(opened.attempt)),
        stage=opened.id,
        partitions=0 if topic is None else len(topic.partitions),  # sealed before the broker's start
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
        max_message_bytes=0 if topic is None else topic.config.max_message_bytes,
    )


async def seal(session: SessionPort, request: messages.SealStaged) -> messages.StagedSealed:
    return messages.StagedSealed(await session.broker.staging.seal(request.job, request.stage, request.records))


async def commit(session: SessionPort, request: messages.CommitStaged) -> messages.StagedCommitted:
    job, done, total = await session.broker.staging.commit(request.job, request.tokens, bounded_ms(request.max_wait))
    over = job.state is State.COMMITTED
    return messages.StagedCommitted(over, done, total, [tuple(each) for each in job.published] if over else [])  # type: ignore[misc]


async def abort(session: SessionPort, request: messages.AbortStaged) -> messages.StagedAborted:
    await session.broker.staging.abort(request.job, request.stage)
    return messages.StagedAborted()


def jobs(session: SessionPort, request: messages.StagedJobs) -> messages.StagedJobsFound:
    return messages.StagedJobsFound([each._asdict() for each in session.broker.staging.list()])
