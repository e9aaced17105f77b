"""ACLs: who may do what (KIP-11).

An ACL is `[resource, pattern, name, principal, host, operation, permission]`, all strings:

- `resource`: topic, group, cluster, transactional_id (also the name of a staged job), delegation_token or user;
- `pattern`: literal: the resource of this name; or prefixed: all resources whose names begin with this name. The
  literal name `*` is all resources of the type, and the only name of the cluster is `kafka-cluster`;
- `principal`: TYPE:NAME, such as `User:ada` or `Group:ops`; `User:*` is everybody. `host`: an IP address, or `*`;
- `operation`: all, or one of Kafka's: read, write, create, delete, alter, describe, cluster_action, describe_configs,
  alter_configs, idempotent_write, …;
- `permission`: allow or deny. An ACL that denies wins.
"""

from __future__ import annotations

from typing import Annotated

from krappy.wire.schema import Answer, Once, OneOf, Request

AclRow = tuple[str, str, str, str, str, str, str]
AclList = Annotated[list[AclRow], Once(7)]
AclPattern = Annotated[str, OneOf(frozenset({"any", "match", "literal", "prefixed"}))]


class CreateAcls(Request, kind=70):
    """Stores ACLs: all of them, or none if one can't be stored. ACLs that exist already stay. When the answer comes,
    they are in force on this broker; other brokers follow within a second. A broker without an authorizer refuses each
    of these three requests with SECURITY_DISABLED.
    """

    acls: AclList


class AclsCreated(Answer, kind=70):
    pass


class DescribeAcls(Request, kind=71):
    """Asks for the ACLs that have all the values that are given. The pattern `match` asks for those that concern the
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
    """Deletes the ACLs that have all the values that are given, as for DescribeAcls. What was allowed only by them
    ends: a waiting poll or a watch ends with an error.
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
