"""The description of a connection, for people."""

from __future__ import annotations

import trio

from krappy.ports import ConnectionFacts, SessionFacts
from krappy.server.outbox import Outbox


class DescribedConnection:
    client: str
    protocol: str
    received: int
    requests: int
    in_flight: int
    _opened: float
    _outbox: Outbox

    def _tell(self) -> SessionFacts:
        """The protocol's part of the description: `client_id` and `registrations`."""
        raise NotImplementedError

    @property
    def sent(self) -> int:
        """Bytes sent since the connection began."""
        return self._outbox.sent

    def describe(self) -> ConnectionFacts:
        """The connection now. `received_bytes` and `sent_bytes` count since it began; `waiting_bytes` are of answers
        that the peer has not taken, `in_flight_bytes` of unanswered requests."""
        return {
            "client": self.client,
            "protocol": self.protocol,
            "seconds": trio.current_time() - self._opened,
            "received_bytes": self.received,
            "sent_bytes": self.sent,
            "requests": self.requests,
            "waiting_bytes": self._outbox.size,
            "in_flight_bytes": self.in_flight,
            **self._tell(),
        }
