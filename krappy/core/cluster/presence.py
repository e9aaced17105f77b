"""Which brokers the controller counts as gone, by its own clock.

A broker that leads holds a read lease: it answers strong reads until the lease ends, even if it hears nothing. It
renews the lease by writing the znode `/leases/ID`. So nobody may take its place, or commit without it, before its lease
is over, and the controller waits:

- A broker whose registration is gone, or was made anew, is gone GRACE_MS after the controller has seen that. ZooKeeper
  ends a session after all writes of the session, so the last renewal was sent before.
- A broker that is registered, but whose lease has not been renewed for SILENCE_MS, is gone, too. What is written for
  that reason must demand the version of `/leases/ID` that was seen (`fence`): a renewal that came meanwhile refuses it.

Both are longer than a lease of LEASE_MS, with clocks that differ by 5 % in speed.

A registration outlives its broker by some seconds. So only a broker that the controller has heard of becomes a leader:
it must have registered, or renewed its lease, while the controller looked. Else a dead broker might be elected, and
soon another one in its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from krappy.core.cluster import paths
from krappy.core.cluster.image import Image, Registration
from krappy.core.cluster.tree import Check

LEASE_MS = 1_500  # how long a renewal is good for, from when it was sent
RENEW_MS = 500
GRACE_MS = 2_000
SILENCE_MS = 2_500
HEARD_MS = 2_000  # shorter than SILENCE_MS, because two observers may see the same renewal 0.5 s apart
DEAF_MS = 1_000  # if two looks are further apart, ZooKeeper may have been away, and then nobody could renew a lease


class Presence:
    """`alive`: the brokers that may become leaders. Times are ms of a monotonic clock. If `silence_ms` is math.inf,
    there are no leases, and who is registered is alive."""

    def __init__(self, grace_ms: float = GRACE_MS, silence_ms: float = SILENCE_MS) -> None:
        self.alive: Mapping[int, Registration] = {}
        self._grace_ms, self._silence_ms = grace_ms, silence_ms
        self._brokers: Mapping[int, Registration] = {}
        self._leases: dict[int, tuple[int, int, float]] = {}  # by broker: its epoch, the lease's version, since when
        self._heard: set[int] = set()  # those that registered, or renewed their lease, since the first look
        self._missing: dict[tuple[int, int | None], float] = {}  # (broker, epoch): since when
        self._reigns: dict[tuple[bytes, int], tuple[int, float]] = {}  # by partition: its leader epoch, since when
        self._now = -math.inf  # of the last look

    def look(self, image: Image, leases: Mapping[int, int], now: float) -> None:
        """Takes what was read just now. `leases`: the version of each registered broker's lease; a broker without one
        has not renewed it yet."""
        is_first = self._now == -math.inf
        if now - self._now > DEAF_MS:  # this broker heard nothing, so perhaps nobody could be heard
            self._leases = {broker: (epoch, version, now) for broker, (epoch, version, _) in self._leases.items()}
            self._heard.clear()
        self._now, self._brokers = now, image.brokers
        for broker, registration in image.brokers.items():
            seen = (registration.epoch, leases.get(broker, -1))
            if self._leases.get(broker, ())[:2] != seen:
                self._leases[broker] = (*seen, now)
                if not is_first:
                    self._heard.add(broker)
        for broker in self._leases.keys() - image.brokers.keys():
            del self._leases[broker]
            self._heard.discard(broker)
        for broker, epoch in [key for key in self._missing if self._is_there(*key)]:
            del self._missing[broker, epoch]
        self.alive = image.brokers
        if self._silence_ms < math.inf:
            heard = {id: each for id, each in image.brokers.items() if id in self._heard}
            self.alive = {id: each for id, each in heard.items() if not self.is_silent(id)}

    def gone(self, broker: int, epoch: int | None = None) -> bool:
        """Whether the broker is gone; with an `epoch`, whether it is gone as it was in this broker epoch."""
        if self._is_there(broker, epoch):
            return self.is_silent(broker)
        return self._now - self._missing.setdefault((broker, epoch), self._now) >= self._grace_ms

    def is_silent(self, broker: int) -> bool:
        """Whether it is registered, and does not renew its lease."""
        return broker in self._leases and self._now - self._leases[broker][2] >= self._silence_ms

    def has_reigned(self, partition: tuple[bytes, int], epoch: int) -> bool:
        """Whether a partition (topic id, index) has had this leader epoch for the whole grace period, which begins when
        this is asked for the first time. Then nobody who led it before holds a read lease: a broker renews its lease
        only after it has read the changes that it was told of."""
        if self._reigns.get(partition, (-1, 0))[0] != epoch:
            self._reigns[partition] = (epoch, self._now)
        return self._now - self._reigns[partition][1] >= self._grace_ms

    def fence(self, broker: int) -> list[Check]:
        """The checks of a write that is made because this broker is gone."""
        if not self.is_silent(broker) or self._leases[broker][1] < 0:
            return []
        return [Check(paths.lease(broker), self._leases[broker][1])]

    def _is_there(self, broker: int, epoch: int | None) -> bool:
        found = self._brokers.get(broker)
        return found is not None and epoch in (None, found.epoch)


class Renewals:
    """Which brokers renew their leases, as a leader sees it that looks for itself.

    A follower that can't reach ZooKeeper, but can reach its leader, goes on fetching, and stays registered until its
    session ends. The controller takes it out of the ISR; a leader that put it back at once would do so several times a
    second. So who comes into the ISR must have renewed its lease in the last HEARD_MS, while the leader looked: a
    broker is silent for the leader before it is silent for the controller. (Kafka's leaders don't add brokers that are
    fenced, KIP-841.)
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[tuple[int, int], float]] = {}  # by broker: (its epoch, the lease's version), when
        self._now = -math.inf  # of the last look

    def look(self, image: Image, leases: Mapping[int, int], now: float) -> None:
        """Takes what was read just now (see `Presence.look`). When a broker is seen for the first time, it is unknown
        when it renewed its lease: it counts as not heard."""
        before, self._seen, self._now = self._seen, {}, now
        for broker, registration in image.brokers.items():
            found = (registration.epoch, leases.get(broker, -1))
            was, at = before.get(broker, (found, -math.inf))
            self._seen[broker] = found, at if was == found else now

    def heard(self, broker: int) -> bool:
        return broker in self._seen and self._now - self._seen[broker][1] <= HEARD_MS


class ReadLease:
    """A broker's own read lease. It holds for LEASE_MS, counted from when the last answered renewal was sent."""

    def __init__(self, lease_ms: float = LEASE_MS) -> None:
        self._lease_ms = lease_ms
        self._until = float("-inf")

    def answered(self, sent: float) -> None:
        """The renewal that was sent at this time has been answered."""
        self._until = max(self._until, sent + self._lease_ms)

    def end(self) -> None:
        """The session is over."""
        self._until = float("-inf")

    def holds(self, now: float) -> bool:
        return now < self._until
