"""The session of one native connection: its registrations. Handlers keep their state here, and nowhere else."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import trio

from krappy.core.security.operations import CLUSTER_NAME, Grant, Op, Resource
from krappy.core.security.principal import ANONYMOUS, Principal
from krappy.core.security.quota import Payer
from krappy.errors import AuthorizationFailed, Overloaded, UnknownHandle
from krappy.handlers.handles import Membership, Revoked
from krappy.ports import AccessPort, BrokerPort, HeldPort, LoginPort, PacedPort, Registered, SessionFacts
from krappy.server.budget import FAIR
from krappy.settings.listeners import NATIVE

MAX_HANDLES = 10_000
FEW = 16  # members that leave in one turn: each may hold leases in all of the group's partitions
FAIR_HANDLES = 8  # small registrations that a connection may always hold, however many the others have
REGISTRATION = 2 << 10  # bytes of memory that a registration is assumed to take, beside what it says that it keeps
T = TypeVar("T")


class Allowance:
    """How many registrations all connections together may hold: a limit, because they take memory. One that keeps much
    counts as several."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class Paced:
    """The part of a session that both protocols share: the back-pressure of its connection, `peer`."""

    def __init__(self, peer: PacedPort) -> None:
        self._peer = peer
        self.writable, self.answering, self.pause = peer.writable, peer.answering, peer.pause
        self.throttle, self.reading, self.affordable = peer.throttle, peer.reading, peer.affordable

    @property
    def ready(self) -> bool:
        return self._peer.ready

    @property
    def proved_for(self) -> float:
        return self._peer.proved_for

    @property
    def throttled(self) -> float:
        return self._peer.throttled

    @property
    def answer_bytes(self) -> int:
        return self._peer.answer_bytes

    @property
    def read_bytes(self) -> int:
        return self._peer.read_bytes


class Identified(Paced):
    """A session that belongs to somebody. `host`: the peer's address; `listener`: the name of the one that it used."""

    access: AccessPort
    login: LoginPort | None = None  # None: nobody logs in at this listener
    _principal = ANONYMOUS

    def __init__(self, broker: BrokerPort, peer: PacedPort, host: str, listener: str) -> None:
        super().__init__(peer)
        self.broker = broker
        self.principal = Principal(host=host.strip("[]"), listener=listener)

    @property
    def principal(self) -> Principal:
        return self._principal

    @principal.setter
    def principal(self, principal: Principal) -> None:
        """Set once the peer has proved who it is, and again when it logs in anew: its groups may have changed."""
        before, self._principal = self._principal, principal
        self.access = self.broker.access(principal, weakref.proxy(self))  # weak, so that the session is freed at once
        if principal.names != before.names:
            self._look_again()

    def _look_again(self) -> None:
        """Called when the peer may be allowed something else than before."""

    @property
    def payer(self) -> Payer:
        """Who pays for the request that is being handled."""
        return Payer(self.principal.name)

    def mutate(self, partitions: int) -> None:
        """See PayerPort."""
        self._mutate(partitions, strict=True)

    def _mutate(self, partitions: int, *, strict: bool) -> None:
        """Raises Overloaded if that is `strict`."""
        try:
            wait = self.broker.client_quotas.mutate(self.payer, partitions, strict=strict)
        except Overloaded as error:
            self.throttle(error.seconds)
            raise
        if wait:
            self.throttle(wait)


class Session(Identified):
    """A `SessionPort`. `client`: the peer's name for people."""

    def __init__(
        self,
        broker: BrokerPort,
        client: str,
        peer: PacedPort,
        max_frame: int,
        allowance: Allowance,
        address: str = "",
        listener: str = NATIVE,
    ) -> None:
        self._held: dict[int, HeldPort] = {}  # by handle, with an authorizer
        self._grants: dict[int, Sequence[Grant]] = {}  # the grants of these handles
        super().__init__(broker, peer, client.rpartition(":")[0], listener)
        self.max_frame = max_frame
        self.address = address
        self._allowance = allowance
        self.client = client
        self.handles: dict[int, Registered] = {}
        self._further: dict[int, int] = {}  # for how many more each large one counts; members of groups are never large
        self.closed = False
        self.says_broker = False
        self.patience = math.inf
        self._next = 1

    @property
    def is_broker(self) -> bool:
        """Whether it is another broker, which no quota limits."""
        return (
            self.says_broker
            and self.broker.in_cluster
            and self.access.may(Resource.CLUSTER, CLUSTER_NAME, Op.CLUSTER_ACTION)
        )

    def add(self, registration: Registered, grants: Sequence[Grant], kept: int = 0) -> int:
        if self.closed:
            registration.close()
            return 0
        if len(self.handles) >= MAX_HANDLES:
            registration.close()
            raise Overloaded(f"a connection holds at most {MAX_HANDLES} registrations; unregister some")
        further = kept // REGISTRATION
        if self._allowance.used + further >= self._allowance.limit and (
            len(self.handles) >= FAIR_HANDLES or kept > FAIR
        ):
            registration.close()
            what = f", and this one would count as {1 + further}" if further else ""
            raise Overloaded(f"all connections together may hold {self._allowance.limit} registrations{what}")
        self._allowance.used += 1 + further
        handle = self._next
        self._next += 1
        self.handles[handle] = registration
        self._hold(handle, grants)
        if further:
            self._further[handle] = further
        return handle

    def _hold(self, handle: int, grants: Sequence[Grant]) -> None:
        if (held := self.access.hold(grants, partial(self._revoke, handle))) is not None:
            self._held[handle], self._grants[handle] = held, grants

    def _look_at(self, handle: int) -> None:
        """Before it is used: its grants may not have been looked at since ACLs changed."""
        if (held := self._held.get(handle)) is not None:
            held.look()

    @contextmanager
    def standing_on(self, grants: Sequence[Grant]) -> Iterator[None]:
        denied: AuthorizationFailed | None = None
        access = self.access

        def end(error: AuthorizationFailed) -> None:
            nonlocal denied
            denied = error
            scope.cancel()

        with trio.CancelScope() as scope:
            held = access.hold(grants, end)
            try:
                yield
            finally:
                if held is not None:
                    held.look()
                    held.release()
        if denied is not None:
            raise denied
        for each in grants if self.access is not access else ():  # the peer has logged in anew meanwhile
            self.access.check(*each)

    def _look_again(self) -> None:
        for handle, grants in list(self._grants.items()):
            self._release(handle)
            self._hold(handle, grants)

    def registration(self, handle: int) -> Registered:
        self._look_at(handle)
        found = self.handles.get(handle)
        if found is None:
            raise UnknownHandle(f"handle {handle} is not registered on this connection", handle=handle)
        return found

    def find(self, handle: int, kind: type[T]) -> T:
        self._look_at(handle)
        found = self.handles.get(handle)
        if isinstance(found, kind):
            return found
        self.registration(handle)
        if isinstance(found, Revoked):
            raise found.error
        raise UnknownHandle(f"handle {handle} is no {kind.__name__}", handle=handle)

    def registered(self, handle: int) -> bool:
        return handle in self.handles

    def remove(self, handle: int) -> None:
        self.registration(handle).close()
        if self.handles.pop(handle, None) is not None:
            self._release(handle)
            self._allowance.used -= 1 + self._further.pop(handle, 0)

    def forget(self, handle: int) -> None:
        if handle in self.handles:
            self.remove(handle)

    def revoked(self, handle: int) -> AuthorizationFailed | None:
        self._look_at(handle)
        found = self.handles.get(handle)
        return found.error if isinstance(found, Revoked) else None

    def _revoke(self, handle: int, error: AuthorizationFailed) -> None:
        registration = self.handles.get(handle)
        self._release(handle)
        if registration is not None:
            if isinstance(registration, Membership):
                registration.member.forfeit()
            registration.close()
            if handle not in self.handles:  # a scan that is closed removes itself
                self._allowance.used += 1
            self.handles[handle] = Revoked(error)

    def _release(self, handle: int) -> None:
        self._grants.pop(handle, None)
        if (held := self._held.pop(handle, None)) is not None:
            held.release()

    def describe(self) -> SessionFacts:
        """The connection's registrations; the native protocol has no client id."""
        return {"client_id": None, "registrations": [each.describe() for each in self.handles.values()]}

    def close(self) -> None:
        """Closes all registrations; more than a few members of groups in several turns."""
        self.closed = True
        for handle in list(self._held):
            self._release(handle)
        handles, self.handles = list(self.handles.values()), {}
        self._allowance.used -= sum(self._further.values())
        self._further.clear()
        left: deque[Registered] = deque()
        for registration in handles:
            if isinstance(registration, Membership):
                left.append(registration)
            else:
                registration.close()
        self._allowance.used -= len(handles) - len(left)
        if len(left) <= FEW or self.broker.stopped:
            self._close(left, len(left))
        else:
            self.broker.spawn(self._close_with_turns, left)

    async def _close_with_turns(self, left: deque[Registered]) -> None:
        try:
            while left:
                self._close(left, FEW)
                await trio.lowlevel.checkpoint()
        finally:
            self._close(left, len(left))

    def _close(self, left: deque[Registered], count: int) -> None:
        for _ in range(min(count, len(left))):
            self._allowance.used -= 1
            left.popleft().close()
