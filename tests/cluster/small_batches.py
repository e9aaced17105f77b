"""A broker whose topics of groups and transactions take batches of a few kilobytes, in place of 16 MiB."""

from __future__ import annotations

from tests.process import Child, launcher

BATCH = 9_000  # bytes


def small_batches(arguments: list[str], stdin: int, stdout: int, stderr: int) -> Child:
    return launcher(__name__)(arguments, stdin, stdout, stderr)


def run(arguments: list[str]) -> int:
    from krappy.broker.topics import internal_topics
    from krappy.cli.main import run

    internal_topics._KEPT = {**internal_topics._KEPT, "max.message.bytes": str(BATCH)}
    return run(arguments)
