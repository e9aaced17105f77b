"""What readers (`reading.py`) and the members of groups (`sharing.py`) have in common: they hand out what they have
received, as events or as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from krappy.clients.acks import Acknowledged
from krappy.clients.choice import Choice
from krappy.clients.events import EventBatch
from krappy.clients.received import Received
from krappy.clients.router import Router
from krappy.clients.values import LONGEST, StartAt
from krappy.errors import InvalidRequest, UnknownTopic
from krappy.types import Event, TopicPartition
from krappy.wire.messages import ConsumerRegistered

MAX_WAIT = 5_000  # ms that a poll waits at the broker; then the next one is sent
LEAST_PATIENCE = 0.1  # seconds that a poll waits for room to send it, even if its caller would not wait so long


class Consuming:
    """`next_events`, `next_batch` and `poll` hand out events; `positions`, `seek` and `settle` are about those."""

    member: str | None = None  # its name in the group

    def __init__(self, router: Router, choice: Choice) -> None:
        choice.check()
        self.choice = choice
        self.received = Received(router.runtime.now, leased=choice.group is not None)
        self._router = router
        self._runtime = router.runtime
        self._closed = False
        self._topic_ids: dict[str, str] = {}  # the topics' ids: positions and acks are valid in these topics only

    def _known_topics(
        self, answer: ConsumerRegistered, abandoned: Callable[[ConsumerRegistered], None]
    ) -> dict[str, str]:
        """The ids of the topics in the answer to a registration. If one is not the topic that it was, calls
        `abandoned` with the answer and raises UnknownTopic."""
        ids = dict(answer.topic_ids or ())
        for topic, id in ids.items():
            if self._topic_ids.get(topic, id) != id:
                abandoned(answer)
                raise UnknownTopic(f"the topic '{topic}' was deleted, and made anew", topic=topic)
        return ids

    async def open(self) -> None:
        """Registers. Raises what the broker says, or ConnectionLost."""
        raise NotImplementedError

    async def leave(self, kind: type[BaseException] | None) -> None:
        """Waits until what was acknowledged is durable, and closes. `kind`: the class of the program's error; None: it
        has none."""
        raise NotImplementedError

    # --- events out ---------------------------------------------------------------------------------------------

    async def next_batch(self, seconds: float | None = None) -> EventBatch | None:
        """The next events, of one partition. An empty batch when none came for `seconds` (None: waits without a
        limit); None at the end."""
        arrived = await self._arrived(seconds)
        if arrived is None:
            return None
        return self.received.take_batch() if arrived else EventBatch("", 0, (), (), (), ())

    async def next_events(self) -> bool:
        """Puts the next events in `received.events`, when they have come. Returns False at the end."""
        if await self._arrived(None) is None:
            return False
        self.received.hand_out()
        return True

    async def poll(self, seconds: float) -> list[Event]:
        """The next events; none when none came for `seconds`, and at the end."""
        if not self.received.waiting:
            await self._arrived(min(max(0.0, seconds), LONGEST))  # NaN counts as 0
        return self.received.take_events()

    async def _arrived(self, seconds: float | None) -> bool | None:
        """Waits until `received` has events. False when none came for `seconds` (None: waits without a limit); None at
        the end."""
        raise NotImplementedError

    # --- what was handed out ------------------------------------------------------------------------------------

    def positions(self) -> dict[TopicPartition, int]:
        """By partition, the offset of the next event to be handed out. Only for readers without a group."""
        return {}

    async def seek(self, topic: str, partition: int, to: StartAt) -> int:
        """Goes on from `to` in a partition, and returns the offset found. Raises OffsetOutOfRange, UnknownTopic, and
        InvalidRequest in a group."""
        raise InvalidRequest("a group's position is shared: reset the group instead")

    def note(self, acknowledged: Acknowledged) -> None:
        """Notes what is acknowledged. Raises as `Acks.note`, and InvalidRequest without a group."""
        raise InvalidRequest("only members of a group acknowledge events; a reader without one just goes on")

    async def ack(self, acknowledged: Acknowledged) -> None:
        self.note(acknowledged)

    async def nack(self, refused: Acknowledged, delay_ms: int) -> None:
        self.note(refused)

    async def settle(self, kind: type[Any], acknowledged: Acknowledged, **fields: Any) -> None:
        self.note(acknowledged)
