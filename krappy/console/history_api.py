"""The broker's and its groups' figures over the last hour, as `history.py` keeps them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from krappy.console.api import Call, Routes
from krappy.console.history import EVERY_SECONDS, HistoryPoint
from krappy.console.slices import in_slices
from krappy.core.security import needs
from krappy.core.security.operations import Op, Resource

routes = Routes("history")
EVERY_MS = int(EVERY_SECONDS * 1000)


class BrokerHistory(msgspec.Struct):
    """`points`: one for every `every_ms`, the oldest first, of the last hour at most."""

    every_ms: int
    points: list[HistoryPoint]


class LagHistory(msgspec.Struct):
    """`lags[i]`: how many events the group was behind at the time `at[i]` of the answer; null: it was not kept."""

    group: str
    lags: list[int | None]


class GroupsHistory(msgspec.Struct):
    """The lag of groups over the last hour. Only the groups that lag most are kept; the furthest behind come first.
    Those that read a topic which may not be described are left out: their lag would tell of it."""

    every_ms: int
    at: list[int]
    groups: list[LagHistory]


class GroupsHistoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    group: Annotated[str | None, Meta(description="only this group")] = None


@routes.get(
    "/history",
    needs=needs.cluster(Op.DESCRIBE) + needs.group(Op.DESCRIBE) + needs.topic(Op.DESCRIBE),
    summary="The broker's rates, latencies and lags over the last hour",
)
async def history(call: Call) -> BrokerHistory:
    call.access.cluster(Op.DESCRIBE)
    points = list(call.console.history.points)
    if not await _sees_all(call):  # lags are kept as sums, and would tell of hidden topics
        points = [msgspec.structs.replace(each, group_lag=None, view_lag=None) for each in points]
    return BrokerHistory(EVERY_MS, points)


async def _sees_all(call: Call) -> bool:
    """Whether every topic and group of this broker may be described."""
    access, everything = call.access, call.broker.access()
    if access.sees is None:
        return True
    if len(access.topics(Op.DESCRIBE)) < len(everything.topics(Op.DESCRIBE)):
        return False
    groups = await in_slices(each["group"] for each in everything.each_group(Op.DESCRIBE))
    return all(access.may(Resource.GROUP, group, Op.DESCRIBE) for group in groups)


@routes.get("/history/groups", needs=needs.group(Op.DESCRIBE), summary="How far groups were behind, over the last hour")
async def groups_history(call: Call, query: GroupsHistoryQuery) -> GroupsHistory:
    kept, sees = call.console.history, call.access.sees
    seen = [each["group"] for each in await in_slices(call.access.each_group(Op.DESCRIBE))]
    if sees is not None:
        seen = [group for group in seen if all(map(sees, kept.topics(group)))]
    found = kept.lags(seen if query.group is None else [group for group in seen if group == query.group])
    rows = [LagHistory(group, list(lags)) for group, lags in found.items()]
    return GroupsHistory(EVERY_MS, [point.at for point in kept.points], rows)
