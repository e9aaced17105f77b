"""The topics that a bench makes for itself, fills, and deletes."""

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


FILL = 1_000  # events handed over at a time, at least: filling is not what is measured


@contextmanager
def own_topic(client: Client, settings: BenchSettings) -> Iterator[str]:
    """A new topic with a name of its own, deleted at the end."""
    gc.collect()
    gc.freeze()  # what is to be sent is made by now: looking at it again and again is not what is measured
    name = f"krappy-bench-{secrets.token_hex(4)}"
    config = {"view.enable": settings.view, "retention.ms": -1}
    client.create_topic(name, partitions=settings.partitions, config=config)
    try:
        yield name
    except BaseException:
        with suppress(KrappyError):  # the first error is the one to tell of
            client.delete_topic(name)
        raise
    client.delete_topic(name)


def fill(client: Client, topic: str, load: Load, settings: BenchSettings) -> None:
    """Publishes a load as fast as it goes, and waits until it is stored."""
    with client.producer(topic, compression=settings.compression) as producer:
        for keys, values in load.batches(max(settings.batch, FILL)):
            producer.post_columns(keys, values)
