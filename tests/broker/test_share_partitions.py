"""What share sessions remember is bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from trio.testing import trio_test

from krappy.broker.groups.share_partitions import EACH, MEMORY_SHARE, SharePartitions
from krappy.core.kafka.faults import Refused
from krappy.core.kafka.share import ShareRules


@trio_test
async def test_sessions_and_their_partitions_are_bounded() -> None:
    config = SimpleNamespace(group_share_max_share_sessions=1, memory_bytes=1 << 20)
    runtime = SimpleNamespace(config=config, authorizer=SimpleNamespace(signals=()))
    keeper = SimpleNamespace(held_positions=0, check_share_room=lambda: None)
    shares = SharePartitions(*cast(Any, (runtime, keeper, None)))
    shares.rules_of = lambda name: ShareRules()
    _, session = shares.begin("g", "one")
    room = (1 << 20) // MEMORY_SHARE // EACH
    session.parts = {(b"", index): None for index in range(room - 5)}
    shares.check_parts(5)
    with pytest.raises(Refused):
        shares.check_parts(6)
    with pytest.raises(Refused):
        shares.begin("g", "two")
