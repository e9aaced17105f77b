"""The member of a group: registering again after a lost connection, polling, leases.

A member loses its leases with its connection. Then it drops the events that it has not handed out, because the broker
leases them again, to the first member that asks. It polls only while its caller waits for events: leases that nobody
waits for expire, and the broker counts their delivery. But a caller who was quick with the last poll's events gets the
next ones ahead. Events whose lease has expired are not handed out, and the next poll asks for fewer events. When it is
closed, it tells the broker which events it has not handed out, so that their delivery is not counted.

A member asks one broker, which coordinates its group. Any broker tells which one that is. When that broker is away for
longer than `PATIENCE`, or says that another one coordinates the group now, the member asks again, and registers there.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from krappy.clients import events
from krappy.clients.acks import Acknowledged, Acks, ack_of, runs
from krappy.clients.backoff import Backoff
from krappy.clients.choice import Choice
from krappy.clients.consuming import LEAST_PATIENCE, MAX_WAIT, Consuming
from krappy.clients.events import EventBatch
from krappy.clients.link import Link
from krappy.clients.refusals import pause_before
from krappy.clients.replies import PollSlot
from krappy.clients.router import Router
from krappy.clients.values import start
from krappy.errors import (
    ConnectionLost,
    CoordinatorNotAvailable,
    KrappyError,
    NotCoordinator,
    RequestTimeout,
    UnknownHandle,
    UnknownTopic,
)
from krappy.types import Event, TopicPartition
from krappy.wire import messages

QUICK, SLOW = 0.1, 1.0  # seconds that a caller takes for a poll's events; below QUICK, the next poll asks for more
QUICKLY_LEASED = 10_000  # so many at most, by default; from SLOW on, for `Choice.records` at most
PATIENCE = 1.0  # seconds for which the connection to a coordinator may be lost before others are asked who it is
HOPS = 2  # so many brokers may name each other without a pause
SEEN_THROUGH = 1.0  # seconds that a member waits beyond its deadline for an answer that must be on its way


class Sharing(Consuming):
    def __init__(self, router: Router, choice: Choice) -> None:
        super().__init__(router, choice)
        self._link = router.home
        self._acks = Acks(router.home, self._registered_as, self._outdated)
        self.note = self._acks.note  # type: ignore[method-assign]
        self._generation = 0
        self._handle = 0
        self._poll: PollSlot | None = None
        self._polls = 0  # polls of this registration that brought leases
        self._began = 0.0  # when the last poll's events began to be handed out
        self._took = math.inf  # seconds for which the caller had the events of the poll before
        self._leased = 0  # events that the last poll brought a member
        self._most = choice.records  # records that the next poll asks for
        self._registering: Any = None
        self._stale = False  # the registration is outdated: register anew
        self._hops = 0  # how often another broker was named, one after the other
        self._backoff = Backoff(lambda: 1.0)

    def _move(self, link: Link) -> None:
        """Takes the broker that this link leads to for the coordinator."""
        with self._runtime.lock:
            if link is not self._link and not self._closed:
                self._link.told_of_loss.discard(self._end_leases)
                self._link, self._generation, self._poll = link, 0, None
                self._end_leases()
                link.told_of_loss.add(self._end_leases)
                self._acks.move(link)

    def _outdated(self) -> None:
        """The broker does not know this registration any more."""
        self._generation = 0

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        with self._runtime.lock:
            self._link.told_of_loss.add(self._end_leases)
        await self._registered(self._runtime.now() + self._link.timeout)

    def close(self, deadline: float | None = None) -> None:
        """Ends the registration. A member's leases go to other members at once. `deadline`: until when it waits for
        room to send that; None: for the link's timeout."""
        with self._runtime.lock:
            if self._closed:
                return
            self._closed = True
            self._link.told_of_loss.discard(self._end_leases)
        self._acks.close()
        end = self._runtime.now() + self._link.timeout if deadline is None else deadline
        self._acks.send(self._handle, self._generation, max(0.0, end - self._runtime.now()))
        self._part(max(0.0, end - self._runtime.now()))
        if self._poll is not None:
            self._poll(ConnectionLost("the consumer is closed"))

    async def leave(self, kind: type[BaseException] | None) -> None:
        """Waits until what was acknowledged is durable, and closes. `kind`: the class of the program's error; None: it
        has none. Then this raises as `Acks.finish` and `Acks.check` do."""
        deadline = self._runtime.now() + self._link.timeout
        try:
            if kind is None or (issubclass(kind, Exception) and not issubclass(kind, ConnectionLost)):
                await self._acks.finish(deadline)
                self._acks.check()
        except KrappyError:
            if kind is None:
                raise
        finally:
            self.close(deadline)

    def _part(self, patience: float) -> None:
        unseen = [leased for batch in self.received.all() for leased, _ in runs(batch)]
        request = messages.Unregister(self._handle, unseen, self._polls)
        with suppress(ConnectionLost, RequestTimeout):
            self._link.post(request, messages.Unregistered, lambda _: None, self._generation, patience)

    def _end_leases(self) -> None:
        """The leases end with the connection: the broker leases the events again, to the first member that asks."""
        self.received.until = 0.0

    async def _registered(self, deadline: float) -> int:
        """Registers if necessary. Returns the generation of the connection on which this consumer is registered.

        Raises ConnectionLost at the deadline, or when closed."""
        while True:
            if self._closed:
                raise ConnectionLost("this consumer is closed")
            with self._runtime.lock:
                if self._link.lives(self._generation) and not self._stale:
                    return self._generation
                others = self._registering
                if others is None:
                    mine = self._registering = self._runtime.signal()
            if others is not None:
                await others.wait(max(0.0, deadline - self._runtime.now()))
                if self._runtime.now() >= deadline:
                    raise ConnectionLost(self._link.trouble)
                continue
            try:
                await self._register_there(deadline)
            finally:
                self._registering = None
                mine.set()

    async def _registered_as(self, deadline: float) -> tuple[int, int]:
        generation = await self._registered(deadline)
        return self._handle, generation

    async def _register_there(self, deadline: float) -> None:
        """Registers at the broker that coordinates the group, if it is found; else the caller tries again."""
        router = self._router
        try:
            if router.known.several:
                await self._link.ready(min(deadline, self._runtime.now() + PATIENCE))
            await self._register(deadline)
        except NotCoordinator as error:
            self._hops += 1
            link: Link | None = None
            if self._hops <= HOPS and error.details.get("coordinator", -1) >= 0:
                with suppress(NotCoordinator, ConnectionLost):
                    link = await router.coordinator(error, min(deadline, self._runtime.now() + PATIENCE))
            if link is None:  # it is away, or brokers do not agree yet
                await self._ask_again(deadline, error)
            else:
                self._move(link)
        except CoordinatorNotAvailable as error:
            await self._ask_again(deadline, error)
        except ConnectionLost as error:
            if self._link.closed or not router.known.several:
                raise
            await self._ask_again(deadline, error)

    async def _ask_again(self, deadline: float, error: KrappyError) -> None:
        """Waits a little; then any broker is asked again who coordinates the group. Raises the error at the
        deadline."""
        pause = self._backoff.pause()
        if self._runtime.now() + pause >= deadline:
            raise error
        await self._runtime.sleep(pause)
        self._hops = 0
        self._move(self._router.home)

    async def _register(self, deadline: float) -> None:
        choice = self.choice
        name, at = start(choice.start)
        request = messages.ConsumerRegistration(
            topics=choice.topics,
            group=choice.group,
            start=name,
            start_at=at,
            order=choice.order,
            lease_ms=choice.lease_ms,
            max_deliveries=choice.max_deliveries,
            dead_letter=choice.dead_letter,
        )
        generation = await self._link.ready(deadline)
        if self._stale and generation == self._generation:
            self._link.tell(messages.Unregister(self._handle), messages.Unregistered, generation)

        def abandoned(answer: messages.ConsumerRegistered) -> None:
            self._link.tell(messages.Unregister(answer.handle), messages.Unregistered, generation)

        try:
            answer = await self._link.ask(
                request,
                messages.ConsumerRegistered,
                generation=generation,
                timeout=max(0.0, deadline - self._runtime.now()),
                abandoned=abandoned,
            )
        except ConnectionLost:
            if self._link.closed:
                raise
            return
        except UnknownTopic as error:  # it may hear of a new topic later than others
            if not self._router.known.several:
                raise
            await self._router.look_again(self.choice.topic_of(error), error, self._backoff, deadline)
            return
        self._hops = 0
        self._backoff.reset()
        ids = self._known_topics(answer, abandoned)
        with self._runtime.lock:
            if self._closed:  # in the meantime: `close` ended the registration before this one
                abandoned(answer)
                raise ConnectionLost("this consumer is closed")
            self._topic_ids.update(ids)
            self._handle, self._generation = answer.handle, generation
            self.member = answer.member
            self._acks.names_epochs = answer.takes_epochs
            self._poll = None
            self._polls = 0
            self._end_leases()
            self._stale = False

    # --- events out ---------------------------------------------------------------------------------------------

    async def _arrived(self, seconds: float | None) -> bool | None:
        self._acks.check()
        self._drop_expired()
        received = self.received
        now = self._runtime.now()
        deadline = None if seconds is None else now + seconds
        if self._leased and not received.any:
            self._took = now - self._began
        while not received.any:
            if not await self._fetch(deadline):
                return False
            self._drop_expired()
        if seconds is None and self._poll is None and self._polls_ahead:
            self._send_poll(self._runtime.now())
        return True

    def _drop_expired(self) -> None:
        """Drops the events that were not handed out in time. The next poll asks for as many as were handed out in
        time."""
        received = self.received
        if received.over:
            unseen = sum(map(len, received.all()))
            if unseen and received.until:
                self._most = max(1, self._leased - unseen)
            received.drop()

    async def _fetch(self, deadline: float | None) -> bool:
        """Waits for the poll in flight and takes its events, which may be none. Returns False at the deadline."""
        if deadline is not None and not self._link.closed and not self._router.known.several:
            try:
                await self._link.ready(max(deadline, self._runtime.now()))
            except ConnectionLost:
                if self._link.refusal is not None:
                    raise self._link.refusal.copy() from None
                return False
        # A registration may take longer than the deadline: else short waits would begin it again and again.
        await self._registered(self._runtime.now() + self._link.timeout)
        if self.received.any:
            return True  # another task has taken a poll meanwhile: its events come before the next poll's
        poll = self._poll or self._send_poll(deadline)
        if poll is None:  # the connection was lost in the meantime, or has no room
            return deadline is None or self._runtime.now() < deadline
        left = None if deadline is None else max(0.0, deadline - self._runtime.now())
        if left is not None and poll.until <= self._runtime.now() + left:
            left += SEEN_THROUGH
        if not await poll.wait(left):
            return False
        result = poll.result
        if self._poll is not poll:
            return True  # another task has taken it, or the consumer was registered anew
        if isinstance(result, messages.Polled):
            self._take(result, poll)  # before `_poll` is cleared: after an interrupt the next call takes it again
            self._backoff.reset()
        if self._poll is poll:
            self._poll = None
        if isinstance(result, messages.Polled):
            await self._runtime.checkpoint()
            if not self.received.batches:  # a poll at the deadline would be too late
                return deadline is None or self._runtime.now() < deadline
        elif isinstance(result, ConnectionLost) and not self._closed:
            pass
        elif isinstance(result, UnknownHandle) and not self._closed:
            self._outdated()
            raise result
        elif isinstance(result, NotCoordinator) and not self._closed:
            self._outdated()
        elif isinstance(result, KrappyError) and result.retriable and not self._closed:
            await self._runtime.sleep(pause_before(result, self._backoff))
        else:
            raise result
        return True

    def _send_poll(self, deadline: float | None = None) -> PollSlot | None:
        """`deadline`: until when the caller waits for events."""
        if self._closed or self._stale:
            return None
        with self._runtime.lock:
            handle, generation = self._handle, self._generation  # another thread may register a member anew
        now, wait, patience = self._runtime.now(), MAX_WAIT, self._link.timeout
        if deadline is not None:
            patience = min(patience, max(LEAST_PATIENCE, deadline - now))
        self._acks.send(handle, generation, patience)
        if deadline is not None:
            wait = min(wait, max(0, int((deadline - now) * 1000)))
        self._most = self._next_most()
        slot = PollSlot(self._runtime.signal(), now, now + wait / 1000)
        request = messages.Poll(handle, self._most, self.choice.max_bytes, wait)
        try:
            self._link.post(request, messages.Polled, slot, generation, patience)
        except (ConnectionLost, RequestTimeout):
            return None
        except BaseException:  # a signal's: if it was sent, its events are under way to nobody, so begin anew
            self._stale = True
            raise
        self._poll = slot
        return slot

    @property
    def _polls_ahead(self) -> bool:
        """Whether it leases its next events while the caller has the last ones. If the caller becomes slow now,
        they expire once, unseen. With key order they would have to wait for the acks of the last ones."""
        choice = self.choice
        return self._took < QUICK and choice.order == "none" and choice.max_deliveries > 2

    def _next_most(self) -> int:
        """How many records the next poll asks for."""
        choice, most, took = self.choice, self._most, self._took
        if took < QUICK:
            return min(2 * most, max(QUICKLY_LEASED, most) if choice.max_records is None else choice.records)
        if took < choice.lease_ms / 2000 and most < choice.records:
            return min(2 * most, choice.records)
        return most if took < SLOW else min(most, choice.records)

    def _take(self, polled: messages.Polled, poll: PollSlot) -> None:
        leases: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        for topic, partition, first, last, deliveries in polled.leases or ():
            leases.setdefault(TopicPartition(topic, partition), []).append((first, last, deliveries))
        taken: list[EventBatch] = []
        for topic, partition, first, _, records in polled.parts:
            mine = leases.get(TopicPartition(topic, partition), [])
            batches, _, _ = events.read(topic, partition, records, first, None)
            for batch in batches:
                taken += events.leased(batch, mine)
        with self._runtime.lock:
            if self._poll is not poll:
                return  # the thread that sends acks has registered the member anew
            if polled.leases:
                until = poll.sent + (polled.waited + self.choice.lease_ms) / 1000  # a late answer's may have ended
                self.received.until = until if self._link.lives(self._generation) else 0.0
                self._polls += 1
            self._began = self._runtime.now()
            self._leased = sum(map(len, taken))
            self.received.batches.extend(taken)

    # --- what was handed out ------------------------------------------------------------------------------------

    async def ack(self, acknowledged: Acknowledged) -> None:
        """Acknowledges events, and waits until these and all noted before are durable. Raises as `settle`, `note`."""
        await self.settle(messages.Ack, acknowledged)
        await self._acks.finish(self._runtime.now() + self._link.timeout)
        self._acks.check()

    async def nack(self, refused: Acknowledged, delay_ms: int) -> None:
        """Gives events back. With key order, later events of their keys go back too, so those that were received but
        not handed out are dropped. Raises as `settle`."""
        if not isinstance(refused, Event | EventBatch):
            refused = list(refused)
        if self.choice.order == "key":
            self.received.drop_keys(events.keyed(refused))
        await self.settle(messages.Nack, refused, delay_ms=delay_ms)

    async def settle(self, kind: type[Any], acknowledged: Acknowledged, **fields: Any) -> None:
        """Sends an Ack, Nack or Extend (`kind`). Raises LeaseLost when another member has some of the events by now.

        After a lost connection, or to the group's next coordinator, it is sent again under the member's new name: the
        broker accepts a late ack for events that no other member got in the meantime, and answers LEASE_LOST for the
        others.
        """
        some = runs(acknowledged)
        if not some:
            return
        ranges = [run for run, _ in some]
        answer = {messages.Ack: messages.Acked, messages.Nack: messages.Nacked}.get(kind, messages.Extended)
        deadline = self._runtime.now() + self._link.timeout
        while True:
            generation = await self._registered(deadline)
            left = max(0.0, deadline - self._runtime.now())
            try:
                if kind is messages.Ack:
                    request = ack_of(self._handle, some, self._acks.names_epochs)
                else:
                    request = kind(self._handle, ranges, **fields)
                await self._link.ask(request, answer, generation=generation, timeout=left)
                return
            except ConnectionLost:
                if self._link.closed or self._runtime.now() >= deadline:
                    raise
            except NotCoordinator:
                if self._runtime.now() >= deadline:
                    raise
                self._outdated()
