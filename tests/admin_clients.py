"""Destroys Kafka's admin clients in threads that nothing waits for.

The destructor of such a client waits for librdkafka's threads. While a request is under way to a broker that is gone,
that may take for ever. The garbage collector calls the destructor in the middle of whatever runs, which then never goes
on, and no time limit of a test ends that. So each client is kept here, and is given up in a thread of its own once no
test has it any more.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from functools import wraps
from typing import Any

import pytest

KEPT = 2  # references to a client that no test has: one from the list, one from the call of getrefcount


class AdminClients:
    def __init__(self) -> None:
        self._kept: list[Any] = []

    @pytest.hookimpl
    def pytest_collection_finish(self) -> None:
        """All tests are imported by now, and so is the library if one of them needs it."""
        if (library := sys.modules.get("confluent_kafka.admin")) is None:
            return
        made = library.AdminClient.__init__

        @wraps(made)
        def make(client: object, *args: Any, **named: Any) -> None:
            made(client, *args, **named)
            self._kept.append(client)

        library.AdminClient.__init__ = make

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        done = yield
        left = [number for number in range(len(self._kept)) if sys.getrefcount(self._kept[number]) == KEPT]
        if left:
            over = [self._kept.pop(number) for number in reversed(left)]
            threading.Thread(target=over.clear, daemon=True).start()
        return done
