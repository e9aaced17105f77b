"""The figures of a broker, read from its console's HTTP API, and what changed between two readings."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

from krappy import blocking
from krappy.cli.contexts import login
from krappy.cli.errors import Failure
from krappy.clients.security import ClientSecurity
from krappy.clients.values import address as parse_address
from krappy.clients.values import addresses
from krappy.errors import KrappyError
from krappy.settings.listeners import on_loopback

ABOVE = 1000  # the console's port less that of the native protocol, by default; used when no broker can be asked
SECONDS = 10.0  # timeout of a request
SILENT_SECONDS = 40.0  # for which a live view may be silent; it sends a sign of life every 15
SECONDS_TO_CHANGE = 60.0
CHANGES = {"Content-Type": "application/json", "Krappy-Request": "1"}  # headers of a request that changes something
PAGE = 1000  # topics or groups per request: the most that the API allows
CONNECTIONS = 8  # how many are read


def console_of(address: str) -> str:
    """HOST:PORT of the console of the broker at `address`, as the broker tells it. Of several brokers the first that
    answers is asked. Raises Failure if it has none.

    A broker that listens on all addresses is reached at the same host as its native port. If no broker answers, the
    console is looked for at its usual port.
    """
    given = addresses(address)
    for each in given:
        try:
            with blocking.connect(str(each), timeout=SECONDS, **login()) as client:  # type: ignore[arg-type]
                told = client.ping().console
        except KrappyError:
            continue
        if told is None:
            raise Failure(
                f"the broker at {each} has no console: install krappy[console], and do not give --listen-http none; if "
                "another one has it, give --url"
            )
        return str(each._replace(port=parse_address(told).port))
    return str(given[0]._replace(port=given[0].port + ABOVE))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The console redirects nobody. Whoever does would be sent the password, wherever he points to."""

    def redirect_request(self, *_: Any) -> None:
        return None  # so that it is an HTTPError


class ConsoleFigures:
    """Reads figures from the console at `url`, with `token` if it needs one. That, a user's password, or a token of an
    identity provider is sent as it is: so over TLS, or to this machine, unless `url` begins with http://."""

    def __init__(self, url: str, token: str | None) -> None:
        security = ClientSecurity(**login())  # type: ignore[arg-type]
        scheme = "http" if security.context is None else "https"
        self._token = security.token if security.has_token and not token else None  # one that lasts a while
        self._url = url.rstrip("/") if "://" in url else f"{scheme}://{url}".rstrip("/")
        if "@" in urlsplit(self._url).netloc:  # it would be in each error that names the URL
            raise Failure("--url is a host and a port, without a user and a password: give --user and --password-file")
        self._headers = {"Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        elif security.user is not None:
            pair = f"{security.user}:{security.password()}".encode(errors="surrogateescape")
            self._headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
        self._given = url, token
        self._shows = self._token is not None or "Authorization" in self._headers
        # Without the proxies of the environment: the console is most often on this machine.
        handlers = [
            _NoRedirects(),
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=security.context),
        ]
        self._open = urllib.request.build_opener(*handlers).open

    def like(self, address: str) -> ConsoleFigures:
        """The console at HOST:PORT, of another broker, to be asked in the same way."""
        url, token = self._given
        scheme, told, _ = url.partition("://")
        return ConsoleFigures(f"{scheme}://{address}" if told else address, token)

    def get(self, path: str, **query: Any) -> Any:
        """The JSON that the API answers for a path. Raises Failure."""
        with self._asking(path, query) as answer:
            return json.load(answer)

    def post(self, path: str, body: Any) -> Any:
        """The JSON that the API answers to a request that changes something. Raises Failure."""
        with self._asking(path, {}, SECONDS_TO_CHANGE, json.dumps(body).encode()) as answer:
            return json.load(answer)

    def events(self, path: str, **query: Any) -> Iterator[Any]:
        """The data of each event of a live view, until the broker ends it. Raises Failure."""
        with self._asking(path, query, SILENT_SECONDS) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    found = json.loads(line[6:])
                    if "status" in found:  # a problem
                        raise Failure(f"the console at {self._url} ends: {found['detail']}")
                    yield found

    @contextmanager
    def _asking(
        self, path: str, query: Mapping[str, Any], seconds: float = SECONDS, body: bytes | None = None
    ) -> Iterator[Any]:
        """The answer for a path, which may be silent for `seconds`. A request with a `body` changes something. Errors,
        those of reading the answer too, are raised as Failure."""
        if self._shows and "://" not in self._given[0]:
            _check_place(self._url)
        where = f"{self._url}/api/v1/{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")
        headers = {**self._headers, **({} if body is None else CHANGES)}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token()}"
        try:
            with self._open(urllib.request.Request(where, body, headers), timeout=seconds) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            if error.code == 401:
                raise Failure(
                    f"the console at {self._url} needs its token (--console-token-file, KRAPPY_CONSOLE_TOKEN), or "
                    "a user (krappy --user NAME)"
                ) from None
            raise Failure(f"the console at {self._url} refuses: {_reason(error)}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = (
                "it does not speak HTTP"
                if isinstance(error, http.client.HTTPException)
                else getattr(error, "reason", error)
            )
            raise Failure(
                f"no console answers at {self._url} ({why}): is a broker running? It has one when krappy[console] is "
                "installed; if it is elsewhere, give --url"
            ) from None

    def look(self) -> dict[str, Any]:
        """Reads all figures once."""
        return {
            "overview": self.get("overview"),
            "topics": self._every("topics"),
            "groups": self._every("groups"),
            "connections": self.get("connections", limit=CONNECTIONS)["connections"],
        }

    def _every(self, what: str) -> list[dict[str, Any]]:
        """All topics, or all groups, read page by page."""
        page = self.get(what, limit=PAGE)
        found: list[dict[str, Any]] = page[what]
        while page["after"] is not None:
            page = self.get(what, limit=PAGE, after=page["after"])
            found += page[what]
        return found


def _check_place(url: str) -> None:
    """Raises Failure unless a secret may be sent there. The native protocol does not send it (SCRAM), and nobody has
    proved that the console is there: a broker without TLS has told its port."""
    place = urlsplit(url)
    if place.scheme != "https" and not on_loopback(place.hostname or ""):
        raise Failure(
            f"the password or token would be sent to {url} as it is: connect with TLS (--ca, --tls), or give "
            f"--url {url} if nobody else can read it"
        )


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        body = error.read(10_000).decode()
        return str(json.loads(body)["detail"]) if body.startswith("{") else body.strip() or f"status {error.code}"
    except (ValueError, KeyError, OSError):
        return f"status {error.code}"


def looks(console: ConsoleFigures, last: dict[str, Any], interval: float) -> Iterator[tuple[dict[str, Any], str]]:
    """Reads the figures after each interval, for ever. Gives pairs: the figures and an empty text or, while the console
    does not answer, the last figures and the reason."""
    while True:
        time.sleep(interval)
        try:
            last = console.look()
            yield last, ""
        except Failure as failure:
            yield last, failure.format_message()


def seconds_between(before: dict[str, Any], after: dict[str, Any]) -> float:
    return max(1.0, float(after["overview"]["now_ms"] - before["overview"]["now_ms"])) / 1000


def comparable(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The figures to compare `after` with: `before`, or `after` itself when the broker has restarted in between, since
    its counters then began at 0."""
    return before if before["overview"]["started_ms"] == after["overview"]["started_ms"] else after


def rates(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """Per second, of what happened between two looks."""
    before = comparable(before, after)
    seconds = seconds_between(before, after)
    was, now = before["overview"], after["overview"]

    def grown(name: str) -> float:
        old, new = was[name], now[name]
        if isinstance(new, dict):
            old, new = sum(old.values()), sum(new.values())
        return max(0.0, float(new - old)) / seconds

    asked = sum(each["latency"]["count"] for each in now["requests"])
    asked -= sum(each["latency"]["count"] for each in was["requests"])
    names = ("appended_events", "appended_bytes", "received_bytes", "sent_bytes", "stalls")
    return {**{name: grown(name) for name in names}, "requests": max(0, asked) / seconds}


def topic_rates(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """For each topic: its events per second between two reads, its size in bytes and its table's lag. The busiest
    comes first."""
    before = comparable(before, after)
    seconds = seconds_between(before, after)
    was = {each["name"]: each["events"] for each in before["topics"]}
    rows = [
        {
            "topic": each["name"],
            "per_second": max(0.0, each["events"] - was.get(each["name"], 0)) / seconds,
            "size": each["size"],
            "view_lag": each["view_lag"],
        }
        for each in after["topics"]
    ]
    return sorted(rows, key=lambda row: (-row["per_second"], -row["size"], row["topic"]))


def latencies(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """For each type of request answered between two reads: its rate per second, and upper bounds of its p50 and p99 in
    seconds (None: above the highest bound). The most frequent type comes first."""
    before = comparable(before, after)
    seconds = seconds_between(before, after)
    was = {(each["protocol"], each["request"]): each["latency"]["counts"] for each in before["overview"]["requests"]}
    found = []
    for each in after["overview"]["requests"]:
        latency = each["latency"]
        old = was.get((each["protocol"], each["request"]), [0] * len(latency["counts"]))
        counts = [new - held for new, held in zip(latency["counts"], old, strict=True)]
        total = sum(counts)
        if total > 0:
            p50, p99 = (_quantile(latency["bounds"], counts, part) for part in (0.5, 0.99))
            row = {"protocol": each["protocol"], "request": each["request"], "per_second": total / seconds}
            found.append({**row, "p50": p50, "p99": p99})
    return sorted(found, key=lambda each: -float(each["per_second"]))


def _quantile(bounds: list[float], counts: list[int], part: float) -> float | None:
    wanted, seen = part * sum(counts), 0
    for bound, count in zip(bounds, counts, strict=False):
        seen += count
        if seen >= wanted:
            return bound
    return None
