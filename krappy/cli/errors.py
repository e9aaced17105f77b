"""What a person is told when something fails: one line, with what to do about it."""

from __future__ import annotations

import click

from krappy import errors

# What may help, for errors whose own text cannot know the command line.
HINTS: dict[type[errors.KrappyError], str] = {
    errors.UnknownTopic: "`krappy topic list` shows those there are",
    errors.UnknownGroup: "`krappy group list` shows those there are",
    errors.TopicExists: "--if-absent makes that no error; `krappy topic alter` changes it",
    errors.GroupNotEmpty: "stop its members first",
    errors.GroupFull: "a group has room for no more members",
    errors.ViewDisabled: "`krappy topic alter --config view.enable=true` turns the view on",
    errors.OffsetOutOfRange: "`krappy topic describe` shows each partition's first and next offset",
    errors.RecordTooLarge: "`krappy topic alter --config max.message.bytes=…` raises the limit",
    errors.CorruptBatch: "stop the broker and run `krappy doctor`",
    errors.ShuttingDown: "try again when it runs again",
}


class Failure(click.ClickException):
    """An error of a command itself, in its final words."""

    exit_code = 1


def explain(error: BaseException) -> tuple[str, int]:
    """(the line to show, the exit status) for whatever a command raised."""
    while isinstance(error, BaseExceptionGroup):  # trio and anyio wrap what their tasks raise
        known = (one for one in error.exceptions if isinstance(one, errors.KrappyError | BaseExceptionGroup))
        error = next(known, error.exceptions[0])
    if isinstance(error, click.UsageError):
        asked = f" (`{error.ctx.command_path} --help` explains)" if error.ctx else ""
        return _line(error.format_message()) + asked, error.exit_code
    if isinstance(error, click.ClickException):
        return _line(error.format_message()), error.exit_code
    if isinstance(error, errors.ConfigError) and not isinstance(error, errors.Unavailable):
        return _line(error.text), click.UsageError.exit_code  # wherever it was given: a flag, the environment, a file
    if isinstance(error, errors.KrappyError):
        hint = next((HINTS[kind] for kind in type(error).__mro__ if kind in HINTS), None)
        return _line(error.text) + (f"; {hint}" if hint else ""), 1
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return _line(name + (error.strerror or str(error) or type(error).__name__)), 1
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"a mistake in krappy itself: {_line(what)} (KRAPPY_DEBUG=1 shows where)", 1


def _line(text: str) -> str:
    return " ".join(text.split())
