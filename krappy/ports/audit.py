"""The port to the audit log, and which request is being handled."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from krappy.core.security.operations import Grant
from krappy.core.security.principal import Principal


class Asker(Protocol):
    @property
    def principal(self) -> Principal: ...


class AskedFor(NamedTuple):
    """A request: whose session it came on, its name in its protocol (of Kafka's: the API's), and the client id."""

    asker: Asker
    api: str
    client_id: str | None = None


# The request that this task handles; None: the broker does something by itself. A task that it begins has it, too.
ASKED: ContextVar[AskedFor | None] = ContextVar("ASKED", default=None)


class AuditPort(Protocol):
    """`on`: something is written. `allowing`: also what was allowed."""

    on: bool
    allowing: bool

    def authenticated(self, principal: Principal) -> None: ...
    def failed(self, mechanism: str, host: str, user: str, reason: str) -> None:
        """Somebody did not prove to be `user`."""

    def denied(self, principal: Principal, grant: Grant, reason: str) -> None: ...
    def allowed(self, principal: Principal, grant: Grant) -> None: ...
    def changed(self, kind: str, name: str, before: Any, after: Any) -> None:
        """Somebody has changed something: what it was and what it is, None where it was not or is not there."""

    def throttled(self, quota: str, user: str, client_id: str, host: str, seconds: float) -> None: ...
