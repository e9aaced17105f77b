"""Who sends a request, as the connection that it came on has proved (KIP-11, KIP-189)."""

from __future__ import annotations

from dataclasses import dataclass, field

from krappy.hosts import network

KINDS = ("User", "Group")  # all kinds of principals
TOKEN = "TOKEN"  # the mechanism of those who have the console's token: many people, under one name


@dataclass(frozen=True)
class Principal:
    """`groups`: of a token's claims; ACLs may name them (`Group:ops`). `mechanism`: of SASL, or "mTLS"; None: no proof
    was asked for. `listener`: its name. `host`: the peer's address. `expires_ms`: when the proof ends, in ms since
    1970; None: never."""

    kind: str = "User"
    name: str = "ANONYMOUS"
    groups: tuple[str, ...] = ()
    mechanism: str | None = None
    listener: str = ""
    host: str = ""
    expires_ms: int | None = None
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)  # by which ACLs name it: its own, its groups'

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", (str(self), *(f"Group:{name}" for name in self.groups)))

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def owner(self) -> str:
        """Whose turns its requests take, and for whom counts what they make: its own, or that of its address
        (`krappy.hosts.network`), if it has not proved a name of its own."""
        return network(self.host) if self.mechanism in (None, TOKEN) else str(self)


ANONYMOUS = Principal()  # a peer that did not have to prove who it is


def check_principal(text: str) -> None:
    """Raises ValueError unless it names a possible principal. Kafka takes any type: there an ACL that denies something
    to `user:ada` denies it to nobody."""
    kind, _, name = text.partition(":")
    if not kind or not name:
        raise ValueError(f"'{text:.80}' is not TYPE:NAME, such as User:ada")
    if kind not in KINDS:
        meant = f" ({kind.capitalize()}:{name:.80} is meant?)" if kind.capitalize() in KINDS else ""
        raise ValueError(f"'{text:.80}' would be nobody: a principal is User:NAME or Group:NAME{meant}")
