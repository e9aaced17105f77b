"""ACLs: who may do what (KIP-11).

An ACL is `[resource, pattern, name, principal, host, operation, permission]`, all strings:

- `resource`: topic, group, cluster, transactional_id (also the name of a staged job), delegation_token or user;
- `pattern`: literal, or prefixed: all resources whose names begin so. The literal name `*` is all of the type, and the
  only name of the cluster is `kafka-cluster`;
- `principal`: TYPE:NAME, such as `User:ada` or `Group:ops`; `User:*` is everybody. `host`: an IP address, or `*`;
- `operation`: all, or one of Kafka's: read, write, create, delete, alter, describe, cluster_action, describe_configs,
  alter_configs, idempotent_write, …;
- `permission`: allow or deny. One that denies wins.
"""

from __future__ import annotations

from typing import Annotated

from krappy.wire.schema import Answer, Once, OneOf, Request

AclRow = tuple[str, str, str, str, str, str, str]
AclList = Annotated[list[AclRow], Once(7)]
AclPattern = Annotated[str, OneOf(frozenset({"any", "match", "literal", "prefixed"}))]


class CreateAcls(Request, kind=70):
    """Stores ACLs: all, or none if one can't be. Those that are there already stay. When it is answered they are in
    force on this broker; other brokers follow within a second. Every request of these three is refused with
    SECURITY_DISABLED by a broker without an authorizer.
    """

    acls: AclList


class AclsCreated(Answer, kind=70):
    pass


class DescribeAcls(Request, kind=71):
    """Asks for the ACLs that have all the values that are given. With the pattern `match`, those that concern the
    resource `name` in any way: literally, by a prefix, or as `*`.
    """

    resource: str | None = None
    pattern: AclPattern = "any"
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: str | None = None
    permission: str | None = None


class AclsFound(Answer, kind=71):
    acls: list[AclRow]


class DeleteAcls(Request, kind=72):
    """Deletes the ACLs that have all the values that are given, as for DescribeAcls. What is open by their leave
    ends: with an error for a waiting poll or a watch.
    """

    resource: str | None = None
    pattern: AclPattern = "any"
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: str | None = None
    permission: str | None = None


class AclsDeleted(Answer, kind=72):
    acls: list[AclRow]  # those that were deleted
