"""What a classic group with the most members that it may have costs, counted in calls rather than seconds."""

from __future__ import annotations

import pytest

from krappy.core.kafka.classic import ClassicGroup
from krappy.core.kafka.classic_member import ClassicMember, Join, Joined, Rules

MOST = 1000


def test_a_rebalance_looks_at_each_members_metadata_once(monkeypatch: pytest.MonkeyPatch) -> None:
    group = ClassicGroup(Rules())
    for number in range(MOST):
        ask = Join("", None, "consumer", (("range", b"m"),), 10_000, 10_000, fresh_id=f"member-{number}")
        group.join(0, number, ask)
    looked = 0
    metadata = ClassicMember.metadata

    def counted(member: ClassicMember, protocol: str | None) -> bytes:
        nonlocal looked
        looked += 1
        return metadata(member, protocol)

    monkeypatch.setattr(ClassicMember, "metadata", counted)
    group.out.clear()
    for now in (3000, 6000, 9000, 10_000):  # the first rebalance is put off while members come
        group.tick(now)
    answers = [reply.answer for reply in group.out]
    assert len(answers) == MOST
    told = [len(answer.members) for answer in answers if isinstance(answer, Joined)]
    assert sorted(told) == [0] * (MOST - 1) + [MOST]  # only the leader is told of the members
    assert looked == MOST
