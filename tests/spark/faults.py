"""Writers that fail where they are told to, with everything else as it is: for tests of what is retried and aborted."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from krappy.spark.options import parse
from krappy.spark.source import KrappyDataSource
from krappy.spark.stream_write import StreamWriter
from krappy.spark.write import BatchWriter

register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call] # Spark's workers do not find the tests

NOWHERE, STAGED, ABORTED, DIED, PUBLISHED = "nowhere", "staged", "aborted", "died", "published"


class Fault(Exception):
    pass


class Failing:
    """Fails once at one point: after a task has staged its rows (`STAGED`); in the place of the commit, and then the
    write is aborted (`ABORTED`), or is not, as when a driver is killed (`DIED`); or after the commit (`PUBLISHED`). A
    file remembers that it has failed."""

    def __init__(self, at: str, once: Path) -> None:
        self.at = at
        self.once = once

    def __call__(self, point: str) -> None:
        if self.at == point:
            try:
                self.once.touch(exist_ok=False)
            except FileExistsError:
                return
            raise Fault(f"failed as told: {point}")


class FailingBatchWriter(BatchWriter):
    def __init__(self, schema: StructType, options: Any, overwrite: bool, fail: Failing) -> None:
        super().__init__(schema, options, overwrite)
        self._fail = fail

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        message = super().write(iterator)
        self._fail(STAGED)
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._fail(ABORTED)
        self._fail(DIED)
        super().commit(messages)
        self._fail(PUBLISHED)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._fail.at != DIED:
            super().abort(messages)


class FailingStreamWriter(StreamWriter):
    def __init__(self, schema: StructType, options: Any, overwrite: bool, fail: Failing) -> None:
        super().__init__(schema, options, overwrite)
        self._fail = fail

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        message = super().write(iterator)
        self._fail(STAGED)
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._fail(ABORTED)
        self._fail(DIED)
        super().commit(messages, batchId)
        self._fail(PUBLISHED)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if self._fail.at != DIED:
            super().abort(messages, batchId)


class FailingSource(KrappyDataSource):
    """The data source `krappy-failing`: it has the options failAt and failOnce beside those of `krappy`."""

    def __init__(self, options: Any) -> None:
        own = {name.lower(): value for name, value in options.items()}
        self._fail = Failing(own.pop("failat", NOWHERE), Path(own.pop("failonce", "")))
        super().__init__(own)

    @classmethod
    def name(cls) -> str:
        return "krappy-failing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return FailingBatchWriter(schema, parse(self.options, "write"), overwrite, self._fail)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        found: Any = FailingStreamWriter(schema, parse(self.options, "writeStream"), overwrite, self._fail)
        return found  # type: ignore[no-any-return]
