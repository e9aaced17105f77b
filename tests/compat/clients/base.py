"""What the scenarios ask of every Kafka client, so that each is written once and run with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

PATIENCE = 60.0  # seconds that anything may take before a test fails: not a statement about speed

Headers = tuple[tuple[str, bytes | None], ...]
Acks = Literal["0", "1", "all"]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Isolation = Literal["read_uncommitted", "read_committed"]
Protocol848 = Literal["classic", "consumer"]


class Refused(Exception):
    """The broker's answer, as the client tells it. `reason` has letters only: `messagesizetoolargeerror`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.reason = "".join(letter for letter in text.lower() if letter.isalpha())


@dataclass(frozen=True, slots=True)
class Message:
    """One event. `timestamp`: milliseconds, None for the client's own clock; `offset`: None before it is written."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int = 0
    offset: int | None = None

    def at(self, offset: int) -> Message:
        return replace(self, offset=offset)


@dataclass(frozen=True, slots=True)
class Sending:
    """How to produce. With a `transactional_id`, all messages are one transaction that is committed or aborted."""

    acks: Acks = "all"
    codec: Codec = "none"
    idempotent: bool = False
    transactional_id: str | None = None
    abort: bool = False
    max_bytes: int = 1_000_000  # the client's own limit of one message


class Member(Protocol):
    """One running member of a consumer group."""

    def poll(self) -> list[Message]:
        """What has arrived within a few hundred milliseconds; drives the client's group work too."""

    def assignment(self) -> set[tuple[str, int]]:
        """The (topic, partition) pairs that it holds now."""

    def commit(self) -> None:
        """Its position becomes the group's."""

    def close(self) -> None:
        """It leaves the group (a static member does not)."""


class Client(Protocol):
    """One kind of client. Methods raise Refused for what the broker refuses."""

    name: str
    codecs: tuple[Codec, ...]
    timestamps: bool  # it can send timestamps of the caller's choice
    headers_per_message: bool
    transactions: bool
    static_members: bool
    protocol848: bool

    def produce(self, address: str, topic: str, messages: Sequence[Message], sending: Sending) -> list[int]:
        """Sends in order and waits; returns the offsets (empty with acks=0)."""

    def consume(self, address: str, topic: str, count: int, isolation: Isolation = "read_uncommitted") -> list[Message]:
        """The first `count` messages of all partitions together, without a group where the client can."""

    def member(
        self,
        address: str,
        topic: str,
        group: str,
        *,
        instance: str | None = None,
        protocol: Protocol848 = "classic",
    ) -> Member:
        """Joins a group; reads from the earliest event where the group has no position."""

    def close(self) -> None:
        """Ends whatever runs for this client."""


def by_partition(messages: Sequence[Message]) -> dict[int, list[Message]]:
    """The messages of each partition, in the order given."""
    found: dict[int, list[Message]] = {}
    for message in messages:
        found.setdefault(message.partition, []).append(message)
    return found
