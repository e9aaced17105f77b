"""The judge of staged jobs finds each way in which one can be wrong."""

from __future__ import annotations

from krappy.clients.staging import StagedCommit, StagedPartition
from tests.chaos.jobs import ChaosJob, JobFate, PublishedRow, check_jobs

ROWS = {b"j 0.0 0", b"j 0.0 1"}


def wrong(fate: JobFate, *seen: bytes, answer: StagedCommit | None = None) -> list[str]:
    there = [PublishedRow(0, 5 + number, value) for number, value in enumerate(seen)]
    return [each.text for each in check_jobs([ChaosJob("j", set(ROWS), ["t"], fate, answer)], there)]


def test_a_committed_job_is_there_whole_and_once() -> None:
    assert wrong(JobFate.COMMITTED, *ROWS) == []
    assert "lost" in wrong(JobFate.COMMITTED)[0]
    assert "half" in wrong(JobFate.COMMITTED, min(ROWS))[0]
    assert "more than once" in wrong(JobFate.COMMITTED, *ROWS, min(ROWS))[0]
    assert "not committed" in wrong(JobFate.COMMITTED, *ROWS, b"j 0.1 0")[0]


def test_what_was_not_committed_is_not_there() -> None:
    for fate in (JobFate.OPEN, JobFate.ABORTED):
        assert wrong(fate) == []
        assert "is there" in wrong(fate, *ROWS)[0]
        assert "is there" in wrong(fate, min(ROWS))[0]


def test_a_job_whose_end_is_not_known_is_there_or_not() -> None:
    assert wrong(JobFate.UNKNOWN) == wrong(JobFate.UNKNOWN, *ROWS) == []
    assert "half" in wrong(JobFate.UNKNOWN, min(ROWS))[0]


def test_a_job_is_where_its_answer_says() -> None:
    def answer(*where: int) -> StagedCommit:
        return StagedCommit("j", [StagedPartition("published", *where)])

    assert wrong(JobFate.COMMITTED, *ROWS, answer=answer(0, 5, 6, 2)) == []
    for other in ((1, 5, 6, 2), (0, 4, 6, 2), (0, 5, 6, 3)):
        assert "its answer" in wrong(JobFate.COMMITTED, *ROWS, answer=answer(*other))[0]


def test_rows_of_nobody() -> None:
    assert "nobody" in wrong(JobFate.COMMITTED, *ROWS, b"other 0.0 0")[0]
