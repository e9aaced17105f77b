"""The broker's connections and what they registered; the broker itself; and its numbers at a glance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from krappy.console.api import Call, Routes
from krappy.console.numbers import Totals, gather
from krappy.console.slices import in_slices
from krappy.core.security import needs
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.ports import AccessPort, ConnectionFacts, RegistrationFacts

routes = Routes("cluster")


class RegistrationRow(msgspec.Struct, omit_defaults=True):
    """What a native connection has registered: a producer, a reader, a member of a group, a scan or a watch. `bytes`:
    of the record batches that a producer has sent, or that a reader or a member was given."""

    kind: str
    topics: list[str]
    name: str | None = None
    group: str | None = None
    bytes: int = 0


class ConnectionRow(msgspec.Struct):
    """`received_bytes`, `sent_bytes` and `requests` count since it was opened; `waiting_bytes`: the peer has not taken
    them yet."""

    client: str
    protocol: str
    client_id: str | None
    seconds: float
    received_bytes: int
    sent_bytes: int
    requests: int
    waiting_bytes: int
    in_flight_bytes: int
    registrations: list[RegistrationRow]
    registered: Annotated[int, Meta(description="how many registrations it has; at most 100 are listed")]


class ConnectionPage(msgspec.Struct):
    connections: list[ConnectionRow]
    total: int


class Cluster(msgspec.Struct):
    cluster_id: str
    broker_id: int
    version: str
    now_ms: int
    listening: dict[str, str]
    settings: dict[str, str | int | bool | None]
    log_dir: str
    disk_bytes: int
    disk_free_bytes: int


class ConnectionsQuery(msgspec.Struct, forbid_unknown_fields=True):
    filter: Annotated[
        str, Meta(description="only with this in the address, client id, or a topic's or group's name")
    ] = ""
    protocol: Literal["native", "kafka", "http"] | None = None
    order: Annotated[Literal["received", "sent", "seconds"], Meta(description="the largest comes first")] = "received"
    skip: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


MOST_LISTED = 100
ORDERS: dict[str, Callable[[ConnectionFacts], float]] = {
    "received": lambda told: told["received_bytes"],
    "sent": lambda told: told["sent_bytes"],
    "seconds": lambda told: told["seconds"],
}


@routes.get(
    "/connections",
    needs=needs.cluster(Op.DESCRIBE) + needs.topic(Op.DESCRIBE) + needs.group(Op.DESCRIBE),
    summary="Connections, with what each has registered, sent and received",
)
async def list_connections(call: Call, query: ConnectionsQuery) -> ConnectionPage:
    call.access.cluster(Op.DESCRIBE)
    access = call.access
    all = await in_slices(_tellable(each, access) for each in call.server.describe_connections())
    told = [each for each in all if _passes(each, query)]
    told.sort(key=lambda each: (-ORDERS[query.order](each), each["client"]))
    shown = [_show(each) for each in told[query.skip : query.skip + query.limit]]
    return ConnectionPage(shown, len(told))


def _tellable(told: ConnectionFacts, access: AccessPort) -> ConnectionFacts:
    """The facts without the names of topics and groups that may not be described."""
    if access.sees is None:
        return told
    registrations: list[RegistrationFacts] = []
    for each in told["registrations"]:
        kept: RegistrationFacts = {**each, "topics": [name for name in each["topics"] if access.sees(name)]}
        group = kept.get("group")
        if group is not None and not access.may(Resource.GROUP, group, Op.DESCRIBE):
            del kept["group"]
            kept["name"] = None
        registrations.append(kept)
    return {**told, "registrations": registrations}


def _passes(told: ConnectionFacts, query: ConnectionsQuery) -> bool:
    if query.protocol is not None and told["protocol"] != query.protocol:
        return False
    wanted = query.filter.casefold()
    if not wanted or wanted in told["client"] or wanted in (told["client_id"] or "").casefold():
        return True
    names = [name for each in told["registrations"] for name in (*each["topics"], each.get("name"), each.get("group"))]
    return any(name is not None and wanted in name.casefold() for name in names)


def _show(told: ConnectionFacts) -> ConnectionRow:
    registrations = told["registrations"]
    listed = [RegistrationRow(**each) for each in registrations[:MOST_LISTED]]
    return ConnectionRow(
        told["client"],
        told["protocol"],
        told["client_id"],
        told["seconds"],
        received_bytes=told["received_bytes"],
        sent_bytes=told["sent_bytes"],
        requests=told["requests"],
        waiting_bytes=told["waiting_bytes"],
        in_flight_bytes=told["in_flight_bytes"],
        registrations=listed,
        registered=len(registrations),
    )


@routes.get(
    "/cluster",
    needs=needs.cluster(Op.DESCRIBE, Op.DESCRIBE_CONFIGS),
    summary="This broker: version, listeners, settings, disk",
)
async def describe_cluster(call: Call) -> Cluster:
    broker, config = call.broker, call.broker.config
    folder, total, free = await call.access.cluster(Op.DESCRIBE).log_dir()
    settings: dict[str, Any] = {}
    shown = call.access.may(Resource.CLUSTER, CLUSTER_NAME, Op.DESCRIBE_CONFIGS)
    for name, spec in config.__dataclass_fields__.items() if shown else ():
        value = getattr(config, name)
        if spec.repr:  # else it is a secret
            settings[name] = value if value is None or isinstance(value, str | int | bool) else str(value)
    return Cluster(
        broker.cluster_id,
        config.broker_id,
        broker.version,
        broker.now_ms(),
        call.console.listening(),
        settings,
        folder,
        total,
        free,
    )


@routes.get(
    "/overview",
    needs=needs.cluster(Op.DESCRIBE) + needs.topic(Op.DESCRIBE) + needs.group(Op.DESCRIBE),
    summary="The broker's numbers: counters since it started, and how things stand now",
)
async def overview(call: Call) -> Totals:
    call.access.cluster(Op.DESCRIBE)
    return (await gather(call.broker, call.access, call.server)).totals
