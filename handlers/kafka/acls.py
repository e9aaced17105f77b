"""ACLs (KIP-11, KIP-140): DescribeAcls, CreateAcls and DeleteAcls (29 to 31)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, TypeVar

from krappy.core.security import needs
from krappy.core.security.acl import ANY, MATCH, Acl, AclFilter, Pattern, Permission
from krappy.core.security.operations import Op, Resource
from krappy.errors import InvalidRequest, KrappyError
from krappy.handlers.kafka.refusals import DONE, refusal
from krappy.handlers.kafka.registry import Message, serves
from krappy.handlers.kafka.rows import counted
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey

E = TypeVar("E", bound=IntEnum)
MOST = 1000  # ACLs of one request
_TOO_MANY = f"more than {MOST} ACLs or filters in one request"


@serves(ApiKey.DESCRIBE_ACLS, needs=needs.cluster(Op.DESCRIBE))
async def describe_acls(session: KafkaSessionPort, request: Message, version: int) -> Message:
    try:
        found = session.access.acls(Op.DESCRIBE).find(_filter(request))
    except KrappyError as error:
        return {**refusal(error), "resources": []}
    resources: dict[tuple[int, str, int], list[Message]] = {}
    async with counted(session) as rows:
        for acl in found:
            resources.setdefault((acl.resource, acl.name, acl.pattern), []).append(_entry(acl))
            await rows.add(1)
    return {
        **DONE,
        "resources": [
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": acls}
            for (kind, name, pattern), acls in resources.items()
        ],
    }


@serves(ApiKey.CREATE_ACLS, needs=needs.cluster(Op.ALTER))
async def create_acls(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Each ACL by itself: those that can be stored are, and the others are refused."""
    results: list[Mapping[str, Any]] = []
    acls: list[Acl] = []
    try:
        there = session.access.acls(Op.ALTER)
        if len(request["creations"]) > MOST:
            raise InvalidRequest(_TOO_MANY)
        for creation in request["creations"]:
            try:
                acls.append(_acl(creation))
                results.append(DONE)
            except InvalidRequest as error:
                results.append(refusal(error))
        if acls:
            await there.add(acls)
    except KrappyError as error:
        return {"results": [each if each is not DONE else refusal(error) for each in results] or _all(request, error)}
    return {"results": results}


def _all(request: Message, error: KrappyError) -> list[Message]:
    return [refusal(error) for _ in request["creations"]]


@serves(ApiKey.DELETE_ACLS, needs=needs.cluster(Op.ALTER))
async def delete_acls(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Deletes the ACLs that the filters match. An ACL that several filters match is told for each of them."""
    results: list[Message] = []
    matching: list[Acl] = []
    try:
        there = session.access.acls(Op.ALTER)
        if len(request["filters"]) > MOST:
            raise InvalidRequest(_TOO_MANY)
        async with counted(session) as rows:
            for each in request["filters"]:
                try:
                    found = there.find(_filter(each))
                except InvalidRequest as error:
                    results.append({**refusal(error), "matching_acls": []})
                    continue
                matching += found
                results.append({**DONE, "matching_acls": [{**DONE, **_named(acl), **_entry(acl)} for acl in found]})
                await rows.add(1 + len(found))
            await there.remove(matching)
    except KrappyError as error:
        return {"filter_results": [{**refusal(error), "matching_acls": []} for _ in request["filters"]]}
    return {"filter_results": results}


def _named(acl: Acl) -> Message:
    return {"resource_type": acl.resource, "resource_name": acl.name, "pattern_type": acl.pattern}


def _entry(acl: Acl) -> Message:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.op,
        "permission_type": acl.permission,
    }


def _acl(creation: Message) -> Acl:
    """Raises InvalidRequest."""
    acl = Acl(
        _read(Resource, creation["resource_type"], "resourceType"),
        _read(Pattern, creation["resource_pattern_type"], "patternType"),
        creation["resource_name"],
        creation["principal"],
        creation["host"],
        _read(Op, creation["operation"], "operation"),
        _read(Permission, creation["permission_type"], "permissionType"),
    )
    acl.check()
    return acl


def _filter(asked: Message) -> AclFilter:
    """Raises InvalidRequest."""
    pattern = asked["pattern_type_filter"]
    if pattern not in (ANY, MATCH, *Pattern):
        raise InvalidRequest(f"Invalid patternType {pattern}")
    return AclFilter(
        _read_some(Resource, asked["resource_type_filter"], "resourceType"),
        pattern,
        asked["resource_name_filter"],
        asked["principal_filter"],
        asked["host_filter"],
        _read_some(Op, asked["operation"], "operation"),
        _read_some(Permission, asked["permission_type"], "permissionType"),
    )


def _read(kind: type[E], number: int, field: str) -> E:
    try:
        return kind(number)
    except ValueError:
        raise InvalidRequest(f"Invalid {field} {number}") from None


def _read_some(kind: Any, number: int, field: str) -> Any:
    return None if number == ANY else _read(kind, number, field)
