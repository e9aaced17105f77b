"""How a registry declares what a request needs: `needs.topic(Op.WRITE) + needs.transactional_id(Op.WRITE)`."""

from __future__ import annotations

from krappy.core.security.operations import Need, Op, Resource

NOTHING: tuple[Need, ...] = ()  # for requests that name no resource and reveal nothing: Ping, ApiVersions


def topic(*ops: Op) -> tuple[Need, ...]:
    return tuple(Need(Resource.TOPIC, op) for op in ops)


def group(*ops: Op) -> tuple[Need, ...]:
    return tuple(Need(Resource.GROUP, op) for op in ops)


def cluster(*ops: Op) -> tuple[Need, ...]:
    return tuple(Need(Resource.CLUSTER, op) for op in ops)


def configs(op: Op) -> tuple[Need, ...]:
    """The need for all that has settings: topics, brokers and groups."""
    return topic(op) + cluster(op) + group(op)


def transactional_id(*ops: Op) -> tuple[Need, ...]:
    """Also for staged jobs: a job's name counts as a transactional id."""
    return tuple(Need(Resource.TRANSACTIONAL_ID, op) for op in ops)
