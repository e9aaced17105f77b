"""To whom the command line shows a password when it asks a console."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from krappy.cli.errors import Failure
from krappy.cli.figures import ConsoleFigures


@pytest.fixture
def ada(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user of the commands."""
    (tmp_path / "ada").write_text("a-secret")
    monkeypatch.setenv("KRAPPY_USER", "ada")
    monkeypatch.setenv("KRAPPY_PASSWORD_FILE", str(tmp_path / "ada"))


@pytest.fixture
def shown() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """The address of a server that redirects everybody to another path, and the (path, Authorization) that it gets."""
    got: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.append((self.path, self.headers["Authorization"]))
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


class Sent(Exception):
    """The password would be sent now."""


@pytest.fixture
def sending(ada: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise Sent

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", refused)


@pytest.mark.usefixtures("sending")
@pytest.mark.parametrize("where", ["192.0.2.1:8092", "broker.example:8092", "[2001:db8::1]:8092"])
def test_a_password_is_sent_to_other_machines_over_tls_alone(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the native protocol a client proves that it knows the password, and does not send it. A broker that does not
    prove who it is says at which port its console is, and where other brokers are."""
    alone = ConsoleFigures(where, None), ConsoleFigures("127.0.0.1:8092", None).like(where)
    for console in (*alone, ConsoleFigures(where, "the-token-of-the-console")):
        with pytest.raises(Failure, match="as it is: connect with TLS"):
            console.get("overview")
    asked_for = ConsoleFigures(f"http://{where}", None)
    for console in (asked_for, asked_for.like("192.0.2.2:8092")):
        with pytest.raises(Sent):
            console.get("overview")
    monkeypatch.setenv("KRAPPY_TLS", "true")
    with pytest.raises(Sent):
        ConsoleFigures(where, None).get("overview")
    monkeypatch.delenv("KRAPPY_TLS")
    monkeypatch.delenv("KRAPPY_USER")
    with pytest.raises(Sent):
        ConsoleFigures(where, None).get("overview")


@pytest.mark.usefixtures("sending")
@pytest.mark.parametrize("where", ["127.0.0.1:8092", "localhost:8092", "[::1]:8092"])
def test_a_password_is_sent_to_this_machine(where: str) -> None:
    with pytest.raises(Sent):
        ConsoleFigures(where, None).get("overview")


@pytest.mark.usefixtures("ada")
def test_a_redirect_is_not_followed(shown: tuple[str, list[tuple[str, str | None]]]) -> None:
    """It may lead to somebody else."""
    where, got = shown
    with pytest.raises(Failure, match="refuses: status 302"):
        ConsoleFigures(where, None).get("overview")
    assert got == [("/api/v1/overview", "Basic YWRhOmEtc2VjcmV0")]
