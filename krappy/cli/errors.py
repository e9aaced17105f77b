"""Error messages of the command line: one line that says what failed and what to do."""

from __future__ import annotations

import click

from krappy import errors

# Advice that is added to the error's own text. That text does not name commands or options.
HINTS: dict[type[errors.KrappyError], str] = {
    errors.UnknownTopic: "`krappy topic list` shows all topics",
    errors.UnknownGroup: "`krappy group list` shows all groups",
    errors.SecurityDisabled: "ACLs need `krappy serve --authorizer acl` and --super-users (krappy/docs/howto/acls.md)",
    errors.TopicExists: "with --if-absent that is no error; `krappy topic alter` changes the topic",
    errors.GroupNotEmpty: "stop its members first",
    errors.GroupFull: "the group has the most members that it may have: stop one first",
    errors.ViewDisabled: "`krappy topic alter --config view.enable=true` turns the view on",
    errors.OffsetOutOfRange: "`krappy topic describe` shows each partition's first and next offset",
    errors.RecordTooLarge: "`krappy topic alter --config max.message.bytes=…` raises the limit",
    errors.CorruptBatch: "stop the broker and run `krappy doctor`",
    errors.ShuttingDown: "try again when the broker has restarted",
}


class Failure(click.ClickException):
    """An error of a command itself. Its text is shown as it is."""

    exit_code = 1


def explain(error: BaseException) -> tuple[str, int]:
    """The line to show and the exit status, for any exception of a command."""
    while isinstance(error, BaseExceptionGroup):  # trio and anyio wrap the exceptions of their tasks
        known = (one for one in error.exceptions if isinstance(one, errors.KrappyError | BaseExceptionGroup))
        error = next(known, error.exceptions[0])
    if isinstance(error, click.UsageError):
        asked = f" (`{error.ctx.command_path} --help` explains)" if error.ctx else ""
        return _line(error.format_message()) + asked, error.exit_code
    if isinstance(error, click.ClickException):
        return _line(error.format_message()), error.exit_code
    if isinstance(error, errors.ConfigError) and not isinstance(error, errors.Unavailable):
        return _line(error.text), click.UsageError.exit_code  # of a setting: a flag, a variable or the file
    if isinstance(error, errors.KrappyError):
        hint = next((HINTS[kind] for kind in type(error).__mro__ if kind in HINTS), None)
        if isinstance(error, errors.RecordTooLarge) and "max.message.bytes" not in error.text:
            hint = None  # it is another limit, such as that of a frame
        if near := error.details.get("near"):
            hint = f"did you mean '{near}'?"
        return _line(error.text) + (f"; {hint}" if hint else ""), 1
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return _line(name + (error.strerror or str(error) or type(error).__name__)), 1
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"a mistake in krappy itself: {_line(what)} (KRAPPY_DEBUG=1 shows where)", 1


def _line(text: str) -> str:
    return " ".join(text.split())
