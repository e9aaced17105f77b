"""pytest plugin: the fixture `krappy_broker`, a running broker for one test.

It comes with the package: a project that has `krappy[broker]` and pytest installed has the fixture.

    def test_signup(krappy_broker):
        with krappy_broker.connect() as client:
            client.create_topic("users")
            …

The broker listens on a free port, stores in the test's `tmp_path`, and runs in a thread of its own, so the test may
be plain or use any async framework: `krappy_broker.address` is all that a client needs.
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
    """A broker of this test's own: `.address`, `.data_dir`, `.connect()` for a blocking client."""
    from krappy.testing.running import run_broker  # here: a test run that needs no broker pays nothing

    # What is stored need not survive the machine: no waiting for the disk.
    with run_broker(tmp_path / "krappy", durability="os") as broker:
        yield broker
