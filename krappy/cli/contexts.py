"""Whom the commands talk to, and as whom: options before the command, and contexts in a file.

    # ~/.config/krappy/config.toml, or the file that $KRAPPY_CONTEXTS names
    [context.prod]
    address = "krappy.example:7092"
    ca = "/etc/krappy/ca.pem"
    user = "ada"
    password_file = "/home/ada/.krappy-password"

What is chosen is put into this process's environment, from which the clients take it; it wins over what is there.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

import click

from krappy.cli.errors import Failure
from krappy.clients.security import CA, CERT, PASSWORD_FILE, TLS, USER, Password
from krappy.clients.values import ADDRESS_VARIABLE

FILE_VARIABLE = "KRAPPY_CONTEXTS"
VARIABLES = {
    "address": ADDRESS_VARIABLE,
    "tls": TLS,
    "ca": CA,
    "cert": CERT,
    "user": USER,
    "password_file": PASSWORD_FILE,
}


def choose(context: str | None, given: Mapping[str, str | None]) -> None:
    """Takes a context by its name, and what was `given` besides, by the names of `VARIABLES`. Raises Failure."""
    found = {} if context is None else _read(context)
    if any(given.get(name) is not None for name in ("user", "password_file")):  # another user has another password
        found.pop("password_file", None)
    for name, value in {**found, **{name: value for name, value in given.items() if value is not None}}.items():
        os.environ[VARIABLES[name]] = value


def _read(context: str) -> dict[str, str]:
    file = Path(os.environ.get(FILE_VARIABLE) or _folder() / "config.toml")
    try:
        contexts = tomllib.loads(file.read_text("utf-8")).get("context", {})
    except OSError as error:
        raise Failure(f"the context {context} is to be in {file}, which can't be read: {error.strerror}") from None
    except ValueError as error:
        raise Failure(f"{file} is not TOML: {error}") from None
    found = contexts.get(context)
    if not isinstance(found, dict):
        raise Failure(f"{file} has no [context.{context}]; it has {', '.join(contexts) or 'none'}")
    if wrong := sorted(set(found) - set(VARIABLES)):
        raise Failure(f"{file}: [context.{context}] has '{wrong[0]}'; there are {', '.join(VARIABLES)}")
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()}


def _folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "krappy"


def login() -> dict[str, str | Password]:
    """The user and the password for a client, if there is a user without a file of the password: it is asked for, once,
    on the terminal. Else nothing: the client finds them itself. Raises Failure without a terminal."""
    user = os.environ.get(USER)
    if not user or os.environ.get(PASSWORD_FILE):
        return {}
    if user not in _asked:
        if not os.isatty(0):
            raise Failure(f"the password of {user} is needed: give --password-file, or set {PASSWORD_FILE}")
        _asked[user] = str(click.prompt(f"Password of {user}", hide_input=True, err=True))
    return {"user": user, "password": lambda: _asked[user]}


_asked: dict[str, str] = {}  # passwords, by user
