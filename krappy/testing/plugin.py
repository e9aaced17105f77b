"""A pytest plugin with the fixture `krappy_broker`, a running broker for one test.

It is found by itself: every project with `krappy[broker]` and pytest installed has the fixture.

    def test_signup(krappy_broker):
        with krappy_broker.connect() as client:
            client.create_topic("users")
            …

The broker listens on a free port, stores its data in the test's `tmp_path`, and runs in its own thread. So the test may
be synchronous or use any async framework; a client needs only `krappy_broker.address`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from krappy.testing.running import RunningBroker


@pytest.fixture
def krappy_broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """A new broker for this test: `.address`, `.data_dir`, `.connect()` for a blocking client."""
    from krappy.testing.running import run_broker  # imported here so that tests without a broker do not load it

    # The data need not survive a crash of the machine, so the broker does not sync it.
    with run_broker(tmp_path / "krappy", durability="os") as broker:
        yield broker
