"""The schema: the fields of each API's messages, in the notation of `krappy.wire.kafka.notation`."""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape
from krappy.wire.kafka.schema import (
    cluster,
    configs,
    groups,
    modern_groups,
    offsets,
    probes,
    produce_fetch,
    security,
    topics,
    transactions,
)

TABLE: dict[ApiKey, Shape] = {
    **produce_fetch.TABLE,
    **cluster.TABLE,
    **offsets.TABLE,
    **groups.TABLE,
    **modern_groups.TABLE,
    **topics.TABLE,
    **configs.TABLE,
    **transactions.TABLE,
    **probes.TABLE,
    **security.TABLE,
}
