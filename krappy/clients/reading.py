"""A reader without a group: it keeps its own position in each partition.

It registers at the leader of each partition that it reads, and sends the next poll there as soon as one is answered,
while its caller works. Where the connection is lost, or another broker leads now, the registration has ended: then its
partitions are without a place (`_unplaced`), until they are registered at their leaders again, from where they were. So
the caller sees every event once. Partitions that have a place go on meanwhile.

Partitions that are added to a topic are read from their beginning: all their events are new, whatever `start` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from krappy.clients import admin, events
from krappy.clients.backoff import Backoff
from krappy.clients.choice import Choice
from krappy.clients.consuming import LEAST_PATIENCE, MAX_WAIT, Consuming
from krappy.clients.link import Link
from krappy.clients.refusals import pause_before
from krappy.clients.replies import ReplySlot
from krappy.clients.router import Router
from krappy.clients.runtime import ClientSignal
from krappy.clients.values import StartAt, start
from krappy.errors import ConnectionLost, KrappyError, NotLeader, RequestTimeout, UnknownPartition, UnknownTopic
from krappy.types import TopicPartition
from krappy.wire import messages

REFRESH = 60.0  # seconds between two checks for new partitions
LOOKING = 0.2  # seconds between two looks for the leaders of some partitions, while others are read


class NewsSlot(ReplySlot):
    """Also tells the reader that there is an answer to one of its polls."""

    __slots__ = ("_told",)

    def __init__(self, signal: ClientSignal, told: Reading) -> None:
        super().__init__(signal)
        self._told = told

    def __call__(self, result: Any) -> None:
        super().__call__(result)
        self._told.news.set()


class Place:
    """A registration at one broker, for some partitions. `poll`: the one that is under way."""

    __slots__ = ("generation", "handle", "link", "partitions", "poll")

    def __init__(self, link: Link, generation: int, handle: int, partitions: set[TopicPartition]) -> None:
        self.link = link
        self.generation = generation
        self.handle = handle
        self.partitions = partitions
        self.poll: ReplySlot | None = None

    @property
    def lives(self) -> bool:
        return self.link.lives(self.generation)

    def end(self) -> None:
        self.link.tell(messages.Unregister(self.handle), messages.Unregistered, self.generation)


class Reading(Consuming):
    def __init__(self, router: Router, choice: Choice) -> None:
        super().__init__(router, choice)
        self.ends: dict[TopicPartition, int] = {}  # the partitions' ends when it first registered
        self.news = self._runtime.signal()  # set by an answer to a poll
        self._fetched: dict[TopicPartition, int] = {}  # the offset that the next poll reads first
        self._epochs: dict[TopicPartition, int] = {}  # the leader epoch of what was read last before that
        self._places: list[Place] = []
        self._chosen = False  # whether it is known which partitions there are to read
        self._unplaced: set[TopicPartition] = set()
        self._opened = False
        self._until: dict[TopicPartition, int] | None = None
        self._refresh = 0.0  # when to look for new partitions
        self._placing: ClientSignal | None = None  # set when the caller who registers has done so
        self._missed = 0.0  # since when partitions have been without a place, while others were read
        self._backoff = Backoff()

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._placed(self._runtime.now() + self._router.timeout)
        self._opened = True
        self._refresh = self._runtime.now() + REFRESH
        self._send_polls()

    async def leave(self, kind: type[BaseException] | None) -> None:
        self.close()

    def close(self) -> None:
        with self._runtime.lock:
            if self._closed:
                return
            self._closed = True
            places, self._places = self._places, []
        for place in places:
            place.end()
            if place.poll is not None:
                place.poll(ConnectionLost("the consumer is closed"))
        self.news.set()

    # --- places -------------------------------------------------------------------------------------------------

    async def _placed(self, until: float, all: bool = True) -> None:
        """Registers the partitions that have no place. Without `all`, it is enough if some partition has one. Raises
        the reason why one has none at the time `until`, or when some have had none for the client's timeout. Raises
        ConnectionLost when closed."""
        backoff = Backoff()
        while True:
            with self._runtime.lock:
                if self._closed:
                    raise ConnectionLost("this consumer is closed")
                for lost in [place for place in self._places if not place.lives]:
                    self._drop(lost)
                if self._chosen and not self._unplaced:
                    self._missed = 0.0
                    return
                others = self._placing
                if others is None:
                    mine = self._placing = self._runtime.signal()
            if others is not None:
                await others.wait(max(0.0, until - self._runtime.now()))
                if self._runtime.now() >= until:
                    raise ConnectionLost(self._router.trouble)
                continue
            try:
                missing = await self._place(until)
            finally:
                self._placing = None
                mine.set()
            if missing is None:
                continue
            if not self._router.known.several:
                if self._router.closed or self._runtime.now() >= until:
                    raise missing
                self._router.note(missing)
            elif all or not self._places:
                await self._router.look_again(self.choice.topic_of(missing), missing, backoff, until)
            else:
                now = self._runtime.now()
                self._missed = self._missed or now
                end = self._missed + self._router.timeout
                await self._router.look_again(self.choice.topic_of(missing), missing, self._backoff, end)
                return

    def _drop(self, place: Place) -> None:
        """Removes a place: its partitions have none any more."""
        with self._runtime.lock:
            if place in self._places:
                self._places.remove(place)
                self._unplaced |= place.partitions

    async def _place(self, until: float) -> KrappyError | None:
        """Registers each partition without a place, at leaders that are connected. Returns the error if it was not
        possible for all; before others, the error of a leader that does not know a topic, which may be deleted. Raises
        any other error of a broker."""
        if not self._router.known.several:
            try:
                generation = await self._router.home.ready(until)
                return await self._register(self._router.home, generation, self.choice.topics, None)
            except NotLeader as error:
                return error
        if not self._chosen:
            self._unplaced = await self._all_partitions(until)
            self._chosen = True
        wanted: dict[tuple[Link, str], list[int]] = {}
        missing: KrappyError | None = None
        unknown: KrappyError | None = None
        for tp in sorted(self._unplaced):
            link = self._router.leader_now(tp.topic, tp.partition)
            if link is None:
                missing = self._router.unreachable(tp.topic, tp.partition)
            else:
                wanted.setdefault((link, tp.topic), []).append(tp.partition)
        for (link, topic), partitions in wanted.items():
            try:
                missing = await self._register(link, link.generation, [topic], partitions) or missing
            except NotLeader as error:
                missing = error
            except (UnknownTopic, UnknownPartition) as error:
                error.details.setdefault("topic", topic)
                unknown = error
        return unknown or missing

    async def _all_partitions(self, deadline: float) -> set[TopicPartition]:
        found = set()
        with suppress(ConnectionLost, RequestTimeout):
            await self._router.learning.refresh(self.choice.topics, deadline)  # what is known may lack added partitions
        for topic in self.choice.topics:
            count = len((await self._router.learning.topic(topic, deadline)).partitions)
            some = self.choice.partitions
            found |= {TopicPartition(topic, each) for each in (range(count) if some is None else some)}
        return found

    async def _register(
        self, link: Link, generation: int, topics: list[str], partitions: Sequence[int] | None
    ) -> KrappyError | None:
        """Registers at one broker: for these partitions, of one topic; None: for all that it is to read. Returns the
        error when the connection was lost."""
        choice = self.choice
        # Partitions that are read already have a position, which counts; those that were added since have none.
        name, at = ("earliest", None) if self._opened else start(choice.start)
        some = choice.partitions if partitions is None else partitions
        known = [
            (tp.topic, tp.partition, offset)
            for tp, offset in self._fetched.items()
            if partitions is None or (tp.topic in topics and tp.partition in partitions)
        ]
        epochs = [(topic, index, self._epochs.get(TopicPartition(topic, index), -1)) for topic, index, _ in known]
        request = messages.ConsumerRegistration(
            topics=topics,
            partitions=None if some is None else list(some),
            start=name,
            start_at=at,
            positions=known or None,
            epochs=[each for each in epochs if each[2] >= 0] or None,
            sure=choice.end == "now" and not self._opened,
        )

        def abandoned(answer: messages.ConsumerRegistered) -> None:
            link.tell(messages.Unregister(answer.handle), messages.Unregistered, generation)

        try:
            answer = await link.ask(request, messages.ConsumerRegistered, generation=generation, abandoned=abandoned)
        except ConnectionLost as error:
            if self._router.closed:
                raise
            return error
        ids = self._known_topics(answer, abandoned)
        with self._runtime.lock:
            if self._closed:  # in the meantime: `close` ended the registrations before this one
                abandoned(answer)
                raise ConnectionLost("this consumer is closed")
            self._topic_ids.update(ids)
            fetched = {TopicPartition(t, p): offset for t, p, offset in answer.positions}
            if not self._opened:
                self.ends |= {tp: end for t, p, end in answer.ends if (tp := TopicPartition(t, p)) not in self._fetched}
            self._fetched |= fetched
            if choice.end == "now":
                self._until = self.ends
            elif isinstance(choice.end, int):
                self._until = dict.fromkeys(self._fetched, choice.end)
            self._places.append(Place(link, generation, answer.handle, set(fetched)))
            self._unplaced -= fetched.keys()
            self._chosen = True
        return None

    # --- events out ---------------------------------------------------------------------------------------------

    async def _arrived(self, seconds: float | None) -> bool | None:
        deadline = None if seconds is None else self._runtime.now() + seconds
        while not self.received.any:
            if self._finished():
                return None
            if not await self._fetch(deadline):
                return False
        return True

    def _finished(self) -> bool:
        return self._until is not None and all(map(self._is_done, self._fetched))

    def _is_done(self, tp: TopicPartition) -> bool:
        return self._until is not None and self._fetched[tp] >= self._until.get(tp, 0)

    async def _fetch(self, deadline: float | None) -> bool:
        """Waits for the answer to a poll and takes its events, which may be none. Returns False at the deadline."""
        now = self._runtime.now()
        if deadline is not None and not self._router.closed:
            try:
                if not self._router.known.several:
                    await self._router.home.ready(max(deadline, now))
                elif not any(place.lives for place in self._places):
                    await self._placed(max(deadline, now), all=False)
            except KrappyError as error:
                if not self._router.known.several and self._router.home.refusal is not None:
                    raise self._router.home.refusal.copy() from None
                passing = isinstance(error, ConnectionLost | NotLeader)
                if passing or self._router.may_hear(self.choice.topic_of(error), error):
                    return False
                raise
        # A registration may take longer than the deadline: else short waits would begin it again and again.
        await self._placed(now + self._router.timeout, all=False)
        if self.received.any:
            return True  # another task has taken a poll meanwhile: its events come before the next poll's
        self._send_polls(deadline)
        with self._runtime.lock:
            if self.news.is_set():
                self.news = self._runtime.signal()
            news = self.news
        polls = [(place, place.poll) for place in self._places if place.poll is not None]
        answered = next(((place, poll) for place, poll in polls if poll.is_set()), None)
        if answered is None:
            if not polls:  # the connections were lost in the meantime, or have no room
                return deadline is None or self._runtime.now() < deadline
            left = None if deadline is None else max(0.0, deadline - self._runtime.now())
            if self._unplaced:
                await news.wait(LOOKING if left is None else min(left, LOOKING))
                return deadline is None or self._runtime.now() < deadline
            return await news.wait(left)
        place, poll = answered
        await self._take_answer(place, poll)
        return True

    async def _take_answer(self, place: Place, poll: ReplySlot) -> None:
        result = poll.result
        if isinstance(result, messages.Polled):
            self._take(result)  # before `poll` is cleared: after an interrupt the next call takes it again
            self._backoff.reset()
        with self._runtime.lock:
            if place.poll is poll:
                place.poll = None
            if len(self._places) > 1 and place in self._places:  # they take turns
                self._places.remove(place)
                self._places.append(place)
        if isinstance(result, messages.Polled):
            await self._look_for_partitions()
            self._send_polls()
            await self._runtime.checkpoint()
        elif isinstance(result, ConnectionLost) and not self._closed:
            self._drop(place)
        elif isinstance(result, NotLeader) and not self._closed:
            self._router.note(result)
            if self._router.known.several:
                place.end()
                self._drop(place)
            else:
                await self._runtime.sleep(self._backoff.pause())
        elif isinstance(result, KrappyError) and result.retriable and not self._closed:
            await self._runtime.sleep(pause_before(result, self._backoff))
        else:
            raise result

    async def _look_for_partitions(self) -> None:
        """Every REFRESH seconds, checks whether partitions were added."""
        now = self._runtime.now()
        if self.choice.partitions is not None or self._until is not None or now < self._refresh:
            return
        self._refresh = now + REFRESH
        with suppress(KrappyError):  # if it matters, a poll raises it too
            if self._router.known.several:
                deadline = now + self._router.timeout
                await self._router.learning.refresh(self.choice.topics, deadline)
                new = await self._all_partitions(deadline) - self._fetched.keys()
                with self._runtime.lock:
                    self._unplaced |= new
            else:
                found = await admin.topics(self._router, self.choice.topics)
                if sum(len(topic.partitions) for topic in found) > len(self._fetched):
                    for place in list(self._places):
                        place.end()
                        self._drop(place)

    def _send_polls(self, deadline: float | None = None) -> None:
        """Sends a poll to each place where none is under way."""
        if self._closed:
            return
        patience = self._router.timeout
        if deadline is not None:
            patience = min(patience, max(LEAST_PATIENCE, deadline - self._runtime.now()))
        for place in list(self._places):
            if place.poll is not None or (self._until is not None and all(map(self._is_done, place.partitions))):
                continue
            slot = NewsSlot(self._runtime.signal(), self)
            request = messages.Poll(place.handle, self.choice.records, self.choice.max_bytes, MAX_WAIT)
            try:
                place.link.post(request, messages.Polled, slot, place.generation, patience)
            except (ConnectionLost, RequestTimeout):
                continue
            except BaseException:  # a signal's: if it was sent, its events are under way to nobody, so begin anew
                place.end()
                self._drop(place)
                raise
            place.poll = slot

    def _take(self, polled: messages.Polled) -> None:
        for topic, partition, first, _, records in polled.parts:
            tp = TopicPartition(topic, partition)
            at = self._fetched.get(tp)
            if at is None or first > at:
                continue  # answers a poll from before a seek
            # The answer may begin below `at`; then `read` leaves out what was handed out already.
            end = None if self._until is None else self._until.get(tp)
            batches, self._fetched[tp], self._epochs[tp] = events.read(topic, partition, records, at, end)
            self.received.batches.extend(batches)

    # --- what was handed out ------------------------------------------------------------------------------------

    def positions(self) -> dict[TopicPartition, int]:
        return {**self._fetched, **self.received.firsts()}

    async def seek(self, topic: str, partition: int, to: StartAt) -> int:
        name, at = start(to)
        tp = TopicPartition(topic, partition)
        deadline = self._runtime.now() + self._router.timeout
        while True:
            await self._placed(deadline)
            place = next((each for each in self._places if tp in each.partitions), None)
            if place is None:
                raise UnknownTopic(f"this consumer does not read {tp}", topic=topic)
            try:
                sought = await self._sought(place, messages.Seek(place.handle, topic, partition, name, at), deadline)
                break
            except (ConnectionLost, NotLeader) as error:
                if self._router.closed or self._runtime.now() >= deadline:
                    raise
                self._router.note(error)
                place.end()
                self._drop(place)
        self._fetched[tp] = sought.offset
        self._epochs.pop(tp, None)
        self.received.drop(topic, partition)
        return sought.offset

    async def _sought(self, place: Place, request: messages.Seek, deadline: float) -> messages.Sought:
        def abandoned(_: messages.Sought) -> None:  # the broker has another position now: register anew, with our own
            place.end()
            self._drop(place)

        left = max(0.0, deadline - self._runtime.now())
        return await place.link.ask(
            request, messages.Sought, generation=place.generation, timeout=left, abandoned=abandoned
        )
