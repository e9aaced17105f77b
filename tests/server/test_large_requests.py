"""A large request of Kafka's protocol is read in several turns, between which others have theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from krappy.server.pace import Turns
from krappy.testing.running import run_broker
from krappy.wire.kafka import ApiKey, encode_request
from krappy.wire.kafka.reading import STEP
from tests.kafka.raw import Closed, Raw

MANY = 20_000


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whose turns were asked for."""
    asked, ask = list[str](), Turns.next

    async def noted(self: Turns, peer: str = "", **more: Any) -> None:
        asked.append(peer)
        await ask(self, peer, **more)

    monkeypatch.setattr(Turns, "next", noted)
    return asked


def leaving(count: int) -> dict[str, object]:
    """LeaveGroup, which is served at once."""
    return {"group_id": "g", "members": [{"member_id": f"m{at}", "group_instance_id": None} for at in range(count)]}


def test_it_takes_turns_and_is_answered_in_order(tmp_path: Path, turns: list[str]) -> None:
    with run_broker(tmp_path / "data", listen_kafka="127.0.0.1:0") as running, Raw(running.kafka_address) as raw:
        raw.send(ApiKey.LEAVE_GROUP, leaving(MANY))
        raw.send(ApiKey.API_VERSIONS)
        raw.send(ApiKey.LEAVE_GROUP, leaving(1))
        assert len(raw.receive()["members"]) == MANY
        assert len(turns) >= MANY // STEP
        assert raw.receive()["api_keys"]
        assert len(raw.receive()["members"]) == 1


def test_a_broken_one_ends_the_connection_behind_the_answers_to_earlier_ones(tmp_path: Path) -> None:
    with run_broker(tmp_path / "data", listen_kafka="127.0.0.1:0") as running, Raw(running.kafka_address) as raw:
        raw.send(ApiKey.API_VERSIONS)
        whole = encode_request(ApiKey.LEAVE_GROUP, 5, 2, "x", leaving(MANY))[4:-9]
        raw.send_bytes(len(whole).to_bytes(4, "big") + whole)
        assert raw.receive()["api_keys"]
        with pytest.raises(Closed):
            raw.receive_frame()
        with Raw(running.kafka_address) as other:
            assert other.ask(ApiKey.API_VERSIONS)["api_keys"]
