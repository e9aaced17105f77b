"""Who may ask: tokens, cookies, other sites, other hosts; and the headers of every answer."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trio

from krappy.console import attempts, live
from krappy.console.security import COOKIE, HOST_ONLY, Guard, is_local, read_cookies
from krappy.console.sessions import MOST, Sessions
from krappy.core.security.principal import Principal
from krappy.errors import ConfigError
from krappy.settings.server import ServerConfig
from krappy.testing.running import RunningBroker, run_broker
from tests.console.web import CHANGES, Web, api, lines, sent_events
from tests.process import wait_until

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A console that asks for a token."""
    folder = tmp_path_factory.mktemp("locked")
    with (
        run_broker(folder, listen_http="127.0.0.1:0", durability="os", console_token=TOKEN) as broker,
        httpx.Client(base_url=f"http://{broker.http_address}", timeout=60.0, trust_env=False) as client,
    ):
        yield client


def test_an_open_address_without_a_token_answers_probes_alone(tmp_path: Path) -> None:
    with run_broker(tmp_path, listen_http="0.0.0.0:0") as broker:
        port = broker.http_address.rpartition(":")[2]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0, trust_env=False) as client:
            for path in ("/healthz", "/readyz"):
                assert client.get(path, headers={"Host": "10.1.2.3:8092"}).status_code == 200
            for path in ("/", "/metrics", api("/topics"), api("/login"), api("/openapi.json"), "/healthz/../metrics"):
                answer = client.get(path)
                assert (answer.status_code, answer.json()["code"]) == (403, "NO_TOKEN")


def test_an_open_address_with_a_token(tmp_path: Path) -> None:
    with run_broker(tmp_path, listen_http="0.0.0.0:0", console_token=TOKEN) as broker:
        assert broker.http_address.startswith("0.0.0.0:")


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="16 characters"), run_broker(tmp_path, console_token="short"):
        pass


def test_without_the_token_there_is_nothing(locked: httpx.Client) -> None:
    for path in ("/topics", "/overview", "/cluster", "/connections", "/metrics"):
        answer = locked.get(api(path))
        assert (answer.status_code, answer.json()["code"]) == (401, "NOT_LOGGED_IN")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert locked.get(api(path)).status_code == 200
    for path in ("/metrics%0A", "/metrics%0a", "/api/v1/topics%0A", "/api/v1/login%0A", "/%6Detrics"):
        assert locked.get(path).status_code == 401, path
    wrong = {"Authorization": "Bearer not-the-token-at-all"}
    assert locked.get(api("/topics"), headers=wrong).status_code == 401
    assert locked.get(api("/topics"), headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401


def test_a_bearer_token_may_do_everything(locked: httpx.Client) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert locked.post(api("/topics"), json={"name": "bearer"}, headers=bearer).status_code == 201
    assert locked.get("/metrics", headers=bearer).status_code == 200


def test_a_login_gives_a_cookie(locked: httpx.Client) -> None:
    assert locked.post(api("/login"), json={"token": "wrong" * 5}).status_code == 401
    assert locked.post(api("/login"), json={"token": "x" * 9000}).status_code == 413
    answer = locked.post(api("/login"), json={"token": TOKEN})
    assert answer.json()["needed"]
    said = answer.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="):
        assert part in said
    assert TOKEN not in said
    cookie = {"Cookie": f"{COOKIE}={answer.cookies[COOKIE]}"}
    locked.cookies.clear()
    assert locked.get(api("/topics"), headers=cookie).status_code == 200
    body = {"name": "cookie"}
    refused = locked.post(api("/topics"), json=body, headers=cookie)
    assert (refused.status_code, refused.json()["code"]) == (403, "HEADER_MISSING")
    assert locked.post(api("/topics"), json=body, headers={**cookie, **CHANGES}).status_code == 201
    out = locked.post(api("/logout"), headers={**cookie, **CHANGES})
    assert "Max-Age=0" in out.headers["set-cookie"]
    assert out.json() == {"logged_out": True, "ended": 1}
    locked.cookies.clear()
    assert locked.get(api("/topics"), headers=cookie).status_code == 401, "the broker knows it no more"


def log_in(client: httpx.Client) -> dict[str, str]:
    """The cookie of a new session, as headers."""
    found = client.post(api("/login"), json={"token": TOKEN}).cookies[COOKIE]
    client.cookies.clear()
    return {"Cookie": f"{COOKIE}={found}"}


def test_sessions_end_one_by_one_or_all_at_once(locked: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (log_in(locked) for _ in range(3))
    locked.post(api("/logout"), headers={**first, **CHANGES})
    assert [locked.get(api("/topics"), headers=each).status_code for each in (first, second)] == [401, 200]
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    locked.post(api("/topics"), json={"name": "watched-over"}, headers=bearer)
    monkeypatch.setattr(live, "KEEP_ALIVE_SECONDS", 0.05)
    tail = api("/topics/watched-over/tail")
    with locked.stream("GET", tail, headers=second) as seen, locked.stream("GET", tail, headers=bearer) as other:
        started, going_on = sent_events(lines(seen.iter_bytes())), sent_events(lines(other.iter_bytes()))
        assert (next(started).event, next(going_on).event) == ("start", "start")
        assert locked.post(api("/logout"), params={"all": "true"}, headers=bearer).json()["ended"] >= 2
        ended = next(started)
        assert (ended.event, ended.data["code"]) == ("problem", "NOT_LOGGED_IN")
        assert list(started) == []
        locked.post(api("/topics/watched-over/events"), json={"value": "x"}, headers=bearer)
        assert next(going_on).event == "events"
    assert locked.get(api("/topics"), headers=third).status_code == 401
    locked.cookies.clear()


def test_a_broker_knows_no_session_of_another_start() -> None:
    sessions, later = Sessions(b"secret", 1000), Sessions(b"secret", 2000)
    cookie = sessions.open(5000)
    assert sessions.find(cookie, 5000)
    assert not Sessions(b"secret", 1000).find(cookie, 5000)
    later.open(5000)
    assert not later.find(cookie, 5000)


def test_sessions_are_bounded() -> None:
    sessions = Sessions(b"secret", 0)
    cookies = [sessions.open(0) for _ in range(MOST + 1)]
    assert [bool(sessions.find(cookie, 1)) for cookie in (cookies[0], cookies[1], cookies[-1])] == [False, True, True]
    assert sessions.close(cookies[0], 1) == 0
    assert sessions.close_all(1) == MOST


def test_a_user_with_many_sessions_ends_his_own() -> None:
    sessions, bob, ada = Sessions(b"secret", 0), Principal(name="bob"), Principal(name="ada")
    cookies = [sessions.open(0, bob), *(sessions.open(0, ada) for _ in range(MOST * 2))]
    assert [bool(sessions.find(cookie, 1)) for cookie in (cookies[0], cookies[1], cookies[-1])] == [True, False, True]
    assert sessions.close_all(1, bob) == 1
    assert sessions.close_all(1, bob) == 0
    assert sessions.close_all(1) == MOST - 1


def test_a_user_with_many_sessions_ends_none_of_one_who_has_few() -> None:
    sessions, bob, ada, eve = Sessions(b"secret", 0), *(Principal(name=name) for name in ("bob", "ada", "eve"))
    bobs = [sessions.open(0, bob)]
    many = [sessions.open(0, ada) for _ in range(MOST - 1)]
    new = [sessions.open(0, eve), sessions.open(0, bob)]
    assert [bool(sessions.find(cookie, 1)) for cookie in bobs + many[:3] + new] == [
        True,
        False,
        False,
        True,
        True,
        True,
    ]


def test_a_session_ends_and_cannot_be_made_up() -> None:
    guard, other = Guard(TOKEN, local=True), Guard(TOKEN + "!", local=True)
    headers = {"host": "x"}
    guard.check("GET", "/api/v1/topics", headers, {COOKIE: guard.sessions.open(1000)}, 1001)
    until = guard.sessions.open(1000).partition(".")[0]
    late = int(until) + 1
    for cookie in (
        other.sessions.open(1000),
        f"{late}.{guard.sessions.open(1000).partition('.')[2]}",
        "",
        ".",
        "x.y",
        "1.é",
        f"{until}.",
    ):
        with pytest.raises(Exception, match="token is needed"):
            guard.check("GET", "/api/v1/topics", headers, {COOKIE: cookie}, 1001)
    with pytest.raises(Exception, match="token is needed"):
        guard.check("GET", "/api/v1/topics", headers, {COOKIE: guard.sessions.open(1000)}, late)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_are_refused(web: Web, site: str) -> None:
    for method in ("GET", "POST"):
        answer = web.ask(method, "/topics", status=403, headers={"Sec-Fetch-Site": site}, body={"name": "x"})
        assert answer["code"] == "OTHER_SITE"
    assert web.client.get("/metrics", headers={"Sec-Fetch-Site": site}).status_code == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"])
def test_another_origin_may_change_nothing(web: Web, origin: str) -> None:
    answer = web.ask("POST", "/topics", status=403, headers={"Origin": origin}, body={"name": "x"})
    assert answer["code"] == "OTHER_SITE"


def test_our_own_pages_may(web: Web, console: RunningBroker) -> None:
    headers = {"Origin": f"http://{console.http_address}", "Sec-Fetch-Site": "same-origin"}
    assert web.ask("POST", "/topics", status=201, headers=headers, body={"name": "own"})["name"] == "own"


def test_a_form_of_another_site_changes_nothing(web: Web) -> None:
    """The form sends what forms can send: none of our headers, and no JSON."""
    plain = web.client.post(api("/topics"), content=b'{"name":"form"}', headers={"Content-Type": "text/plain"})
    assert (plain.status_code, plain.json()["code"]) == (403, "HEADER_MISSING")
    typed = web.client.post(
        api("/topics"), content=b'{"name":"form"}', headers={"Content-Type": "text/plain", **CHANGES}
    )
    assert typed.status_code == 415
    assert web.client.options(api("/topics"), headers={"Origin": "https://evil.example"}).status_code == 405


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.0.2.1", "localhost.evil", ""])
def test_a_name_that_was_rebound_to_us_is_refused(web: Web, host: str) -> None:
    answer = web.client.get(api("/topics"), headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (421, "UNKNOWN_HOST")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost:8092", True),
        ("LOCALHOST", True),
        ("krappy.localhost:1", True),
        ("127.0.0.1", True),
        ("127.1.2.3:8092", True),
        ("[::1]:8092", True),
        ("[2001:db8::1]:8092", False),
        ("0.0.0.0:8092", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_what_names_this_machine(host: str, local: bool) -> None:
    assert is_local(host) is local


@pytest.mark.parametrize(
    "path", ["/healthz", "/api/v1/topics", "/api/v1/nothing", "/", "/nothing", "/favicon.svg", "/metrics"]
)
def test_every_answer_is_hardened(web: Web, path: str) -> None:
    headers = web.client.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in headers
    page = path in {"/", "/favicon.svg"}  # the browser keeps it, and asks each time whether it has changed
    assert headers["cache-control"] == ("no-cache" if page else "no-store")


def test_pages_are_served_and_asked_for_again_only_when_changed(web: Web) -> None:
    first = web.client.get("/favicon.svg")
    assert (first.status_code, first.headers["content-type"]) == (200, "image/svg+xml")
    assert web.client.get("/favicon.svg", headers={"If-None-Match": first.headers["etag"]}).status_code == 304


@pytest.mark.parametrize("wanted", ["bytes=0-1", "bytes=0-1,5-6", "x", "lines=1-2", "bytes=9-1", "bytes=999999999-"])
def test_a_page_is_sent_whole_whatever_part_is_asked_for(web: Web, wanted: str) -> None:
    whole = web.client.get("/favicon.svg")
    answer = web.client.get("/favicon.svg", headers={"Range": wanted})
    assert (answer.status_code, answer.content) == (200, whole.content)
    assert answer.headers["accept-ranges"] == "none"


@pytest.mark.parametrize(
    "path", ["/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "/%5c..%5capp.py", "//etc/passwd", "/\x00"]
)
def test_only_the_folder_of_pages_is_served(console: RunningBroker, path: str) -> None:
    host, _, port = console.http_address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    assert answer.split()[1] in (b"400", b"404"), answer


def test_the_token_is_not_shown(tmp_path: Path) -> None:
    assert TOKEN not in repr(ServerConfig(data=tmp_path, console_token=TOKEN))


@pytest.mark.parametrize("piece", ["\\", '\\"', "\\101", "a=b;", ";", "=", " ", '"', 'a="\\'])
def test_a_cookie_header_is_read_in_one_pass(piece: str) -> None:
    """Each byte is looked at a few times, however many there are: the steps of Python that reading takes do not grow
    faster than the header (15 KB of backslashes took a second of everybody's time, before any login)."""

    def steps(size: int) -> int:
        header, count = {"cookie": f'{COOKIE}="' + piece * (size // len(piece)) + '"'}, 0

        def trace(frame: object, event: str, argument: object) -> object:
            nonlocal count
            count += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            read_cookies(header, "http")
        finally:
            sys.settrace(before)
        return count

    assert steps(16_000) <= 20 * steps(1_000)


def test_cookies_are_those_of_the_rfc() -> None:
    """RFC 6265, section 5.4: a browser sends the cookie with the longest path first."""
    found = read_cookies({"cookie": f"a=1; {COOKIE}=x.y; b; {COOKIE}=later;c = 3"}, "http")
    assert (found["a"], found[COOKIE], found["b"], found["c"]) == ("1", "x.y", "", "3")
    assert read_cookies({}, "http") == {"": ""}


def test_over_tls_only_cookies_of_this_host_count() -> None:
    header = {"cookie": f"{COOKIE}=of-a-sibling; {HOST_ONLY}{COOKIE}=own; a=1"}
    assert read_cookies(header, "https") == {COOKIE: "own"}
    assert read_cookies(header, "http")[COOKIE] == "of-a-sibling"


@pytest.mark.parametrize(
    "host",
    [
        "localhost:80@evil.example",
        "localhost@evil.example",
        "localhost/evil.example",
        "localhost:80:evil.example",
        "localhost evil.example",
        "localhost?evil.example",
        "[::1]evil.example",
        "[::1]:80@evil.example",
        "[::1",
        "::1",
        "127.0.0.1:x",
        "localhost:123456",
        "localhost\n",
        "",
    ],
)
def test_a_host_that_is_no_written_names_nothing(host: str) -> None:
    assert not is_local(host)


def test_wrong_tokens_are_told_slowed_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MOST", 3)
    told: list[dict[str, object]] = []

    def report(event: str, **facts: object) -> None:
        if event == "authentication_failed":
            told.append(facts)

    settings = {"listen_http": "127.0.0.1:0", "durability": "os", "console_token": TOKEN, "report": report}
    with run_broker(tmp_path, **settings) as broker:
        host, _, port = broker.http_address.rpartition(":")
        ask = b"GET /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\nConnection: close\r\n\r\n"
        over = threading.Event()

        async def hold(seconds: float) -> None:
            while not over.is_set():
                await trio.sleep(0.001)

        monkeypatch.setattr(attempts, "sleep", hold)
        with contextlib.ExitStack() as stack:
            for number in range(3):
                sock = stack.enter_context(socket.create_connection((host, int(port)), 60))
                sock.sendall(ask % b"wrong-%d" % number)
            wait_until(lambda: len(told) == 3, "three wrong tokens are told")
            facts = {
                "client": "127.0.0.1",
                "mechanism": "HTTP",
                "user": "",
                "reason": "this is not the console's token",
            }
            assert told == [facts] * 3
            with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60.0, trust_env=False) as client:
                bearer = {"Authorization": f"Bearer {TOKEN}"}
                for answer in (
                    client.get(api("/topics"), headers=bearer),
                    client.post(api("/login"), json={"token": TOKEN}),
                ):
                    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
                assert client.get("/healthz").status_code == 200
                assert client.get(api("/topics")).status_code == 401, "who gives none is not counted"
        over.set()

        def again() -> bool:
            with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60.0, trust_env=False) as client:
                return client.get(api("/topics"), headers=bearer).status_code == 200

        wait_until(again, "those who waited are answered, and the right token is taken")
