"""A Kafka client with nothing around it: dicts over a socket, no retries, nothing hidden. It is not for users."""

from __future__ import annotations

import socket
from typing import Any

from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.kafka import RANGES, ApiKey, decode_response, encode_request
from tests.peer import TIMEOUT, Peer
from tests.process import BrokerProcess

NEWEST = {key: high for key, (_, high) in RANGES.items()}


class Closed(EOFError):
    """The broker closed the connection."""


class Raw:
    """`with Raw(broker.kafka) as raw: raw.ask(ApiKey.METADATA, {"topics": None})`.

    `ask` uses an API's newest version unless it is told another one. Requests may also be sent first and their answers
    received later: the answers come in the same order.
    """

    def __init__(self, address: str, client_id: str | None = "raw", timeout: float = TIMEOUT, source: str = "") -> None:
        """`source`: the address of this machine from which it connects; empty: any."""
        host, _, port = address.rpartition(":")
        come_from = (source, 0) if source else None
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout, come_from)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client_id = client_id
        self._last = 0
        self._asked: list[tuple[ApiKey, int, int]] = []  # requests that are not answered yet

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # --- messages

    def send(self, key: ApiKey, body: dict[str, Any] | None = None, version: int | None = None) -> int:
        """Sends a request; returns its correlation id. A request that gets no answer (acks=0) has to be sent by
        `send_bytes`."""
        chosen = NEWEST[key] if version is None else version
        self._last += 1
        self.socket.sendall(encode_request(key, chosen, self._last, self.client_id, body or {}))
        self._asked.append((key, chosen, self._last))
        return self._last

    def receive(self) -> dict[str, Any]:
        """The next answer. Raises Closed at the end."""
        key, version, id = self._asked.pop(0)
        got, answer = decode_response(key, version, self.receive_frame())
        assert got == id, f"the answer to request {got} came where that to {id} was to come"
        return answer

    def ask(self, key: ApiKey, body: dict[str, Any] | None = None, version: int | None = None) -> dict[str, Any]:
        self.send(key, body, version)
        return self.receive()

    # --- bytes

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_frame(self) -> memoryview:
        """What follows the size in the next frame. Raises Closed."""
        return memoryview(self._exactly(int.from_bytes(self._exactly(4), "big")))

    def closed(self) -> bool:
        """Reads until the broker closes the connection; returns whether nothing came before that."""
        got = b""
        try:
            while data := self.socket.recv(1 << 20):
                got += data
        except ConnectionResetError:
            pass
        return not got

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        at = 0
        while at < count:
            try:
                got = self.socket.recv_into(memoryview(data)[at:])
            except ConnectionResetError:
                got = 0
            if not got:
                raise Closed("the broker closed the connection")
            at += got
        return bytes(data)

    # --- shorthands

    def topic_id(self, name: str) -> bytes:
        (topic,) = self.ask(ApiKey.METADATA, {"topics": [{"name": name}]})["topics"]
        assert topic["error_code"] == 0, topic
        return bytes(topic["topic_id"])

    def make(self, name: str) -> bytes:
        """Makes a topic by asking for it; returns its id."""
        return self.topic_id(name)

    def new_producer_id(self) -> int:
        """Asks for a producer id, as an idempotent producer does."""
        given: int = self.ask(ApiKey.INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout_ms": 1000})[
            "producer_id"
        ]
        return given

    def produce(self, topic: str, records: bytes, index: int = 0, acks: int = -1, version: int = 12) -> dict[str, Any]:
        """One partition's answer to a Produce request."""
        answer = self.ask(ApiKey.PRODUCE, produce(topic, records, index, acks), version)
        (found,) = answer["responses"][0]["partition_responses"]
        return dict(found)

    def fetch(self, topic: str, offset: int, index: int = 0, version: int = 12, **more: Any) -> dict[str, Any]:
        """One partition's answer to a Fetch request. `more`: fields of the request, or of its partition."""
        answer = self.ask(ApiKey.FETCH, fetch([(topic, index, offset)], **more), version)
        assert answer["error_code"] == 0, answer
        (found,) = answer["responses"][0]["partitions"]
        return dict(found)

    def values(self, topic: str, offset: int = 0, index: int = 0, **more: Any) -> list[bytes | None]:
        """The values of the records that one Fetch brings, from `offset` on."""
        return values_of(self.fetch(topic, offset, index, **more)["records"], offset)


def produce(topic: str, records: bytes | None, index: int = 0, acks: int = -1) -> dict[str, Any]:
    """The body of a Produce request."""
    partition = {"index": index, "records": records}
    return {"acks": acks, "timeout_ms": 30_000, "topic_data": [{"name": topic, "partition_data": [partition]}]}


def fetch(wanted: list[tuple[str | bytes, int, int]], **more: Any) -> dict[str, Any]:
    """The body of a Fetch for (topic or its id, partition, offset)s. It does not wait unless `more` says so."""
    inner = {name: more.pop(name) for name in ("partition_max_bytes", "current_leader_epoch") if name in more}
    topics = [
        {
            "topic" if isinstance(topic, str) else "topic_id": topic,
            "partitions": [{"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **inner}],
        }
        for topic, index, offset in wanted
    ]
    return {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 50 << 20, "session_epoch": -1, "topics": topics, **more}


def values_of(records: Any, offset: int = 0) -> list[bytes | None]:
    """The values of all records from `offset` on in whole batches; a batch that was cut at the end is left out."""
    found: list[bytes | None] = []
    for _, data in batch.split(records):
        columns = batch.decode(bytes(data))
        found += [value for at, value in zip(columns.offsets, columns.values, strict=True) if at >= offset]
    return found


def create(broker: BrokerProcess, topic: str, partitions: int = 1, **config: str) -> None:
    """Makes a topic. `config`: Kafka's settings with _ for their dots."""
    with Peer(broker.address) as peer:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        peer.ask(m.CreateTopic(topic, partitions, settings), m.TopicCreated)
