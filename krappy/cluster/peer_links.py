"""Links to all other brokers of the cluster, for one purpose."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from krappy.cluster.peers import TIMEOUT_S, Address, PeerLink
from krappy.core.cluster.image import Image


class PeerLinks:
    def __init__(
        self, image: Callable[[], Image], listener: str, client_id: str, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`listener`: the name of the listener by which brokers reach each other."""
        self._image, self._listener = image, listener
        self._client_id, self._timeout_s = client_id, timeout_s
        self._links: dict[int, PeerLink] = {}

    def to(self, broker: int) -> PeerLink:
        if broker not in self._links:
            self._links[broker] = PeerLink(partial(self._address, broker), self._client_id, timeout_s=self._timeout_s)
        return self._links[broker]

    def _address(self, broker: int) -> Address | None:
        found = self._image().brokers.get(broker)
        return None if found is None else found.endpoints.get(self._listener)
