"""One read of a TLS socket takes all data that has come, up to a bound, and only a little of what is not data."""

from __future__ import annotations

import _ssl
import array
import contextlib
import ctypes
import fcntl
import os
import resource
import select
import socket
import ssl
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from krappy import tls
from krappy.server.sockets import has_left
from krappy.tls import MOST_CERTIFICATES, PART, PIECE, TlsSocket, client_context
from tests.process import wait_until
from tests.security.authority import Authority

BUFFER = 4 << 20  # so many bytes may come before they are read


def listening() -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    found.bind(("127.0.0.1", 0))
    found.listen()
    return found


def context_of(certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF  # as in the server's contexts
    context.load_cert_chain(certificate)
    return context


def greet(sock: TlsSocket) -> None:
    while True:
        try:
            sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            select.select([sock], [], [], 60)


def greeted(listener: socket.socket, certificate: str) -> TlsSocket:
    """The server's side of the next connection, after its handshake."""
    found = TlsSocket(context_of(certificate), listener.accept()[0])
    greet(found)
    return found


@contextmanager
def connected(authority: Authority) -> Iterator[tuple[TlsSocket, ssl.SSLSocket]]:
    """A connection: (the server's socket, the client's socket)."""
    made: list[ssl.SSLSocket] = []

    def connect() -> None:
        sock = socket.create_connection(listener.getsockname(), 60)
        made.append(authority.context().wrap_socket(sock, server_hostname="127.0.0.1"))

    with listening() as listener:
        thread = threading.Thread(target=connect)
        thread.start()
        server = greeted(listener, authority.issue("127.0.0.1"))
        thread.join(60)
    with server, made[0] as client:
        yield server, client


def waiting(sock: socket.socket) -> int:
    """How many bytes have come and were not read."""
    found = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, found)
    return found[0]


def test_a_read_takes_all_that_has_come_up_to_a_bound(authority: Authority) -> None:
    with connected(authority) as (server, client):
        data = os.urandom(3 * PIECE + 1000)
        client.sendall(data)
        wait_until(lambda: waiting(server) > len(data), "all has come")
        buffer, got, sizes = bytearray(1 << 20), b"", []
        while len(got) < len(data):
            sizes.append(server.recv_into(buffer))
            got += buffer[: sizes[-1]]
        assert got == data
        assert sizes == [PIECE, PIECE, PIECE, 1000]
        with pytest.raises(BlockingIOError):
            server.recv_into(buffer)
        client.sendall(data[:100_000])
        wait_until(lambda: waiting(server) > 100_000, "all has come")
        assert server.recv(1 << 20) == data[:100_000]
        client.sendall(data[:100_000])
        wait_until(lambda: waiting(server) > 100_000, "all has come")
        got = b""
        while len(got) < 100_000:
            assert not got or server.pending()
            size = server.recv_into(buffer, 7_000)
            assert size <= 7_000
            got += buffer[:size]
        assert got == data[:100_000]


def test_a_read_ends_with_the_connection(authority: Authority) -> None:
    with connected(authority) as (server, client):
        client.sendall(b"x" * 50_000)
        socket.socket.shutdown(client, socket.SHUT_WR)
        buffer, got = bytearray(1 << 20), 0
        while True:
            select.select([server], [], [], 60)
            count = server.recv_into(buffer)
            if not count:
                break
            got += count
        assert got == 50_000
        assert server.recv_into(buffer) == 0


def test_what_came_before_an_error_is_not_lost(authority: Authority) -> None:
    """The error is a reset here, because the client closes before it has read all that the server has sent."""
    with connected(authority) as (server, client):
        server.send(b"for nobody")
        client.sendall(b"x" * 50_000)
        wait_until(lambda: waiting(server) > 50_000, "all has come")
        wait_until(lambda: waiting(client) > 0, "there is something to read")
        client.close()
        wait_until(lambda: has_left(server), "it is reset")
        buffer = bytearray(1 << 20)
        assert server.recv_into(buffer) == 50_000
        with contextlib.suppress(ConnectionError):
            assert server.recv_into(buffer) == 0


def test_a_step_of_a_handshake_takes_a_bounded_part(authority: Authority) -> None:
    """The greeting comes in records of a few bytes, and each record takes time."""
    said, context = ssl.MemoryBIO(), authority.context()
    context.set_alpn_protocols(["x" * 250 for _ in range(200)])
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said, server_hostname="127.0.0.1").do_handshake()
    said.read(5)
    sent = b"".join(b"\x16\x03\x01\x00\x02" + said.read(2) for _ in range(said.pending // 2))
    with listening() as listener, socket.create_connection(listener.getsockname(), 60) as client:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(authority.issue("127.0.0.1"))
        with TlsSocket(made, listener.accept()[0]) as server:
            client.sendall(sent)
            wait_until(lambda: waiting(server) == len(sent) > 5 * PART, "all has come")
            for steps in (1, 2, 3):
                with pytest.raises(ssl.SSLWantReadError):
                    server.do_handshake()
                assert waiting(server) == len(sent) - steps * PART


@pytest.mark.parametrize(
    ("more", "names", "refused"),
    [(MOST_CERTIFICATES - 1, 1, False), (MOST_CERTIFICATES, 1, True), (1, 500, False), (1, 900, True)],
)
def test_who_sends_many_certificates_or_long_ones_is_refused_and_forgotten(
    authority: Authority, tmp_path: Path, more: int, names: int, refused: bool
) -> None:
    """OpenSSL keeps what a client sends for as long as it keeps the session, though nobody may resume that. A name
    takes 14 bytes."""
    sent = tmp_path / "sent.pem"
    own = Path(authority.issue(*(f"{number:03}.acme.com" for number in range(names)))).read_bytes()
    sent.write_bytes(own + more * Path(authority.ca).read_bytes())
    context = context_of(authority.issue("127.0.0.1"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.ca)
    client = authority.context(str(sent))
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.options |= ssl.OP_NO_TICKET  # so that the server keeps the session

    def connect() -> None:
        sock = socket.create_connection(listener.getsockname(), 60)
        with contextlib.suppress(OSError), client.wrap_socket(sock, server_hostname="127.0.0.1") as tls:
            tls.recv(1)

    with listening() as listener:
        thread = threading.Thread(target=connect)
        thread.start()
        told = pytest.raises(OSError, match="certificates") if refused else contextlib.nullcontext()
        with TlsSocket(context, listener.accept()[0]) as server, told:
            greet(server)
        thread.join(60)
    del server, told
    assert context.session_stats()["number"] == (0 if refused else 1)


@pytest.mark.parametrize("shows", [True, False])
def test_few_sessions_with_certificates_are_kept(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, shows: bool
) -> None:
    """The others are forgotten when their connections end, and their clients have to show their certificates again."""
    most, count = 3, 8
    monkeypatch.setattr(tls, "KEPT_SESSIONS", most)
    context = context_of(authority.issue("127.0.0.1"))
    if shows:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.ca)
    client = authority.context(authority.issue("client", subject="ada"))
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.options |= ssl.OP_NO_TICKET  # so that the server keeps the session
    sessions: list[ssl.SSLSession | None] = []

    def connect(session: ssl.SSLSession | None = None) -> bool:
        """Whether the session was resumed."""
        sock = socket.create_connection(listener.getsockname(), 60)
        with client.wrap_socket(sock, server_hostname="127.0.0.1", session=session) as made:
            with contextlib.suppress(ssl.SSLEOFError):  # the end was not announced
                made.recv(1)
            sessions.append(made.session)
            return made.session_reused is True

    def serve(connect: Callable[[], bool]) -> bool:
        with ThreadPoolExecutor(1) as pool:
            told = pool.submit(connect)
            with TlsSocket(context, listener.accept()[0]) as server:
                greet(server)
            return told.result()

    with listening() as listener:
        for _ in range(count):
            assert not serve(connect)
        kept = most if shows else count
        assert context.session_stats()["number"] == kept
        resumed = [serve(partial(connect, session)) for session in sessions[:count]]
    assert resumed == [True] * kept + [False] * (count - kept)


def update_keys(sock: ssl.SSLSocket, *, both: bool = False) -> None:
    """Sends a key update, for which Python's `ssl` has no function. `both`: the peer has to update its key, too."""
    library = ctypes.CDLL(_ssl.__file__)
    [handle] = struct.unpack_from("P", ctypes.string_at(id(sock._sslobj) + 3 * struct.calcsize("P"), 8))  # type: ignore[attr-defined]
    assert library.SSL_key_update(ctypes.c_void_p(handle), int(both)) == 1
    assert library.SSL_do_handshake(ctypes.c_void_p(handle)) == 1


def test_key_updates_among_data_take_a_bounded_part_of_a_read(authority: Authority) -> None:
    """Without a bound, a little data among the key updates would let one read go on and on."""
    with connected(authority) as (server, client):
        for number in range(6 * PART // 27):
            update_keys(client)
            if number % 50 == 0:
                client.sendall(b"x")
        wait_until(lambda: waiting(server) > 5 * PART, "all have come")
        buffer = bytearray(PIECE)
        for _ in range(2):
            before = waiting(server)
            assert server.recv_into(buffer) > 0
            assert before - waiting(server) < 3 * PART


def test_key_updates_alone_end_the_connection(authority: Authority) -> None:
    with connected(authority) as (server, client):
        for _ in range(6 * PART // 27):
            update_keys(client)
        wait_until(lambda: waiting(server) > 5 * PART, "all have come")
        buffer = bytearray(PIECE)
        before = waiting(server)
        with pytest.raises(BlockingIOError):
            server.recv_into(buffer)
        assert before - waiting(server) <= PART

        def read_on() -> None:
            for _ in range(6):
                with contextlib.suppress(BlockingIOError):
                    server.recv_into(buffer)

        with pytest.raises(OSError, match="nothing but key updates"):
            read_on()


def test_answers_to_key_updates_that_nobody_takes_are_not_kept_without_end(authority: Authority) -> None:
    """This is so although each read returns a byte. The server has sent as much as the system takes, so its answers
    wait."""
    with connected(authority) as (server, client):
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)  # otherwise it grows with what is sent
        buffer = bytearray(PIECE)

        def fill() -> None:
            while True:
                server.send(buffer)

        def update() -> None:
            for _ in range(30 * PIECE // 27 // 500):
                for _ in range(500):
                    update_keys(client, both=True)
                client.sendall(b"x")
                wait_until(lambda: waiting(server) > 13_500, "they have come")
                assert server.recv_into(buffer) == 1

        with pytest.raises(BlockingIOError):
            fill()
        with pytest.raises(OSError, match="takes no answers"):
            update()


def test_a_connection_that_was_sent_much_keeps_little(authority: Authority) -> None:
    """For each connection, OpenSSL would keep as much memory as was encrypted at once."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    def send(server: TlsSocket, client: ssl.SSLSocket) -> None:
        view = memoryview(bytes(1 << 20))
        while view:
            with contextlib.suppress(BlockingIOError):
                view = view[server.send(view) :]
            client.recv(PIECE)

    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(connected(authority)) for _ in range(101)]
        send(*pairs.pop())
        before = resident()
        for pair in pairs:
            send(*pair)
        assert resident() - before < 100 * (64 << 10)


def test_what_clients_refuse_does_not_depend_on_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default Python 3.13 refuses more certificates than its older versions and other clients."""
    made = ssl.create_default_context()
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    monkeypatch.setattr(ssl, "create_default_context", lambda cafile: made)
    assert not client_context().verify_flags & ssl.VERIFY_X509_STRICT


def test_a_key_with_a_password_asks_nobody_on_the_terminal(authority: Authority, tmp_path: Path) -> None:
    """The event loop would wait for the answer."""
    certificate, locked = authority.issue("client"), tmp_path / "locked.pem"
    key = serialization.load_pem_private_key(Path(certificate).read_bytes(), None)
    encrypted = serialization.BestAvailableEncryption(b"the-password")
    form = serialization.PrivateFormat.PKCS8
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encrypted))
    with pytest.raises(OSError, match="the key has a password; write it without: openssl pkey"):
        client_context(authority.ca, (certificate, str(locked)))


def test_an_authority_before_the_own_certificate(authority: Authority, tmp_path: Path) -> None:
    certificate, turned = authority.issue("client"), tmp_path / "turned.pem"
    turned.write_text(Path(authority.ca).read_text() + Path(certificate).read_text())
    with pytest.raises(OSError, match="the key is not that of the file's first certificate"):
        client_context(authority.ca, str(turned))
