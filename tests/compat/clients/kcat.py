"""kcat: librdkafka from the shell, one process per call."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

from tests.compat.clients.base import (
    PATIENCE,
    Codec,
    Isolation,
    Member,
    Message,
    Protocol848,
    Refused,
    Sending,
    by_partition,
)

FORMAT = "%p %o %T %K %S\n%k%s\n"


def parse(output: bytes) -> list[Message]:
    """The messages that `-f FORMAT` printed: without headers, which kcat prints as text."""
    found, at = [], 0
    while at < len(output):
        line, _, _ = output[at:].partition(b"\n")
        partition, offset, timestamp, key_size, size = map(int, line.split())
        at += len(line) + 1
        key = value = None
        if key_size >= 0:
            key, at = output[at : at + key_size], at + key_size
        if size >= 0:
            value, at = output[at : at + size], at + size
        at += 1
        found.append(Message(key, value, (), timestamp, partition, offset))
    return found


class Kcat:
    name = "kcat"
    codecs: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
    timestamps = headers_per_message = transactions = static_members = protocol848 = False

    def __init__(self, *properties: str) -> None:
        """`properties`: NAME=VALUE, of librdkafka."""
        self._properties = [argument for each in properties for argument in ("-X", each)]

    def _run(self, address: str, arguments: list[str], data: bytes = b"") -> bytes:
        command = ["kcat", "-b", address, *self._properties, *arguments]
        done = subprocess.run(command, input=data, capture_output=True, timeout=PATIENCE, check=False)
        if done.returncode != 0:
            raise Refused(done.stderr.decode(errors="replace"))
        return done.stdout

    def produce(self, address: str, topic: str, messages: Sequence[Message], sending: Sending) -> list[int]:
        """Keys and values may have no tab and no newline; all messages have the same headers. kcat does not tell
        offsets, so the end of the partition is asked for before: that suits a topic that nobody else writes to."""
        offsets: dict[int, int] = {}
        for partition, some in by_partition(messages).items():
            offsets[partition] = self._end(address, topic, partition)
            arguments = ["-P", "-t", topic, "-p", str(partition), "-K", "\t", "-Z", "-z", sending.codec]
            arguments += ["-X", f"acks={sending.acks}", "-X", f"message.max.bytes={sending.max_bytes}"]
            arguments += ["-X", f"enable.idempotence={str(sending.idempotent).lower()}"]
            arguments += ["-X", "message.timeout.ms=20000"]
            for name, value in some[0].headers:
                arguments += ["-H", f"{name}={(value or b'').decode()}"]
            lines = [(message.key or b"") + b"\t" + (message.value or b"") + b"\n" for message in some]
            self._run(address, arguments, b"".join(lines))
        if sending.acks == "0":
            return []
        found = []
        for message in messages:
            found.append(offsets[message.partition])
            offsets[message.partition] += 1
        return found

    def _end(self, address: str, topic: str, partition: int) -> int:
        try:
            out = self._run(address, ["-Q", "-t", f"{topic}:{partition}:-1"])
        except Refused as refused:
            if "unknownpartition" in refused.reason:
                return 0  # its first event makes the topic
            raise
        return int(out.decode().strip().rsplit(" ", 1)[1])

    def consume(self, address: str, topic: str, count: int, isolation: Isolation = "read_uncommitted") -> list[Message]:
        arguments = ["-C", "-t", topic, "-o", "beginning", "-e", "-f", FORMAT, "-X", f"isolation.level={isolation}"]
        end = time.monotonic() + PATIENCE
        while True:
            found = parse(self._run(address, arguments))
            if len(found) >= count:
                return found[:count]
            assert time.monotonic() < end, f"kcat was given {len(found)} of {count} messages"
            time.sleep(0.1)

    def member(
        self, address: str, topic: str, group: str, *, instance: str | None = None, protocol: Protocol848 = "classic"
    ) -> Member:
        raise NotImplementedError("kcat's groups are tested by test_kcat.py")

    def close(self) -> None:
        pass
