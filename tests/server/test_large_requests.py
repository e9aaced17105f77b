"""A large request is read in several turns, between which others have theirs."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from krappy.records import batch
from krappy.server.turns import Turns
from krappy.store.disk import File
from krappy.testing.running import run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, encode_request
from krappy.wire.kafka.reading import STEP
from tests.kafka.raw import Closed, Raw, fetch, produce
from tests.peer import TIMEOUT, Peer

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


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync takes so long that other requests end before it."""
    sync = File.fdatasync

    def slowly(self: File) -> None:
        time.sleep(0.3)
        sync(self)

    monkeypatch.setattr(File, "fdatasync", slowly)


BROKEN = encode_request(ApiKey.LEAVE_GROUP, 5, 2, "x", leaving(MANY))[4:-9]
ENDS = {
    "a large request is broken": len(BROKEN).to_bytes(4, "big") + BROKEN,
    "its peer leaves": encode_request(ApiKey.FETCH, 12, 2, "x", fetch([("t", 0, 0)], max_wait_ms=30_000, min_bytes=9)),
}


@pytest.mark.parametrize("why", ENDS)
def test_before_a_connection_ends_earlier_publishes_are_answered(tmp_path: Path, slow_disk: None, why: str) -> None:
    with run_broker(tmp_path / "data", listen_kafka="127.0.0.1:0") as running, Raw(running.kafka_address) as raw:
        raw.make("t")
        raw.send(ApiKey.PRODUCE, produce("t", batch.encode(None, [b"v"], timestamps=1)), 12)
        raw.send_bytes(ENDS[why])
        raw.socket.shutdown(socket.SHUT_WR)
        (answer,) = raw.receive()["responses"][0]["partition_responses"]
        assert answer["error_code"] == 0
        with pytest.raises(Closed):
            raw.receive_frame()


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


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_a_frame_that_comes_slowly_gets_signs_of_life(tmp_path: Path, size: int) -> None:
    """A ping behind it waits for long. If nothing came, a client would take the connection for dead, and begin
    again."""
    with run_broker(tmp_path / "data") as running, Peer(running.address) as peer:
        handle = peer.producer("slow").handle
        data = m.Message(handle, bytes(size)).frame(1000)
        peer.socket.settimeout(0.05)
        while peer.signs < 2:
            peer.post(data[:1000])
            data = data[1000:]
            with suppress(TimeoutError):
                peer.receive()
        peer.post(data)
        peer.socket.settimeout(TIMEOUT)
        assert peer.answer(1000, m.MessageStored).offset == 0
