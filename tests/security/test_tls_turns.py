"""What comes over TLS is decrypted in turns: nobody knows what it is before, and it may take some ms for each peer. The
tests count rounds of the event loop."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from krappy.server import turns
from krappy.testing.running import run_broker
from krappy.tls import TlsSocket
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, encode_request
from tests.process import wait_until
from tests.rounds import HeldRounds
from tests.security.authority import Authority
from tests.security.test_handshake_turns import FLOODS, connected

PEERS = 12
SAID = {
    "native": m.Ping().frame(1),
    "kafka": encode_request(ApiKey.API_VERSIONS, 3, 1, "x", {}),
    "http": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


class Decrypted(HeldRounds):
    """`reads`: how many reads of TLS the broker made in each round of its event loop, since `asked` is set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.asked, self.number, self.reads = threading.Event(), 0, Counter[int]()
        read = TlsSocket.recv_into

        def noted(sock: TlsSocket, *arguments: Any) -> int:
            if sock._server_side:
                self.report("read")  # on the event loop
                self.reads[self.number] += self.asked.is_set()
            return read(sock, *arguments)

        patch.setattr(TlsSocket, "recv_into", noted)

    def after_io_wait(self, timeout: float) -> None:
        super().after_io_wait(timeout)
        self.number += 1


@pytest.mark.parametrize("protocol", SAID)
def test_a_round_that_has_lasted_decrypts_for_one_peer(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    rounds, context = Decrypted(monkeypatch), authority.context()
    settings = {f"listen_{each}": "SSL://127.0.0.1:0" for each in SAID}
    settings |= {"tls_certificate": authority.issue("127.0.0.1"), "durability": "os"}
    with run_broker(tmp_path / "data", **settings) as broker, ExitStack() as stack:
        addresses = {"native": broker.address, "kafka": broker.kafka_addresses["SSL"], "http": broker.http_address}
        address = addresses[protocol]
        peers = [
            stack.enter_context(context.wrap_socket(connected(address, FLOODS), server_hostname="127.0.0.1"))
            for _ in range(PEERS)
        ]
        for peer in peers:
            peer.sendall(SAID[protocol])
            assert peer.recv(1 << 16)
        # From now on each round has lasted for long when it begins.
        monkeypatch.setattr(turns, "LONG", -1.0)
        monkeypatch.setattr(turns, "LONGEST", -1.0)
        rounds.go.clear()
        rounds.asked.set()
        for peer in peers:
            peer.sendall(SAID[protocol])
        rounds.go.set()
        for peer in peers:
            assert peer.recv(1 << 16)
        wait_until(lambda: sum(rounds.reads.values()) >= PEERS, "all were read from")
        assert max(rounds.reads.values()) <= 2
