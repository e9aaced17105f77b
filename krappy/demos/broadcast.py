"""`krappy demo broadcast`: each event reaches three services, each at its own pace.

Each service is a group, so each gets every event, and a slow one does not delay the others.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from krappy.demos.show import Show

if TYPE_CHECKING:
    from krappy.blocking import Client
    from krappy.types import Event

TOPIC = "signups"
PEOPLE = ["Ada", "Grace", "Edsger", "Barbara", "Tony", "Radia", "Leslie", "Frances", "Ken", "Margaret"]
PACES = {"mail": 0.0, "billing": 0.01, "analytics": 0.04}  # seconds that a service spends on an event


def run(client: Client, address: str, show: Show) -> None:
    """Runs the demo. Raises Failure when a service missed an event or got one twice."""
    show.heading(f"{len(PEOPLE)} people sign up; three services want to know")
    client.create_topic(TOPIC, partitions=2)
    with client.producer(TOPIC) as producer:
        for number, name in enumerate(PEOPLE):
            producer.send(name, key=f"user-{number}")

    first_done = threading.Event()
    seen: dict[str, list[Event]] = {service: [] for service in PACES}
    threads = [
        threading.Thread(target=_serve, args=(client, service, pace, seen[service], first_done))
        for service, pace in PACES.items()
    ]
    for thread in threads:
        thread.start()
    first_done.wait(60)
    show.line("the first service is done; how far the others are:")
    show.table(["service", "events seen", "lag"], [[g.group, len(seen[g.group]), g.lag] for g in client.groups()])
    for thread in threads:
        thread.join()

    show.heading("when all are done")
    for service, events in seen.items():
        names = sorted(event.value.decode() for event in events if event.value is not None)
        show.check(f"{service} saw every signup once", names == sorted(PEOPLE), f"it saw {names}")
        ordered = all(
            [e.offset for e in events if e.partition == p] == sorted(e.offset for e in events if e.partition == p)
            for p in (0, 1)
        )
        show.check(f"{service} saw each partition in order", ordered)
    show.check("no group lags", all(group.lag == 0 for group in client.groups()))
    show.fact("events", len(PEOPLE))
    show.fact("services", list(PACES))


def _serve(client: Client, service: str, pace: float, seen: list[Event], done: threading.Event) -> None:
    with client.consumer(TOPIC, group=service, max_records=2) as consumer:
        while len(seen) < len(PEOPLE):
            for event in consumer.poll(10):
                time.sleep(pace)
                consumer.ack(event)
                seen.append(event)
    done.set()
