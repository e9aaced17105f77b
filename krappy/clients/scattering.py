"""Whether a topic of several brokers may have strays, keys in other partitions than those that murmur2 gives them; and
how many partitions it has, where all of them are asked.

Each leader knows of its own partitions, and all know what the cluster has marked. A new leader may need a moment until
it knows: until then it says that there may be strays, but not that the topic is marked (`unsure`).

A client keeps the number of partitions that it was told once. So a request to all partitions says which number that is
(`among`), and a leader that knows another one refuses (scattered.py of the broker). One leader that answers is enough:
then no event was acknowledged before in a partition that the client does not know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from krappy.clients.backoff import Backoff
from krappy.clients.router import OthersNeeded, Router
from krappy.errors import InvalidRequest, PolicyViolation, RequestTimeout, UnknownPartition
from krappy.wire import messages

T = TypeVar("T")
KNOWN = 5.0  # seconds for which the answer of the leaders about a topic's strays counts
UNSURE = 1.0  # seconds for which a leader may not know it, where it does not tell that, or where a guess is enough


async def may_scatter(router: Router, topic: str, deadline: float | None = None) -> bool:
    """Whether all partitions are to be asked for a key, because the topic may have strays: as the leaders knew it a few
    seconds ago."""
    now = router.runtime.now()
    found, until = router.scattered.get(topic, (None, 0.0))
    if found is None or now >= until:
        if found is not None:
            router.scattered[topic] = found, now + KNOWN  # others need not ask at the same time
        told = await _told(router, topic, now + router.timeout if deadline is None else deadline)
        found = any(each.get("scattered") for each in told)
        router.scattered[topic] = found, now + KNOWN
    return found


async def is_scattered(router: Router, topic: str, deadline: float, *, may_guess: bool = False) -> bool:
    """Whether the topic has strays. When the leaders do not know that for UNSURE seconds: True, if that `may_guess`;
    else it waits, and raises RequestTimeout at the deadline."""
    backoff, until = Backoff(), min(deadline, router.runtime.now() + UNSURE)
    while True:
        told = [each for each in await _told(router, topic, deadline) if each.get("scattered")]
        late = router.runtime.now() >= until
        if not all(each.get("unsure", not late) for each in told) or (late and told and may_guess):
            return True
        if not told:
            return False
        if router.runtime.now() >= deadline:
            raise RequestTimeout(f"the leaders of '{topic}' do not know yet whether it has keys in other partitions")
        await router.runtime.sleep(backoff.pause())


async def _told(router: Router, topic: str, deadline: float) -> list[dict[str, object]]:
    """What each leader tells of the topic; it is taken over."""
    answers = await router.of_leaders(
        topic,
        range(await partitions(router, topic, deadline)),
        lambda _: messages.Metadata([topic]),
        messages.MetadataFound,
        deadline=deadline,
    )
    for _, _, answer in answers:
        router.learning.take(answer)
    return [each for _, _, answer in answers for each in answer.topics]


async def check_in_place(router: Router, topic: str, deadline: float) -> None:
    """Called before rows are read that several leaders have. Raises PolicyViolation for a topic with strays: no broker
    has all entries of such a key; RequestTimeout as `is_scattered`."""
    if await is_scattered(router, topic, deadline):
        raise PolicyViolation(
            f"'{topic}' has keys in other partitions than those that murmur2 gives them, and several brokers lead "
            "it: then no broker can tell which rows are a key's latest"
        )


async def partitions(router: Router, topic: str, deadline: float | None = None) -> int:
    """How many partitions the topic has, as far as this client knows."""
    until = router.runtime.now() + router.timeout if deadline is None else deadline
    return len((await router.learning.topic(topic, until)).partitions)


async def counted(router: Router, topic: str, deadline: float, ask: Callable[[int, int | None], Awaitable[T]]) -> T:
    """What `ask(count, among)` gives for the topic's number of partitions. If it raises OthersNeeded because there is
    another number by now, it is called again with that. `among`: the number to send; None: a broker is older, and does
    not read it."""
    backoff = Backoff()
    while True:
        count = await partitions(router, topic, deadline)
        try:
            return await ask(count, None if router.is_older else count)
        except InvalidRequest as error:
            if not router.note_older(error):
                raise
        except (OthersNeeded, UnknownPartition) as error:
            if await router.recounted(topic, count, deadline):
                continue
            if "partitions" not in error.details:
                raise
            await router.look_again(topic, error, backoff, deadline)  # the broker that told of the topic is behind
