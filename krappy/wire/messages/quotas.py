"""Client quotas: how much a user, a client id or an address may use (KIP-546).

A quota is for a `user`, a `client_id` (which clients of Kafka's protocol give), both, or an `ip`. Here nil means that
it does not matter, and the empty name is the default: all that have no quota of their own. The most precise quota
counts, as in Kafka. What can be limited:

- `producer_byte_rate`, `consumer_byte_rate`: bytes a second of requests that write and of answers that read;
- `request_percentage`: % of one core's time;
- `controller_mutation_rate`: partitions a second that are created or deleted. Beyond that they are refused with
  THROTTLING_QUOTA_EXCEEDED, whose `seconds` says when to try again;
- `connection_creation_rate`: connections a second, of an `ip` alone.

A client that is over one of the other quotas is answered; then nothing more is read from its connection for a while, up
to 10 seconds at once. What it waits for (polls, watches) comes later as well. A request that reads also waits if its
user has read too much by other connections; after 10 seconds it is refused with THROTTLING_QUOTA_EXCEEDED. A Pong tells
for how long nothing was read.
"""

from __future__ import annotations

from typing import Any

from krappy.wire.schema import Answer, Request


class DescribeQuotas(Request, kind=73):
    """Asks for the quotas whose entity has all the names that are given."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


class QuotasFound(Answer, kind=73):
    """A quota is a map of `user`, `client_id`, `ip` and `rates`. These are a map from what is limited to the number."""

    quotas: list[dict[str, Any]]


class AlterQuotas(Request, kind=74):
    """Sets or removes quotas of one entity. When the answer comes, they are stored, and in force on this broker; other
    brokers follow within a second.
    """

    rates: dict[str, float | None]  # by what is limited, such as producer_byte_rate; nil removes the quota
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


class QuotasAltered(Answer, kind=74):
    pass
