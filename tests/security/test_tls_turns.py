"""What comes over TLS is decrypted in turns: nobody knows what it is before, and it may take some ms for each peer.
What is sent is encrypted in turns. The tests count rounds of the event loop."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from krappy.server import turns
from krappy.server.channel import Channel
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


class Counted(HeldRounds):
    """How many reads of TLS the broker made in each round of its event loop, and how many parts of large answers it
    encrypted; since `asked` is set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.asked, self.number, self.reads, self.sends = threading.Event(), 0, Counter[int](), Counter[int]()
        read, send = TlsSocket.recv_into, TlsSocket.send

        def noted(sock: TlsSocket, *arguments: Any) -> int:
            if sock._server_side:
                self.report("read")  # on the event loop
                self.reads[self.number] += self.asked.is_set()
            return read(sock, *arguments)

        def sent(sock: TlsSocket, data: Any, flags: int = 0) -> int:
            self.sends[self.number] += sock._server_side and self.asked.is_set() and len(data) > turns.SMALL
            return send(sock, data, flags)

        patch.setattr(TlsSocket, "recv_into", noted)
        patch.setattr(TlsSocket, "send", sent)

    def after_io_wait(self, timeout: float) -> None:
        super().after_io_wait(timeout)
        self.number += 1


@pytest.mark.parametrize("protocol", SAID)
def test_a_round_that_has_lasted_decrypts_for_one_peer(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    rounds, context = Counted(monkeypatch), authority.context()
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


def test_large_answers_to_many_peers_at_once_are_encrypted_in_turns(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event for which many wait. Their answers are made in one round, which has lasted for long when they are
    sent."""
    rounds, context, post = Counted(monkeypatch), authority.context(), Channel.post
    size = 100_000

    def late(channel: Channel) -> None:
        if channel._outbox.size > turns.SMALL:
            monkeypatch.setattr(turns, "LONG", -1.0)
        post(channel)

    monkeypatch.setattr(Channel, "post", late)
    settings = {"listen_native": "SSL://127.0.0.1:0", "tls_certificate": authority.issue("127.0.0.1")}
    with (
        run_broker(tmp_path / "data", durability="os", **settings) as broker,
        broker.connect(ca=authority.ca) as client,
        ExitStack() as stack,
    ):
        client.create_topic("t", partitions=1)
        peers = [
            stack.enter_context(context.wrap_socket(connected(broker.address, FLOODS), server_hostname="127.0.0.1"))
            for _ in range(PEERS)
        ]
        for peer in peers:
            peer.sendall(m.ConsumerRegistration(["t"], start="latest").frame(1))
            assert peer.recv(1 << 16)
            peer.sendall(m.Poll(1, max_wait=60_000).frame(2) + m.Ping().frame(3))
            assert peer.recv(1 << 16)  # the ping's answer: the poll waits
        rounds.asked.set()
        with client.producer("t") as producer:
            producer.send(bytes(size))
        for peer in peers:
            got = 0
            while got < size:
                got += len(peer.recv(1 << 18))
        assert max(rounds.sends.values()) <= 3  # the first one, and up to two parts in a turn
