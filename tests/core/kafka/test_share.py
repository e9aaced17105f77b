"""What share groups (KIP-932) have beside other groups: their assignor, acknowledgements, where they begin to read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.core.kafka.assignors import Wants
from krappy.core.kafka.faults import Refused
from krappy.core.kafka.share import Ack, AckType, read_acks
from krappy.core.kafka.share_start import share_start, start_of
from krappy.core.kafka.simple_assignor import simple
from tests.core.kafka.test_assignors import MEMBERS, SIZES, wants

Members = dict[str, tuple[frozenset[bytes], frozenset[tuple[bytes, int]]]]


@given(MEMBERS, SIZES)
def test_every_partition_has_a_member_and_every_member_a_partition(members: Members, sizes: dict[bytes, int]) -> None:
    asked = wants(members)
    found = simple(asked, sizes)
    assert found.keys() == asked.keys()
    given_out = {partition for each in found.values() for partition in each}
    wanted = {topic for each in asked.values() for topic in each.topics}
    assert given_out == {(topic, at) for topic in wanted for at in range(sizes.get(topic, 0))}
    for name, each in found.items():
        assert all(topic in asked[name].topics for topic, _ in each)
        assert bool(each) == any(sizes.get(topic, 0) for topic in asked[name].topics)
    assert found == simple(asked, sizes)


@given(st.integers(1, 40), st.dictionaries(st.sampled_from([b"t", b"u"]), st.integers(1, 12), min_size=1), st.data())
def test_members_who_subscribe_alike_share_evenly_and_stay(
    count: int, sizes: dict[bytes, int], data: st.DataObject
) -> None:
    partitions = [(topic, at) for topic in sizes for at in range(sizes[topic])]
    held = st.frozensets(st.sampled_from(partitions), max_size=4)
    asked = {f"m{n}": Wants(frozenset(sizes), data.draw(held), f"m{n}") for n in range(count)}
    found = simple(asked, sizes)
    each = [len(mine) for mine in found.values()]
    sharing = [sum(partition in mine for mine in found.values()) for partition in partitions]
    least = -(-count // len(partitions))
    assert min(sharing) >= 1
    assert max(sharing) <= least + 1
    assert max(each) - min(each) <= 2
    again = simple({name: wants._replace(holds=found[name]) for name, wants in asked.items()}, sizes)
    assert again == found


def test_acknowledgements() -> None:
    accept, release = AckType.ACCEPT, AckType.RELEASE
    assert read_acks([(0, 9, [1]), (10, 13, [1, 1, 2, 1])]) == [
        *(Ack(0, 9, accept), Ack(10, 11, accept), Ack(12, 12, release), Ack(13, 13, accept)),
    ]
    with pytest.raises(Refused):
        read_acks([(0, 0, [5])])


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        (" latest ", "latest"),
        ("by_duration:P1D", 86_400_000),
        ("by_duration:PT0S", 0),
        ("by_duration:P1DT2H3M4.5S", 93_784_500),
        ("by_duration:pt90m", 5_400_000),
        ("by_duration:PT0.0019S", 1),
    ],
)
def test_where_a_group_begins(text: str, start: str | int) -> None:
    assert start_of(share_start(text)) == start


@pytest.mark.parametrize(
    "text",
    ["", "none", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:-PT1S", "by_duration:P1", "P1D"],
)
def test_where_no_group_begins(text: str) -> None:
    with pytest.raises(ValueError, match="earliest, latest"):
        share_start(text)
