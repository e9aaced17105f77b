"""The producers behind `Table.put`: one for each topic, as long as the client lives."""

from __future__ import annotations

from krappy.clients.accumulator import Limits
from krappy.clients.producing import Producing
from krappy.clients.router import Router


async def writer(router: Router, topic: str) -> Producing:
    """The client's producer to a topic. The first caller opens it; those who come meanwhile wait for that."""
    while True:
        with router.runtime.lock:
            found = router.writers.get(topic)
            if found is None:
                opening = router.writers[topic] = router.runtime.signal()
                break
        if isinstance(found, Producing):
            return found
        await found.wait()
    made: Producing | None = None
    try:
        made = Producing(router, topic, Limits(timeout=router.timeout))
        await made.open()
    except BaseException:
        made = None
        raise
    finally:
        with router.runtime.lock:
            if made is None:
                del router.writers[topic]
            else:
                router.writers[topic] = made
        opening.set()
    return made
