"""Whoever floods the broker makes nobody wait: before the login as after it, no round of the event loop takes long.

A round is measured in processor time, so a busy machine changes little. tests/test_hostile_stalls.py measures what
another client sees of the same.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from krappy.core.security.scram import ScramClient
from krappy.errors import AuthenticationFailed
from krappy.records import batch
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, encode_request
from tests.kafka.raw import Closed, Raw
from tests.kafka.shares import beat, earliest, fill
from tests.long import LONG
from tests.peer import Peer
from tests.rounds import Rounds
from tests.security.test_sasl import log_in
from tests.test_hostile_connections_load import COSTLY
from tests.test_hostile_stalls import BATCHES, OFTEN

WORST = 0.25  # seconds of a round
long = pytest.mark.skipif(not LONG, reason="takes a minute: `make hostile` runs it (KRAPPY_LONG=1)")
SECRET = "correct-horse"


class Victim:
    def __init__(self, broker: RunningBroker, rounds: Rounds) -> None:
        self.broker, self.rounds = broker, rounds
        self.locked = broker.kafka_addresses["SASL_PLAINTEXT"]
        self.kafka = broker.kafka_addresses["PLAINTEXT"]

    @contextlib.contextmanager
    def entered(self) -> Iterator[Raw]:
        """A Kafka connection whose user has logged in."""
        with Raw(self.locked) as raw:
            assert not log_in(raw, "ada", SECRET)["error_code"]
            yield raw

    @contextlib.contextmanager
    def native(self) -> Iterator[Peer]:
        with Peer(self.broker.address) as peer:
            assert peer.ask(m.Authenticate("PLAIN", b"\0ada\0" + SECRET.encode()), m.Authenticated).done
            yield peer


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    folder, rounds = tmp_path_factory.mktemp("rounds"), Rounds()
    (folder / "users").mkdir()
    (folder / "users" / "ada").write_text(SECRET)
    with run_broker(
        folder / "data",
        durability="os",
        memory_bytes=64 << 20,
        listen_native="SASL_PLAINTEXT://127.0.0.1:0",
        listen_kafka="SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        listen_http="SASL_PLAINTEXT://127.0.0.1:0",
        sasl_enabled_mechanisms="SCRAM-SHA-512,PLAIN",
        users_dir=str(folder / "users"),
        super_users="User:ada;User:ANONYMOUS",
        failed_authentication_delay_ms=1,
        report=rounds.report,
    ) as broker:
        found = Victim(broker, rounds)
        with found.native() as peer:
            peer.ask(m.CreateTopic("t", 200), m.TopicCreated)
            peer.ask(m.CreateTopic("large", 1), m.TopicCreated)
        assert rounds.measured.wait(60)
        yield found


def quick(victim: Victim, attack: Callable[[], None]) -> None:
    victim.rounds.longest = 0.0
    attack()
    with victim.native() as peer:
        peer.ask(m.Ping(), m.Pong)
    print(f"the longest round: {victim.rounds.longest * 1000:.0f} ms")  # noqa: T201
    assert victim.rounds.longest <= WORST


# --- before the login


def flood(address: str, data: bytes, count: int) -> None:
    """Sends the data on each of `count` connections at once, and reads what is answered to the end."""
    host, _, port = address.rpartition(":")

    def send(to: Sequence[socket.socket]) -> None:
        for each in to:
            with contextlib.suppress(OSError):
                each.sendall(data)
                each.shutdown(socket.SHUT_WR)

    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection((host, int(port)), 60)) for _ in range(count)]
        senders = [threading.Thread(target=send, args=(opened[at::3],)) for at in range(3)]
        for sender in senders:
            sender.start()
        for each in opened:
            with contextlib.suppress(OSError):
                while each.recv(1 << 20):
                    pass
        for sender in senders:
            sender.join()


def begun(user: str) -> bytes:
    first = ScramClient("SCRAM-SHA-512", user, "x", "nonce").first()
    return encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, "x", {"mechanism": "SCRAM-SHA-512"}) + encode_request(
        ApiKey.SASL_AUTHENTICATE, 2, 2, "x", {"auth_bytes": first}
    )


def guess(number: int) -> bytes:
    return encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, "x", {"mechanism": "PLAIN"}) + encode_request(
        ApiKey.SASL_AUTHENTICATE, 2, 2, "x", {"auth_bytes": b"\0ada\0guess-%d" % number}
    )


def byte_by_byte(address: str) -> None:
    """A login from each of 200 connections, which all send a byte in turn."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection((host, int(port)), 60)) for _ in range(200)]
        for byte in begun("ada"):
            for each in opened:
                each.send(bytes([byte]))
        for each in opened:
            assert each.recv(1)


BEFORE: dict[str, Callable[[Victim], None]] = {
    "versions": lambda it: flood(it.locked, encode_request(ApiKey.API_VERSIONS, 3, 1, "x", {}) * 8000, 3),
    "handshakes": lambda it: flood(
        it.locked, encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, "x", {"mechanism": "X" * 30_000}) * 100, 200
    ),
    "first messages": lambda it: flood(it.locked, begun("nobody"), 500),
    "slow logins": lambda it: byte_by_byte(it.locked),
    "comers and goers": lambda it: flood(it.locked, b"", 900),
    "guesses": lambda it: flood(it.locked, guess(1), 200),
    "locked requests": lambda it: flood(it.locked, encode_request(ApiKey.METADATA, 9, 1, "x", {"topics": None}), 500),
    "a frame of nothing": lambda it: flood(it.locked, (65_000).to_bytes(4, "big") + bytes(65_000), 200),
    "native pings": lambda it: flood(it.broker.address, m.Ping().frame(1) * 10_000, 3),
    "native garbage": lambda it: flood(it.broker.address, b"\0\0\xff\xff\0\0\0\1" + b"\xdd\0\0\xff\xff" * 13_000, 200),
    **{
        f"HTTP, {kind}": lambda it, path=path, head=head: flood(  # type: ignore[misc]
            it.broker.http_address, b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (path.encode(), head), 100
        )
        for kind, (path, head) in COSTLY.items()
    },
}


@pytest.mark.parametrize("kind", BEFORE)
def test_floods_of_those_who_have_not_logged_in(victim: Victim, kind: str) -> None:
    quick(victim, lambda: BEFORE[kind](victim))


# --- behind the login


@long
@pytest.mark.parametrize("kind", OFTEN)
def test_requests_that_name_very_much(victim: Victim, kind: str) -> None:
    key, version, body = OFTEN[kind]
    data = encode_request(key, version, 1, "x", body)

    def attack() -> None:
        with victim.entered() as one, victim.entered() as other:
            for raw in (one, other):
                raw.send_bytes(data)
            for raw in (one, other):
                raw.receive_frame()

    quick(victim, attack)


@long
@pytest.mark.parametrize("kind", BATCHES)
def test_batches_that_take_long_to_open(victim: Victim, kind: str) -> None:
    data = BATCHES[kind]()

    def attack() -> None:
        with victim.native() as peer:
            handle = peer.producer("large").handle
            for id in peer.send(*[m.Batch(handle, 0, data)] * 3):
                assert peer.receive()[0] == id
            peer.get("large", b"k")  # its view has them

    quick(victim, attack)


def pipelined(victim: Victim, key: ApiKey, version: int, bodies: Iterator[dict[str, Any]], client: str = "x") -> None:
    """Sends all the requests at once; then reads the answers."""
    some = [encode_request(key, version, number, client, body) for number, body in enumerate(bodies)]
    with victim.entered() as raw:
        for each in some:
            raw.send_bytes(each)
        for _ in some:
            raw.receive_frame()


def joins(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "group_id": f"g{number}-" + "n" * 200,
            "group_instance_id": f"i{number}-" + "i" * 8000,
            "session_timeout_ms": 1_800_000,
            "rebalance_timeout_ms": 3000,
            "member_id": "",
            "protocol_type": f"p{number}" + "p" * 8000,
            "protocols": [{"name": "r", "metadata": b""}],
        }


def ids(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "transactional_id": f"{number}-" + "t" * 8000,
            "transaction_timeout_ms": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }


def commits(victim: Victim) -> None:
    with victim.native() as peer:
        asked = peer.send(*[m.Commit(f"{number}-" + "g" * 230, [("t", 0, 0)]) for number in range(3000)])
        for _ in asked:
            peer.receive()


def pages(victim: Victim) -> None:
    """Many clients at once ask for pages of each kind, with everything that there is by now."""
    import httpx

    for path in ("/metrics", "/api/v1/groups", "/api/v1/topics", "/api/v1/connections", "/api/v1/overview"):
        with httpx.Client(trust_env=False, auth=("ada", SECRET), timeout=60) as http:
            for _ in range(5):
                assert http.get(f"http://{victim.broker.http_address}{path}").status_code == 200, path


@contextlib.contextmanager
def asked_pages(victim: Victim, path: str, count: int) -> Iterator[None]:
    """Connections of the console that ask for a page, and take none of it."""
    host, _, port = victim.broker.http_address.rpartition(":")
    secret = b64encode(b"ada:" + SECRET.encode()).decode()
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {secret}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in opened:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.settimeout(60)
            each.connect((host, int(port)))
            each.sendall(head.encode())
        yield
        answers = [each.recv(12, socket.MSG_PEEK) for each in opened]
        assert b"HTTP/1.1 200" in answers, answers  # chance decides which of them there was no place for


def live(victim: Victim) -> None:
    """Views of a topic that is written to, which nobody reads."""
    with victim.native() as peer:
        peer.ask(m.CreateTopic("seen", 1, if_absent=True), m.TopicCreated)
    with victim.native() as peer, asked_pages(victim, "/api/v1/topics/seen/tail", 60):
        handle = peer.producer("seen").handle
        for _ in range(20):
            for _ in peer.send(*[m.Message(handle, bytes(1000), b"%d" % number) for number in range(200)]):
                peer.receive()


def large_pages(victim: Victim) -> None:
    with victim.native() as peer:
        handle = peer.producer("pages").handle
        for _ in range(4):
            peer.ask(m.Batch(handle, 0, batch.encode(None, [os.urandom(2000)] * 490, timestamps=1)), m.BatchStored)
        with asked_pages(victim, "/api/v1/topics/pages/events?limit=1000&value_bytes=1048576&values=base64", 40):
            for _ in range(500):
                peer.ask(m.Ping(), m.Pong)


def backups(victim: Victim) -> None:
    with victim.native() as peer:
        for _ in peer.send(*[m.HoldBackup()] * 20):
            peer.receive()


def share_fetch(member: str, epoch: int, topic: bytes = b"", indexes: Sequence[int] = (), records: int = 0) -> Any:
    parts = [{"partition_index": index, "acknowledgement_batches": []} for index in indexes]
    topics = [{"topic_id": topic, "partitions": parts}] if parts else []
    head = {"group_id": "shares", "member_id": member, "share_session_epoch": epoch, "topics": topics}
    return head | {"max_bytes": 1 << 20, "max_records": records, "batch_size": 1, "min_bytes": 1, "max_wait_ms": 0}


def share_partitions(victim: Victim) -> None:
    """A session of very many partitions that are not there."""
    with victim.entered() as raw:
        assert not beat(raw, "shares", "m", 0, ["t"])["error_code"]
        for epoch in range(6):
            indexes = range(9_000) if epoch < 3 else ()
            answer = raw.ask(ApiKey.SHARE_FETCH, share_fetch("m", epoch, bytes([epoch]) * 16, indexes, 1))
            assert not answer["error_code"], answer
        indexes = range(15_000)
        assert raw.ask(ApiKey.SHARE_FETCH, share_fetch("m", 0, bytes(16), indexes))["error_code"]


def share_sessions(victim: Victim) -> None:
    """Thousands of sessions of one connection end, while another member has acquired a record in each partition."""
    with victim.entered() as other:
        earliest(other, "shares")
        assert not beat(other, "shares", "other", 0, ["t"])["error_code"]
        topic, indexes = other.topic_id("t"), range(200)
        for index in indexes:
            fill(other, "t", 2, index)
        found: set[int] = set()
        for epoch in range(1000):
            answer = other.ask(ApiKey.SHARE_FETCH, share_fetch("other", epoch, topic, () if epoch else indexes, 1))
            assert not answer["error_code"], answer
            parts = [part for each in answer["responses"] for part in each["partitions"]]
            found |= {part["partition_index"] for part in parts if part["acquired_records"]}
            if len(found) == len(indexes):
                break
        pipelined(victim, ApiKey.SHARE_FETCH, 1, (share_fetch(f"m{number}", 0) for number in range(1990)))
        for _ in range(100):  # meanwhile they end
            other.ask(ApiKey.METADATA, {"topics": [{"name": "t"}]})


KEPT: dict[str, Callable[[Victim], None]] = {
    "partitions of a share session": share_partitions,
    "share sessions": share_sessions,
    "groups": lambda it: pipelined(it, ApiKey.JOIN_GROUP, 5, joins(500)),
    "transactional ids": lambda it: pipelined(it, ApiKey.INIT_PRODUCER_ID, 4, ids(500)),
    "native groups": commits,
    "topics": lambda it: pipelined(
        it,
        ApiKey.METADATA,
        9,
        iter([{"topics": [{"name": f"a{n}"} for n in range(150)], "allow_auto_topic_creation": True}]),
    ),
    "ListGroups": lambda it: pipelined(it, ApiKey.LIST_GROUPS, 4, ({} for _ in range(20))),
    "ListTransactions": lambda it: pipelined(it, ApiKey.LIST_TRANSACTIONS, 0, ({} for _ in range(20))),
    "Metadata": lambda it: pipelined(it, ApiKey.METADATA, 9, ({"topics": None} for _ in range(20))),
    "pages": pages,
    "live views": live,
    "large pages": large_pages,
    "backups": backups,
}


def test_logins_of_very_many_parts(victim: Victim) -> None:
    """Before the first login so much can't be sent."""

    def attack() -> None:
        with victim.native() as peer, pytest.raises(AuthenticationFailed):
            peer.ask(m.Authenticate("PLAIN", bytes(30 << 20)), m.Authenticated)
        with victim.entered() as raw, contextlib.suppress(Closed):
            assert not raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})["error_code"]
            assert raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": bytes(20 << 20)})["error_code"]

    quick(victim, attack)


@pytest.mark.parametrize("kind", KEPT)
def test_what_is_kept_without_end_and_asked_for(victim: Victim, kind: str) -> None:
    quick(victim, lambda: KEPT[kind](victim))


def test_who_leaves_with_much_that_waits(victim: Victim) -> None:
    fetch = encode_request(*OFTEN["waiting Fetch"][:2], 1, "x", OFTEN["waiting Fetch"][2])

    def attack() -> None:
        with contextlib.suppress(Closed):
            for _ in range(5):
                with victim.entered() as raw:
                    raw.send_bytes(fetch * 3)

    quick(victim, attack)


@long
def test_look_ups_by_time_in_large_batches(victim: Victim) -> None:
    data = batch.encode([b"k"] * 30, [bytes(1 << 20)] * 30, timestamps=list(range(1000, 1030)), codec=4)
    with victim.native() as peer:
        peer.ask(m.Batch(peer.producer("timed").handle, 0, data), m.BatchStored)
    asked = {"partition_index": 0, "timestamp": 1029, "current_leader_epoch": -1}
    bodies = ({"topics": [{"name": "timed", "partitions": [asked]}]} for _ in range(50))
    quick(victim, lambda: pipelined(victim, ApiKey.LIST_OFFSETS, 7, bodies))
