"""The rights that an API declares are enough for it, and it needs each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.handlers import kafka
from krappy.wire.kafka import ApiKey
from tests.security.guarded import Guarded, filtered, rule
from tests.security.test_nothing_leaks import DENIED, FREE, Names, bodies

SERVED = kafka.registry().served
# APIs whose declared rights on these resources are alternatives, or are for other requests than those of `bodies`.
ONE_OF = {
    ApiKey.CREATE_TOPICS: {Resource.CLUSTER, Resource.TOPIC},
    ApiKey.FETCH: {Resource.CLUSTER},
    ApiKey.FIND_COORDINATOR: {Resource.TRANSACTIONAL_ID, Resource.CLUSTER},
    ApiKey.INIT_PRODUCER_ID: {Resource.CLUSTER},
    ApiKey.PRODUCE: {Resource.CLUSTER, Resource.TRANSACTIONAL_ID},  # CLUSTER: for a peer that writes a staged job
    ApiKey.DESCRIBE_CLUSTER: {Resource.CLUSTER},
    ApiKey.ADD_PARTITIONS_TO_TXN: {Resource.TOPIC},
    ApiKey.WRITE_TXN_MARKERS: {Resource.CLUSTER},
}
OPTIONAL = {
    (ApiKey.METADATA, Op.CREATE),
    (ApiKey.CREATE_TOPICS, Op.DESCRIBE_CONFIGS),
    (ApiKey.DELETE_TOPICS, Op.DESCRIBE),
}
# APIs that deny nothing: they leave out what the client may not describe, or answer that it is unknown. Or the group
# that `bodies` names is not there, and that error comes first.
SILENT = {
    *(ApiKey.OFFSET_FETCH, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.OFFSET_DELETE),
    *(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_QUORUM,
    ),
    *(
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    ),
    *(ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS),
}
LISTS = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.LIST_CONFIG_RESOURCES}


def codes(answer: Any) -> Iterator[int]:
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name.endswith("error_code") and isinstance(value, int):
                yield value
            else:
                yield from codes(value)
    elif isinstance(answer, list | tuple):
        for each in answer:
            yield from codes(each)


def asked_of(n: Names) -> dict[ApiKey, dict[str, Any]]:
    """The requests of `bodies`, changed so that they do no harm to later tests."""
    once = {"topics": [{"name": n.topic}], "timeout_ms": 1000}
    return {
        **bodies(n),
        ApiKey.DELETE_ACLS: {"filters": [filtered(resource_name_filter="nothing")]},
        ApiKey.DELETE_TOPICS: once,
    }


def names_for(guarded: Guarded, key: ApiKey, number: int) -> Names:
    topic = f"needed-{int(key)}-{number}"
    id = guarded.admin.make(topic) if key is not ApiKey.CREATE_TOPICS else b"\0" * 16
    return Names(topic, id, f"g-{topic}", f"m-{topic}", f"t-{topic}", f"j-{topic}", "")


def grant(guarded: Guarded, n: Names, resource: Resource, op: Op) -> None:
    named = {
        Resource.TOPIC: [n.topic],
        Resource.GROUP: [n.group, n.members],
        Resource.CLUSTER: [CLUSTER_NAME],
        Resource.TRANSACTIONAL_ID: [n.transactional],
    }
    guarded.allow(*(rule(resource, name, op) for name in named[resource]))


@pytest.mark.parametrize("key", [key for key in ApiKey if key not in FREE], ids=lambda key: key.name)
def test_what_an_api_needs_is_enough_and_all_of_it_is_needed(guarded: Guarded, key: ApiKey) -> None:
    needs = list(SERVED[key].needs)
    for number, left_out in enumerate([None, *needs]):
        n = names_for(guarded, key, number)
        for need in needs:
            if need is not left_out:
                grant(guarded, n, need.resource, need.op)
        with guarded.kafka() as raw:
            denied = DENIED & set(codes(raw.ask(key, asked_of(n)[key])))
        guarded.take_away()
        if left_out is None:
            assert not denied, f"{denied} with all that it needs"
        elif not (
            left_out.resource in ONE_OF.get(key, ())
            or (key, left_out.op) in OPTIONAL
            or key in LISTS
            or implied(left_out.op, {each.op for each in needs if each.resource == left_out.resource} - {left_out.op})
            or (key is ApiKey.FETCH and left_out.resource is Resource.CLUSTER)
        ):
            told = f"nothing is denied without {left_out.op.name} on {left_out.resource.name}"
            assert denied or key in SILENT, told


def implied(op: Op, others: set[Op]) -> bool:
    return op is Op.DESCRIBE and bool(others & {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER})
