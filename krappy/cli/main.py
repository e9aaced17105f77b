"""The entry point: runs a command, and turns every failure into one line on stderr and an exit status.

0    done                              2    wrong usage of the command line, or a setting is refused
1    an error                          3    `get`: the key is absent; 4: it was deleted
5    `pipeline reconcile`: they differ
130  Ctrl-C                            141  the reader of stdout has closed the pipe (as for SIGPIPE)
"""

from __future__ import annotations

import importlib
import itertools
import os
import pkgutil
import sys
import traceback
from functools import cache
from typing import Any, NoReturn

import click

from krappy.cli import commands
from krappy.cli.contexts import choose
from krappy.cli.errors import explain
from krappy.cli.help import Context
from krappy.cli.options import CommandGroup
from krappy.cli.output import ReaderIsGone, drop_stdout, to_json, visible
from krappy.errors import KrappyError
from krappy.memory import keep_freed_memory
from krappy.version import VERSION


@cache
def _names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))


class Commands(CommandGroup):
    """Finds the commands in `krappy.cli.commands`, and imports each only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return _names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = getattr(importlib.import_module(f"{commands.__name__}.{cmd_name}"), cmd_name)
        command.context_class = Context
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="krappy")
@click.option("--context", envvar="KRAPPY_CONTEXT", metavar="NAME", help="A context of ~/.config/krappy/config.toml.")
@click.option("--tls", is_flag=True, help="Connect with TLS; --ca or --cert mean that, too.")
@click.option("--ca", metavar="FILE", help="The authorities that may vouch for the broker (PEM).")
@click.option("--cert", metavar="FILE", help="The certificate and key to show to the broker (PEM).")
@click.option("--user", metavar="NAME", help="Who logs in; the password is asked for, or in --password-file.")
@click.option("--password-file", metavar="FILE", help="The file that holds the password.")
@click.option("--token-file", metavar="FILE", help="The file that holds a token of an identity provider.")
def cli(context: str | None, tls: bool, **given: str | None) -> None:
    """Krappy: an event broker whose topics are also tables.

    \b
    A first look, in two shells:
      krappy serve --data ./data
      echo u1:Ada | krappy produce users --sep :     # store an event with the key u1
      krappy get users u1                            # the latest value of that key
      krappy consume users --sep :                   # every event, then those to come

    Commands reach the broker at --address HOST:PORT, else at KRAPPY_ADDRESS, else at 127.0.0.1:7092. With TLS
    and users: `krappy --ca ca.pem --user ada topic list`, or --context NAME, which stands for all of that.

    Exit status: 0 done, 1 an error, 2 wrong usage or a refused setting, 130 Ctrl-C, 141 the reader of the output has
    closed the pipe. `get` exits with 3 when the key is absent and 4 when it was deleted. A `delete` or `remove` that
    finds nothing of that name is an error. An error is one line on stderr; with --json a JSON object with `error`,
    `name` (that of the broker's error, or null) and `status`.

    \b
    To complete commands, options and topic names, put one of these lines into the start-up file of your shell:
      eval "$(_KRAPPY_COMPLETE=bash_source krappy)"
      eval "$(_KRAPPY_COMPLETE=zsh_source krappy)"
      _KRAPPY_COMPLETE=fish_source krappy | source
    """
    choose(context, {**given, "tls": "true" if tls else None})


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit status. Raises nothing but SystemExit."""
    if "_KRAPPY_COMPLETE" in os.environ:
        cli.main(arguments, prog_name="krappy")  # the shell asks for a completion; exits
    try:
        with cli.make_context("krappy", list(arguments)) as context:
            result: Any = cli.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo(err=True)
        return 130
    except (BrokenPipeError, ReaderIsGone):
        drop_stdout()
        return 141
    except Exception as error:
        line, status = explain(error)
        if os.environ.get("KRAPPY_DEBUG"):
            traceback.print_exc()
        if "--json" in itertools.takewhile(lambda each: each != "--", arguments):
            name = error.name if isinstance(error, KrappyError) else None
            _say(to_json({"error": line, "name": name, "status": status}))
        else:
            _say(f"krappy: {line}")
        return status


def _say(line: str) -> None:
    try:
        sys.stdout.flush()
        click.echo(visible(line), err=True)  # the line may hold names that others chose
    except OSError:
        drop_stdout()


def _open_what_was_closed() -> None:
    """Opens /dev/null for each standard stream that the shell closed (`>&-`). Else a file or a socket would get its
    descriptor number."""
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def main() -> NoReturn:
    """`krappy` on the command line."""
    _open_what_was_closed()
    keep_freed_memory()
    sys.exit(run(sys.argv[1:]))
