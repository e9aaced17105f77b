"""A broker that lets anybody write to internal topics: `krappy serve …` without the rule that forbids it."""

from __future__ import annotations

from tests.process import Child, launcher


def open_doors(arguments: list[str], stdin: int, stdout: int, stderr: int) -> Child:
    return launcher(__name__)(arguments, stdin, stdout, stderr)


def run(arguments: list[str]) -> int:
    from krappy.broker import access
    from krappy.cli.main import run

    access.CHANGES = frozenset()
    return run(arguments)
