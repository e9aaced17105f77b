"""Client quotas (KIP-546): DescribeClientQuotas and AlterClientQuotas (48, 49). The checks and their order are those of
Kafka's ClientQuotasImage and ClientQuotaControlManager."""

from __future__ import annotations

from collections.abc import Mapping

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.core.security.quota_entities import (
    DEFAULT,
    LONGEST,
    SHOWN,
    QuotaEntity,
    QuotaFilter,
    QuotaKey,
    Rates,
    check_rate,
    entity_of,
    key_of,
)
from krappy.errors import InvalidRequest
from krappy.handlers.kafka.refusals import DONE, NO, RefusedApi, refusal
from krappy.handlers.kafka.registry import Message, serves
from krappy.handlers.kafka.rows import counted
from krappy.ports import KafkaSessionPort
from krappy.ports.quotas import QuotasPort
from krappy.wire.kafka import ApiKey, Code

EXACT, OF_DEFAULT, SPECIFIED = 0, 1, 2  # match types of a filter
MOST = 1000  # entities of one request


@serves(ApiKey.DESCRIBE_CLIENT_QUOTAS, needs=needs.cluster(Op.DESCRIBE_CONFIGS))
async def describe_quotas(session: KafkaSessionPort, request: Message, version: int) -> Message:
    try:
        found = session.access.quotas(Op.DESCRIBE_CONFIGS).find(_filter(request))
        async with counted(session) as rows:
            entries = []
            for entity, rates in found.items():
                entries.append(_entry(entity, rates))
                await rows.add(1)
            return {**DONE, "entries": entries}
    except NO as error:
        return {**refusal(error), "entries": None}


def _entry(entity: QuotaEntity, rates: Rates) -> Message:
    named = [{"entity_type": kind, "entity_name": name or None} for kind, name in entity.parts().items()]
    return {"entity": named, "values": [{"key": str(key), "value": rate} for key, rate in rates.items()]}


def _filter(request: Message) -> QuotaFilter:
    """Raises InvalidRequest, RefusedApi."""
    names: dict[str, str] = {}
    any_of: list[str] = []
    for each in request["components"]:
        kind, how, match = each["entity_type"], each["match_type"], each["match"]
        if not kind:
            raise InvalidRequest("Invalid empty entity type.")
        if kind in names or kind in any_of:
            raise InvalidRequest(f"Entity type {kind:.{SHOWN}} cannot appear more than once in the filter.")
        if kind not in LONGEST:
            raise RefusedApi(Code.UNSUPPORTED_VERSION, f"Unsupported entity type {kind:.{SHOWN}}")
        if how not in (EXACT, OF_DEFAULT, SPECIFIED):
            raise InvalidRequest(f"Unknown match type {how}")
        if (match is None) == (how == EXACT):
            raise InvalidRequest(f"match type {how} goes with{'out' if how != EXACT else ''} a match string")
        if how == SPECIFIED:
            any_of.append(kind)
        else:
            names[kind] = match or DEFAULT
    if "ip" in (kinds := {*names, *any_of}) and len(kinds) > 1:
        raise InvalidRequest("Invalid entity filter component combination: an ip goes with no user and no client-id")
    return QuotaFilter(names, any_of, request["strict"])


@serves(ApiKey.ALTER_CLIENT_QUOTAS, needs=needs.cluster(Op.ALTER_CONFIGS))
async def alter_quotas(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Each entity by itself: what can be set is, and the others are refused."""
    entries: list[Message] = []
    seen: set[QuotaEntity] = set()
    async with counted(session) as rows:
        for entry in request["entries"]:
            try:
                quotas = session.access.quotas(Op.ALTER_CONFIGS)
                if len(request["entries"]) > MOST:
                    raise InvalidRequest(f"more than {MOST} entities in one request")
                entity = _entity(entry)
                if entity in seen:
                    raise InvalidRequest(f"the request names {entity} twice")
                seen.add(entity)
                await _alter(quotas, entity, _changes(entity, entry), validate_only=request["validate_only"])
                told: Mapping[str, object] = DONE
            except NO as error:
                told = refusal(error)
            entries.append({**told, "entity": entry["entity"]})
            await rows.add(1)
    return {"entries": entries}


async def _alter(
    quotas: QuotasPort, entity: QuotaEntity, changes: Mapping[QuotaKey, float | None], *, validate_only: bool
) -> None:
    if changes and not validate_only:
        await quotas.alter(entity, changes)


def _entity(entry: Message) -> QuotaEntity:
    """Raises InvalidRequest."""
    parts: dict[str, str] = {}
    for each in entry["entity"]:
        kind, name = each["entity_type"], each["entity_name"]
        if kind in parts:
            raise InvalidRequest(f"Invalid client quota entity, duplicate entity entry for {kind:.{SHOWN}}")
        if name == "":
            raise InvalidRequest(f"Empty {kind:.{SHOWN}} not supported")
        parts[kind] = name or DEFAULT
    return entity_of(parts)


def _changes(entity: QuotaEntity, entry: Message) -> dict[QuotaKey, float | None]:
    """Raises InvalidRequest."""
    changes: dict[QuotaKey, float | None] = {}
    for each in entry["ops"]:
        key = key_of(entity, each["key"])
        changes[key] = None if each["remove"] else check_rate(key, each["value"])
    return changes
