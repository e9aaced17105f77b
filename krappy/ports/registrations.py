"""What a connection has registered under a handle."""

from __future__ import annotations

from typing import NotRequired, Protocol, TypedDict


class RegistrationFacts(TypedDict):
    """A registration, for people. `name`: of a producer or a member; `group`: of a member; `bytes`: of the record
    batches that a producer has sent, or that a reader or a member was given."""

    kind: str
    topics: list[str]
    name: NotRequired[str | None]
    group: NotRequired[str]
    bytes: NotRequired[int]


class Registered(Protocol):
    """It is closed with the connection."""

    def close(self) -> None: ...
    def describe(self) -> RegistrationFacts: ...
