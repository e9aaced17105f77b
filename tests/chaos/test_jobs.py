"""The check of staged jobs finds each way in which a job can be wrong."""

from __future__ import annotations

from krappy.clients.staging import StagedCommit, StagedPartition
from tests.chaos.jobs import ChaosJob, JobFate, PublishedRow, check_jobs
from tests.chaos.replicas import TransactionSpan
from tests.chaos.spark import ReadPart, Unseen, check_copied, check_read, check_unseen

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


def read_of(fate: JobFate, *parts: ReadPart) -> tuple[list[str], list[Unseen]]:
    return check_read([ChaosJob("spark-0", set(ROWS), [], fate)], parts)


def part(rows: int, different: int, index: int = 0) -> ReadPart:
    return ReadPart("spark-0", index, rows, different, 9)


def test_a_read_has_what_is_committed_whole_and_once() -> None:
    fate = JobFate.COMMITTED
    assert read_of(fate, part(2, 2)) == read_of(fate, part(1, 1), part(1, 1, 1)) == ([], [])
    for rows, different in ((2, 1), (4, 2), (3, 3)):
        assert "2" in read_of(fate, part(rows, different))[0][0]
    assert read_of(fate) == ([], [Unseen("spark-0", 0, {})])
    assert read_of(fate, part(1, 1)) == ([], [Unseen("spark-0", 1, {0: 9})])
    assert "not begun" in check_read([], [part(2, 2)])[0][0]
    assert check_read([], [ReadPart("job0-0", 0, 1, 1, 9)]) == ([], [])


def span(first: int, end: int, job: str = "other-0", *, is_committed: bool = True) -> TransactionSpan:
    values = dict.fromkeys(range(first, first + 2), f"{job} 0".encode())
    return TransactionSpan(first, end, is_committed, values)


def test_a_read_lacks_only_what_is_behind_an_open_transaction() -> None:
    own, tried = span(20, 25, "spark-0"), span(11, 13, "spark-0", is_committed=False)
    for before in (span(10, 30), span(10, 30, is_committed=False)):
        assert list(check_unseen(Unseen("spark-0", 0, {0: 9}), {0: [before, tried, own], 1: []})) == []
    for others in ([], [span(10, 22)], [span(22, 30)], [span(4, 30)]):
        assert "no transaction" in next(check_unseen(Unseen("spark-0", 0, {0: 9}), {0: [*others, tried, own]}))
    assert "no transaction" in next(check_unseen(Unseen("spark-0", 0, {}), {0: [own]}))
    gone = Unseen("spark-0", 1, {0: 9, 1: 40})
    assert "2 are before" in next(check_unseen(gone, {0: [span(10, 30), own], 1: [span(30, 35, "spark-0")]}))


def test_a_read_may_have_what_is_being_committed() -> None:
    for rows in (0, 1, 2):
        assert read_of(JobFate.UNKNOWN, part(rows, rows)) == ([], [])
    assert read_of(JobFate.UNKNOWN, part(2, 1))[0]


def test_a_copy_has_each_event_once() -> None:
    assert check_copied([b"a", b"b", b"a"], [b"a", b"a", b"b"]) == []
    assert "too few" in check_copied([b"a", b"a"], [b"a"])[0]
    assert "too often" in check_copied([b"a"], [b"a", b"a"])[0]
