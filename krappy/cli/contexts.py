"""Which broker the commands talk to, and as which user: options before the command, and contexts in a file.

    # ~/.config/krappy/config.toml, or the file that $KRAPPY_CONTEXTS names
    [context.prod]
    address = "krappy.example:7092"
    ca = "/etc/krappy/ca.pem"
    user = "ada"
    password_file = "/home/ada/.krappy-password"

In place of `password_file`, `password_command` is a command that prints the password: a text or an array. In place of
user and password, `token_file` names a file with a token of an identity provider, and `token_command` a command that
prints one. Commands are run without a shell and without input, anew for each connection.

What is chosen is put into this process's environment, from which the clients take it; it wins over what is there.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click

from krappy.cli.errors import Failure
from krappy.clients.security import CA, CERT, PASSWORD_FILE, TLS, TOKEN_FILE, USER, Password
from krappy.clients.values import ADDRESS_VARIABLE
from krappy.errors import ConfigError

FILE_VARIABLE = "KRAPPY_CONTEXTS"
PASSWORD_COMMAND, TOKEN_COMMAND = "KRAPPY_PASSWORD_COMMAND", "KRAPPY_TOKEN_COMMAND"
COMMAND_SECONDS = 60.0  # a person may have to unlock something
VARIABLES = {
    "address": ADDRESS_VARIABLE,
    "tls": TLS,
    "ca": CA,
    "cert": CERT,
    "user": USER,
    "password_file": PASSWORD_FILE,
    "password_command": PASSWORD_COMMAND,
    "token_file": TOKEN_FILE,
    "token_command": TOKEN_COMMAND,
}
PASSWORDS = ("password_file", "password_command")
TOKENS = ("token_file", "token_command")


def choose(context: str | None, given: Mapping[str, str | None]) -> None:
    """Takes a context by its name, and what was `given` besides: values by the names of `VARIABLES`. Raises Failure."""
    found = {} if context is None else _read(context)
    chosen = {name: value for name, value in given.items() if value is not None}
    if sum(name in found for name in ("user", *TOKENS)) > 1:
        raise Failure(f"the context {context} has more than one of user, {' and '.join(TOKENS)}")
    if all(name in found for name in PASSWORDS):
        raise Failure(f"the context {context} has {' and '.join(PASSWORDS)}: give one of them")
    if "user" in chosen or "password_file" in chosen:  # another user has another password
        found = {name: value for name, value in found.items() if name not in PASSWORDS}
    _put(found)
    _put(chosen)


def _put(values: Mapping[str, str]) -> None:
    """Puts values into the environment, and removes those that they replace: a token replaces user and password, a user
    replaces a token, and a new password or token replaces the old one."""
    others: set[str] = set()
    if any(name in values for name in TOKENS):
        others = {"user", *PASSWORDS, *TOKENS}
    elif "user" in values:
        others = {*TOKENS}
    if any(name in values for name in PASSWORDS):
        others |= {*PASSWORDS}
    for name in others:
        os.environ.pop(VARIABLES[name], None)
    os.environ.update({VARIABLES[name]: value for name, value in values.items()})


def _read(context: str) -> dict[str, str]:
    file = Path(os.environ.get(FILE_VARIABLE) or _folder() / "config.toml")
    try:
        contexts = tomllib.loads(file.read_text("utf-8")).get("context", {})
    except OSError as error:
        raise Failure(f"the context {context} is to be in {file}, which can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Failure(f"{file} is not TOML: {error}") from None
    if not isinstance(contexts, dict):
        raise Failure(f"{file}: 'context' is no table; [context.{context}] begins the lines of one context")
    found = contexts.get(context)
    if not isinstance(found, dict):
        raise Failure(f"{file} has no [context.{context}]; it has {', '.join(contexts) or 'none'}")
    if wrong := sorted(set(found) - set(VARIABLES)):
        raise Failure(f"{file}: [context.{context}] has '{wrong[0]}'; there are {', '.join(VARIABLES)}")
    texts = {name: _text(value) for name, value in found.items()}
    if wrong := [name for name, text in texts.items() if "\0" in text]:
        raise Failure(f"{file}: [context.{context}]: '{wrong[0]}' has a NUL")
    return texts


def _text(value: object) -> str:
    if isinstance(value, list):
        return shlex.join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "krappy"


def login() -> dict[str, str | Password]:
    """The user and the password for a client, if there is a user without a password file: a command prints the
    password, or it is asked for on the terminal, once. Or the token, if a command prints one. Else nothing, because the
    client finds them itself. Raises Failure when there is no terminal to ask on."""
    user = os.environ.get(USER)
    if not user and (command := os.environ.get(TOKEN_COMMAND)):
        return {"token": partial(_printed, command, "token_command")}
    if user and (command := os.environ.get(PASSWORD_COMMAND)):
        return {"user": user, "password": partial(_printed, command, "password_command")}
    if not user or os.environ.get(PASSWORD_FILE):
        return {}
    if user not in _asked:
        if not os.isatty(0):
            raise Failure(f"the password of {user} is needed: give --password-file, or set {PASSWORD_FILE}")
        _asked[user] = str(click.prompt(f"Password of {user}", hide_input=True, err=True))
    return {"user": user, "password": lambda: _asked[user]}


def _printed(command: str, setting: str) -> str:
    """What the command prints. Raises ConfigError, which ends a client; after another error it would try again."""
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE  # what comes by stdin is for `krappy`
    try:
        done = subprocess.run(shlex.split(command), stdin=nothing, stdout=pipe, timeout=COMMAND_SECONDS, check=True)
        return done.stdout.decode().strip("\r\n")
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        why = f"it ended with {error.returncode}" if isinstance(error, subprocess.CalledProcessError) else str(error)
        raise ConfigError(f"{setting}: {why}") from None


_asked: dict[str, str] = {}  # passwords, by user
