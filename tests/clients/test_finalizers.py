"""What nobody holds any more is closed by its finalizer, in whatever thread Python collects it, and whoever holds the
client's lock at that moment. The holder may be starting this very thread, and wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from krappy import blocking


def watch(client: blocking.Client, topic: str) -> Any:
    made = client.table(topic).watch()
    assert next(made).key is not None  # type: ignore[union-attr]
    return made


def scan(client: blocking.Client, topic: str) -> Any:
    made = client.table(topic).scan(page_entries=1)
    next(made)
    return made


def blocks(client: blocking.Client, topic: str) -> Any:
    snapshot = client.snapshot(topic, splits=1)
    made = client.read_snapshot(snapshot.id, snapshot.ranges[0], block_bytes=1)
    next(made)
    return made


@pytest.mark.parametrize("make", [watch, scan, blocks])
def test_a_finalizer_waits_for_no_lock(address: str, topic: str, make: Callable[[blocking.Client, str], Any]) -> None:
    with blocking.connect(address, timeout=20) as client:
        client.create_topic(topic, 1, {"cleanup.policy": "compact"})
        with client.producer(topic) as producer:
            producer.send_many([(b"%d" % number, b"v") for number in range(10)])
        held = [make(client, topic)]
        before = threading.active_count()
        thread = threading.Thread(target=held.clear, daemon=True)
        with client._connection.runtime.lock:
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
        assert client.table(topic).get(b"1") is not None
        if make is watch:  # its connection ends, and so does the thread that has read from it
            end = time.monotonic() + 10
            while threading.active_count() >= before:
                assert time.monotonic() < end
                time.sleep(0.01)
