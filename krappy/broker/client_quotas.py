"""Client quotas: those in the cluster's tree, and what clients use of them at this broker.

    /config/quotas/<entity>     {"version":1,"config":{"producer_byte_rate":"1048576.0"}}

An entity is written as `user=ada&client-id=web`, where an empty name means the default one. All brokers follow the
tree, so a change is in force on each of them as soon as it sees it. As in Kafka each broker counts by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import trio

from krappy.broker.audit import Audit
from krappy.broker.tree_changes import change, config_change
from krappy.core.cluster import paths
from krappy.core.cluster.document import Document
from krappy.core.cluster.image import Image
from krappy.core.cluster.tree import Operation
from krappy.core.security.quota import Payer, QuotaPlace, QuotaSet, QuotaUse
from krappy.core.security.quota_entities import (
    QuotaEntity,
    QuotaFilter,
    QuotaKey,
    Rates,
    check_rate,
    key_of,
    read_name,
    stored_name,
)
from krappy.errors import InvalidRequest, Overloaded, PolicyViolation
from krappy.ports.store import Store
from krappy.settings.server import ServerConfig
from krappy.waiting import Signal, wait_any, while_standing

MOST = 10_000  # entities that have quotas
ASIDE = 0.1  # seconds for which a waiter in line leaves the quota to others, who ask again once they may


class QuotaTree(Protocol):
    """What a broker lends: its settings, and the tree."""

    config: ServerConfig
    store: Store
    audit: Audit

    @property
    def image(self) -> Image: ...


class ClientQuotas:
    """`on`: there are quotas of users or client ids. `timed`: there is a request_percentage. `changed`: fired after
    each change of the quotas, which also makes the `version` rise."""

    def __init__(self, runtime: QuotaTree) -> None:
        self.on = False
        self.timed = False
        self.version = 0
        self.changed = Signal()
        self._runtime = runtime
        self._use = QuotaUse()
        self._seen: object = None  # of the image: the quotas that are in force
        self._throttled: dict[QuotaKey, tuple[int, float]] = {}
        self._waiting: dict[tuple[QuotaKey, Payer], trio.lowlevel.ParkingLot] = {}  # who waits for a quota
        # The lines of those who always want to use more.
        self._lines: dict[tuple[QuotaKey, Payer], trio.StrictFIFOLock] = {}

    def open(self) -> None:
        """Puts in force what the tree has, from now on."""
        self._runtime.store.changed.subscribe(self._take)
        self._take()

    def _take(self) -> None:
        held = self._runtime.image.configs.get(paths.QUOTA_CONFIG)
        if held is self._seen:
            return
        self._seen = held
        quotas = QuotaSet(dict(filter(None, map(_read, (held or {}).items()))))
        self._use.take(quotas)
        self.on = not quotas.keys <= {QuotaKey.CONNECTION}
        self.timed = QuotaKey.REQUEST in quotas.keys
        self.version += 1
        for lot in self._waiting.values():
            lot.unpark_all()
        self.changed.fire()

    # --- what is used

    def spend(self, key: QuotaKey, payer: Payer, amount: float) -> float:
        wait = self._use.spend(key, payer, amount, trio.current_time())
        if wait:
            self.note(key, payer, wait)
        return wait

    def place(self, key: QuotaKey, payer: Payer, amount: float, most: float) -> QuotaPlace | None:
        found = self._use.place(key, payer, amount, most, trio.current_time())
        seconds = most if found is None else found.wait + found.silence
        if seconds or found is None:
            self.note(key, payer, seconds)
        return found

    def turn(self, key: QuotaKey, payer: Payer) -> float:
        return self._use.turn(key, payer, trio.current_time())

    def account(self, key: QuotaKey, payer: Payer) -> object:
        return self._use.account(key, payer, trio.current_time())

    def wait(self, key: QuotaKey, payer: Payer) -> float:
        return self._use.wait(key, payer, trio.current_time())

    def share(self, key: QuotaKey, payer: Payer) -> int | None:
        return self._use.share(key, payer, trio.current_time())

    def rate(self, key: QuotaKey, payer: Payer) -> float:
        return self._use.rate(key, payer, trio.current_time())

    async def within(self, key: QuotaKey, payer: Payer, seconds: float = math.inf) -> bool:
        end = trio.current_time() + seconds
        while wait := self.wait(key, payer):
            left = end - trio.current_time()
            if left <= 0:
                return False
            await self._pause(key, payer, min(wait, left))
        return True

    async def _pause(self, key: QuotaKey, payer: Payer, seconds: float) -> None:
        """Waits for `seconds`, or less if the quotas change or something is repaid meanwhile."""
        lot = self._waiting.setdefault((key, payer), trio.lowlevel.ParkingLot())
        try:
            with trio.move_on_after(seconds):
                await lot.park()
        finally:
            if not lot:
                self._waiting.pop((key, payer), None)

    async def in_line(self, key: QuotaKey, payer: Payer, amount: float, stands: Callable[[], bool]) -> None:
        await while_standing(stands, partial(self._in_line, key, payer, amount))

    async def _in_line(self, key: QuotaKey, payer: Payer, amount: float) -> None:
        line = self._lines.setdefault((key, payer), trio.StrictFIFOLock())
        try:
            while amount > 0:  # at a time what one second allows: others get their places in between
                async with line:
                    if wait := self.wait(key, payer):
                        await self._pause(key, payer, wait)
                        await trio.sleep(ASIDE)
                    piece = min(amount, max(1.0, self.rate(key, payer)))
                    amount -= piece
                    await self.stand(key, payer, piece)
        finally:
            if not line.statistics().tasks_waiting and not line.locked():
                self._lines.pop((key, payer), None)

    async def stand(self, key: QuotaKey, payer: Payer, amount: float, most: float = math.inf) -> bool:
        place, account = self.place(key, payer, amount, most), self.account(key, payer)
        if place is not None and place.wait:
            await wait_any([self.changed], lambda: self.account(key, payer) is not account, place.wait)
        return place is not None

    def lend(self, key: QuotaKey, payer: Payer, most: float) -> float:
        return self._use.lend(key, payer, most, trio.current_time())

    def repay(self, key: QuotaKey, payer: Payer, lent: float) -> None:
        self._use.spend(key, payer, -lent, trio.current_time())
        if (lot := self._waiting.get((key, payer))) is not None:
            lot.unpark()

    def mutate(self, payer: Payer, partitions: int, *, strict: bool) -> float:
        if strict and (wait := self.wait(QuotaKey.MUTATION, payer)):
            self.note(QuotaKey.MUTATION, payer, wait)
            text = "The throttling quota has been exceeded: controller_mutation_rate"
            raise Overloaded(f"{text}; try again in {wait:.1f} s", seconds=wait)
        # The burst is part of the quota: a client that begins within it is told to wait only at its next request.
        found = self._use.spend(QuotaKey.MUTATION, payer, partitions, trio.current_time())
        if strict or not found:
            return 0.0
        self.note(QuotaKey.MUTATION, payer, found)
        return found

    def connect(self, host: str, *, apart: str, local: bool) -> bool:
        most = self._runtime.config.max_connection_rate_per_ip or None
        may = self._use.connect(host, most, trio.current_time(), apart=apart, exempt=local)
        if not may:
            self.note(QuotaKey.CONNECTION, Payer(host=host), 0.0)
        return may

    def note(self, key: QuotaKey, payer: Payer, seconds: float) -> None:
        times, before = self._throttled.get(key, (0, 0.0))
        self._throttled[key] = times + 1, before + seconds
        if self._runtime.audit.on:
            self._runtime.audit.throttled(key, *payer, seconds)

    def throttled(self) -> Mapping[QuotaKey, tuple[int, float]]:
        return {key: self._throttled.get(key, (0, 0.0)) for key in QuotaKey}

    # --- the quotas

    def find(self, wanted: QuotaFilter) -> Mapping[QuotaEntity, Rates]:
        self._take()
        return {entity: rates for entity, rates in self._use.quotas.all.items() if wanted.matches(entity)}

    async def alter(self, entity: QuotaEntity, changes: Mapping[QuotaKey, float | None]) -> None:
        store, path = self._runtime.store, paths.config(paths.QUOTA_CONFIG, stored_name(entity))

        async def made() -> list[Operation]:
            before = await store.read(path)
            rates = {} if before is None else Document.of(before.data).texts("config")
            for key, rate in changes.items():
                if rate is None:
                    rates.pop(key, None)
                else:
                    rates[key] = repr(rate)
            if before is None and rates and len(self._runtime.image.configs.get(paths.QUOTA_CONFIG, ())) >= MOST:
                raise PolicyViolation(f"at most {MOST} users, client ids and addresses have quotas")
            return config_change(path, before, rates)

        def look(name: str) -> Rates | None:
            self._take()
            return self._use.quotas.all.get(entity)

        with self._runtime.audit.change("quota", [str(entity)], look):
            await change(store, made)
            self._take()


def _read(stored: tuple[str, Mapping[str, str]]) -> tuple[QuotaEntity, Rates] | None:
    """The entity and its rates in a znode, without rates that can't be read. None if the entity's name can't be
    read."""
    name, texts = stored
    try:
        entity = read_name(name)
    except InvalidRequest:
        return None
    rates = {}
    for key, text in texts.items():
        try:
            found = key_of(entity, key)
            rates[found] = check_rate(found, float(text))
        except (ValueError, InvalidRequest):
            continue
    return entity, rates
