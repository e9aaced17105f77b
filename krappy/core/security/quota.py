"""Client quotas: how much a user, a client id or an address may use, and how much of it was used.

Kafka's, by its names (KIP-13, KIP-55, KIP-124, KIP-546, KIP-599, KIP-612). There is no clock here: each call is told
the time, in seconds of one clock.

Rules, kept here:

- Of the quotas that concern a request the most precise one counts, for each key by itself, in the order of Kafka's
  ClientQuotaManager (`QuotaSet.find`). One for a user is shared by all that the user's connections do; one for a client
  id by all who give that id; one for both by those who have both.
- Who has used less than allowed has credit, of at most `BURST` seconds. Who has used more waits until the average is
  within the rate again. For what was used before by all who share the quota, one waits at most `DEBT` seconds: Kafka's
  samples go back no further either. Only created and deleted partitions are owed for ever (KIP-599).
- A request that comes while others are over the quota may take its place in line behind them (`place`). It counts at
  once, so later requests are behind it, by however many connections they come. One who has several things to do may do
  them in one turn (`turn`), up to about the largest one in line. Else one who asks for little at a time would get
  little beside the others.
- When a quota changes, what was used of it before is forgotten.
- However many names peers make up, memory is bounded. No debt is forgotten for that: what was used is forgotten only
  once it makes no difference. While that does not make enough room, new names share what one of them may use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from krappy.core.security.quota_entities import DEFAULT, QuotaEntity, QuotaKey, Rates
from krappy.hosts import network

MOST_BUCKETS = 10_000
LEAST_WAIT = 0.001  # s; a shorter wait counts as none
BURST: Mapping[QuotaKey, float] = {key: 11.0 if key is QuotaKey.MUTATION else 1.0 for key in QuotaKey}
LENT = 2.0  # s: what is allowed in so long may be counted ahead of its use; then all credit is gone for a second
FADES = 0.9  # by this factor the largest thing in line counts less with each one that comes
WINDOW = 11.0  # s: Kafka's quota.window.num times quota.window.size.seconds
DEBT: Mapping[QuotaKey, float] = {key: math.inf if key is QuotaKey.MUTATION else WINDOW for key in QuotaKey}


class QuotaPlace(NamedTuple):
    """The place in line of what somebody wants to do. `wait`: seconds until he may do it. `silence`: seconds for which
    he is to be silent afterwards."""

    wait: float
    silence: float


AT_ONCE = QuotaPlace(0.0, 0.0)


class Payer(NamedTuple):
    """Who sends a request. `host`: the address of one who has not logged in; else empty."""

    user: str = DEFAULT
    client_id: str = DEFAULT
    host: str = ""


_Shared = tuple[str | None, str | None]
BucketName = tuple[QuotaKey, *tuple[object, ...]]


class QuotaLimit(NamedTuple):
    """The quota that counts. `shared`: the user, the client id, or both, which all who share it have."""

    entity: QuotaEntity
    rate: float
    shared: _Shared


class QuotaSet:
    """All quotas at one time; immutable. `keys`: those for which there is a quota."""

    def __init__(self, quotas: Mapping[QuotaEntity, Rates] | None = None) -> None:
        self.all: Mapping[QuotaEntity, Rates] = dict(quotas or {})
        self._by_key: dict[QuotaKey, dict[QuotaEntity, float]] = {}
        for entity, rates in self.all.items():
            for key, rate in rates.items():
                self._by_key.setdefault(key, {})[entity] = rate
        self.keys = frozenset(self._by_key)

    def find(self, key: QuotaKey, user: str, client_id: str) -> QuotaLimit | None:
        """The quota that counts; None: there is no limit."""
        rates = self._by_key.get(key)
        if not rates:
            return None
        for entity, shared in _precedence(user, client_id):
            if (rate := rates.get(entity)) is not None:
                return QuotaLimit(entity, rate, shared)
        return None

    def of_ip(self, host: str) -> QuotaLimit | None:
        """How many connections a second an address may open; None: there is no quota."""
        rates = self._by_key.get(QuotaKey.CONNECTION, {})
        for name in (host, DEFAULT):
            if (rate := rates.get(QuotaEntity(ip=name))) is not None:
                return QuotaLimit(QuotaEntity(ip=name), rate, (None, None))
        return None


def _precedence(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, _Shared]]:
    yield QuotaEntity(user, client_id), (user, client_id)
    yield QuotaEntity(user, DEFAULT), (user, client_id)
    yield QuotaEntity(user), (user, None)
    yield QuotaEntity(DEFAULT, client_id), (user, client_id)
    yield QuotaEntity(DEFAULT, DEFAULT), (user, client_id)
    yield QuotaEntity(DEFAULT), (user, None)
    yield QuotaEntity(None, client_id), (None, client_id)
    yield QuotaEntity(None, DEFAULT), (None, client_id)


class Bucket:
    """What was used of one quota. `rate`: units a second; `burst`: seconds of credit at most; `debt`: seconds for
    which those who share it wait at most. `entity`: whom the quota is for."""

    __slots__ = ("_largest", "_paid", "burst", "debt", "entity", "rate")

    def __init__(
        self, rate: float, burst: float, now: float, debt: float = math.inf, entity: QuotaEntity | None = None
    ) -> None:
        self.rate = rate
        self.burst = burst
        self.debt = debt
        self.entity = entity
        self._paid = now - burst  # when what was used is within the rate
        self._largest = 0.0  # amount that somebody in line has asked for

    def spend(self, amount: float, now: float) -> float:
        """Notes that so much was used. Returns how many seconds its user is to wait now: for all of this amount, and at
        most `debt` for what was used before."""
        self._paid = max(self._paid, now - self.burst) + amount / self.rate
        wait = self.wait(now)
        self._paid = min(self._paid, now + self.debt)
        return wait

    def place(self, amount: float, most: float, now: float) -> QuotaPlace | None:
        """Like `spend`, for something that begins only once what was used before is within the quota. None, and nothing
        is noted, if that takes more than `most` seconds."""
        wait = self.wait(now)
        if wait > most:
            return None
        self._largest = max(amount, self.turn(now))
        before = max(self._paid, now - self.burst)
        after = before + amount / self.rate
        self._paid = min(after, now + wait + self.debt)
        silence = after - now - wait
        return QuotaPlace(wait, silence if silence >= LEAST_WAIT else 0.0)

    def turn(self, now: float) -> float:
        """How much may be used in one turn by several things together; 0: nobody is in line."""
        return FADES * self._largest if self.wait(now) else 0.0

    def wait(self, now: float) -> float:
        left = self._paid - now
        return left if left >= LEAST_WAIT else 0.0

    def is_full(self, now: float) -> bool:
        """Whether it is as if nothing had been used."""
        return self._paid <= now - self.burst


class QuotaUse:
    """What everybody has used. `quotas`: those in force; a rate that changes forgets what was used of it."""

    def __init__(self, most: int = MOST_BUCKETS) -> None:
        self._most = most
        self.quotas = QuotaSet()
        self._buckets: dict[BucketName, Bucket] = {}
        self._known: dict[tuple[QuotaKey, Payer], Bucket | None] = {}  # the bucket of each that was looked for
        self._swept = 0.0

    def take(self, quotas: QuotaSet) -> None:
        self.quotas = quotas
        self._known.clear()
        self._buckets = {name: bucket for name, bucket in self._buckets.items() if self._counts(bucket, name[0])}

    def _counts(self, bucket: Bucket, key: QuotaKey) -> bool:
        """Whether the quota of a bucket is as it was."""
        return bucket.entity is None or self.quotas.all.get(bucket.entity, {}).get(key) == bucket.rate

    @property
    def size(self) -> int:
        return max(len(self._buckets), len(self._known))

    def spend(self, key: QuotaKey, payer: Payer, amount: float, now: float) -> float:
        """Notes that so much was used. Returns for how many seconds its user is to be silent; 0: he is within his
        quota."""
        bucket = self._of(key, payer, now)
        return 0.0 if bucket is None else bucket.spend(amount, now)

    def place(self, key: QuotaKey, payer: Payer, amount: float, most: float, now: float) -> QuotaPlace | None:
        """Like `spend`, for something that may have to wait for others first. None, and nothing is noted, if it would
        have to wait more than `most` seconds."""
        bucket = self._of(key, payer, now)
        return AT_ONCE if bucket is None else bucket.place(amount, most, now)

    def turn(self, key: QuotaKey, payer: Payer, now: float) -> float:
        """How much he may do in one turn, by several things; 0: nobody is in line."""
        bucket = self._of(key, payer, now)
        return 0.0 if bucket is None else bucket.turn(now)

    def account(self, key: QuotaKey, payer: Payer, now: float) -> object:
        """The object on which his use is counted; another one once his quota has changed."""
        return self._of(key, payer, now)

    def wait(self, key: QuotaKey, payer: Payer, now: float) -> float:
        """For how many seconds he is over his quota; 0: he is not."""
        bucket = self._of(key, payer, now)
        return 0.0 if bucket is None else bucket.wait(now)

    def share(self, key: QuotaKey, payer: Payer, now: float) -> int | None:
        """How much he should use at once: as much as is allowed in a second; 0: he is over his quota; None: there is no
        limit."""
        bucket = self._of(key, payer, now)
        if bucket is None:
            return None
        return 0 if bucket.wait(now) else max(1, int(bucket.rate))

    def rate(self, key: QuotaKey, payer: Payer, now: float) -> float:
        """How much he may use in a second; infinite: there is no limit."""
        bucket = self._of(key, payer, now)
        return math.inf if bucket is None else bucket.rate

    def lend(self, key: QuotaKey, payer: Payer, most: float, now: float) -> float:
        """Counts ahead what is about to be used: `most`, but no more than is enough to keep all others who share the
        quota from beginning meanwhile. Returns how much was counted, to be given back; 0: there is no limit."""
        bucket = self._of(key, payer, now)
        if bucket is None:
            return 0.0
        lent = min(most, bucket.rate * LENT)
        bucket.spend(lent, now)
        return lent

    def connect(self, host: str, otherwise: float | None, now: float, *, apart: str = "", exempt: bool = False) -> bool:
        """Whether an address may open one more connection now. If so, the connection counts: for the address, if that
        has a quota of its own, else for its network. `otherwise`: how many a second, where no quota says it; None: any
        number. `apart`: among which connections it is counted; each kind may use all of the rate. `exempt`: only a
        quota of the address's own counts."""
        limit = self.quotas.of_ip(host)
        rate = otherwise if limit is None else limit.rate
        if rate is None or (exempt and (limit is None or limit.entity.ip != host)):
            return True
        key = QuotaKey.CONNECTION
        who = host if limit is not None and limit.entity.ip == host else network(host)
        entity = None if limit is None else limit.entity
        bucket = self._made((key, who, apart), (key, rate, apart), rate, now, entity)
        if bucket.wait(now):
            return False
        bucket.spend(1, now)
        return True

    def _of(self, key: QuotaKey, payer: Payer, now: float) -> Bucket | None:
        known = (key, payer)
        if known in self._known:
            return self._known[known]
        if len(self._known) >= self._most:
            self._known.clear()
        limit = self.quotas.find(key, payer.user, payer.client_id)
        if limit is None:
            self._known[known] = None
            return None
        who = (network(payer.host),) if payer.host else limit.shared
        bucket = self._made((key, *who), (key, limit.entity), limit.rate, now, limit.entity)
        self._known[known] = bucket
        return bucket

    def _made(
        self, name: BucketName, overflow: BucketName, rate: float, now: float, entity: QuotaEntity | None
    ) -> Bucket:
        """The bucket of this name, or the bucket `overflow`, which all share for whom there is no room. New names get
        that one also as long as something of it is used: it may be they who have used it."""
        found = self._buckets.get(name)
        if found is None:
            if len(self._buckets) >= self._most or overflow in self._buckets:
                self._sweep(now)
            if len(self._buckets) >= self._most or overflow in self._buckets:
                name = overflow
                found = self._buckets.get(name)
        if found is None or found.rate != rate:
            key = name[0]
            found = self._buckets[name] = Bucket(rate, BURST[key], now, DEBT[key], entity)
        return found

    def _sweep(self, now: float) -> None:
        """Forgets the buckets that make no difference; at most once a second, because it looks at all."""
        if now - self._swept < 1.0:
            return
        self._swept = now
        self._known.clear()
        self._buckets = {name: bucket for name, bucket in self._buckets.items() if not bucket.is_full(now)}
