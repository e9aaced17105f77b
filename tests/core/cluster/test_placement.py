"""Where new partitions go while brokers stop."""

from __future__ import annotations

import pytest

from krappy.core.cluster.placement import DEFAULT, place
from krappy.errors import InvalidReplicationFactor
from tests.core.cluster.test_balance import NO_RACKS, image_of


def test_a_broker_that_stops_gets_no_replica_and_refuses_no_topic() -> None:
    """Nobody has asked for three replicas."""
    assert [sorted(each) for each in place(image_of(NO_RACKS, []), 2, DEFAULT)] == [[1, 2, 3], [1, 2, 3]]
    stopping = image_of(NO_RACKS, [], draining=[2])
    assert [sorted(each) for each in place(stopping, 2, DEFAULT)] == [[1, 3], [1, 3]]
    with pytest.raises(InvalidReplicationFactor, match="3, where 2 brokers"):
        place(stopping, 2, 3)


def test_without_a_broker_there_is_no_place() -> None:
    with pytest.raises(InvalidReplicationFactor):
        place(image_of(NO_RACKS, [], draining=[1, 2, 3]), 1, DEFAULT)
