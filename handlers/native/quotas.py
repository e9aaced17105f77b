"""DescribeQuotas, AlterQuotas."""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.core.security.quota_entities import QuotaFilter, QuotaKey, check_rate, entity_of, key_of
from krappy.errors import InvalidRequest
from krappy.handlers.registry import serves
from krappy.ports import SessionPort
from krappy.wire import messages


@serves(messages.DescribeQuotas, needs=needs.cluster(Op.DESCRIBE_CONFIGS))
def describe_quotas(session: SessionPort, request: messages.DescribeQuotas) -> messages.QuotasFound:
    found = session.access.quotas(Op.DESCRIBE_CONFIGS).find(QuotaFilter(_named(request)))
    return messages.QuotasFound(
        [
            {**entity._asdict(), "rates": {str(key): rate for key, rate in rates.items()}}
            for entity, rates in found.items()
        ]
    )


@serves(messages.AlterQuotas, needs=needs.cluster(Op.ALTER_CONFIGS))
async def alter_quotas(session: SessionPort, request: messages.AlterQuotas) -> messages.QuotasAltered:
    quotas = session.access.quotas(Op.ALTER_CONFIGS)
    entity = entity_of(_named(request))
    changes: dict[QuotaKey, float | None] = {}
    for name, rate in request.rates.items():
        key = key_of(entity, name)
        if rate is not None and type(rate) not in (int, float):
            raise InvalidRequest(f"the rate of {key} is no number", field="rates")
        changes[key] = None if rate is None else check_rate(key, float(rate))
    if changes:
        await quotas.alter(entity, changes)
    return messages.QuotasAltered()


def _named(request: messages.DescribeQuotas | messages.AlterQuotas) -> dict[str, str]:
    given = {"user": request.user, "client-id": request.client_id, "ip": request.ip}
    return {kind: name for kind, name in given.items() if name is not None}
