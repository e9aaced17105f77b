"""The producers behind `Table.put`: one for each topic, as long as the link lives."""

from __future__ import annotations

from krappy.clients.accumulator import Limits
from krappy.clients.link import Link
from krappy.clients.producing import Producing


async def writer(link: Link, topic: str) -> Producing:
    """The link's producer to a topic. The first caller opens it; those who come meanwhile wait for that."""
    while True:
        with link.runtime.lock:
            found = link.writers.get(topic)
            if found is None:
                opening = link.writers[topic] = link.runtime.signal()
                break
        if isinstance(found, Producing):
            return found
        await found.wait()
    made: Producing | None = None
    try:
        made = Producing(link, topic, Limits(timeout=link.timeout))
        await made.open()
    except BaseException:
        made = None
        raise
    finally:
        with link.runtime.lock:
            if made is None:
                del link.writers[topic]
            else:
                link.writers[topic] = made
        opening.set()
    return made
