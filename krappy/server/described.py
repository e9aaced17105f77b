"""What people are told of a connection."""

from __future__ import annotations

from typing import Any

import trio

from krappy.server.outbox import Outbox


class DescribedConnection:
    client: str
    protocol: str
    received: int
    requests: int
    in_flight: int
    _opened: float
    _outbox: Outbox

    def _tell(self) -> dict[str, Any]:
        """Who the peer is and what it has registered: `client_id`, `registrations`."""
        raise NotImplementedError

    @property
    def sent(self) -> int:
        """Bytes, over its life."""
        return self._outbox.sent

    def describe(self) -> dict[str, Any]:
        """The connection now. Bytes are over its life, but for `waiting_bytes`: of answers that are not taken yet."""
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
