"""Who may connect: how many at a time, how many of one address, and who gives way to whom.

Rules, kept here:

- HTTP has places of its own: probes and the console are served although clients hold all connections that there may be.
  Where these are taken too, the one that has waited longest for its peer gives way.
- A connection that has never asked for anything gives way to one that comes when no place is left, the oldest first.
- Of the connections that there may be, the last few are for peers on this machine: who administers it gets in.
- One address has a limit of its own (`max.connections.per.ip`), but for this machine and for HTTP.
- Descriptors that the storage needs are left to it; HTTP may take a few of them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

from krappy import descriptors
from krappy.errors import KrappyError, Overloaded

HTTP = "http"
MOST_HTTP = 500  # connections of HTTP at a time,
FEW_HTTP = 8  # and so many although few descriptors are left
OWN = 16  # of the connections that there may be, so many are for this machine,
OWN_SHARE = 10  # or this part of them


class Placed(Protocol):
    """A connection that has a place."""

    requests: int

    def give_way(self, why: str) -> None: ...
    def waits_since(self, now: float) -> float | None:
        """When it began to wait for its peer; None: its peer waits for it."""


@lru_cache(1000)
def is_local(host: str) -> bool:
    """Whether a peer's address is this machine's own."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class Places:
    """`most`: connections of clients at a time; `most_of_one`: of one address, `overrides`: of some."""

    def __init__(self, most: int, most_of_one: int, overrides: Mapping[str, int]) -> None:
        self.most = most
        self.most_of_one = most_of_one
        self._overrides = overrides
        self._clients = 0  # all but HTTP's
        self._http: dict[Placed, None] = {}
        self._by_host: dict[str, int] = {}
        self._fresh: dict[Placed, None] = {}  # clients that had asked for nothing yet when they were last looked at

    def refusal(self, protocol: str, host: str, descriptor: int, now: float) -> KrappyError | None:
        """Why there is no place for a new peer; None: there is one, or somebody has given way."""
        few = descriptors.few_left(descriptor)
        if protocol == HTTP:
            crowded = len(self._http) >= (FEW_HTTP if few else MOST_HTTP)
            if crowded and not self._http_gives_way(now):
                return Overloaded(f"{len(self._http)} connections of HTTP are open, and all are at work")
            return None
        local = is_local(host)
        limit = self._overrides.get(host, self.most_of_one)
        if not local and self._by_host.get(host, 0) >= limit:
            return Overloaded(f"{limit} connections of {host} are open: as many as one address may have")
        reserved = 0 if local else min(OWN, self.most // OWN_SHARE)
        if self._clients >= self.most - reserved and not self._fresh_gives_way():
            return Overloaded(f"{self.most} connections are open: as many as are allowed")
        if few and not self._fresh_gives_way():
            most = descriptors.allowed()
            return Overloaded(f"the broker may have {most} files and connections open, and has nearly as many")
        return None

    def take(self, connection: Placed, protocol: str, host: str) -> None:
        if protocol == HTTP:
            self._http[connection] = None
            return
        self._clients += 1
        self._fresh[connection] = None
        self._by_host[host] = self._by_host.get(host, 0) + 1

    def leave(self, connection: Placed, protocol: str, host: str) -> None:
        if protocol == HTTP:
            self._http.pop(connection, None)
            return
        self._clients -= 1
        self._fresh.pop(connection, None)
        left = self._by_host[host] - 1
        if left:
            self._by_host[host] = left
        else:
            del self._by_host[host]

    def _fresh_gives_way(self) -> bool:
        while self._fresh:
            oldest = next(iter(self._fresh))
            del self._fresh[oldest]
            if not oldest.requests:
                oldest.give_way("it has asked for nothing, and others need its place")
                return True
        return False

    def _http_gives_way(self, now: float) -> bool:
        waiting = [(since, each) for each in self._http if (since := each.waits_since(now)) is not None]
        if not waiting:
            return False
        _, longest = min(waiting, key=lambda one: one[0])
        del self._http[longest]
        longest.give_way("it waits for its peer, and others need its place")
        return True
