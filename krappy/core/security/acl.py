"""ACLs, and what they allow: Kafka's (KIP-11, KIP-290), decided as its StandardAuthorizer does.

An ACL concerns a resource by its name, all resources whose names begin with its name (PREFIXED), or all of a type (the
literal name *). Of all ACLs that concern a principal's operation on a resource, one that denies wins. Without one that
allows it, it is denied; resources that no ACL concerns may be open to everybody (`allow.everyone.if.no.acl.found`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.core.security.principal import Principal, check_principal
from krappy.errors import InvalidRequest
from krappy.hosts import is_address, plain

ANY_NAME = "*"  # as a literal name: all resources of the type; as a host: all hosts
EVERYBODY = "User:*"
LONGEST = 1000  # characters of a name, a principal or a host
ANY, MATCH = 1, 2  # Kafka's numbers, in filters: anything; what concerns this resource, however it is named


class Pattern(IntEnum):
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    DENY = 2
    ALLOW = 3


# The operations that an ACL may name, by type of resource (AclEntry.supportedOperations).
_CONFIGS = (Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS)
OPERATIONS: dict[Resource, tuple[Op, ...]] = {
    Resource.TOPIC: (Op.READ, Op.WRITE, Op.CREATE, Op.DELETE, Op.ALTER, Op.DESCRIBE, *_CONFIGS),
    Resource.GROUP: (Op.READ, Op.DELETE, Op.DESCRIBE, *_CONFIGS),
    Resource.CLUSTER: (Op.CREATE, Op.ALTER, Op.DESCRIBE, Op.CLUSTER_ACTION, Op.IDEMPOTENT_WRITE, *_CONFIGS),
    Resource.TRANSACTIONAL_ID: (Op.WRITE, Op.DESCRIBE, Op.TWO_PHASE_COMMIT),
    Resource.DELEGATION_TOKEN: (Op.DESCRIBE,),
    Resource.USER: (Op.CREATE_TOKENS, Op.DESCRIBE_TOKENS),
}
# By operation: which ones an ACL may allow so that this operation is allowed. An ACL that denies one denies only that.
IMPLIED = {
    Op.DESCRIBE: (Op.DESCRIBE, Op.READ, Op.WRITE, Op.DELETE, Op.ALTER),
    Op.DESCRIBE_CONFIGS: (Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS),
}


class Acl(NamedTuple):
    """`principal`: TYPE:NAME, such as "User:ada" or "Group:ops"; "User:*" is everybody. `host`: an IP address, or *."""

    resource: Resource
    pattern: Pattern
    name: str
    principal: str
    host: str
    op: Op
    permission: Permission

    def check(self) -> None:
        """Raises InvalidRequest unless it can be stored (AclControlManager, AclApis)."""
        if not self.name:
            raise InvalidRequest("Invalid empty resource name")
        if self.resource is Resource.CLUSTER and self.name != CLUSTER_NAME:
            raise InvalidRequest(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
        try:
            check_principal(self.principal)
        except ValueError as error:
            raise InvalidRequest(f"Could not parse principal: {error}") from None
        if not self.host:
            raise InvalidRequest("Invalid empty host; * means all")
        if self.host != ANY_NAME and not is_address(self.host):  # it would apply to nobody
            raise InvalidRequest(
                f"the host '{self.host:.80}' is no IP address: names and networks are not supported; * means all hosts"
            )
        if max(len(self.name), len(self.principal), len(self.host)) > LONGEST:
            raise InvalidRequest(f"an ACL's names have at most {LONGEST} characters")
        if self.op is not Op.ALL and self.op not in OPERATIONS[self.resource]:
            raise InvalidRequest(f"The operation {self.op.name} is not for a resource of type {self.resource.name}")

    @property
    def id(self) -> str:
        """A hash of all that it says, so that the same ACL is stored once."""
        said = repr(tuple(int(each) if isinstance(each, IntEnum) else each for each in self))
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    def concerns(self, name: str) -> bool:
        """Whether it concerns the resource of this name, of its type."""
        if self.pattern is Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANY_NAME)


class AclFilter(NamedTuple):
    """Which ACLs are meant (ResourcePatternFilter, AccessControlEntryFilter). None: any. `pattern`: LITERAL, PREFIXED,
    ANY, or MATCH: all that concern the resource `name`."""

    resource: Resource | None = None
    pattern: int = ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    op: Op | None = None
    permission: Permission | None = None

    def matches(self, acl: Acl) -> bool:
        if self.pattern not in (ANY, MATCH, acl.pattern):
            return False
        if self.name is not None:
            named = acl.concerns(self.name) if self.pattern == MATCH else acl.name == self.name
            if not named:
                return False
        wanted = (self.resource, self.principal, self.host, self.op, self.permission)
        found = (acl.resource, acl.principal, acl.host, acl.op, acl.permission)
        return all(one is None or one == other for one, other in zip(wanted, found, strict=True))


class AclSet:
    """ACLs, ready to decide by; it does not change."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self.acls = frozenset(acls)
        # By type and name: the ACLs of each principal.
        self._literal: dict[tuple[Resource, str], dict[str, list[Acl]]] = {}
        self._prefixed: dict[tuple[Resource, str], dict[str, list[Acl]]] = {}
        for acl in self.acls:
            by_name = self._literal if acl.pattern is Pattern.LITERAL else self._prefixed
            by_name.setdefault((acl.resource, acl.name), {}).setdefault(acl.principal, []).append(acl)
        lengths: dict[Resource, set[int]] = {}
        for resource, name in self._prefixed:
            lengths.setdefault(resource, set()).add(len(name))
        self._lengths = {resource: sorted(found) for resource, found in lengths.items()}

    def decide(self, principal: Principal, resource: Resource, name: str, op: Op, *, otherwise: bool = False) -> bool:
        """Whether the principal may do `op`. `otherwise`: the answer where no ACL concerns the resource."""
        concerned, allowed = False, False
        enough = IMPLIED.get(op, (op,))
        for by_principal in self._of(resource, name):
            concerned = True
            for each in (*principal.names, EVERYBODY):
                for acl in by_principal.get(each, ()):
                    if not _is_host(acl.host, principal.host):
                        continue
                    if acl.permission is Permission.DENY:
                        if acl.op in (op, Op.ALL):
                            return False
                    elif acl.op is Op.ALL or acl.op in enough:
                        allowed = True
        return allowed if concerned else otherwise

    def denying(self, principal: Principal, resource: Resource, name: str, op: Op) -> Acl | None:
        """The ACL that denies what `decide` has refused; None: no ACL denies it, but none allows it either."""
        who = (*principal.names, EVERYBODY)
        return next(
            (
                acl
                for by_principal in self._of(resource, name)
                for each in who
                for acl in by_principal.get(each, ())
                if acl.permission is Permission.DENY and acl.op in (op, Op.ALL) and _is_host(acl.host, principal.host)
            ),
            None,
        )

    def decide_for_any(self, principal: Principal, resource: Resource, op: Op) -> bool:
        """Whether the principal may do `op` to some resource of the type (KIP-679, Authorizer.authorizeByResourceType).
        So it is if an ACL allows it, and no ACL that denies it covers all resources of that ACL."""
        mine = [
            acl
            for acl in self.acls
            if acl.resource is resource
            and acl.principal in (*principal.names, EVERYBODY)
            and acl.op in (op, Op.ALL)
            and _is_host(acl.host, principal.host)
        ]
        denied = [acl for acl in mine if acl.permission is Permission.DENY]
        everything = (Pattern.LITERAL, ANY_NAME)
        if any((acl.pattern, acl.name) == everything for acl in denied):
            return False
        return any(
            (acl.pattern, acl.name) == everything or not any(_covers(other, acl) for other in denied)
            for acl in mine
            if acl.permission is Permission.ALLOW
        )

    def find(self, wanted: AclFilter) -> list[Acl]:
        return sorted(acl for acl in self.acls if wanted.matches(acl))

    def _of(self, resource: Resource, name: str) -> Iterator[dict[str, list[Acl]]]:
        for key in {name, ANY_NAME}:
            if (found := self._literal.get((resource, key))) is not None:
                yield found
        for length in self._lengths.get(resource, ()):
            if length > len(name):
                break
            if (found := self._prefixed.get((resource, name[:length]))) is not None:
                yield found


def _covers(denies: Acl, allows: Acl) -> bool:
    if denies.pattern is Pattern.PREFIXED:
        return allows.name.startswith(denies.name)
    return allows.pattern is Pattern.LITERAL and denies.name == allows.name


def _is_host(wanted: str, host: str) -> bool:
    """Whether an ACL's host stands for this one. Java's tools write IPv6 addresses without ::, so both are compared in
    one form. An ACL's address without a zone (fe80::1, not fe80::1%eth0) stands for the address in every zone."""
    return wanted in (ANY_NAME, host) or plain(wanted) in (plain(host), plain(host.partition("%")[0]))
