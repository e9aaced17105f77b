"""`krappy quota …`: how much users, client ids and addresses may use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from krappy.cli import output
from krappy.cli.errors import Failure
from krappy.cli.options import CommandGroup, F, address_option, connect, json_option
from krappy.settings import units

if TYPE_CHECKING:
    from krappy.clients.admin import QuotaInfo

BYTE_RATES = ("producer_byte_rate", "consumer_byte_rate")
KEYS = (*BYTE_RATES, "request_percentage", "controller_mutation_rate", "connection_creation_rate")
DEFAULT = "<default>"
Named = dict[str, str | None]


@click.group(cls=CommandGroup)
def quota() -> None:
    """Show and change how much users, client ids and addresses may use.

    What can be limited, as in Kafka: producer_byte_rate and consumer_byte_rate (bytes a second),
    request_percentage (of one core's time), controller_mutation_rate (partitions a second that are created or
    deleted), and for addresses connection_creation_rate (connections a second). Each broker counts by itself.

    Of the quotas that concern a client the most precise one counts. First come those that name its user, then those of
    the default user, then those without a user; among each of these first the one that names its client id, then the
    one of the default client id, then the one without.

    \b
    Examples:
      krappy quota set --user ada producer_byte_rate=1M consumer_byte_rate=4M
      krappy quota list
      krappy quota delete --user ada
    """


def whom_options(command: F) -> F:
    command = click.option("--ip", metavar="ADDRESS", help="An address that clients come from.")(command)
    command = click.option("--client-id", metavar="ID", help="A client id, of Kafka's protocol.")(command)
    return click.option("--user", metavar="NAME", help="A user; ANONYMOUS is whoever does not log in.")(command)


@quota.command("list")
@whom_options
@address_option
@json_option
def list_quotas(user: str | None, client_id: str | None, ip: str | None, address: str, as_json: bool) -> None:
    """Show the quotas: all, or those of a user, a client id or an address.

    \b
    Examples:
      krappy quota list
      krappy quota list --user ada
      krappy quota list --json | jq '.[] | select(.rates.producer_byte_rate < 1e6)'
    """
    with connect(address) as client:
        found = client.security.quotas(**named(user, client_id, ip))
    if not found and not as_json:
        output.note("there are no such quotas; `krappy quota set` makes some")
        return
    show(found, as_json)


@quota.command("set")
@whom_options
@click.argument("rates", nargs=-1, required=True, metavar="NAME=RATE…")
@address_option
@json_option
def set_quotas(
    user: str | None, client_id: str | None, ip: str | None, rates: tuple[str, ...], address: str, as_json: bool
) -> None:
    """Set quotas of a user, a client id, both, or an address. They are in force at once.

    A name may be `<default>`: all that have no quota of their own. Byte rates may have units.

    \b
    Examples:
      krappy quota set --user ada producer_byte_rate=1M consumer_byte_rate=4M
      krappy quota set --user '<default>' request_percentage=50
      krappy quota set --user ada --client-id etl producer_byte_rate=10M
      krappy quota set --ip 10.0.0.7 connection_creation_rate=5
    """
    whom = someone(user, client_id, ip)
    wanted = dict(map(read_rate, rates))
    with connect(address) as client:
        client.security.alter_quotas(wanted, **whom)
        found = [each for each in client.security.quotas(**whom) if exactly(each, whom)]
    show(found, as_json)


@quota.command()
@whom_options
@click.argument("names", nargs=-1, metavar="[NAME…]", type=click.Choice(KEYS))
@address_option
@json_option
def delete(
    user: str | None, client_id: str | None, ip: str | None, names: tuple[str, ...], address: str, as_json: bool
) -> None:
    """Delete the quotas of a user, a client id, both, or an address: those named, or all that it has.

    It is an error (exit status 1) if there are none.

    \b
    Examples:
      krappy quota delete --user ada
      krappy quota delete --user '<default>' request_percentage
    """
    whom = someone(user, client_id, ip)
    with connect(address) as client:
        found = [each for each in client.security.quotas(**whom) if exactly(each, whom)]
        there = {name: rate for each in found for name, rate in each.rates.items() if not names or name in names}
        if there:
            client.security.alter_quotas(dict.fromkeys(there), **whom)
    if not there:
        raise Failure("there are no such quotas; `krappy quota list` shows all")
    show([each._replace(rates=there) for each in found], as_json)


def named(user: str | None, client_id: str | None, ip: str | None) -> Named:
    given = {"user": user, "client_id": client_id, "ip": ip}
    return {kind: "" if name == DEFAULT else name for kind, name in given.items()}


def someone(user: str | None, client_id: str | None, ip: str | None) -> Named:
    if user is None and client_id is None and ip is None:
        raise click.UsageError("say whose: --user NAME, --client-id ID, both, or --ip ADDRESS; '<default>' is a name")
    return named(user, client_id, ip)


def exactly(found: QuotaInfo, whom: Named) -> bool:
    return {"user": found.user, "client_id": found.client_id, "ip": found.ip} == whom


def read_rate(text: str) -> tuple[str, float]:
    """Name and rate of a text such as "producer_byte_rate=1M". Raises BadParameter."""
    name, _, rate = text.partition("=")
    if name not in KEYS:
        raise click.BadParameter(f"'{name}' can't be limited; there are {', '.join(KEYS)}")
    try:
        return name, float(units.read(rate, units.BYTES if name in BYTE_RATES else None))
    except ValueError:
        raise click.BadParameter(f"'{rate}' is no number: {name}=NUMBER is needed") from None


def show(quotas: Sequence[QuotaInfo], as_json: bool) -> None:
    if as_json:
        output.emit_json([each._asdict() for each in quotas])
        return
    output.table(
        ["user", "client id", "ip", "what", "rate"],
        [
            [*(shown(name) for name in (each.user, each.client_id, each.ip)), key, f"{rate:.15g}"]
            for each in quotas
            for key, rate in each.rates.items()
        ],
    )


def shown(name: str | None) -> str:
    return "-" if name is None else name or DEFAULT
