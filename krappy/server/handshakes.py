"""Handshakes of TLS, before which nothing is known of a peer but its address.

Rules, kept here:

- The peer of a handshake has `SECONDS` for its part of it. When `MOST` handshakes wait for their peers, and another has
  to, one gives way: of the address with most of them, the one that has waited longest. So a handshake whose peer is
  quick does not give way, nor one of an address with few, however many another address begins.
- Each step of a handshake takes up to some ms. Steps are made one after the other: in a round of the event loop for
  `TURN` seconds, and `TOGETHER` at most, because what follows on them takes time, too. The addresses take turns.
- When `MOST_STEPS` steps wait to be made, and another has to, one gives way likewise: each holds some 40 KB, and
  connections may be accepted faster than steps are made.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable
from itertools import islice
from time import perf_counter

import trio

from krappy.core.address_lines import AddressLines
from krappy.hosts import host_of
from krappy.ports.users import Took, untold
from krappy.server.strangers import made_in_turn
from krappy.server.tls import Report, reason
from krappy.tls import TlsSocket
from krappy.waiting import Signal, wait_any
from krappy.wire.mistaken import TLS_ALERT

SECONDS = 10.0  # for which a handshake waits for its peer
MOST = 256  # handshakes that wait for their peers
MOST_STEPS = 1_000  # steps that wait to be made
TURN = 0.005  # seconds for which steps are made in a round of the event loop
TOGETHER = 16  # steps of a round: each may end its connection
# OpenSSL's reasons. The second means that the certificate is somebody else's.
NO_PROOF = ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "BAD_SIGNATURE")


class HandshakeStep:
    """A step of a handshake that its peer has made possible. `done`: set once the step was made, or has failed
    (`error`). `wants`: what the next step waits for; None: there is no further step."""

    __slots__ = ("done", "error", "seconds", "sock", "wants")

    def __init__(self, sock: TlsSocket) -> None:
        self.sock = sock
        self.done = trio.Event()
        self.error: OSError | ValueError | None = None
        self.wants: type[ssl.SSLError] | None = None
        self.seconds = 0.0

    def give_way(self) -> None:
        self.error = OSError("it gave way to others")
        self.done.set()

    def make(self) -> None:
        began = perf_counter()
        try:
            self.sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            self.wants = type(error)  # the error itself would refer to this step, by its traceback
        except (OSError, ValueError) as error:
            self.error = error
        self.seconds = perf_counter() - began
        self.done.set()


class Handshakes:
    """`turn`: waits for a turn on the event loop."""

    def __init__(self, turn: Callable[[], Awaitable[None]], report: Report) -> None:
        self._turn = turn
        self._report = report
        self._waiting: AddressLines[trio.CancelScope] = AddressLines()  # for their peers
        self._steps: AddressLines[HandshakeStep] = AddressLines()  # to be made
        self._asked = Signal()  # there is a step
        self.failed = 0

    async def run(self) -> None:
        """Makes the steps. Until cancelled."""
        while True:
            await wait_any([self._asked], lambda: len(self._steps) > 0)
            await self._turn()
            end = perf_counter() + TURN
            for step in islice(iter(self._steps.pop, None), TOGETHER):
                step.make()
                if perf_counter() >= end:
                    break

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
            if len(self._steps) >= MOST_STEPS:
                self._steps.pop_of_most().give_way()
            step = HandshakeStep(sock)
            await made_in_turn(step, self._steps, host, self._asked, took)
            if step.wants is None:
                return
            wants_read = step.wants is ssl.SSLWantReadError
            wait = trio.lowlevel.wait_readable if wants_read else trio.lowlevel.wait_writable


def _of_certificate(error: Exception) -> bool:
    """Whether a handshake has failed because of the peer's certificate."""
    return isinstance(error, ssl.SSLCertVerificationError) or (
        isinstance(error, ssl.SSLError) and error.reason in NO_PROOF
    )
