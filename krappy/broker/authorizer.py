"""Who may do what: the ACLs in the cluster's tree (`/security/acls/<id>`), what they allow now, and what they have
allowed that is still in use.

All brokers follow the tree, so a change is in force on each of them as soon as it sees it. What is open by then (a
registration, a watch, a live page) is looked at again, and ended if its principal may not have it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Protocol

import trio

from krappy.broker.audit import Audit
from krappy.broker.tree_changes import change
from krappy.core.cluster import paths, znodes
from krappy.core.cluster.image import Image
from krappy.core.cluster.tree import Create, Delete, Operation
from krappy.core.security.acl import Acl, AclFilter, AclSet
from krappy.core.security.operations import Grant, Op, Resource
from krappy.core.security.principal import Principal
from krappy.errors import (
    AuthorizationFailed,
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    PolicyViolation,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    after_steps,
)
from krappy.ports.store import Store
from krappy.settings.server import ServerConfig
from krappy.waiting import Signal, wait_any

MOST = 10_000  # ACLs
AT_ONCE = 500  # ACLs that one write of the tree adds or deletes
REMEMBERED = 10_000  # decisions that are remembered at most
LONGEST_REMEMBERED = 255  # characters: no decision about a longer name is remembered, since peers may send any
TURN = 500  # grants of open things that are looked at in one turn
ENDS = 16  # open things that end in one turn: a member of a group gives leases back in all of its partitions
_FAILURES: dict[Resource, tuple[type[AuthorizationFailed], str]] = {
    Resource.TOPIC: (TopicAuthorizationFailed, "the topic"),
    Resource.GROUP: (GroupAuthorizationFailed, "the group"),
    Resource.CLUSTER: (ClusterAuthorizationFailed, "the cluster"),
    Resource.TRANSACTIONAL_ID: (TransactionalIdAuthorizationFailed, "the transactional id or job"),
}


def refusal(principal: Principal, grant: Grant) -> AuthorizationFailed:
    """The error for what is not allowed: the same whether the resource exists or not."""
    kind, what = _FAILURES[grant.resource]
    named = "" if grant.resource is Resource.CLUSTER else f" '{grant.name:.300}'"
    return kind(f"{principal!s:.300} may not do this: it needs {grant.op.name} on {what}{named}")


class OpenGrants:
    """What a principal was allowed, and uses: `end(error)` is called once it is not allowed any more. Implements
    `HeldPort`."""

    __slots__ = ("_authorizer", "end", "grants", "principal", "seen")

    def __init__(
        self,
        authorizer: Authorizer,
        principal: Principal,
        grants: Sequence[Grant],
        end: Callable[[AuthorizationFailed], None],
    ) -> None:
        self._authorizer = authorizer
        self.principal = principal
        self.grants = grants
        self.end = end
        self.seen = -1  # the version of the ACLs at the last look

    def look(self) -> None:
        if self.seen != self._authorizer.seen_version():
            self._authorizer.look_at(self)

    def release(self) -> None:
        self._authorizer.release(self)


class LentTree(Protocol):
    """What a broker lends: its settings, and the tree."""

    config: ServerConfig
    store: Store
    audit: Audit

    @property
    def image(self) -> Image: ...
    def report(self, event: str, **facts: Any) -> None: ...


class Authorizer:
    """`on`: there is an authorizer. `signals`: what fires after each change of the ACLs."""

    def __init__(self, runtime: LentTree) -> None:
        config = runtime.config
        self.on = config.authorizes
        self._version = 0
        self._changed = Signal()
        self.signals = (self._changed,) if self.on else ()
        self._runtime = runtime
        self.audit = runtime.audit
        self._super = frozenset(config.super_user_names)
        self._otherwise = config.allow_everyone_if_no_acl_found
        self._seen: object = None  # the image's ACLs, as `_acls` has them
        self._acls = AclSet()
        self._closed = False  # some ACL can't be read, and may deny anything
        self._decided: dict[tuple[object, ...], bool] = {}
        self._sees: dict[tuple[object, ...], Callable[[str], bool]] = {}
        self._open: dict[OpenGrants, None] = {}

    # --- what they allow

    def allows(self, principal: Principal, grant: Grant) -> bool:
        acls = self._now()
        key = (principal.names, principal.host, grant)
        found = self._decided.get(key)
        if found is None:
            found = self._is_super(principal) or (
                not self._closed and acls.decide(principal, *grant, otherwise=self._otherwise)
            )
            if len(grant.name) <= LONGEST_REMEMBERED:
                if len(self._decided) >= REMEMBERED:
                    self._decided.clear()
                self._decided[key] = found
        return found

    def allows_any(self, principal: Principal, resource: Resource, op: Op) -> bool:
        """Whether the principal may do `op` to some resource of the type."""
        acls = self._now()
        key = (principal.names, principal.host, resource, op)
        found = self._decided.get(key)
        if found is None:
            # As in Kafka: if no ACL concerns an arbitrary name, the setting `allow_everyone_if_no_acl_found` decides.
            arbitrary = self.allows(principal, Grant(resource, "hardcode", op))
            some = not self._closed and acls.decide_for_any(principal, resource, op)
            found = self._decided[key] = arbitrary or some
        return found

    def guard(self, principal: Principal | None) -> PrincipalGuard | None:
        """The guard for a principal's `Access`; None without an authorizer, and for the broker itself."""
        if not self.on or principal is None:
            return None
        key = (principal.names, principal.host)
        if key not in self._sees:
            if len(self._sees) >= REMEMBERED:
                self._sees.clear()
            self._sees[key] = lambda name: self.allows(principal, Grant(Resource.TOPIC, name, Op.DESCRIBE))
        return PrincipalGuard(self, principal, self._sees[key])

    def seen_version(self) -> int:
        """Rises with each change of the ACLs."""
        self._now()
        return self._version

    def _is_super(self, principal: Principal) -> bool:
        return not self._super.isdisjoint(principal.names)

    def _now(self) -> AclSet:
        acls = self._runtime.image.acls
        if acls is not self._seen:
            self._seen = acls
            self._acls = AclSet(acl for acl in acls.values() if acl is not None)
            self._closed = None in acls.values()
            self._decided.clear()
            self._version += 1
        return self._acls

    # --- what is open

    def hold(self, opened: OpenGrants) -> None:
        """Looks at it now and after each change of the ACLs. It looks now, since an ACL may have changed before this
        was opened."""
        self._open[opened] = None
        self._look_at(opened, self.tell_denied)

    def look_at(self, opened: OpenGrants) -> None:
        """Looks at it now, unless it has ended."""
        if opened in self._open:
            self._look_at(opened, self._tell_ended)

    def release(self, opened: OpenGrants) -> None:
        self._open.pop(opened, None)

    async def follow(self) -> None:
        """Until cancelled, if there is an authorizer."""
        if self.on and not self._super and not self._now().acls and not self._otherwise:
            text = "the authorizer is on, and there are no super_users and no ACLs: nobody may do anything"
            self._runtime.report("nobody_is_allowed", text=text)
        while self.on:
            self._now()
            seen = self._seen
            await wait_any([self._runtime.store.changed], lambda seen=seen: self._runtime.image.acls is not seen)  # type: ignore[misc]
            await self._review()

    async def _review(self) -> None:
        """Ends what is open and not allowed any more."""
        self._now()
        self._changed.fire()
        left = TURN
        for opened in tuple(self._open):
            if opened in self._open:
                ended = self._look_at(opened, self._tell_ended)
                left -= max(TURN // ENDS if ended else 0, len(opened.grants))
            if left <= 0:
                left = TURN
                await trio.lowlevel.checkpoint()

    def _look_at(self, opened: OpenGrants, tell: Callable[[Principal, Grant], None]) -> bool:
        """Ends `opened`, only once, if one of its grants is not allowed. Returns whether it did."""
        missing = next((each for each in opened.grants if not self.allows(opened.principal, each)), None)
        opened.seen = self._version
        if missing is None:
            return False
        self._open.pop(opened, None)
        tell(opened.principal, missing)
        opened.end(refusal(opened.principal, missing))
        return True

    def tell_denied(self, principal: Principal, grant: Grant) -> None:
        """Notes the refusal in the audit log."""
        if self.audit.on:
            self.audit.denied(principal, grant, self._reason(principal, grant))

    def _tell_ended(self, principal: Principal, grant: Grant) -> None:
        if self.audit.on:
            self.audit.ended(principal, self._reason(principal, grant), grant)

    def _reason(self, principal: Principal, grant: Grant) -> str:
        acl = self._now().denying(principal, *grant)
        return "no ACL allows it" if acl is None else f"ACL {acl.id} denies it"

    # --- the ACLs

    def find(self, wanted: AclFilter) -> list[Acl]:
        return self._now().find(wanted)

    async def add(self, acls: Iterable[Acl]) -> None:
        """Stores these ACLs durably; those that exist already stay. On return they are in force on this broker. Raises
        PolicyViolation if there would be too many, StorageError."""
        wanted = {acl.id: acl for acl in acls}
        if len({*wanted, *self._runtime.image.acls}) > MOST:
            raise PolicyViolation(f"there are at most {MOST} ACLs")
        ids = sorted(wanted.keys() - self._runtime.image.acls.keys())
        for first in range(0, len(ids), AT_ONCE):
            some = ids[first : first + AT_ONCE]

            async def made(some: list[str] = some) -> list[Operation]:
                there = self._runtime.image.acls
                return [Create(paths.acl(id), znodes.acl(wanted[id])) for id in some if id not in there]

            new = [id for id in some if id not in self._runtime.image.acls]
            made_before = f"{first} of {len(ids)} ACLs were added" if first else ""
            with after_steps(made_before), self.audit.change("acl", new) as told:
                told.after = {id: _told(wanted[id]) for id in new}
                await change(self._runtime.store, made)
        await self._review()

    async def remove(self, acls: Iterable[Acl]) -> None:
        """Deletes these ACLs durably, in steps, as `add` stores them."""
        gone = {acl.id: acl for acl in acls}
        ids = sorted(gone.keys() & self._runtime.image.acls.keys())
        for first in range(0, len(ids), AT_ONCE):
            some = ids[first : first + AT_ONCE]

            async def made(some: list[str] = some) -> list[Operation]:
                there = self._runtime.image.acls
                return [Delete(paths.acl(id)) for id in some if id in there]

            there = [id for id in some if id in self._runtime.image.acls]
            made_before = f"{first} of {len(ids)} ACLs were deleted" if first else ""
            with after_steps(made_before), self.audit.change("acl", there, lambda id: _told(gone[id])) as told:
                told.after = dict.fromkeys(there)
                await change(self._runtime.store, made)
        await self._review()


def _told(acl: Acl) -> dict[str, str]:
    return {name: value.name if isinstance(value, IntEnum) else value for name, value in acl._asdict().items()}


class PrincipalGuard:
    """What one principal may do. `sees`: whether it may describe the topic of a name; one principal always gets the
    same function."""

    def __init__(self, authorizer: Authorizer, principal: Principal, sees: Callable[[str], bool]) -> None:
        self._authorizer = authorizer
        self.principal = principal
        self.sees = sees

    @property
    def version(self) -> int:
        return self._authorizer.seen_version()

    def allows(self, grant: Grant) -> bool:
        return self._authorizer.allows(self.principal, grant)

    def allows_any(self, resource: Resource, op: Op) -> bool:
        return self._authorizer.allows_any(self.principal, resource, op)

    def refusal(self, grant: Grant) -> AuthorizationFailed:
        self._authorizer.tell_denied(self.principal, grant)
        return refusal(self.principal, grant)

    def hold(self, grants: Sequence[Grant], end: Callable[[AuthorizationFailed], None]) -> OpenGrants:
        held = OpenGrants(self._authorizer, self.principal, grants, end)
        self._authorizer.hold(held)
        return held
