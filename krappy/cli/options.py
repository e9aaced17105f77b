"""Options that several commands share, and the types that convert what the user types."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from krappy.cli.contexts import login
from krappy.cli.errors import Failure
from krappy.cli.help import Context
from krappy.cli.output import BASE64, visible
from krappy.clients.values import ADDRESS_VARIABLE, DEFAULT_ADDRESS
from krappy.errors import KrappyError, UnknownTopic
from krappy.settings import units

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from krappy.blocking import Client

F = TypeVar("F", bound=Callable[..., Any])
TOKEN_VARIABLE = "KRAPPY_CONSOLE_TOKEN"
_AGO = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def address_option(command: F) -> F:
    return click.option(
        "--address",
        metavar="HOST:PORT",
        envvar=ADDRESS_VARIABLE,
        default=DEFAULT_ADDRESS,
        show_default=True,
        show_envvar=True,
        help="The broker to connect to; several of a cluster with commas between them.",
    )(command)


def console_token_option(command: F) -> F:
    """The file of the console's token (`console_token`). What stands on a command line itself, others on the machine
    can see."""
    return click.option(
        "--console-token-file",
        "token_file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help=f"The file that holds the console's token.  [default: the token is in ${TOKEN_VARIABLE}]",
    )(command)


def console_token(file: Path | None) -> str | None:
    """The console's token: that in the file, or in the environment. Raises Failure."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE)
    try:
        return file.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise Failure(f"the file of the console's token can't be read: {error}") from None


def data_option(help: str) -> Callable[[F], F]:
    """--data, for commands that work on the data folder of a stopped broker."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="KRAPPY_DATA",
        default=Path("krappy-data"),
        show_default=True,
        show_envvar=True,
        help=help,
    )


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def partition_option(command: F) -> F:
    return click.option(
        "-p",
        "--partition",
        "partitions",
        type=click.IntRange(min=0),
        multiple=True,
        metavar="N",
        help="Only this partition; may be given several times. Default: all.",
    )(command)


@contextmanager
def connect(address: str) -> Iterator[Client]:
    """A blocking client for one command. Raises ConnectionLost at once, without retries, when no broker answers. If the
    block raises UnknownTopic, the error's details get the name of the topic that is nearest, as `near`."""
    from krappy import blocking

    with blocking.connect(address, **login()) as client:  # type: ignore[arg-type]
        try:
            yield client
        except UnknownTopic as error:
            with suppress(KrappyError):
                names = [topic.name for topic in client.topics()]
                import difflib  # imported only when a name is wrong

                near = difflib.get_close_matches(str(error.details.get("topic", "")), names, n=1)
                error.details.update({"near": near[0]} if near else {})
            raise


def moment(text: str) -> datetime:
    """A point in time: ISO 8601 (UTC without a zone), `@` and milliseconds since the epoch, or an age such as 90s, 15m,
    2h or 7d. Raises BadParameter."""
    try:
        if text.startswith("@"):
            return datetime.fromtimestamp(int(text[1:]) / 1000, UTC)
        if found := _AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: float(found[1])})
        parsed = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"'{text}' is no offset and no time such as 2026-01-31T12:00:00Z, @1769860800000, 15m or 2h"
        ) from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


class Lifetime(click.ParamType):  # type: ignore[type-arg]
    """How long something is kept, such as 12h or 7d, or `forever`. Becomes milliseconds; -1 for `forever`."""

    name = "lifetime"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "DURATION|forever"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value == "forever":
            return -1
        found = _AGO.fullmatch(value)
        try:
            kept = timedelta(**{_UNITS[found[2]]: float(found[1])}) if found else timedelta()
        except OverflowError:
            kept = timedelta()
        if not kept:
            self.fail(f"'{value}' is no time such as 90m, 12h or 7d, nor forever", param, ctx)
        return max(1, kept // timedelta(milliseconds=1))


class Quantity(click.ParamType):  # type: ignore[type-arg]
    """A plain number, or one with a unit of bytes or of time (`krappy.settings.units`). One with a unit is divided by
    `each`, in bytes or ms. The result is at least `low`."""

    name = "number"

    def __init__(self, unit: str, each: int, low: float) -> None:
        self._unit, self._each, self._low = unit, each, low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = units.read(value, self._unit)
            found = float(number) if number is value else number / self._each
        except ValueError:
            self.fail(f"'{value}' is no number, nor one with a unit {units.EXAMPLES[self._unit]}", param, ctx)
        if not self._low <= found < math.inf:
            self.fail(f"at least {self._low:g} is needed", param, ctx)
        return found


class Bytes(click.IntRange):
    """A whole number of bytes, which may have a unit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            value = units.read(value, units.BYTES)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return int(super().convert(value, param, ctx))


class CommandGroup(click.Group):
    """A group of commands that suggests the nearest command for a misspelt one."""

    context_class = Context

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.context_class = Context
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(args))
        except click.NoSuchOption as error:
            if names := self._names_of_command_with(error.option_name, ctx, args):
                ctx.fail(
                    f"'{error.option_name}' goes after the command: {ctx.command_path} {names} {error.option_name}"
                )
            raise

    def _names_of_command_with(self, option: str, ctx: click.Context, args: list[str]) -> str:
        """The command that is named among the arguments, such as `topic list`, if it has the option; else nothing."""
        command: click.Command = self
        names = []
        for each in args:
            found = command.get_command(ctx, each) if isinstance(command, click.Group) else None
            if found is not None:
                command = found
                names.append(each)
        return " ".join(names) if any(option in parameter.opts for parameter in command.params) else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the first sentence of each command's help in full; click would cut it at the line's end."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(1000)) for name, each in found if each is not None])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib  # imported only when a name is wrong

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            ctx.fail(f"there is no command '{args[0]}'" + (f"; did you mean '{near[0]}'?" if near else ""))
        return super().resolve_command(ctx, args)


class DefaultCommandGroup(CommandGroup):
    """A group whose command `show` is run when none is named: `krappy cluster --json`."""

    default = "show"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args and args[0] in ctx.help_option_names else self._named(args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, self._named(args))

    def _named(self, args: list[str]) -> list[str]:
        return [self.default, *args] if not args or args[0].startswith("-") else args


class Start(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """A position in a log: `earliest`, `latest`, an offset, or a time. Becomes a str, an int or a datetime."""

    name = "position"

    def __init__(self, *words: str) -> None:
        self.words = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "|".join((*self.words, "OFFSET", "TIME"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int | datetime:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        if value in self.words:
            return value
        if value.isascii() and value.isdigit():
            return int(value)
        try:
            return moment(value)
        except click.BadParameter as error:
            self.fail(f"{error.message}; nor one of {', '.join(self.words)}", param, ctx)


class Separator(click.ParamType):  # type: ignore[type-arg]
    r"""The text between key and value. `\t`, `\n` and `\0` stand for the characters."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        found = str(value).replace("\\t", "\t").replace("\\n", "\n").replace("\\0", "\0")
        if not found:
            self.fail("it must not be empty", param, ctx)
        return found


class SettingOption(click.ParamType):  # type: ignore[type-arg]
    """NAME=VALUE. Becomes (name, value)."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, given = str(value).partition("=")
        if not equals or not name:
            self.fail(f"'{value}' is not NAME=VALUE", param, ctx)
        return name.strip(), given.strip()


def key_bytes(text: str) -> bytes:
    """The bytes of a key as typed: its UTF-8, or the decoded base64 after `base64:`. Raises BadParameter."""
    if text.startswith(BASE64):
        import base64

        try:
            return base64.b64decode(text.removeprefix(BASE64), validate=True)
        except ValueError:
            raise click.BadParameter(f"'{text}' is not base64") from None
    return text.encode(errors="surrogateescape")


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem | str]:
    """Topic names for the shell's completion; none when no broker answers."""
    return _complete(ctx, incomplete, lambda client: [topic.name for topic in client.topics()])


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem | str]:
    return _complete(ctx, incomplete, lambda client: [group.group for group in client.groups()])


def _complete(ctx: click.Context, incomplete: str, ask: Callable[[Client], list[str]]) -> list[CompletionItem | str]:
    address = ctx.params.get("address") or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    try:
        with connect(address) as client:
            # A line end in the name of a group would make it several proposals.
            return [name for name in ask(client) if name.startswith(incomplete) and name == visible(name)]
    except Exception:  # a completion can't show errors
        return []


def confirm(question: str, yes: bool) -> None:
    """Asks before something is deleted, unless `yes`. Ends the command with status 1 when the answer is no; raises
    Failure when stdin is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(f"{question} There is no terminal to ask on: give --yes")
    if not click.confirm(question, err=True):
        click.echo("nothing was changed", err=True)
        raise click.exceptions.Exit(1)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start
