"""Requests about ACLs, with their answers as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypedDict

from krappy.clients.link import Link
from krappy.clients.router import Router
from krappy.wire import messages


class AclInfo(NamedTuple):
    """Who may do what. `resource`: topic, group, cluster, transactional_id, …; its `name` may be *, for all.
    `principal`: TYPE:NAME, such as User:ada. `operation`: all, read, write, describe, … `permission`: allow, or deny,
    which wins. `pattern`: literal, or prefixed: all resources whose names begin with `name`. `host`: an IP address, or
    * for all."""

    resource: str
    name: str
    principal: str
    operation: str
    permission: str = "allow"
    pattern: str = "literal"
    host: str = "*"


class AclMatch(TypedDict, total=False):
    """Which ACLs are meant: those that have all these values. With the pattern "match": all ACLs that concern the
    resource `name`, literally, by a prefix, or as *."""

    resource: str
    name: str
    principal: str
    operation: str
    permission: str
    pattern: str
    host: str


async def add(router: Router, acls: Iterable[AclInfo]) -> None:
    """Stores ACLs, all or none. Those that are there already stay."""
    await router.change(messages.CreateAcls([_row(acl) for acl in acls]), messages.AclsCreated)


async def find(link: Link, wanted: AclMatch) -> list[AclInfo]:
    answer = await link.ask(messages.DescribeAcls(**wanted), messages.AclsFound)
    return list(map(_info, answer.acls))


async def delete(router: Router, wanted: AclMatch) -> list[AclInfo]:
    """Returns those that were deleted."""
    answer = await router.change(messages.DeleteAcls(**wanted), messages.AclsDeleted, again=False)
    return list(map(_info, answer.acls))


def _row(acl: AclInfo) -> messages.AclRow:
    return acl.resource, acl.pattern, acl.name, acl.principal, acl.host, acl.operation, acl.permission


def _info(row: messages.AclRow) -> AclInfo:
    resource, pattern, name, principal, host, operation, permission = row
    return AclInfo(resource, name, principal, operation, permission, pattern, host)
