"""A job that is not over, as its coordinator has it in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from krappy.core.staging import Job, StagedTask
from krappy.errors import KrappyError
from krappy.waiting import Signal

if TYPE_CHECKING:
    from krappy.broker.staging.keeping import JobTerm
    from krappy.broker.staging.staged_attempt import StagedAttempt


class LiveJob:
    """Tasks that hold it see here when it is over. `term`: the term in which this broker coordinates it. `owner`: for
    whom it counts (`Principal.owner`); "": it was loaded."""

    def __init__(self, job: Job, term: JobTerm, owner: str = "") -> None:
        self.job, self.owner = job, owner
        self.term = term
        self.attempts: dict[str, StagedAttempt] = {}
        self.moved = Signal()  # the publication went on, or ended
        self.done = 0  # bytes of it that are published
        self.total = 0
        self.trouble: KrappyError | None = None  # why its publication waits now
        self.stale: list[Job] = []  # its states under older producer ids, whose transactions must still be aborted
        self.tried = False  # something may have been written under its producer id

    @property
    def staged(self) -> dict[str, StagedTask]:
        return {id: attempt.staging for id, attempt in self.attempts.items()}

    @property
    def published(self) -> list[StagedTask]:
        """What its commit has named, in that order."""
        return [self.attempts[token].staging for token in self.job.tokens]
