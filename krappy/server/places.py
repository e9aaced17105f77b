"""Limits of connections: how many at a time, how many from one address, and which one gives way to a new one.

Rules, kept here:

- HTTP has places of its own, and so have probes (`listen_health`): they are served even when clients hold all other
  places. When HTTP's places are taken, too, or an address has as many of them as are left for all others, one HTTP
  connection that waits for its peer gives way: of the address that has most, the one that has waited longest, and none
  of an address that has fewer than the newcomer's. So requests that wait for the broker, however long, take half of the
  places at most, if they are of one address. Likewise for probes.
- The listener of a cluster's brokers, where clients come by others, has as many places of its own as all others have
  together: clients that hold all of theirs keep no broker away (as KIP-402 has it, by other means).
- When no place is left, the oldest connection that has never sent a request gives way to a new one at such listeners.
- The last few places are for peers on this machine, so that its administrator can always connect.
- One address has a limit (`max.connections.per.ip`), which does not apply to this machine, HTTP and probes. With IPv6 a
  network of 64 bits has this limit together, except for addresses that have a limit of their own. How many connections
  it opens in a second is limited elsewhere (KIP-612): for HTTP as well, counted apart, but not for probes.
- Connections leave the file descriptors that the storage needs; HTTP and other brokers may take a few of them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

from krappy import descriptors
from krappy.errors import KrappyError, Overloaded
from krappy.hosts import network

HTTP, HEALTH = "http", "health"
MOST_APART = {HTTP: 500, HEALTH: 50}  # connections at a time, for protocols that have places of their own
FEW_HTTP = 8  # connections of HTTP when few descriptors are left
BROKERS = "brokers"  # the kind of connections at a listener where brokers come and clients do not
FEW_OF_BROKERS = 16  # of these when few descriptors are left
OWN = 16  # places for this machine, at most
OWN_SHARE = 10  # no more than a tenth of all places is for this machine


class Placed(Protocol):
    """A connection that has a place. `requests`: how many it has sent."""

    requests: int

    def give_way(self, why: str) -> None: ...
    def waits_since(self, now: float) -> float | None:
        """When it began to wait for its peer; None: the peer waits for an answer."""


ByAddress = dict[str, dict[Placed, None]]


@lru_cache(1000)
def is_local(host: str) -> bool:
    """Whether a peer's address is a loopback address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class _Pool:
    def __init__(self) -> None:
        self.count = 0  # connections
        self.fresh: dict[Placed, None] = {}  # those that may not have sent a request yet, the oldest first

    def fresh_gives_way(self) -> bool:
        while self.fresh:
            oldest = next(iter(self.fresh))
            del self.fresh[oldest]
            if not oldest.requests:
                oldest.give_way("it has asked for nothing, and others need its place")
                return True
        return False


class Places:
    """How many connections of clients there may be: `most` in all, `most_of_one` from one address; `overrides` has
    other limits for some addresses. The kind of a connection is its protocol, or `BROKERS`."""

    def __init__(self, most: int, most_of_one: int, overrides: Mapping[str, int]) -> None:
        self.most = most
        self.most_of_one = most_of_one
        self._overrides = overrides
        self._clients, self._brokers = _Pool(), _Pool()
        self._apart: dict[str, ByAddress] = {each: {} for each in MOST_APART}
        self._by_host: dict[str, int] = {}  # by address or network, see `_counted`

    def refusal(self, kind: str, host: str, descriptor: int, now: float) -> KrappyError | None:
        """Why there is no place for a new connection; None when there is one, or another connection has given way."""
        few = descriptors.few_left(descriptor)
        if kind in self._apart:
            apart = self._apart[kind]
            left = (FEW_HTTP if few else MOST_APART[kind]) - sum(map(len, apart.values()))
            own = len(apart.get(network(host), ()))
            if own >= left and not _one_gives_way(apart, own, now):
                what = f"{own} connections of {kind.upper()} of {host} are open, {max(left, 0)} are left for others"
                return Overloaded(f"{what}, and all are at work")
            return None
        local, who = is_local(host), self._counted(host)
        limit = self._overrides.get(host, self.most_of_one)
        if not local and self._by_host.get(who, 0) >= limit:
            what = "network of IPv6" if "/" in who else "address"
            return Overloaded(f"{limit} connections of {who} are open: as many as one {what} may have")
        reserved = 0 if local else min(OWN, self.most // OWN_SHARE)
        pool = self._pool(kind)
        if pool.count >= self.most - reserved and not pool.fresh_gives_way():
            return Overloaded(f"{self.most} connections are open: as many as are allowed")
        if few and not (kind == BROKERS and pool.count < FEW_OF_BROKERS) and not pool.fresh_gives_way():
            most = descriptors.allowed()
            return Overloaded(f"the broker may have {most} files and connections open, and has nearly as many")
        return None

    def _pool(self, kind: str) -> _Pool:
        return self._brokers if kind == BROKERS else self._clients

    def take(self, connection: Placed, kind: str, host: str) -> None:
        if kind in self._apart:
            self._apart[kind].setdefault(network(host), {})[connection] = None
            return
        pool = self._pool(kind)
        pool.count += 1
        pool.fresh[connection] = None
        who = self._counted(host)
        self._by_host[who] = self._by_host.get(who, 0) + 1

    def leave(self, connection: Placed, kind: str, host: str) -> None:
        if kind in self._apart:
            of_address = self._apart[kind].get(network(host), {})
            of_address.pop(connection, None)
            if not of_address:
                self._apart[kind].pop(network(host), None)
            return
        pool = self._pool(kind)
        pool.count -= 1
        pool.fresh.pop(connection, None)
        who = self._counted(host)
        left = self._by_host[who] - 1
        if left:
            self._by_host[who] = left
        else:
            del self._by_host[who]

    def _counted(self, host: str) -> str:
        """The name under which the connections of an address are counted: the address itself, or its network."""
        return host if host in self._overrides else network(host)


def _one_gives_way(apart: ByAddress, own: int, now: float) -> bool:
    """`own`: how many the address of the new one has. None of an address with fewer gives way to it."""
    for connections in sorted((each for each in apart.values() if len(each) >= own), key=len, reverse=True):
        waiting = [(since, each) for each in connections if (since := each.waits_since(now)) is not None]
        if waiting:
            _, longest = min(waiting, key=lambda one: one[0])
            del connections[longest]
            longest.give_way("it waits for its peer, and others need its place")
            return True
    return False
