"""The port to the audit log, and which request is being handled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from krappy.core.security.operations import Grant
from krappy.core.security.principal import Principal


class Asker(Protocol):
    @property
    def principal(self) -> Principal: ...


class AskedFor(NamedTuple):
    """A request: the session that it came on, its name in its protocol (in Kafka's: the API's), and the client id."""

    asker: Asker
    api: str
    client_id: str | None = None


# The request that this task handles; None: the broker does something by itself. A task that it begins has it, too.
ASKED: ContextVar[AskedFor | None] = ContextVar("ASKED", default=None)
# For whom it works, where that is not the one who asks (`asked_for`).
_FOR: ContextVar[str | None] = ContextVar("_FOR", default=None)


def whose() -> str:
    """Whose turns and limits the work of this task takes: of the one whose request it handles (`Principal.owner`), or
    for whom it was `asked_for`; "": the broker's."""
    asked, owner = ASKED.get(), _FOR.get()
    if owner is not None:
        return owner
    return "" if asked is None else asked.asker.principal.owner


@contextmanager
def asked_for(owner: str) -> Iterator[None]:
    """What is done in the body, and by tasks that it begins, is for this owner, whoever asks: another broker that has
    told for whom (`whose` there), say. "": for the broker itself, or nobody has told for whom."""
    token = _FOR.set(owner)
    try:
        yield
    finally:
        _FOR.reset(token)


Position = tuple[str, int, int]  # topic, partition, offset


class Change:
    """What is being changed. `before`, `after`: by name, what is told in place of what `look` gives. `made` False:
    nothing was changed."""

    def __init__(self) -> None:
        self.before: dict[str, Any] = {}
        self.after: dict[str, Any] = {}
        self.made = True


class AuditPort(Protocol):
    """`on`: something is written. `allowing`: what was allowed is written, too. `failing`: the lines that wait can't be
    written now. `lost`: how many lines will never be written."""

    on: bool
    allowing: bool

    @property
    def failing(self) -> bool: ...
    @property
    def lost(self) -> int: ...

    def authenticated(self, principal: Principal) -> None: ...
    def failed(self, mechanism: str, host: str, user: str, reason: str) -> None:
        """Somebody did not prove to be `user`."""

    def denied(self, principal: Principal, grant: Grant, reason: str) -> None: ...
    def allowed(self, principal: Principal, grant: Grant) -> None: ...
    def changed(self, kind: str, name: str, before: Any, after: Any) -> None:
        """Somebody has changed something: what it was and what it is, None where it was not or is not there."""

    def change(
        self, kind: str, names: Sequence[str], look: Callable[[str], Any] = ..., *, elsewhere: bool = False
    ) -> AbstractContextManager[Change]:
        """Around a change of what has these names. The change is told when it was made, or may have been: to make and
        to tell it is one step, which no cancellation ends. `look`: gives what there is now of a name. `elsewhere`:
        other brokers make the change, and only know that this one asks for it. What is afterwards as it was before is
        left out then."""

    def moved(self, group: str, before: Iterable[Position], after: Iterable[Position], *, often: bool = False) -> None:
        """Somebody has moved a group's positions. `before`: those that it had; `after`: those that it has, none if they
        were deleted. `often`: consumers without a membership do this all the time, so it is told once a minute."""

    def ended(self, principal: Principal, reason: str, grant: Grant | None = None) -> None:
        """A session has ended before its principal ended it. `grant`: what was open and is not allowed any more."""

    def throttled(self, quota: str, user: str, client_id: str, host: str, seconds: float) -> None: ...
