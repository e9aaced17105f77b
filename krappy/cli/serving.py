"""What `krappy serve` and `krappy broker` share: the broker's settings as options, and a broker in the foreground."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from krappy.cli import argv, output
from krappy.cli.contexts import FILE_VARIABLE, VARIABLES
from krappy.cli.errors import Failure
from krappy.settings.described import describe
from krappy.settings.listeners import HTTP
from krappy.settings.server import PREFIX, SPECS, ServerConfig, load
from krappy.settings.spec import is_secret
from krappy.version import VERSION

if TYPE_CHECKING:
    from krappy.app import Broker

F = TypeVar("F", bound=Callable[..., Any])
STOPS = (signal.SIGTERM, signal.SIGHUP)  # under nohup SIGHUP stays ignored
OURS = {
    *VARIABLES.values(),
    "KRAPPY_CONTEXT",
    FILE_VARIABLE,
    "KRAPPY_CONSOLE_URL",
    "KRAPPY_DEBUG",
}  # variables of the command line, not settings of a broker


def settings_options(command: F) -> F:
    """A flag for each setting of the broker."""
    for row in reversed(describe()):
        command = click.option(
            row.flag,
            row.name,
            metavar=row.kind if "|" in row.kind else row.kind.upper(),
            help=f"{_sentence(row.doc)}.  [default: {row.default}; env: {row.variable}]",
        )(command)
    return command


def _sentence(doc: str) -> str:
    """The text with a capital at its beginning, unless it begins with a name, such as `cleanup.policy` or `https:`."""
    return doc if re.match(r"[a-z]+([.:]| of topics:)", doc) else doc[0].upper() + doc[1:]


class SettingsCommand(click.Command):
    """A command whose help shows the settings under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = {row.name: row.section for row in describe()}
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None:
                rows.setdefault(sections.get(param.name or "", "Options"), []).append(record)
        for section, records in rows.items():
            with formatter.section(section):
                formatter.write_dl(records)


def serve_options(command: F) -> F:
    """The options of a command that runs a broker: `file`, `as_json`, `until_eof`, and a flag for each setting."""
    for option in reversed(
        (
            click.option(
                "--config",
                "file",
                type=click.Path(path_type=Path, dir_okay=False),
                help="A TOML file of settings: the names below, with _ for -, at the top level.  [env: KRAPPY_CONFIG]",
            ),
            settings_options,
            click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON."),
            click.option(
                "--until-eof", is_flag=True, hidden=True, help="Stop when stdin ends, as when its parent dies."
            ),
        )
    ):
        command = option(command)
    return command


def run_in_foreground(file: Path | None, flags: Mapping[str, str | None], as_json: bool, until_eof: bool) -> None:
    """Runs a broker until it is told to stop. `flags`: settings by name; None: not given."""
    for name in (spec.name for spec in SPECS.values() if is_secret(spec)):
        given = flags[name]
        if given and argv.hide(given):
            flag = flag_of(name)
            output.note(
                f"{flag} was visible in `ps` for a moment, and is in the shell's history: use {flag}-file or "
                f"{PREFIX}{name.upper()} instead"
            )
    with _ended_by_signals():
        _serve(file, flags, as_json, until_eof)


def _serve(file: Path | None, flags: Mapping[str, str | None], as_json: bool, until_eof: bool) -> None:
    config = load_settings(flags, file)
    gc.disable()  # modules stay: looking for garbage among them would take a tenth of the imports' time
    try:
        import trio

        from krappy import app, logs
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("krappy"):
            raise
        raise Failure(f"a broker needs {error.name}, which is not installed: pip install 'krappy[broker]'") from None
    finally:
        gc.enable()
    config = _without_console(config)
    if until_eof:
        threading.Thread(target=_stop_at_eof, daemon=True).start()
    report = logs.Reporter(logs.Logger(config.log_level, config.log_format))

    def ready(broker: Broker) -> None:
        try:
            _announce(config, broker, as_json)
        except BrokenPipeError:
            raise
        except OSError:  # stdout is a file on a full disk; the broker serves all the same
            output.drop_stdout()

    trio.run(partial(app.serve, config, report=report, ready=ready))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Makes signals end the process until the broker handles them itself; nothing is open before that. Needed because
    the first process of a container ignores signals without a handler (pid_namespaces(7))."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        os._exit(0)

    taken = [number for number in STOPS if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def load_settings(flags: Mapping[str, str | None], file: Path | None) -> ServerConfig:
    """A broker's settings. Those variables of the environment that are for clients are left out. Raises ConfigError."""
    return load(flags, {name: value for name, value in os.environ.items() if name not in OURS}, file, flag_of)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def _without_console(config: ServerConfig) -> ServerConfig:
    """The settings without a console if its packages are missing. Raises Failure when one was asked for."""
    from krappy import extras

    missing = extras.missing_for_console()
    if not missing or config.listen_http is None:
        return config
    why = f"the console needs {', '.join(missing)}, which is not installed: pip install 'krappy[console]'"
    if config.listen_http != ServerConfig.__dataclass_fields__["listen_http"].default:
        raise Failure(f"{why}, or give --listen-http none")
    output.note(f"no console: {why}")
    return replace(config, listen_http=None)


def _stop_at_eof() -> None:
    # Not sys.stdin: a thread that waits inside a buffered file aborts the interpreter's exit.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _announce(config: ServerConfig, broker: Broker, as_json: bool) -> None:
    listening = {**dict.fromkeys(("native", "kafka", "http")), **broker.addresses}
    if as_json:
        facts = {"ready": True, **listening, "data": str(config.data.absolute()), "pid": os.getpid()}
        output.emit_json({**facts, "version": VERSION})
        return
    lines = [f"krappy {VERSION}, process {os.getpid()}, data in {config.data.absolute()}"]
    http = config.listener(HTTP)
    scheme = "https" if http is not None and http.has_tls else "http"
    shown = {**listening, "http": listening["http"] and f"{scheme}://{listening['http']}/"}
    if any(name.startswith("kafka ") and address == shown["kafka"] for name, address in shown.items()):
        del shown["kafka"]  # the first one has a name
    where = ", ".join(address if name == "http" else f"{name} {address}" for name, address in shown.items() if address)
    if where:
        lines.append(f"listening: {where}")
    output.write_lines(lines)
