"""Whom quotas are for, what they limit, and which ones can be set (KIP-546)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from krappy.errors import InvalidRequest
from krappy.hosts import read_address

DEFAULT = ""  # as a name: all that have no quota of their own. No name is empty
LONGEST = {"user": 255, "client-id": 249, "ip": 45}  # characters of a name; more of a client id is not looked at
SHOWN = 80  # characters of a name that an error repeats


class QuotaKey(StrEnum):
    """What is counted: bytes a second of writes and of reads, % of one core's time, partitions a second that are
    created or deleted, connections a second."""

    PRODUCE = "producer_byte_rate"
    CONSUME = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


OF_IPS = (QuotaKey.CONNECTION,)
OF_CLIENTS = tuple(key for key in QuotaKey if key not in OF_IPS)
WHOLE = (QuotaKey.PRODUCE, QuotaKey.CONSUME, QuotaKey.CONNECTION)  # whose numbers have no fraction
Rates = Mapping[QuotaKey, float]


class QuotaEntity(NamedTuple):
    """Whom a quota is for. None: it does not matter; DEFAULT: whoever has no quota of his own."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> dict[str, str]:
        """By Kafka's names."""
        named = {"user": self.user, "client-id": self.client_id, "ip": self.ip}
        return {kind: name for kind, name in named.items() if name is not None}

    def __str__(self) -> str:
        return ", ".join(f"{kind} {name or '<default>'}" for kind, name in self.parts().items())


def entity_of(parts: Mapping[str, str]) -> QuotaEntity:
    """The entity of these parts. Raises InvalidRequest, as Kafka's ClientQuotaControlManager does."""
    if not parts:
        raise InvalidRequest("Invalid empty client quota entity")
    for kind, name in parts.items():
        if kind not in LONGEST:
            raise InvalidRequest(f"Unhandled client quota entity type: {kind:.{SHOWN}}")
        if len(name) > LONGEST[kind]:
            raise InvalidRequest(f"the name of a {kind} has at most {LONGEST[kind]} characters")
    if "ip" not in parts:
        return QuotaEntity(parts.get("user"), parts.get("client-id"))
    if len(parts) > 1:
        raise InvalidRequest("Invalid quota entity combination: an ip goes with no user and no client-id")
    ip = parts["ip"]
    try:
        return QuotaEntity(ip=read_address(ip) if ip else DEFAULT)
    except ValueError:
        raise InvalidRequest(f"'{ip:.{SHOWN}}' is no valid IP address") from None


def key_of(entity: QuotaEntity, name: str) -> QuotaKey:
    """The quota of this name. Raises InvalidRequest when there is none for the entity."""
    known = OF_CLIENTS if entity.ip is None else OF_IPS
    if name not in known:
        raise InvalidRequest(f"Invalid configuration key {name:.{SHOWN}}; for {entity} there are {', '.join(known)}")
    return QuotaKey(name)


def check_rate(key: QuotaKey, rate: float) -> float:
    """Raises InvalidRequest."""
    if not (math.isfinite(rate) and rate > 0):
        raise InvalidRequest(f"Quota {key} must be greater than 0")
    if rate < 1e-6 or rate > 2**63 or (key in WHOLE and abs(rate - round(rate)) > 1e-6):
        raise InvalidRequest(f"Proposed value for {key} quota must be a{' whole' if key in WHOLE else ''} number")
    return float(round(rate)) if key in WHOLE else rate


class QuotaFilter(NamedTuple):
    """Which quotas are meant: those for entities that have all these `names`, and something of each of the kinds in
    `any_of`. `strict`: and nothing else."""

    names: Mapping[str, str]
    any_of: Collection[str] = ()
    strict: bool = False

    def matches(self, entity: QuotaEntity) -> bool:
        parts = entity.parts()
        if self.strict and len(parts) != len(self.names) + len(self.any_of):
            return False
        return all(parts.get(kind) == name for kind, name in self.names.items()) and all(
            kind in parts for kind in self.any_of
        )


def stored_name(entity: QuotaEntity) -> str:
    """The entity as the name of its znode: its parts, with % and & in their names as %25 and %26."""
    return "&".join(f"{kind}={_masked(name)}" for kind, name in entity.parts().items())


def read_name(name: str) -> QuotaEntity:
    """The reverse. Raises InvalidRequest."""
    parts = (part.partition("=") for part in name.split("&"))
    return entity_of({kind: text.replace("%26", "&").replace("%25", "%") for kind, _, text in parts})


def _masked(name: str) -> str:
    return name.replace("%", "%25").replace("&", "%26")
