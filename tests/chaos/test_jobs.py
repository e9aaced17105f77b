"""The judge of staged jobs finds each way in which one can be wrong."""

from __future__ import annotations

from krappy.clients.staging import StagedCommit, StagedPartition
from tests.chaos.jobs import ChaosJob, JobFate, PublishedRow, check_jobs
from tests.chaos.spark import check_copied, check_read

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


def read_of(fate: JobFate, rows: int, different: int) -> list[str]:
    return check_read([ChaosJob("spark-0", set(ROWS), [], fate)], {"spark-0": (rows, different)})


def test_a_read_has_what_is_committed_whole_and_once() -> None:
    assert read_of(JobFate.COMMITTED, 2, 2) == []
    for rows, different in ((0, 0), (1, 1), (2, 1), (4, 2), (3, 3)):
        assert "2" in read_of(JobFate.COMMITTED, rows, different)[0]
    assert "committed" in check_read([ChaosJob("spark-0", set(ROWS), [], JobFate.COMMITTED)], {})[0]
    assert "not begun" in check_read([], {"spark-0": (2, 2)})[0]


def test_a_read_may_have_what_is_being_committed() -> None:
    for rows in (0, 1, 2):
        assert read_of(JobFate.UNKNOWN, rows, rows) == []
    assert read_of(JobFate.UNKNOWN, 2, 1)


def test_a_copy_has_each_event_once() -> None:
    assert check_copied([b"a", b"b", b"a"], [b"a", b"a", b"b"]) == []
    assert "too few" in check_copied([b"a", b"a"], [b"a"])[0]
    assert "too often" in check_copied([b"a"], [b"a", b"a"])[0]
