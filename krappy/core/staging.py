"""Staged jobs, whose tasks stage record batches beside the log: a job's states, and what each request does to them.

    (none) ──begin──▶ Open ──commit──▶ Publishing ──written──▶ Marking ──complete──▶ Committed
                       │                  └──fail──▶ Aborted
                       ├──abort──▶ Aborted        (so does the abort of a job that nobody has begun)
                       └──silent for longer than its ttl──▶ Expired ──begin──▶ Open
    Committed, all its topics deleted since ──begin──▶ Open
    Committed, Aborted, Expired ──kept for a week──▶ (none)

Rules of this file. A job's state is an immutable value. A request's function takes it and returns the next state, or
the same object when nothing changes, or raises the reason of a refusal; the caller makes the next state durable before
it acts on it. Publishing is a decision: batches go to the logs inside a transaction of the broker's own. Markers are
written only in the state Marking, when every batch is on disk. The first commit of a job decides what it publishes;
every later one is told the outcome of that, whatever tokens it names. Times are ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from krappy.errors import (
    BrokerError,
    InvalidRequest,
    StagingCommitted,
    StagingExpired,
    StagingFenced,
    UnknownStaging,
    UnknownTopic,
)

OWN = 1 << 62  # the producer ids of jobs begin here: clients get none of these
PUBLISHER = "__staged_jobs"  # the transactional id that brokers name when they write a job's batches to each other
MAX_NAME = 1000  # characters of a job's, a task's and an attempt's name
MAX_REASON = 1000  # characters of `Job.reason`
MAX_TTL_MS = 30 * 86_400_000
MAX_RECORDS = 2**31 - 1  # of one partition in one job: they have sequence numbers of one producer


class JobState(StrEnum):
    OPEN = "Open"
    PUBLISHING = "Publishing"
    MARKING = "Marking"
    COMMITTED = "Committed"
    ABORTED = "Aborted"
    EXPIRED = "Expired"


Current = Callable[[str], bytes | None]
DECIDED = frozenset({JobState.PUBLISHING, JobState.MARKING, JobState.COMMITTED})
OVER = frozenset({JobState.COMMITTED, JobState.ABORTED, JobState.EXPIRED})


class PublishedPart(NamedTuple):
    """What a job has published to one partition: `records` events, the first and the last at these offsets. Events of
    others may be between. `first` -1: not known any more, which happens only after a restored backup."""

    topic: str
    partition: int
    first: int
    last: int
    records: int


class Job(NamedTuple):
    name: str
    state: JobState = JobState.OPEN
    ttl_ms: int = 0  # it expires when nothing comes from it for so long
    touched_ms: int = -1  # when something came last; of a job that is over: when it ended
    tokens: tuple[str, ...] = ()  # of the attempts that are published, in this order
    producer_id: int = -1  # of the transaction that it is published in
    published: tuple[PublishedPart, ...] = ()
    reason: str = ""  # why the broker aborted it
    topics: tuple[tuple[str, bytes], ...] = ()  # name and id of each topic that it is published to

    @property
    def publishing(self) -> bool:
        """Whether it is decided and not completed."""
        return self.state is JobState.PUBLISHING or self.state is JobState.MARKING


class StagedTask(NamedTuple):
    """What one attempt of a task stages for one topic. `id`: its token once it is sealed."""

    id: str
    topic: str
    topic_id: bytes
    task: str
    attempt: str
    sealed: bool = False
    size: int = 0  # bytes of its file
    counts: tuple[tuple[int, int], ...] = ()  # (partition, records), in the order of partitions
    keyless: bool = False  # some record has no key

    @property
    def records(self) -> int:
        return sum(count for _, count in self.counts)


def begin(found: Job | None, name: str, ttl_ms: int, now_ms: int, topic: str, current: Current) -> Job:
    """The job, once an attempt of one of its tasks stages events for `topic`. `current`: gives a topic's id by its
    name, None without such a topic.

    An expired job begins again: its staged events were dropped, so their tokens can't be committed. A committed job
    begins again if all topics that it was published to were deleted, even if others of their names exist now.

    Raises InvalidRequest, StagingFenced, StagingCommitted. Raises UnknownTopic when a committed job's events are partly
    there, because only some of its topics were deleted: publishing again would duplicate events, refusing would lose
    them.
    """
    check_name("job", name)
    if not 0 < ttl_ms <= MAX_TTL_MS:
        raise InvalidRequest(f"a ttl of {ttl_ms} ms; it may be 1 to {MAX_TTL_MS}")
    if found is None or found.state is JobState.EXPIRED or _all_gone(found, current):
        return Job(name, JobState.OPEN, ttl_ms, now_ms)
    if found.state is not JobState.OPEN:
        if lost := [of for of, id in found.topics if current(of) != id and (of == topic or current(of) is not None)]:
            which = f"the topic '{topic}'" if topic in lost else "a topic"  # its name may not be for the asker
            raise UnknownTopic(
                f"the job '{name:.80}' was committed, and {which} that it was published to was deleted since; others "
                "that it was published to are there still, so it is not published again: give it another name",
                **({"topic": topic} if topic in lost else {}),
            )
        raise refusal(found)
    return found._replace(ttl_ms=max(ttl_ms, found.ttl_ms), touched_ms=now_ms)


def _all_gone(found: Job, current: Current) -> bool:
    """Whether the job was committed, and all its topics were deleted since."""
    committed = found.state is JobState.COMMITTED
    return committed and bool(found.topics) and all(current(of) != id for of, id in found.topics)


def check_name(what: str, name: str) -> None:
    if not 0 < len(name) <= MAX_NAME:
        raise InvalidRequest(f"the name of a {what} has 1 to {MAX_NAME} characters, not {len(name)}")


def refusal(found: Job) -> BrokerError:
    """The error for a request to stage for a job that is not open."""
    if found.state is JobState.EXPIRED:
        return StagingExpired(
            f"the job '{found.name:.80}' sent nothing for {found.ttl_ms / 1000:g} s, so what it had staged was "
            "dropped: run it again, with a longer ttl if its tasks are silent for so long",
            job=found.name,
        )
    if found.state is JobState.ABORTED:
        why = f" by the broker ({found.reason})" if found.reason else ""
        return StagingFenced(
            f"the job '{found.name:.80}' was aborted{why}: run it again under another job id", job=found.name
        )
    return StagingCommitted(
        f"the job '{found.name:.80}' was committed already: nothing more is staged for it; commit_staged tells what it "
        "has published",
        job=found.name,
    )


def seal(staging: StagedTask, records: int) -> StagedTask:
    """The attempt, sealed, once it is durable. `records`: how many its sender counts. Raises InvalidRequest."""
    if staging.sealed:
        return staging
    if staging.records != records:
        raise InvalidRequest(
            f"{records} records were to be sealed, and {staging.records} are staged: something of this attempt failed; "
            "stage it again"
        )
    return staging._replace(sealed=True)


def commit(found: Job | None, name: str, tokens: Sequence[str], stagings: Mapping[str, StagedTask], now_ms: int) -> Job:
    """Decides to publish. If that was decided before, returns the job unchanged, whatever the tokens.

    Raises `refusal` of a job that is aborted or expired, UnknownStaging, and InvalidRequest for tokens that are not
    sealed or publish one task twice.
    """
    check_name("job", name)
    if found is not None and found.state in DECIDED:
        return found
    if found is not None and found.state is not JobState.OPEN:
        raise refusal(found)
    if len(set(tokens)) < len(tokens):
        raise InvalidRequest("a token is named twice")
    tasks: dict[tuple[str, str], StagedTask] = {}
    totals: dict[tuple[bytes, int], int] = {}
    for token in tokens:
        staging = stagings.get(token)
        if staging is None:
            raise UnknownStaging(
                f"the job '{name:.80}' has staged nothing under the token '{token:.80}': it may have been dropped, or "
                "be another job's; run the job again",
                token=token[:MAX_NAME],
            )
        if not staging.sealed:
            raise InvalidRequest(f"the attempt '{staging.attempt:.80}' of task '{staging.task:.80}' is not sealed")
        other = tasks.setdefault((staging.topic, staging.task), staging)
        if other is not staging:
            raise InvalidRequest(
                f"task '{staging.task:.80}' would be published twice to '{staging.topic}', by the attempts "
                f"'{other.attempt:.80}' and '{staging.attempt:.80}': commit the token of one attempt of each task"
            )
        for partition, count in staging.counts:
            at = staging.topic_id, partition
            totals[at] = totals.get(at, 0) + count
            if totals[at] > MAX_RECORDS:
                raise InvalidRequest(
                    f"more than {MAX_RECORDS} records for {staging.topic}-{partition} in one job: use several jobs"
                )
    job = found or Job(name)
    return job._replace(state=JobState.PUBLISHING, tokens=tuple(tokens), touched_ms=now_ms)


def written(found: Job, published: Sequence[PublishedPart], stagings: Iterable[StagedTask]) -> Job:
    """The job, once every batch is in its log and on disk."""
    topics = {(staging.topic, staging.topic_id): None for staging in stagings if staging.records}
    return found._replace(state=JobState.MARKING, published=tuple(published), topics=tuple(topics))


def complete(found: Job, now_ms: int) -> Job:
    """The job, once every marker is written."""
    return found._replace(state=JobState.COMMITTED, tokens=(), touched_ms=now_ms)


def fail(found: Job, now_ms: int, reason: str) -> Job:
    """The job, aborted by the broker, because what it staged can't be published as a whole."""
    return found._replace(state=JobState.ABORTED, tokens=(), touched_ms=now_ms, reason=reason[:MAX_REASON])


def abort(found: Job | None, name: str, now_ms: int) -> Job:
    """Aborts the job, so that nothing more can be staged; it may not have begun yet. Raises StagingCommitted."""
    check_name("job", name)
    if found is None:
        return Job(name, JobState.ABORTED, 0, now_ms)
    if found.state in DECIDED:
        raise StagingCommitted(
            f"the job '{found.name:.80}' was committed: what it staged is published, or about to be", job=found.name
        )
    if found.state is JobState.ABORTED:
        return found
    return found._replace(state=JobState.ABORTED, touched_ms=now_ms)


def overdue(found: Job, now_ms: int) -> bool:
    return found.state is JobState.OPEN and now_ms - found.touched_ms > found.ttl_ms


def expire(found: Job, now_ms: int) -> Job:
    return found._replace(state=JobState.EXPIRED, touched_ms=now_ms)
