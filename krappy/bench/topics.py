"""Creates, fills and deletes the topics of a bench."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from krappy.bench.load import Load
from krappy.bench.settings import BenchSettings
from krappy.errors import KrappyError

if TYPE_CHECKING:
    from krappy.blocking import Client


FILL = 1_000  # events passed at a time, at least; filling is not measured


@contextmanager
def own_topic(client: Client, settings: BenchSettings) -> Iterator[str]:
    """Creates a topic with a new name, and deletes it at the end."""
    gc.collect()
    gc.freeze()  # so that the collector does not visit the events, which are all made by now, while time is measured
    name = f"krappy-bench-{secrets.token_hex(4)}"
    config = {"view.enable": settings.view, "retention.ms": -1}
    client.create_topic(name, partitions=settings.partitions, config=config)
    try:
        yield name
    except BaseException:
        with suppress(KrappyError):  # the first error is raised instead
            client.delete_topic(name)
        raise
    client.delete_topic(name)


def fill(client: Client, topic: str, load: Load, settings: BenchSettings) -> None:
    """Publishes a load as fast as possible, and waits until it is stored."""
    with client.producer(topic, compression=settings.compression) as producer:
        for keys, values in load.batches(max(settings.batch, FILL)):
            producer.post_columns(keys, values)
