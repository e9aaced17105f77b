"""TLS on a socket that does not block, for the server and the clients: it has the methods and errors of a plain socket.

Rules, kept here:

- OpenSSL gets at most `PART` bytes of what has come at a time, by a memory BIO. If OpenSSL read the socket itself, it
  would go on as long as a peer sends key updates (RFC 8446, section 4.6.3), or sends its greeting in records of one
  byte, and nobody else would have a turn. A step of a handshake takes one part. One `recv` takes part after part, up to
  `PIECE` bytes, until `PART` bytes of them brought nothing for the caller. A caller with many such sockets makes the
  parts smaller while others wait (`part`). A peer that sends `FRUITLESS` bytes of key updates, and nothing else, loses
  its connection; so does one that takes no answers to them.
- A call that would have to wait raises BlockingIOError. After that, `send` has to be called again with data that begins
  with the same bytes and is not shorter: these were taken already, and are being sent. It takes at most `PIECE` bytes
  at a time.
- Nothing is ever sent without encryption, but for `reject`.
- A client may send a few certificates besides its own. OpenSSL keeps them, in four times their size, with the
  connection and with its session, which others of that client may resume: of TLS 1.2, for five minutes, if the client
  does not keep the session itself (a ticket). A client that sends more, or longer ones, is refused, and its session is
  not kept. OpenSSL would keep 20,480 sessions, up to 1 GB, and Python can't tell it another number. So when there are
  `KEPT_SESSIONS`, a further one with certificates is forgotten as its connection ends.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

PART = 17 << 10  # bytes that are decrypted at a time: a whole record, or 640 key updates
FRUITLESS = 64 << 10  # four times as many as the largest record has
RECORD = 16 << 10  # bytes that are encrypted at a time: OpenSSL keeps as much memory for each connection
PIECE = 256 << 10  # bytes of one `recv` or `send`, which takes about 0.1 ms
MOST_CERTIFICATES, LONGEST_CHAIN = 6, 12 << 10  # certificates that a client may send, and their bytes
KEPT_SESSIONS = 1_000  # of a context: 50 MB at most


class TlsSocket(socket.socket):
    """Takes the place of `sock`, before the handshake. `host`: the server's, on a client's side. `made`: by context,
    the sockets that were made with it; only for contexts that somebody has put there."""

    made: ClassVar[WeakKeyDictionary[ssl.SSLContext, WeakSet[TlsSocket]]] = WeakKeyDictionary()

    def __init__(self, context: ssl.SSLContext, sock: socket.socket, host: str | None = None) -> None:
        family, kind, protocol = sock.family, sock.type, sock.proto
        super().__init__(family, kind, protocol, fileno=sock.detach())
        self.setblocking(False)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._server_side = host is None
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=self._server_side, server_hostname=host
        )
        if (made := self.made.get(context)) is not None:
            made.add(self)
        self._unsent: list[bytes | memoryview] = []  # encrypted bytes that the system has not taken
        self._taken = 0  # bytes of a `send` that are among these
        self.part = PART  # bytes that are decrypted at a time by a `recv`
        self._more = False  # not all that has come was read
        self._fruitless = 0  # bytes that have come since the caller last got something
        self._refused = False  # the peer was, after the handshake

    def do_handshake(self) -> None:
        """Goes on with the handshake, by a part of what has come. Raises ssl.SSLWantReadError and
        ssl.SSLWantWriteError until it is done; OSError."""
        fetched = False
        while True:
            try:
                self._tls.do_handshake()
                self._check_chain()
                self._flush()
                return
            except ssl.SSLWantReadError:
                self._say()
                if fetched:
                    raise
                self._fetch()
                fetched = True
            except BlockingIOError:
                raise ssl.SSLWantWriteError from None
            except ssl.SSLError:
                with suppress(OSError):
                    self._flush()  # the alert that says why
                raise

    def _check_chain(self) -> None:
        """Raises OSError if a client has sent too many certificates."""
        if not self._server_side:
            return
        sent = self._chain("get_unverified_chain", MOST_CERTIFICATES + 1)
        if len(sent) > MOST_CERTIFICATES or sum(map(len, sent)) > LONGEST_CHAIN:
            self._refused = True
            raise OSError(f"more than {MOST_CERTIFICATES} certificates, or {LONGEST_CHAIN} bytes of them")

    def _fetch(self) -> int:
        """Takes a part of what has come; returns its size. Raises SSLWantReadError when nothing has."""
        try:
            data = super().recv(self.part)
        except BlockingIOError:
            raise ssl.SSLWantReadError from None
        if data:
            self._incoming.write(data)
            self._fruitless += len(data)
        else:
            self._incoming.write_eof()
        return len(data)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Fills the buffer (of which `nbytes` count, if given) with what has come."""
        view = memoryview(buffer)[: min(nbytes or PIECE, PIECE)]
        count = fetched = 0
        last = False  # no more has come than what was fetched
        try:
            while count < len(view):
                try:
                    got: int = self._tls.read(len(view) - count, view[count:])  # type: ignore[assignment]
                    if not got:
                        return count
                    count += got
                except ssl.SSLWantReadError:
                    if last or fetched - count >= self.part:
                        break
                    size = self._fetch()
                    fetched, last = fetched + size, size < self.part
        except ssl.SSLEOFError:
            return count
        except OSError as error:  # after bytes, the next call meets it
            if not (count or isinstance(error, ssl.SSLWantReadError)):
                raise
        self._more = count == len(view)
        if self._outgoing.pending:
            self._say()  # answers to key updates
        if count:
            self._fruitless = 0
            return count
        if self._fruitless > FRUITLESS:
            raise OSError("a peer that sends nothing but key updates")
        raise BlockingIOError

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        data = bytearray(min(bufsize, PIECE))
        return bytes(memoryview(data)[: self.recv_into(data)])

    def send(self, data: Any, flags: int = 0) -> int:
        if not self._taken:
            view, encrypt, encrypted = memoryview(data)[:PIECE], self._tls.write, self._outgoing.read
            for position in range(0, len(view), RECORD):
                self._taken += encrypt(view[position : position + RECORD])
                self._unsent.append(encrypted())
        self._flush()
        taken, self._taken = self._taken, 0
        return taken

    def _flush(self) -> None:
        """Raises BlockingIOError while something is left."""
        if self._outgoing.pending:
            self._unsent.append(self._outgoing.read())
        while self._unsent:
            sent, size = super().sendmsg(self._unsent), sum(map(len, self._unsent))
            self._unsent = [memoryview(b"".join(self._unsent))[sent:]] if sent < size else []

    def _say(self) -> None:
        """Sends what OpenSSL has to say, or keeps it. Raises OSError when the peer takes nothing and much is kept."""
        try:
            self._flush()
        except BlockingIOError:
            self._unsent = [b"".join(self._unsent)]
            if len(self._unsent[0]) > 2 * PIECE:
                raise OSError("a peer that sends key updates and takes no answers") from None

    def send_file(self, descriptor: int, position: int, size: int) -> int:
        """As os.sendfile, whose place it takes: the bytes have to pass through this process. Returns how many were
        sent."""
        if self._taken:
            return self.send(b"")
        data = os.pread(descriptor, min(size, PIECE), position)
        return self.send(data) if data else 0

    def pending(self) -> bool:
        """Whether a `recv` gives something without waiting."""
        return self._more

    def getpeercert(self, *, binary: bool = False) -> Any:
        """As ssl.SSLSocket.getpeercert."""
        return self._tls.getpeercert(binary)

    def proof(self) -> list[bytes]:
        """The DER of the certificates by which the peer's was found good, from its own to an authority's. Empty if that
        is not known: the peer has shown none, or has resumed an earlier session."""
        return self._chain("get_verified_chain")

    def _chain(self, getter: str, most: int | None = None) -> list[bytes]:
        """The DER of the certificates that a getter of OpenSSL's gives; of the first ones, if `most` is given."""
        # Public since Python 3.13. But of a client that has shown no certificate, the server's `get_unverified_chain`
        # gives [None], for which the public one raises AttributeError.
        chain = getattr(self._tls._sslobj, getter)() or ()  # type: ignore[attr-defined]
        return [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in chain[:most] if each is not None]

    @property
    def context(self) -> ssl.SSLContext:
        return self._tls.context

    def reject(self, alert: bytes) -> None:
        """Tells a peer whose handshake has failed that this is TLS. What it has sent is read and dropped: else the
        system would reset the connection before the peer has read the alert."""
        with suppress(OSError):
            super().send(alert)
            for _ in range(16):
                if not super().recv(64 << 10):
                    break

    @property
    def _is_one_too_many(self) -> bool:
        """Whether its session has certificates, and OpenSSL keeps it and many others."""
        kept = self._tls.version() == "TLSv1.2" and self.context.session_stats()["number"] > KEPT_SESSIONS
        return kept and bool(self.getpeercert(binary=True))

    def close(self) -> None:
        """Tells the peer that nothing more comes, if this is the server's side, and closes the socket. (A client's may
        be a copy in a forked process, which must not say anything.) A peer whose session must not be kept is told
        nothing: OpenSSL then forgets the session."""
        if self._server_side and self.fileno() >= 0 and not (self._refused or self._is_one_too_many):
            with suppress(OSError, ValueError):
                self._tls.unwrap()
            with suppress(OSError, ValueError):
                self._flush()
        super().close()


def client_context(ca: str | None = None, cert: str | tuple[str, str] | None = None) -> ssl.SSLContext:
    """A context for clients. `ca`: PEM file of the authorities that may vouch for the broker; None: the system's.
    `cert`: PEM file of the client's own certificate and key, or (certificate, key). Raises OSError (ssl.SSLError is
    one)."""
    with readable_authorities():
        context = ssl.create_default_context(cafile=ca)
    # Else Python 3.13 would refuse authorities that its older versions, librdkafka and Java take: without a key usage.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert is not None:
        load_own(context, *((cert,) if isinstance(cert, str) else cert))
    return context


@contextmanager
def readable_authorities() -> Iterator[None]:
    """Around the reading of a file of authorities. Raises OSError in place of ssl.SSLError, whose text is "[X509] PEM
    lib", say."""
    try:
        yield
    except ssl.SSLError:
        raise OSError("there is no certificate in PEM in it, or one that can't be read") from None


def load_own(context: ssl.SSLContext, certificate: str, key: str | None = None) -> None:
    """Gives the context a certificate of its own. Raises OSError (ssl.SSLError is one)."""
    try:
        context.load_cert_chain(certificate, key, _no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            text = "the key is not that of the file's first certificate; behind that one come those of its authorities"
        elif error.reason is None:  # its text is "[SSL] PEM lib", say
            text = "there is no certificate in PEM, or no key, or one that can't be read"
        else:
            raise
        raise OSError(text) from None


def _no_password() -> str:
    """Instead of asking for it on the terminal, where the event loop would wait."""
    raise OSError("the key has a password; write it without: openssl pkey -in KEY -out PLAIN")
