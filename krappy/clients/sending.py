"""A producer's sender: a background task that sends the accumulator's batches, each to the leader of its partition.

While the cluster has one broker, or the broker does not tell how many there are, there is one registration, and all
batches go that way. Of several brokers, each that leads one of the partitions has a registration. All are under one
producer id. A second task finds these ways (`LeaderRoutes`), so that a leader that can't be reached holds up no other.
A batch that was not acknowledged when its partition moved is sent to the new leader as it was, with its sequence
number: if the old one had stored it, the new one has it too, and answers with its offset.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import Any

from krappy.clients.accumulator import Accumulator, Limits
from krappy.clients.backoff import Backoff
from krappy.clients.conversation import Reply
from krappy.clients.lane import LaneBatch, too_large
from krappy.clients.link import Link
from krappy.clients.router import SURPRISES, Router
from krappy.clients.routes import LeaderRoutes, Route
from krappy.clients.runtime import ClientSignal
from krappy.errors import (
    ConnectionLost,
    FrameTooLarge,
    KrappyError,
    NotLeader,
    RecordTooLarge,
    RequestTimeout,
    TopicExists,
    UnknownTopic,
)
from krappy.wire import messages

Registered = messages.ProducerRegistered | messages.Staged
LOOKING = 0.05  # seconds between two looks for partitions that were added, when the first could not be made
NEW_TOPIC = 0.05  # seconds after which a broker is asked again for a topic that it does not know yet
FINDING = 5.0  # seconds that a broker has to take a registration, while other brokers take batches
SLOWER = 4  # a broker that takes long gets so many times as long, at most
REFRESH = 60.0  # seconds after which a producer registers anew, to learn of new partitions


class Sending:
    """Sends to one topic, once `open` has registered it. `trouble`: the last error of the broker or the connection,
    while records are not stored because of it."""

    _leads_anywhere = True  # batches go to the leaders of their partitions

    def __init__(self, router: Router, topic: str, limits: Limits, name: str | None = None) -> None:
        self.topic = topic
        self._router = router
        self._link = router.home
        self._runtime = router.runtime
        self._lock = router.runtime.lock
        self._name = name
        self._accumulator = Accumulator(limits)
        self._main = Route(router.home)  # the last registration at any broker
        self._routes: LeaderRoutes | None = None  # the ways to the leaders; None: all batches go the way of `_main`
        self._finding = False  # a task looks for ways
        self._patience = FINDING  # twice as long after each registration that was not answered in time
        self._refresh = 0.0  # when to register anew
        self._counting: ClientSignal | None = None  # set when registered anew, which is to be although nothing is sent
        self._topic_id = ""  # of the topic that is registered; "": not known
        self._deleted = False  # whether that topic was deleted
        self._told: KrappyError | None = None  # why a broker did not register it
        self._wake = self._runtime.signal()
        self._line: OrderedDict[object, ClientSignal] = OrderedDict()  # callers that wait for room in the buffer
        self._closing = False
        self.trouble = ""  # the last error of the broker or the connection, while records are not stored because of it

    async def open(self) -> None:
        """Registers, and starts the sender. Raises the broker's error, or ConnectionLost."""
        deadline = self._runtime.now() + self._link.timeout
        while not await self._register(deadline):
            if self._runtime.now() >= deadline:
                lost = ConnectionLost(self._link.trouble, address=str(self._link.address))
                raise lost if self._told is None else self._told.copy()
        with self._lock:
            if self._router.known.several and self._leads_anywhere:
                self._routes = LeaderRoutes(self._router, self.topic, {})
            self._link.told_of_closing.add(self._awake)
        self._runtime.spawn(self._run, f"krappy producer to {self.topic}")

    def _awake(self) -> None:
        """Wakes the sender: when no batch is in flight, nothing else tells it that the link was closed."""
        self._wake.set()

    def close(self) -> None:
        """Ends the sender and the registration. Records that are not settled fail with ConnectionLost."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._link.told_of_closing.discard(self._awake)
            self._accumulator.close()
            self._wake.set()
            for turn in self._line.values():
                turn.set()
            self._counted()
        self._tell()
        for route in {self._main, *(() if self._routes is None else self._routes.all())}:
            self._unregister(route)

    def _unregister(self, route: Route) -> None:
        if route.handle is not None:
            route.link.tell(messages.Unregister(route.handle), messages.Unregistered, route.generation)

    def _let_in(self) -> None:
        """Wakes the first caller in `_line` if there is room; that one wakes the next. If all were woken each time,
        thousands of callers would spend their time finding the buffer full again."""
        if self._line and not self._accumulator.full:
            next(iter(self._line.values())).set()

    async def _run(self) -> None:
        try:
            while True:
                with self._lock:
                    if self._closing:  # under the lock: `close` sets only the signal that is in `_wake` then
                        return
                    self._wake = wake = self._runtime.signal()
                now = self._runtime.now()
                self._expire()
                if self._link.closed:
                    return
                if (self._counting is not None or not self._accumulator.empty) and (
                    self._finds_ways() or await self._registered(now)
                ):
                    await self._send()
                with self._lock:
                    due = self._accumulator.next_due(None if self._routes is None else self._routes.ready)
                    if self._counting is not None and due is None:
                        due = now + LOOKING
                await wake.wait(None if due is None else max(0.0, due - self._runtime.now()))
        finally:
            self.close()

    async def _registered(self, now: float) -> bool:
        """Registers if necessary. Returns whether batches may be sent. Fails all records when the broker refuses."""
        with self._lock:
            if self._main.lives and now < self._refresh and not self._accumulator.renew:
                return True
            expiry = self._accumulator.next_expiry()
        try:
            return await self._register(now + self._link.timeout if expiry is None else max(expiry, now + 0.05))
        except ConnectionLost as error:
            failure: KrappyError = error
            if not self._link.closed:
                return False
        except KrappyError as error:
            failure = error
        self._fail_all(failure)
        return False

    def _fail_all(self, failure: KrappyError) -> None:
        with self._lock:
            self._accumulator.fail_all(failure)
            self._counted()
        self._tell()

    async def _register(self, deadline: float) -> bool:
        """Registers at any broker. False to try again: the connection was lost, the time was over, or the error is
        retriable.

        Raises the broker's other errors, and ConnectionLost when the link is closed."""
        link = self._link if self._routes is None else self._router.any_now()
        with self._lock:
            id, epoch = self._accumulator.producer
        try:
            generation = await link.ready(deadline)
            answer = await self._ask(id, epoch, link, generation, max(0.0, deadline - self._runtime.now()))
        except ConnectionLost:
            if self._link.closed:
                raise
            self._told = None
            return False
        except TopicExists as error:  # another broker has created it, and this one does not have it yet
            self.trouble = error.text
            await self._runtime.sleep(NEW_TOPIC)
            return False
        except KrappyError as error:
            if isinstance(error, RequestTimeout):
                self._be_patient()
            else:
                self._told = error
            if error.retriable:
                self.trouble = error.text
                return False
            raise
        with self._lock:
            self._patience = FINDING
            old, self._main = self._main, Route(link, generation, answer.handle)
            self._refresh = self._runtime.now() + REFRESH
            if old.lives and (self._routes is None or old not in self._routes.all()):
                self._unregister(old)
            if self._closing:  # in the meantime: `close` ended only the old registration
                self._unregister(self._main)
            count, deleted, self._deleted = self._accumulator.partitions, self._deleted, False
            self._accumulator.registered(
                answer.partitions, answer.producer_id, answer.producer_epoch, answer.max_message_bytes
            )
            self._counted()
            if deleted and answer.partitions != count:  # what waits was given a partition of the earlier topic's
                text = f"the topic '{self.topic}' was deleted, and made anew with {answer.partitions} partitions"
                self._accumulator.fail_all(UnknownTopic(f"{text}, where it had {count}: send this again"))
        self._tell()
        if self._router.known.several and self._leads_anywhere:  # what is known may be of a deleted topic of that name
            with suppress(ConnectionLost, RequestTimeout):
                await self._router.learning.refresh([self.topic], deadline)
                known = self._router.known.topics.get(self.topic)
                self._topic_id = "" if known is None else known.id
        return True

    def recount(self) -> ClientSignal:
        """Soon learns of partitions that were added, and does not wait for the next time that it would look. The signal
        is set after that, or when it is in vain."""
        with self._lock:
            self._refresh = 0.0
            self._counting = counting = self._counting or self._runtime.signal()
            self._wake.set()
            if self._closing or self._link.closed:
                self._counted()
        return counting

    def _counted(self) -> None:
        if self._counting is not None:
            self._counting.set()
            self._counting = None

    def _be_patient(self) -> None:
        """Gives the next registrations more time. An answer that comes too late is lost: else a busy broker would be
        asked in vain for ever."""
        self._patience = min(SLOWER * FINDING, 2 * self._patience)

    async def _ask(self, id: int, epoch: int, link: Link, generation: int, seconds: float) -> Registered:
        """Registers on the connection of `generation`, as the producer (id, epoch); (-1, -1): as a new one."""
        request = messages.ProducerRegistration(
            self.topic, self._name, idempotent=True, producer_id=id, producer_epoch=epoch
        )

        def abandoned(answer: messages.ProducerRegistered) -> None:
            self._unregister(Route(link, generation, answer.handle))

        return await link.ask(
            request, messages.ProducerRegistered, generation=generation, timeout=seconds, abandoned=abandoned
        )

    async def _send(self) -> None:
        while True:
            with self._lock:
                routes = self._routes
                if routes is None:
                    if self._main.handle is None:
                        return  # the connection was lost: batches wait for the next one
                    main = self._main
                    taken = [(batch, main, main.handle) for batch in self._accumulator.take(self._runtime.now())]
                else:
                    batches = self._accumulator.take(self._runtime.now(), routes.ready)
                    taken = [(batch, route := routes.of(batch.partition), route.handle) for batch in batches]
            if not taken:
                return
            lost: set[Route] = set()
            for batch, route, handle in taken:
                if handle is None or route in lost:
                    continue
                expect = None if batch.expects is None else list(enumerate(batch.expects.values()))
                request = messages.Batch(handle, batch.partition, self._accumulator.encode(batch), expect)
                reply = partial(self._answered, batch, route)
                try:
                    while not batch.settled and not self._posted(request, reply, route):
                        self._expire()
                    while not await route.link.drained(self._seconds_left()):
                        self._expire()
                except ConnectionLost as error:
                    self._lost(route, error)
                    if routes is None:
                        return
                    lost.add(route)
                except FrameTooLarge as error:
                    with self._lock:
                        refusal = too_large(error, self.topic, batch)
                        self._accumulator.refused(batch, refusal, self._runtime.now())
                    self._tell()
            await self._runtime.checkpoint()

    def _posted(self, request: messages.Batch, reply: Reply, route: Route) -> bool:
        """Whether the socket had room for it before the next batch has waited too long."""
        try:
            route.link.post(request, messages.BatchStored, reply, route.generation, self._seconds_left())
        except RequestTimeout:
            return False
        return True

    def _seconds_left(self) -> float | None:
        """Until the next batch will have waited too long; None: there is no batch."""
        with self._lock:
            expiry = self._accumulator.next_expiry()
        return None if expiry is None else max(0.0, expiry - self._runtime.now())

    def _expire(self) -> None:
        with self._lock:
            self._accumulator.expire(self._runtime.now(), self._link.broken or self.trouble)
        self._tell()

    def _answered(self, batch: LaneBatch, route: Route, result: Any) -> None:
        """The reply to a batch. It runs in the task or thread that reads the link."""
        if isinstance(result, ConnectionLost):
            self._lost(route, result)
            return
        with self._lock:
            if isinstance(result, messages.BatchStored):
                self.trouble = ""
                self._accumulator.stored(batch, result.offset, result.timestamp)
            else:
                if result.name in ("UNKNOWN_TOPIC", "UNKNOWN_HANDLE", "NOT_COORDINATOR"):
                    # The topic was deleted; the next send registers anew, which may create it. Or another broker
                    # coordinates the staged job.
                    if result.name == "UNKNOWN_TOPIC":
                        self._deleted = True
                        if self._routes is not None and route.handle is not None:  # else others may be the new topic's
                            self._routes.end()
                    route.handle, self._refresh = None, 0.0
                elif isinstance(result, NotLeader):
                    self._left(batch.partition, result)
                elif self._router.may_hear(self.topic, result):  # it learns later than others that it leads a partition
                    result = NotLeader(result.text)
                    self._left(batch.partition, result)
                if isinstance(result, RecordTooLarge):
                    result = too_large(result, self.topic, batch)
                self.trouble = result.text
                self._accumulator.refused(batch, result, self._runtime.now())
            if self._routes is not None or self._accumulator.next_due() is not None:
                self._wake.set()
        self._tell()

    def _lost(self, route: Route, error: KrappyError) -> None:
        with self._lock:
            self._wake.set()
            if route is self._main:
                self._main.handle = None
                if self._routes is None:
                    self.trouble = error.text
                    self._accumulator.lost()
            if self._routes is not None and (partitions := self._routes.by(route)):
                self.trouble = error.text
                route.handle = None
                self._accumulator.lost(partitions)
        self._tell()

    def _tell(self) -> None:
        """Tells the tickets of settled batches. Outside the lock, because callbacks may do anything."""
        with self._lock:
            settled = self._accumulator.collect()
            self._let_in()
        if self._leads_anywhere:
            self._router.session.wrote(self.topic, settled)
        for each in settled:
            each.tell()

    # --- the leaders of a cluster -------------------------------------------------------------------------------

    def _left(self, partition: int, error: KrappyError) -> None:
        """Another broker leads the partition: the batches that were refused go to that one."""
        self._router.note(error)
        if self._router.known.several and self._leads_anywhere:
            if self._routes is None:
                self._routes = LeaderRoutes(
                    self._router, self.topic, dict.fromkeys(range(self._accumulator.partitions), self._main)
                )
            self._routes.refused(partition, error)

    def _finds_ways(self) -> bool:
        """Whether batches go to the leaders of their partitions. Then a task finds a way for those that have none."""
        with self._lock:
            if self._routes is None:
                return False
            if not self._finding and self._lacking() is not None:
                self._finding = True
                self._runtime.spawn(self._find, f"krappy routes to {self.topic}")
            return True

    def _lacking(self) -> list[int] | None:
        """The partitions that need a way; an empty list if only a registration is needed; None if nothing is."""
        assert self._routes is not None
        found = [each for each in self._accumulator.waiting() if not self._routes.ready(each)]
        return found if found or self._accumulator.renew or self._runtime.now() >= self._refresh else None

    async def _find(self) -> None:
        backoff = Backoff()
        surprises = looks = 0
        try:
            while not (self._closing or self._link.closed):
                with self._lock:
                    lacking = self._lacking()
                    if lacking is None:
                        return
                    gone = looks > 0 and self.topic not in self._router.known.topics  # registering may create it anew
                    anew = gone or self._accumulator.renew or self._runtime.now() >= self._refresh
                deadline = self._runtime.now() + self._patience
                try:
                    if anew and not await self._register(deadline):
                        await self._runtime.sleep(backoff.pause())
                    assert self._routes is not None
                    missing = await self._routes.find(lacking, self._register_at)
                    self._wake.set()
                    if missing is None:
                        continue
                    self.trouble = missing.text
                    looks += 1
                    await self._router.look_again(self.topic, missing, backoff, deadline)
                    self._is_anew()
                except KrappyError as error:
                    self.trouble = error.text
                    if not error.retriable:
                        with suppress(KrappyError):  # the broker may be too busy to tell
                            await self._router.learning.refresh([self.topic], deadline)
                        surprises += not self._router.may_hear(self.topic, error)
                        if surprises > SURPRISES:
                            self._fail_all(error)
                            return
                    await self._runtime.sleep(backoff.pause())
        finally:
            with self._lock:
                self._finding = False
                self._wake.set()

    def _is_anew(self) -> bool:
        """Whether the topic that is known is another one than that which was registered. Then it is registered anew."""
        known = self._router.known.topics.get(self.topic)
        if known is None or self._topic_id in ("", known.id):
            return False
        with self._lock:
            self._deleted, self._refresh = True, 0.0
        return True

    async def _register_at(self, link: Link) -> Route | None:
        """Registers at one broker, under this producer's id. None: the connection was lost meanwhile."""
        with self._lock:
            id, epoch = self._accumulator.producer
            generation = link.generation
        if id < 0:
            return None  # a new id is asked for first
        try:
            answer = await self._ask(id, epoch, link, generation, self._patience)
        except RequestTimeout:
            self._be_patient()
            return None
        except ConnectionLost:
            return None
        route = Route(link, generation, answer.handle)
        if answer.partitions != self._accumulator.partitions:  # some were added, or it is another topic
            with suppress(ConnectionLost, RequestTimeout):
                await self._router.learning.refresh([self.topic], self._runtime.now() + self._patience)
            if self._is_anew():
                self._unregister(route)
                return None
        if self._closing:  # in the meantime: `close` did not know of it
            self._unregister(route)
        return route
