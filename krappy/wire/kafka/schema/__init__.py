"""The schema: each API's versions, and the fields of its messages in the notation of `krappy.wire.kafka.notation`."""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape
from krappy.wire.kafka.schema import (
    cluster,
    configs,
    groups,
    modern_groups,
    offsets,
    produce_fetch,
    security,
    share_groups,
    share_states,
    topics,
    transactions,
)

TABLE: dict[ApiKey, Shape] = {
    **produce_fetch.TABLE,
    **cluster.TABLE,
    **offsets.TABLE,
    **groups.TABLE,
    **modern_groups.TABLE,
    **share_groups.TABLE,
    **share_states.TABLE,
    **topics.TABLE,
    **configs.TABLE,
    **transactions.TABLE,
    **security.TABLE,
}
RANGES = {key: (shape.versions.low, shape.versions.high) for key, shape in TABLE.items()}
FIRST_FLEXIBLE = {key: shape.versions.flexible for key, shape in TABLE.items()}
