"""Changes that other brokers make for the console of this one. The audit log of this broker tells who asked for them:
the other one knows only that a broker asks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from krappy.console.api import Call
from krappy.core.security.audit import positions
from krappy.ports import GatewayGroupsPort, GatewayPort, Range
from krappy.ports.audit import AuditPort, whose

NATIVE = ("shared", "positions")  # kinds of groups of the native protocol


async def delete_elsewhere(call: Call, gateway: GatewayPort, topic: str, before: Mapping[int, int]) -> dict[int, int]:
    """Deletes the events of partitions before these offsets. Returns, by partition, where the log starts now."""
    names = {index: f"{topic}-{index}" for index in before}
    with call.broker.audit.change("records", list(names.values()), elsewhere=True) as told:
        for each in (await gateway.describe([topic]))[topic]:
            if each.partition in names:
                told.before[names[each.partition]] = {"start": each.start}
        starts = await gateway.delete_records(topic, before)
        told.after |= {names[index]: {"start": start} for index, start in starts.items()}
    return dict(starts)


class ToldGroups:
    """The groups of other brokers. Their changes go into this broker's audit log."""

    def __init__(self, audit: AuditPort, groups: GatewayGroupsPort) -> None:
        self._audit, self._groups = audit, groups

    async def reset(self, name: str, *where: Any, dry_run: bool) -> list[Range]:
        """As `GatewayGroupsPort.reset`, for the user who asks."""
        reset = partial(self._groups.reset, name, *where, owner=whose())
        if dry_run:
            return await reset(dry_run=True)
        with self._audit.change("positions", [name], elsewhere=True) as told:
            moved = await reset(dry_run=False)
            told.before[name] = positions(row[:3] for row in moved)
            told.after[name] = positions((*row[:2], row[3]) for row in moved)
        return moved

    async def delete(self, name: str) -> None:
        """As `GatewayGroupsPort.delete`."""
        with self._audit.change("group", [name], elsewhere=True) as told:
            kind = (await self._groups.describe(name))["kind"]
            told.before[name] = {"protocol": "native" if kind in NATIVE else kind}
            await self._groups.delete(name)
