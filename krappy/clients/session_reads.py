"""Reads that any replica in sync may answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from krappy.clients.backoff import chance
from krappy.clients.link import Link
from krappy.clients.router import Router
from krappy.errors import ConnectionLost, RequestTimeout
from krappy.wire.messages import Answer, Request

A = TypeVar("A", bound=Answer)
PATIENCE = 1.0  # seconds that a replica has for its answer; after that the leader is asked


def replicas(router: Router, topic: str, partitions: Iterable[int]) -> list[tuple[Link, list[int]]] | None:
    """Links to brokers that have replicas in sync, and which of these partitions each is to be asked for. Chance
    decides between those that are connected; it begins to connect to the others. None: a partition has none."""
    left = set(partitions)
    having = router.known.in_sync(topic, left)
    links = {each: link for each in having if (link := router.broker_now(each)) is not None}
    found: list[tuple[Link, list[int]]] = []
    while left:
        some = [each for each in links if left.intersection(having[each])]
        if not some:
            return None
        chosen = chance.choice(some)
        found.append((links[chosen], sorted(left.intersection(having[chosen]))))
        left.difference_update(having[chosen])
    return found


async def ask_replicas(
    router: Router,
    topic: str,
    partitions: Iterable[int],
    request: Callable[[list[int]], Request],
    answer: type[A],
    deadline: float,
) -> list[tuple[list[int], A]] | None:
    """(partitions, the answer about them) of some replicas. None: some do not answer, so the leaders are to be asked. A
    replica may refuse a request only because it does not know something yet. Raises as `Router.topic`."""
    await router.learning.topic(topic, deadline)
    chosen = replicas(router, topic, partitions)
    if chosen is None:
        return None
    asked = [(link, request(some)) for link, some in chosen]
    answers = await router.ask_each(asked, answer, min(deadline, router.runtime.now() + PATIENCE))
    found = [(some, got) for (_, some), got in zip(chosen, answers, strict=True) if isinstance(got, answer)]
    if len(found) == len(chosen):
        return found
    await look_again(router, topic, deadline)
    return None


async def look_again(router: Router, topic: str, deadline: float) -> None:
    """Learns which replicas are in sync, after one has not answered: it may not be in sync any more."""
    with suppress(ConnectionLost, RequestTimeout):
        await router.learning.refresh([topic], min(deadline, router.runtime.now() + PATIENCE))
