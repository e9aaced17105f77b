"""CreateAcls, DescribeAcls, DeleteAcls."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from krappy.core.security import needs
from krappy.core.security.acl import ANY, MATCH, Acl, AclFilter, Pattern, Permission
from krappy.core.security.operations import Op, Resource
from krappy.errors import InvalidRequest
from krappy.handlers.registry import serves
from krappy.ports import SessionPort
from krappy.wire import messages

E = TypeVar("E", bound=IntEnum)
MOST = 1000  # ACLs of one request


@serves(messages.CreateAcls, needs=needs.cluster(Op.ALTER))
async def create_acls(session: SessionPort, request: messages.CreateAcls) -> messages.AclsCreated:
    there = session.access.acls(Op.ALTER)
    if len(request.acls) > MOST:
        raise InvalidRequest(f"{len(request.acls)} ACLs; at most {MOST} are made at once", field="acls")
    acls = [_acl(*row) for row in request.acls]
    for acl in acls:
        acl.check()
    await there.add(acls)
    return messages.AclsCreated()


@serves(messages.DescribeAcls, needs=needs.cluster(Op.DESCRIBE))
def describe_acls(session: SessionPort, request: messages.DescribeAcls) -> messages.AclsFound:
    return messages.AclsFound(_rows(session.access.acls(Op.DESCRIBE).find(_filter(request))))


@serves(messages.DeleteAcls, needs=needs.cluster(Op.ALTER))
async def delete_acls(session: SessionPort, request: messages.DeleteAcls) -> messages.AclsDeleted:
    there = session.access.acls(Op.ALTER)
    found = there.find(_filter(request))
    await there.remove(found)
    return messages.AclsDeleted(_rows(found))


def _acl(resource: str, pattern: str, name: str, principal: str, host: str, operation: str, permission: str) -> Acl:
    return Acl(
        _read(Resource, resource, "resource"),
        _read(Pattern, pattern, "pattern"),
        name,
        principal,
        host,
        _read(Op, operation, "operation"),
        _read(Permission, permission, "permission"),
    )


def _rows(acls: list[Acl]) -> list[messages.AclRow]:
    return [
        (_word(a.resource), _word(a.pattern), a.name, a.principal, a.host, _word(a.op), _word(a.permission))
        for a in acls
    ]


def _filter(asked: messages.DescribeAcls | messages.DeleteAcls) -> AclFilter:
    return AclFilter(
        None if asked.resource is None else _read(Resource, asked.resource, "resource"),
        {"any": ANY, "match": MATCH}.get(asked.pattern) or Pattern[asked.pattern.upper()],
        asked.name,
        asked.principal,
        asked.host,
        None if asked.operation is None else _read(Op, asked.operation, "operation"),
        None if asked.permission is None else _read(Permission, asked.permission, "permission"),
    )


def _word(value: IntEnum) -> str:
    return value.name.lower()


def _read(kind: type[E], word: str, field: str) -> E:
    """Raises InvalidRequest."""
    found = {_word(each): each for each in kind}.get(word)
    if found is None:
        known = ", ".join(_word(each) for each in kind)
        raise InvalidRequest(f"`{field}` is '{word:.80}'; it may be {known}", field=field)
    return found
