"""Batches that open to much: pages of events and tails open these batches in a thread."""

from __future__ import annotations

from krappy.records import batch, codecs
from krappy.testing.running import RunningBroker
from krappy.wire import messages as m
from tests.broker.test_large import LARGE, opened
from tests.console.web import Web
from tests.peer import Peer
from tests.served import alone

__all__ = ["opened"]
SHORT = {"value_bytes": 10, "limit": 100}


def publish(console: RunningBroker, topic: str) -> int:
    """Publishes large batches of all kinds; returns how many events they have."""
    made = [make(codecs.ZSTD) for make in LARGE]
    with Peer(console.address) as peer:
        producer = peer.producer(topic).handle
        for data in made:
            peer.ask(m.Batch(producer, 0, data), m.BatchStored)
    return sum(batch.read_header(data).count for data in made)


@alone
def test_pages_of_large_batches(web: Web, console: RunningBroker, opened: list[int]) -> None:
    path = web.topic("pages", view_enable=False, max_message_bytes=8 << 20)
    count = publish(console, "pages")
    seen = 0
    page = web.get(f"{path}/events", start="earliest", **SHORT)
    while page["events"] and seen < 1000:
        assert [each["offset"] for each in page["events"]] == list(range(seen, seen + len(page["events"])))
        seen += len(page["events"])
        page = web.get(f"{path}/events", after=page["after"], **SHORT)
    assert seen >= 1000
    below = count
    for _ in range(5):
        page = web.get(f"{path}/events", **({"before": page["before"]} if below < count else {}), **SHORT)
        assert [each["offset"] for each in page["events"]] == list(range(below - 100, below))
        below -= 100
    web.get(f"{path}/events", start="offset", at=35, **SHORT)
    assert len(opened) > 4


@alone
def test_tails_of_large_batches(web: Web, console: RunningBroker, opened: list[int]) -> None:
    path = web.topic("tails", view_enable=False, max_message_bytes=8 << 20)
    with web.live(f"{path}/tail", key="k7", rate=1000) as sent, web.live(f"{path}/tail", rate=1000) as every:
        next(sent), next(every)
        count = publish(console, "tails")
        web.publish(path, "k7", "last")
        shown = skipped = 0
        while True:
            told = next(sent)
            if told.event == "skipped":
                skipped += told.data["events"]
                continue
            shown += len(told.data["events"])
            if told.data["events"][-1]["offset"] == count:
                break
        assert shown + skipped == 1 + 1 + 445  # events of the zeros and of the records, and the last event
        for told in every:
            if told.event == "events" and told.data["events"][-1]["offset"] == count:
                break
    assert opened
