"""`krappy acl …`: shows, adds and removes ACLs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from krappy.cli import output
from krappy.cli.errors import Failure
from krappy.cli.options import CommandGroup, address_option, complete_topics, confirm, connect, json_option
from krappy.errors import after_steps
from krappy.types import dead_letter_topic

if TYPE_CHECKING:
    from krappy.clients.acls import AclInfo, AclMatch

F = TypeVar("F", bound=Callable[..., object])
CLUSTER = "kafka-cluster"
OPERATIONS = (
    *("all", "read", "write", "create", "delete", "alter", "describe", "cluster_action", "describe_configs"),
    *("alter_configs", "idempotent_write", "two_phase_commit"),
)
PRODUCER = {"topic": ("write", "describe", "create"), "transactional_id": ("write", "describe")}
CONSUMER = {"topic": ("read", "describe"), "group": ("read",)}
DEAD_LETTERS = ("write", "create")


@click.group(cls=CommandGroup)
def acl() -> None:
    """Show, add and remove ACLs: who may do what.

    A broker checks ACLs once one of its listeners has users, or with --authorizer acl. Then it refuses what no ACL
    allows. An ACL that denies wins over one that allows. They are Kafka's: kafka-acls.sh shows and changes the same
    ones.

    \b
    Examples:
      krappy acl add ada --consumer --topic orders --group mail
      krappy acl list --principal ada
      krappy acl remove --principal ada --topic orders
    """


def resource_options(command: F) -> F:
    for name, help in (
        ("--transactional-id", "A transactional id, or the name of a staged job."),
        ("--group", "A consumer group."),
        ("--topic", "A topic."),
    ):
        completes = complete_topics if name == "--topic" else None
        option = click.option(
            name, f"{name[2:].replace('-', '_')}s", multiple=True, metavar="NAME", help=help, shell_complete=completes
        )
        command = option(command)
    return click.option("--cluster", is_flag=True, help="The cluster.")(command)


@acl.command()
@click.argument("principal")
@resource_options
@click.option(
    "-o", "--operation", "operations", multiple=True, type=click.Choice(OPERATIONS), help="May be given several times."
)
@click.option("--producer", is_flag=True, help="What a producer to these topics needs; also creates them.")
@click.option("--consumer", is_flag=True, help="What a consumer of these topics in these groups needs.")
@click.option("--prefixed", is_flag=True, help="The names are prefixes: all that begin with them are meant.")
@click.option("--host", default="*", show_default=True, metavar="ADDRESS", help="Only from this address.")
@click.option("--deny", is_flag=True, help="Deny it, instead of allowing it.")
@address_option
@json_option
def add(
    principal: str,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    operations: tuple[str, ...],
    producer: bool,
    consumer: bool,
    prefixed: bool,
    host: str,
    deny: bool,
    address: str,
    as_json: bool,
) -> None:
    """Allow a principal something, or deny it.

    PRINCIPAL is a user's name, or TYPE:NAME, such as `Group:ops`; `*` is everybody. The name of a resource may be `*`,
    too: all of its kind.

    \b
    Examples:
      krappy acl add ada --producer --topic orders
      krappy acl add ada --consumer --topic orders --group mail
      krappy acl add ada --operation read --topic orders- --prefixed
      krappy acl add '*' --operation describe --topic '*'
      krappy acl add bob --operation all --topic orders --deny --host 10.0.0.7
    """
    from krappy.clients.acls import AclInfo

    permission = "deny" if deny else "allow"

    def made(kind: str, name: str, operation: str) -> AclInfo:
        pattern = "prefixed" if prefixed and kind != "cluster" and name != "*" else "literal"
        return AclInfo(kind, name, named(principal), operation, permission, pattern=pattern, host=host)

    added = [
        made(kind, name, operation)
        for kind, name in resources(topics, groups, transactional_ids, cluster)
        for operation in wanted(kind, operations, producer=producer, consumer=consumer)
    ]
    if consumer and topics and groups:
        if prefixed or "*" in (*topics, *groups):
            output.note(
                "members of native groups also need `write` and `create` on their dead-letter topics, TOPIC.GROUP.dead"
            )
        else:
            pairs = ((topic, group) for topic in topics for group in groups)
            added += [made("topic", dead_letter_topic(*each), right) for each in pairs for right in DEAD_LETTERS]
    if not added:
        raise click.UsageError("say which operations it is about, such as --operation read --topic NAME, or --consumer")
    with connect(address) as client:
        client.add_acls(added)
    show(added, as_json)


def wanted(kind: str, operations: Sequence[str], *, producer: bool, consumer: bool) -> Iterator[str]:
    of_roles = (*(PRODUCER.get(kind, ()) if producer else ()), *(CONSUMER.get(kind, ()) if consumer else ()))
    yield from dict.fromkeys((*operations, *of_roles))


def resources(
    topics: Sequence[str], groups: Sequence[str], transactional_ids: Sequence[str], cluster: bool
) -> Iterator[tuple[str, str]]:
    """(kind, name)."""
    yield from (("topic", name) for name in topics)
    yield from (("group", name) for name in groups)
    yield from (("transactional_id", name) for name in transactional_ids)
    if cluster:
        yield "cluster", CLUSTER


def named(principal: str) -> str:
    return principal if ":" in principal else f"User:{principal}"


def filter_options(command: F) -> F:
    command = click.option("--host", metavar="ADDRESS", help="Only those for this address.")(command)
    command = click.option("-o", "--operation", type=click.Choice(OPERATIONS), help="Only of this operation.")(command)
    command = resource_options(command)
    return click.option("--principal", metavar="PRINCIPAL", help="Only of this principal.")(command)


def matches(
    principal: str | None,
    topics: Sequence[str],
    groups: Sequence[str],
    transactional_ids: Sequence[str],
    cluster: bool,
    operation: str | None,
    host: str | None,
) -> list[AclMatch]:
    """One for each resource that is named; one for all resources if none is."""
    common: AclMatch = {}
    if principal is not None:
        common["principal"] = named(principal)
    if operation is not None:
        common["operation"] = operation
    if host is not None:
        common["host"] = host
    named_ones = list(resources(topics, groups, transactional_ids, cluster))
    return [{**common, "resource": kind, "name": name} for kind, name in named_ones] or [common]


@acl.command("list")
@filter_options
@click.option("--match", is_flag=True, help="Also show ACLs for prefixes of the names, and for *.")
@address_option
@json_option
def list_acls(
    principal: str | None,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    operation: str | None,
    host: str | None,
    match: bool,
    address: str,
    as_json: bool,
) -> None:
    """Show ACLs: all, or those that fit all options given.

    \b
    Examples:
      krappy acl list
      krappy acl list --principal ada
      krappy acl list --topic orders-eu --match      # also those of orders-, and of *
      krappy acl list --json | jq '.[] | select(.permission == "deny")'
    """
    filters = matches(principal, topics, groups, transactional_ids, cluster, operation, host)
    with connect(address) as client:
        found = {acl for each in filters for acl in client.acls(**with_match(each, match))}
    if not found and not as_json:
        output.note("there are no such ACLs; `krappy acl add` makes some")
        return
    show(sorted(found), as_json)


def with_match(wanted: AclMatch, match: bool) -> AclMatch:
    return {**wanted, "pattern": "match"} if match else wanted


@acl.command()
@filter_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@address_option
@json_option
def remove(
    principal: str | None,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    operation: str | None,
    host: str | None,
    yes: bool,
    address: str,
    as_json: bool,
) -> None:
    """Remove the ACLs that fit all options given. Asks first.

    What only these ACLs allowed, such as polls and watches that wait, ends within a second. It is an error (exit status
    1) if there are none.

    \b
    Examples:
      krappy acl remove --principal ada
      krappy acl remove --principal ada --topic orders --operation write --yes
    """
    filters = matches(principal, topics, groups, transactional_ids, cluster, operation, host)
    if filters == [{}]:
        raise click.UsageError("name which ones, such as --principal ada")
    with connect(address) as client:
        found = {acl for each in filters for acl in client.acls(**each)}
        if found:
            confirm(f"Remove {len(found)} ACLs?", yes)
            found = set()
            for each in filters:
                with after_steps(f"{len(found)} ACLs were removed" if found else ""):
                    found |= set(client.delete_acls(**each))
    if not found:
        raise Failure("there are no such ACLs; `krappy acl list` shows all")
    show(sorted(found), as_json)


def show(acls: Sequence[AclInfo], as_json: bool) -> None:
    if as_json:
        output.emit_json([each._asdict() for each in acls])
        return
    output.table(
        ["resource", "name", "pattern", "principal", "host", "operation", "permission"],
        [
            [each.resource, each.name, each.pattern, each.principal, each.host, each.operation, each.permission]
            for each in acls
        ],
    )
