"""Arrays that are sets for Kafka have each element once, whatever a peer sends: so what a request asks for is bounded
by what there is."""

from __future__ import annotations

from typing import Any

import pytest

from krappy.wire.kafka import RANGES, ApiKey
from krappy.wire.kafka.notation import Field, read
from krappy.wire.kafka.reading import MOST
from krappy.wire.kafka.schema import TABLE
from tests.wire.kafka.samples import Kind

# Why an array of a request is no set: what is named twice in it is refused, or each element is answered by its place.
# New arrays must be marked in the schema, or be listed here with their reason.
NOT_ONCE = {
    (ApiKey.PRODUCE, "topic_data"): "a partition named twice is refused",
    (ApiKey.PRODUCE, "topic_data.partition_data"): "a partition named twice is refused",
    (ApiKey.LIST_OFFSETS, "topics"): "a partition named twice is refused",
    (ApiKey.LIST_OFFSETS, "topics.partitions"): "a partition named twice is refused",
    (ApiKey.JOIN_GROUP, "protocols"): "kept as it is by the group, whose bytes are bounded",
    (ApiKey.CREATE_TOPICS, "topics"): "a topic named twice is refused",
    (ApiKey.CREATE_TOPICS, "topics.assignments"): "a partition named twice is refused",
    (ApiKey.CREATE_TOPICS, "topics.assignments.broker_ids"): "a broker named twice is refused",
    (ApiKey.CREATE_TOPICS, "topics.configs"): "settings, the last of a name stands",
    (ApiKey.DELETE_TOPICS, "topics"): "a topic named twice is refused",
    (ApiKey.DELETE_TOPICS, "topic_names"): "a topic named twice is refused",
    (ApiKey.CREATE_PARTITIONS, "topics"): "a topic named twice is refused",
    (ApiKey.CREATE_PARTITIONS, "topics.assignments"): "by place",
    (ApiKey.CREATE_PARTITIONS, "topics.assignments.broker_ids"): "a broker named twice is refused",
    (ApiKey.ALTER_CONFIGS, "resources"): "a resource named twice is refused",
    (ApiKey.ALTER_CONFIGS, "resources.configs"): "a setting named twice is refused",
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, "resources"): "a resource named twice is refused",
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, "resources.configs"): "a setting named twice is refused",
    (ApiKey.WRITE_TXN_MARKERS, "markers"): "answered for by place",
    (ApiKey.CREATE_ACLS, "creations"): "answered for by place",
    (ApiKey.DELETE_ACLS, "filters"): "answered for by place",
    (ApiKey.DESCRIBE_CLIENT_QUOTAS, "components"): "a type named twice is refused",
    (ApiKey.ALTER_CLIENT_QUOTAS, "entries"): "an entity named twice is refused",
    (ApiKey.ALTER_CLIENT_QUOTAS, "entries.entity"): "a type named twice is refused",
    (ApiKey.ALTER_CLIENT_QUOTAS, "entries.ops"): "the last of a key stands",
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, "topics"): "answered for by place",
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, "topics.partitions"): "answered for by place",
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, "topics.partitions.replicas"): "a broker named twice is refused",
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "users"): "a user named twice is refused",
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "deletions"): "a credential named twice is refused",
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "upsertions"): "a credential named twice is refused",
    (ApiKey.UPDATE_FEATURES, "feature_updates"): "answered for by place",
    (ApiKey.SHARE_FETCH, "topics"): "acknowledgements of a partition named twice are joined",
    (ApiKey.SHARE_FETCH, "topics.partitions"): "acknowledgements of a partition named twice are joined",
    (ApiKey.SHARE_ACKNOWLEDGE, "topics"): "acknowledgements of a partition named twice are joined",
    (ApiKey.SHARE_ACKNOWLEDGE, "topics.partitions"): "acknowledgements of a partition named twice are joined",
    (ApiKey.SHARE_FETCH, "topics.partitions.acknowledgement_batches"): "must ascend, and not overlap",
    (ApiKey.SHARE_FETCH, "topics.partitions.acknowledgement_batches.acknowledge_types"): "one for each offset",
    (ApiKey.WRITE_SHARE_GROUP_STATE, "topics.partitions.state_batches"): "must follow each other",
    (ApiKey.WRITE_SHARE_GROUP_STATE, "topics.partitions.lineage"): "pairs of numbers",
    (ApiKey.SHARE_ACKNOWLEDGE, "topics.partitions.acknowledgement_batches"): "must ascend, and not overlap",
    (ApiKey.SHARE_ACKNOWLEDGE, "topics.partitions.acknowledgement_batches.acknowledge_types"): "one for each offset",
}


def arrays(fields: tuple[Field, ...], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Field]]:
    found = []
    for field in fields:
        if field.array:
            found.append(((*path, field.name), field))
        found += arrays(field.fields, (*path, field.name))
    return found


ARRAYS = [(key, path, field) for key, shape in TABLE.items() for path, field in arrays(read(shape.request))]


def test_every_array_of_a_request_is_a_set_or_says_why_not() -> None:
    unmarked = {(key, ".".join(path)) for key, path, field in ARRAYS if field.once is None}
    assert unmarked == set(NOT_ONCE)


@pytest.mark.parametrize(
    ("key", "path", "field"), ARRAYS, ids=lambda value: getattr(value, "name", None) or ".".join(value)
)
def test_copies_are_read_once_and_too_many_elements_not_at_all(
    key: ApiKey, path: tuple[str, ...], field: Field
) -> None:
    """The first and the last version that have the array are tried, with as many elements as there may be."""
    low, high = RANGES[key]
    kinds = [Kind(key, version, False) for version in range(low, high + 1)]
    having = [kind for kind in kinds if read_array(kind, path, 1)]
    assert having
    for kind in having:
        many = MOST if kind in (having[0], having[-1]) else 2
        assert len(read_array(kind, path, many)) == (many if field.once is None else 1)
    for kind in {having[0], having[-1]}:
        with pytest.raises(Exception, match="too many elements"):
            read_array(kind, path, MOST + 1)


def read_array(kind: Kind, path: tuple[str, ...], count: int) -> Any:
    """The array at `path`, as it is read from a message that has `count` copies in it; none if this version has no such
    array."""
    found: Any = kind.decode(kind.encode(nested(kind.fields(), path, count)))
    for name in path:
        found = found[0] if isinstance(found, list) and found else found
        found = found[name] if isinstance(found, dict) else None
    return found


def nested(fields: tuple[Field, ...], path: tuple[str, ...], count: int) -> dict[str, Any]:
    """The smallest message, but with `count` copies in the array at `path`; each array on the way has one element."""
    name, *rest = path
    field = next(field for field in fields if field.name == name)
    if field.kind != "struct":
        return {name: [eval(field.fresh()) if not field.array else {"string": ""}.get(field.kind, 0)] * count}
    inner = nested(field.fields, tuple(rest), count) if rest else {}
    return {name: [inner] * (1 if rest else count)}


def test_what_is_named_twice_is_joined() -> None:
    kind = Kind(ApiKey.OFFSET_FETCH, 8, False)
    some = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [2, 1]}, {"name": "u"}]}
    more = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [3, 2]}]}
    found = kind.decode(kind.encode({"groups": [some, {"group_id": "h", "topics": []}, more]}))
    (group, other) = found["groups"]
    assert [(topic["name"], topic["partition_indexes"]) for topic in group["topics"]] == [("t", [2, 1, 3]), ("u", [])]
    assert other["group_id"] == "h"
    everything = {"group_id": "g", "topics": None}
    (group,) = kind.decode(kind.encode({"groups": [some, everything, more]}))["groups"]
    assert group["topics"] is None


def test_of_a_partition_that_is_named_twice_the_last_stands() -> None:
    """As in Kafka's `FetchRequest.fetchData`, which is a map."""
    kind = Kind(ApiKey.FETCH, 12, False)
    asked = [{"partition": at, "fetch_offset": offset} for at, offset in ((1, 5), (2, 6), (1, 7))]
    found = kind.decode(kind.encode({"topics": [{"topic": "t", "partitions": asked}]}))
    ((one, two),) = (topic["partitions"] for topic in found["topics"])
    assert (one["partition"], one["fetch_offset"]) == (1, 7)
    assert (two["partition"], two["fetch_offset"]) == (2, 6)
