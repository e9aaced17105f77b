"""What the console's tests ask over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from krappy.console.live import KEEP_ALIVE_SECONDS

CHANGES = {"Krappy-Request": "1"}


class Web:
    """Short forms of requests; each asserts that the answer has the expected status."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def ask(
        self, method: str, path: str, *, status: int = 200, body: Any = None, headers: Any = None, **query: Any
    ) -> Any:
        """Sends a request; returns the JSON of the answer."""
        sent = {**(CHANGES if method != "GET" else {}), **(headers or {})}
        options: dict[str, Any] = {} if body is None else {"json": body}
        answer = self.client.request(method, api(path), params=query or None, headers=sent, **options)
        assert answer.status_code == status, answer.text
        return answer.json()

    def get(self, path: str, *, status: int = 200, **query: Any) -> Any:
        return self.ask("GET", path, status=status, **query)

    def post(self, path: str, body: Any = None, *, status: int = 200) -> Any:
        return self.ask("POST", path, status=status, body=body)

    def patch(self, path: str, body: Any, *, status: int = 200) -> Any:
        return self.ask("PATCH", path, status=status, body=body)

    def delete(self, path: str, *, status: int = 200, **query: Any) -> Any:
        return self.ask("DELETE", path, status=status, **query)

    def topic(self, name: str, partitions: int = 1, **config: Any) -> str:
        """Creates a topic; returns its path."""
        config = {key.replace("_", "."): value for key, value in config.items()}
        self.post("/topics", {"name": name, "partitions": partitions, "config": config}, status=201)
        return f"/topics/{name}"

    def publish(self, topic: str, key: Any, value: Any, **more: Any) -> Any:
        given = {"key": key, "value": value, "tombstone": value is None, **more}
        return self.post(f"{topic}/events", given, status=201)

    def pages(self, path: str, cursor: str, into: str, **query: Any) -> Iterator[Any]:
        """Page after page, a thousand at the most: the `cursor` in one page is the parameter `into` of the next
        request."""
        for _ in range(1000):
            page = self.get(path, **query)
            yield page
            if page[cursor] is None:
                return
            query[into] = page[cursor]
        raise AssertionError("the pages do not end")

    @contextmanager
    def live(self, path: str, headers: Any = None, **query: Any) -> Iterator[Iterator[Sent]]:
        """The server-sent events of a live view, as they come."""
        with self.client.stream("GET", api(path), params=query, headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield sent_events(lines(answer.iter_bytes()))


class Sent:
    """One server-sent event."""

    def __init__(self, event: str, id: str | None, data: Any) -> None:
        self.event = event
        self.id = id
        self.data = data


def lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """The lines as a browser reads them: only a line feed ends a line (U+2028 does not)."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.decode() for line in whole)


def sent_events(received: Iterator[str]) -> Iterator[Sent]:
    """The events of a stream. Raises AssertionError when nothing comes for about a minute; without that check, the
    signs of life would keep the client waiting."""
    fields: dict[str, str] = {}
    silent = 0
    for line in received:
        if line.startswith(":"):
            silent += 1
            assert silent * KEEP_ALIVE_SECONDS < 90, "nothing comes any more"
        elif line:
            name, colon, value = line.partition(": ")
            assert colon, f"{line!r} is no field"
            fields[name] = value
            silent = 0
        elif fields:
            yield Sent(fields["event"], fields.get("id"), json.loads(fields["data"]))
            fields = {}


def api(path: str) -> str:
    return path if path in ("/healthz", "/readyz", "/metrics") else "/api/v1" + path


def texts(shown: list[Any], field: str = "value") -> list[Any]:
    """The data of one field of events or entries."""
    return [None if each[field] is None else each[field]["data"] for each in shown]
