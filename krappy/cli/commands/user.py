"""`krappy user …`: who may log in with a password."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from krappy.cli import output
from krappy.cli.errors import Failure
from krappy.cli.options import CommandGroup, F, address_option, confirm, connect, json_option
from krappy.core.security.scram import HASHES, SALT, ScramCredential

if TYPE_CHECKING:
    from krappy.cli.cluster_users import ClusterUsers
    from krappy.cli.stored_users import StoredUsers

LONGEST = 4096  # bytes of a password's file


def stored_options(command: F) -> F:
    command = click.option(
        "--config",
        "file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Settings of a broker of a cluster: use the users in its ZooKeeper, without a running broker.",
    )(command)
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        help="Data folder of a stopped broker that is alone: use the users there. For the first user.",
    )(command)


@click.group(cls=CommandGroup)
def user() -> None:
    """Show and change the users who log in with a password (SCRAM).

    A password is never given on the command line: it is asked for, or read from a file. The broker stores a hash of it,
    with which nobody can log in.

    \b
    Examples:
      krappy user add ada --data /var/lib/krappy    # the first one, before the broker is started
      krappy user add broker --config krappy.toml   # the first one of a cluster, before its brokers are started
      krappy user list
      krappy user delete ada --yes
    """


@user.command()
@click.argument("name")
@click.option(
    "--new-password-file",
    type=click.File("rb"),
    metavar="FILE",
    help="The new password; - for stdin. Without it, it is asked for.",
)
@click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(list(HASHES)),
    multiple=True,
    help="How the user may log in; may be given several times. Default: both.",
)
@stored_options
@address_option
@json_option
def add(
    name: str,
    new_password_file: IO[bytes] | None,
    mechanisms: tuple[str, ...],
    data: Path | None,
    file: Path | None,
    address: str,
    as_json: bool,
) -> None:
    """Add a user, or give one another password.

    \b
    Examples:
      krappy user add ada --data /var/lib/krappy    # the first one, before the broker is started
      krappy user add ada                           # at a running broker
      pwgen 20 1 | tee ada.password | krappy user add ada --new-password-file -
    """
    password = _password(name, new_password_file)
    chosen = mechanisms or tuple(HASHES)
    if (stored := _stored(data, file)) is None:
        with connect(address) as client:
            client.security.set_password(name, password, chosen)
    else:
        made = {each: ScramCredential.of(each, password, os.urandom(SALT)).text() for each in chosen}
        stored.change(name, made)
    if as_json:
        output.emit_json({"user": name, "mechanisms": list(chosen)})
    else:
        output.note(f"{name} may log in by {' and '.join(chosen)}")


@user.command("list")
@stored_options
@address_option
@json_option
def list_users(data: Path | None, file: Path | None, address: str, as_json: bool) -> None:
    """List the users, and the iterations of their hashes.

    \b
    Examples:
      krappy user list --json | jq -r '.[].user'
    """
    if (stored := _stored(data, file)) is None:
        with connect(address) as client:
            found = client.security.users()
    else:
        found = stored.users()
    if as_json:
        output.emit_json([{"user": each.name, "iterations": each.iterations} for each in found])
        return
    output.table(["user", *HASHES], [[each.name, *(each.iterations.get(one, "-") for one in HASHES)] for each in found])


@user.command()
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@stored_options
@address_option
@json_option
def delete(name: str, yes: bool, data: Path | None, file: Path | None, address: str, as_json: bool) -> None:
    """Delete a user. Asks first.

    Connections that have logged in stay, unless connections_max_reauth_ms ends them.

    \b
    Examples:
      krappy user delete ada --yes
    """
    confirm(f"Delete the user {name}?", yes)
    if (stored := _stored(data, file)) is None:
        with connect(address) as client:
            client.security.delete_user(name)
    else:
        stored.delete(name)
    if as_json:
        output.emit_json({"user": name, "deleted": True})
    else:
        output.note(f"deleted the user {name}")


def _password(name: str, file: IO[bytes] | None) -> str:
    """Raises Failure, BadParameter."""
    if file is not None:
        data = file.read(LONGEST + 1)
        if len(data) > LONGEST:
            raise click.BadParameter(f"the file of the password has more than {LONGEST} bytes")
        found = data.decode(errors="surrogateescape").rstrip("\r\n")
    elif sys.stdin.isatty():
        found = str(click.prompt(f"New password of {name}", hide_input=True, confirmation_prompt=True, err=True))
    else:
        raise Failure("there is no terminal to ask for the password: give --new-password-file FILE, or -")
    if not found:
        raise click.BadParameter("the password is empty")
    return found


def _stored(data: Path | None, file: Path | None) -> StoredUsers | ClusterUsers | None:
    """Where the users are stored, if no running broker is to be asked; None: one is."""
    if data is None and file is None:
        return None
    if data is not None and file is not None:
        raise click.UsageError("--data is for a broker that is alone, --config for a cluster: give one of them")
    try:
        from krappy.cli.cluster_users import ClusterUsers
        from krappy.cli.serving import load_settings
        from krappy.cli.stored_users import StoredUsers
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("krappy"):
            raise
        raise Failure(
            f"--data and --config need {error.name}, which is not installed: pip install 'krappy[broker]'"
        ) from None
    if data is not None:
        return StoredUsers(data)
    config = load_settings({}, file)
    if not config.zookeeper_connect:
        raise Failure(f"{file} has no zookeeper_connect: the broker is alone; give --data, its folder")
    return ClusterUsers(config)
