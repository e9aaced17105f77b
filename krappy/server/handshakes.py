"""Handshakes of TLS, before which nothing is known of a peer but its address.

Rules, kept here:

- The peer of a handshake has `SECONDS` for its part of it. When `MOST` handshakes wait for their peers, and another has
  to, one gives way: of the address with most of them, the one that has waited longest. So a handshake whose peer is
  quick does not give way, nor one of an address with few, however many another address begins.
- The steps of handshakes are made in turn (`StrangerSteps`). When `MOST_STEPS` of them wait, and another has to, one
  gives way likewise: each holds some 40 KB, and connections may be accepted faster than steps are made.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from krappy.core.address_lines import AddressLines
from krappy.hosts import host_of
from krappy.ports.users import Took, untold
from krappy.server.strangers import StrangerSteps
from krappy.server.tls import Report, reason
from krappy.tls import TlsSocket
from krappy.wire.mistaken import TLS_ALERT

SECONDS = 10.0  # for which a handshake waits for its peer
MOST = 256  # handshakes that wait for their peers
MOST_STEPS = 1_000  # steps that wait to be made
TOGETHER = 16  # steps that are made in a round of the event loop: each may end its connection
# OpenSSL's reasons. The second means that the certificate is somebody else's.
NO_PROOF = ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "BAD_SIGNATURE")


class Handshakes:
    """`turn`: waits for a turn on the event loop."""

    def __init__(self, turn: Callable[[], Awaitable[None]], report: Report) -> None:
        self._report = report
        self._waiting: AddressLines[trio.CancelScope] = AddressLines()  # for their peers
        self.steps = StrangerSteps(TOGETHER, MOST_STEPS, turn)
        self.failed = 0

    async def greet(
        self,
        sock: TlsSocket,
        client: str,
        took: Took = untold,
        refused: Callable[[str], None] | None = None,
    ) -> bool:
        """Does the handshake. Returns whether that succeeded. `took`: is told how long its steps took. `refused`: is
        told why the peer's certificate was not good, or that it has shown none."""
        why = f"its peer took more than {SECONDS:g} s, or it gave way to others"
        with trio.CancelScope() as scope:
            try:
                await self._shake_hands(sock, host_of(client), scope, took)
                return True
            except (OSError, ValueError) as error:
                why = reason(error)
                sock.reject(TLS_ALERT)
                if refused is not None and _of_certificate(error):
                    refused(why)
        self.failed += 1
        self._report("tls_handshake_failed", client=client, reason=why)
        return False

    async def _shake_hands(self, sock: TlsSocket, host: str, scope: trio.CancelScope, took: Took) -> None:
        """Raises OSError, ValueError."""
        wait = trio.lowlevel.wait_readable  # the peer speaks first
        left = SECONDS
        while True:
            if len(self._waiting) >= MOST:
                self._waiting.pop_of_most().cancel()
            self._waiting.add(host, scope)
            began = trio.current_time()
            scope.deadline = began + left
            try:
                await wait(sock)
            finally:
                self._waiting.drop(host, scope)
            scope.deadline = math.inf  # it is not the peer's fault if its step has to wait
            left -= trio.current_time() - began
            wants = await self.steps.make(host, partial(_step, sock), took)
            if wants is None:
                return
            wait = trio.lowlevel.wait_readable if wants is ssl.SSLWantReadError else trio.lowlevel.wait_writable


def _step(sock: TlsSocket) -> type[ssl.SSLError] | None:
    """Makes a step of a handshake. Returns what the next step waits for; None: there is none. Raises OSError,
    ValueError."""
    try:
        sock.do_handshake()
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
        return type(error)
    return None


def _of_certificate(error: Exception) -> bool:
    """Whether a handshake has failed because of the peer's certificate."""
    return isinstance(error, ssl.SSLCertVerificationError) or (
        isinstance(error, ssl.SSLError) and error.reason in NO_PROOF
    )
