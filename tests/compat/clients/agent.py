"""Clients of other languages: a process that takes one JSON request a line and answers each with one line.

The programs are node/agent.js, java/Agent.java and go/agent.go, which serve the operations below; franz-go has no
groups there.
Bytes travel as base64.
"""

from __future__ import annotations

import base64
import itertools
import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.compat.clients.base import PATIENCE, Codec, Isolation, Member, Message, Protocol848, Refused, Sending


def _b64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _message(found: dict[str, Any]) -> Message:
    headers = tuple((name, _bytes(value)) for name, value in found["h"])
    return Message(_bytes(found["k"]), _bytes(found["v"]), headers, found["t"], found["p"], found["o"])


class Agent:
    """The process. `log`: takes its stderr."""

    def __init__(self, command: list[str], folder: Path, log: Path) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )
        self._log = log
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, operation: str, **arguments: object) -> Any:
        """Asks the process for an operation. Raises Refused with what the client's exception says."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": operation, **arguments}) + "\n")
        self._process.stdin.flush()
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"{operation} has not ended after {PATIENCE:.0f} s: {self.last_words()}") from None
        assert line, f"the process ended: {self.last_words()}"
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["ok"]

    def last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(PATIENCE)
        self._process.stdout.close()


class _Member:
    def __init__(self, agent: Agent, handle: str) -> None:
        self._agent = agent
        self._handle = handle

    def poll(self) -> list[Message]:
        return [_message(found) for found in self._agent.ask("poll", member=self._handle)]

    def assignment(self) -> set[tuple[str, int]]:
        return {(topic, partition) for topic, partition in self._agent.ask("assignment", member=self._handle)}

    def commit(self) -> None:
        self._agent.ask("commit", member=self._handle)

    def close(self) -> None:
        self._agent.ask("leave", member=self._handle)


class AgentClient:
    """A client behind an agent. The features are those of the language's client. `security`: how it connects: ca, cert,
    mechanism, user and password, each a str; Java's agent does not take it."""

    timestamps = headers_per_message = transactions = True

    def __init__(
        self, name: str, agent: Agent, *, codecs: tuple[Codec, ...], static_members: bool, protocol848: bool
    ) -> None:
        self.security: dict[str, str] | None = None
        self.name = name
        self.codecs = codecs
        self.static_members = static_members
        self.protocol848 = protocol848
        self.agent = agent
        self._handles = itertools.count()

    def produce(self, address: str, topic: str, messages: Sequence[Message], sending: Sending) -> list[int]:
        wire = [
            {
                "p": message.partition,
                "k": _b64(message.key),
                "v": _b64(message.value),
                "t": message.timestamp,
                "h": [[name, _b64(value)] for name, value in message.headers],
            }
            for message in messages
        ]
        offsets: list[int] = self.agent.ask(
            "produce",
            address=address,
            topic=topic,
            messages=wire,
            acks=sending.acks,
            codec=sending.codec,
            idempotent=sending.idempotent or sending.transactional_id is not None,
            transactional=sending.transactional_id,
            abort=sending.abort,
            maxBytes=sending.max_bytes,
            security=self.security,
        )
        return [] if sending.acks == "0" else offsets

    def consume(self, address: str, topic: str, count: int, isolation: Isolation = "read_uncommitted") -> list[Message]:
        asked = {"address": address, "topic": topic, "count": count, "isolation": isolation, "security": self.security}
        found = self.agent.ask("consume", **asked)
        return [_message(item) for item in found]

    def member(
        self, address: str, topic: str, group: str, *, instance: str | None = None, protocol: Protocol848 = "classic"
    ) -> Member:
        handle = str(next(self._handles))
        self.agent.ask(
            "join", member=handle, address=address, topic=topic, group=group, instance=instance, protocol=protocol
        )
        return _Member(self.agent, handle)

    def close(self) -> None:
        self.agent.close()
