"""The port to client quotas."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

from krappy.core.security.quota import Payer, QuotaPlace
from krappy.core.security.quota_entities import QuotaEntity, QuotaFilter, QuotaKey, Rates
from krappy.waiting import Signal


class PayerPort(Protocol):
    """Who asks for something that a quota limits, as his connection knows him."""

    def mutate(self, partitions: int) -> None:
        """Counts partitions that are about to be created or deleted (controller_mutation_rate). Raises Overloaded."""


class UsePort(Protocol):
    """What clients use. `on`: some quota limits it. `timed`: request_percentage does. `changed`: fired after each
    change, which makes the `version` rise."""

    on: bool
    timed: bool
    changed: Signal
    version: int

    def spend(self, key: QuotaKey, payer: Payer, amount: float) -> float:
        """Notes that so much was used. Returns for how many seconds the client is to be silent."""

    def place(self, key: QuotaKey, payer: Payer, amount: float, most: float) -> QuotaPlace | None:
        """Like `spend`, for something that has to wait while others are over the quota. None: it would have to wait
        more than `most` seconds; then nothing was noted."""

    async def stand(self, key: QuotaKey, payer: Payer, amount: float, most: float = math.inf) -> bool:
        """Like `place`, and waits for its turn: behind what others have used by now, but before what they ask for
        later, for they may ask all the time. It waits no longer than this quota is in force. False: there is no place.
        """

    def turn(self, key: QuotaKey, payer: Payer) -> float:
        """How much the client may do by several things that have one place together; 0: nobody is in line."""

    def account(self, key: QuotaKey, payer: Payer) -> object:
        """The object on which the client's use is counted; another one once its quota has changed."""

    def wait(self, key: QuotaKey, payer: Payer) -> float:
        """For how many seconds the client is over this quota."""

    def share(self, key: QuotaKey, payer: Payer) -> int | None:
        """How much the client should use at once; 0: it is over this quota; None: there is no limit."""

    def rate(self, key: QuotaKey, payer: Payer) -> float:
        """How much the client may use in a second; infinite: there is no limit."""

    async def within(self, key: QuotaKey, payer: Payer, seconds: float = math.inf) -> bool:
        """Waits until the client is within this quota. False: it is not yet after `seconds`."""

    async def in_line(self, key: QuotaKey, payer: Payer, amount: float, stands: Callable[[], bool]) -> None:
        """Counts what is about to be used, and waits until it may be used. It is for users that always have more:
        however many these are, and however much each uses at once, together they keep to the quota, and leave some of
        it to others. The wait ends soon after `stands()` is false."""

    def lend(self, key: QuotaKey, payer: Payer, most: float) -> float:
        """Counts ahead what the client is about to use. Returns how much of `most` was counted, to be given back by
        `repay` when `spend` is told what it was."""

    def repay(self, key: QuotaKey, payer: Payer, lent: float) -> None: ...

    def mutate(self, payer: Payer, partitions: int, *, strict: bool) -> float:
        """Like `spend`, for controller_mutation_rate. `strict`: a client that is over the quota is refused (KIP-599).
        Raises Overloaded, with `seconds`."""

    def connect(self, host: str, *, apart: str, local: bool) -> bool:
        """Whether one more connection may come from this address now. `apart`: among which connections it is counted;
        each kind may use all of the address's rate. `local`: the address is this machine's own, for which only quotas
        of just this address count."""

    def note(self, key: QuotaKey, payer: Payer, seconds: float) -> None:
        """Counts that the client is silenced for so long, where `spend` or `place` did not."""

    def throttled(self) -> Mapping[QuotaKey, tuple[int, float]]:
        """How often clients were told to be silent since the start, and for how many seconds together."""


class QuotasPort(Protocol):
    """The quotas of the cluster, for whoever may see (DESCRIBE_CONFIGS) or change (ALTER_CONFIGS) them."""

    def find(self, wanted: QuotaFilter) -> Mapping[QuotaEntity, Rates]: ...
    async def alter(self, entity: QuotaEntity, changes: Mapping[QuotaKey, float | None]) -> None:
        """Sets or removes (None) quotas of one entity, durably. On return they are in force on this broker. Raises
        PolicyViolation when there would be too many, StorageError, ConnectionLost."""
