"""What a member of a group can do: poll, ack, nack, extend, leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import trio

from krappy.broker.groups.group_poll import GroupPoll
from krappy.broker.groups.shared import LOOK_S
from krappy.core.security.quota import Payer
from krappy.errors import InvalidRequest, LeaseLost, UnknownTopic
from krappy.ports import EpochRange, GroupPolled, Range, Ranges, RegistrationFacts
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.groups.group import Group
    from krappy.broker.groups.shared import DeadLetterRules, SharedPartition

MAX_BYTES = 16 << 20  # bytes of one answer; a single larger batch is still sent whole
AT_ONCE = 2000  # ranges that are settled in one turn
OVERLAPS = 8  # leader epochs under which one request may name the same offset

Leased = tuple[str, int, int, int, int]  # topic, partition, first and last offset, how often it was delivered


class Member:
    """A member: one registration of a connection. It is closed with the connection; its leases then go to others."""

    def __init__(
        self, group: Group, name: str, client: str, topics: tuple[str, ...], lease_ms: int, rules: DeadLetterRules
    ) -> None:
        self.group = group
        self.name = name
        self.client = client
        self.named = topics
        self.topics = topics  # without those deleted since: one that is made anew is another topic
        self.anew: str | None = None  # a deleted topic whose name exists again
        self.lease_ms = lease_ms
        self.rules = rules  # the rules that it wants for its topics
        self.closed = False
        self.bytes = 0  # bytes of the batches that it was given
        self._settling = 0  # requests that are settled in parts; meanwhile it does not leave
        self._polls = 0  # polls that gave it events
        self._latest: Sequence[Leased] = ()  # what the last of them gave

    def describe(self) -> RegistrationFacts:
        return {
            "kind": "member",
            "name": self.name,
            "group": self.group.name,
            "topics": list(self.named),
            "bytes": self.bytes,
        }

    def pay(self, payer: Payer) -> None:
        """What is made for the group from now on counts in the quotas of this payer."""
        self.group.payer = payer

    def check(self) -> None:
        """Raises NotCoordinator when another broker coordinates the group now."""
        if self.group.ended is not None:
            raise self.group.ended

    def poll_now(self, max_records: int, max_bytes: int) -> GroupPolled | None:
        """Leases what can be read at once. None when it must wait for the disk. Raises UnknownTopic, CorruptBatch, …"""
        began = self.group.keeper.now_ms()
        poll = self._begin(max_records, max_bytes)
        if poll.gather() is not None:
            return None
        return self._answer(poll, began)

    async def poll(
        self,
        max_records: int,
        max_bytes: int,
        max_wait_ms: int = 0,
        again: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> GroupPolled:
        """Leases the next events. Waits up to `max_wait_ms` for some, and awaits `again()` before it looks once more.
        Raises UnknownTopic, StorageError."""
        group = self.group
        began = group.keeper.now_ms()
        deadline = trio.current_time() + max_wait_ms / 1000
        while not self.closed:
            poll = self._begin(max_records, max_bytes)
            cold = poll.gather()
            if cold is not None:
                await poll.gather_from(cold, lambda: self.closed)
            polled = self._answer(poll, began)
            left = deadline - trio.current_time()
            if polled.leases or group.keeper.stopped or left <= 0:
                return polled
            if cold is None:
                await group.wait(self, left if group.is_sure else min(left, LOOK_S))
                await again()
        self.check()
        return GroupPolled([], [])

    def _begin(self, max_records: int, max_bytes: int) -> GroupPoll:
        group = self.group
        by_key = group.settings.order == "key"
        room = max(1, min(max_bytes, MAX_BYTES))
        among = group.in_turn(self.topics)
        if self.anew is not None:
            raise UnknownTopic(f"the topic '{self.anew}' was deleted, and made anew", topic=self.anew)
        if not among:
            raise UnknownTopic(f"there is no topic {', '.join(map(repr, self.named))} any more")
        return GroupPoll(group.keeper, self.name, self.lease_ms, among, by_key, max_records, room)

    def _answer(self, poll: GroupPoll, began: int) -> GroupPolled:
        polled = poll.answer(began)
        if polled.leases:
            self.bytes += sum(len(part[4]) for part in polled.parts)
            self._polls += 1
            self._latest = polled.leases
            self.group.stir()  # there may be more events, for the next in line
        return polled

    def ack(self, ranges: Ranges) -> Later[None]:
        """Settles events. The Later is set once that is durable.

        It may not hold some of the events: another member has them now, nobody had them, or other events have their
        offsets. A LeaseLost names these (`details["lost"]`); the rest is settled all the same. Raises InvalidRequest.
        """
        lost: list[Range] = []
        asked: dict[SharedPartition, int] = {}  # how many events were unsettled
        for shared, (topic, partition, first, last, epoch) in self._ranges(ranges, lost):
            asked.setdefault(shared, shared.leases.unsettled)
            lost += [(topic, partition, *span) for span in shared.leases.ack(self.name, first, last, epoch)]
        for shared, before in asked.items():
            if shared.leases.unsettled != before:
                shared.changed()
                self.group.stir(shared)
        later = self.group.writer.durable(self.group, asked)
        if not lost:
            return later
        answer: Later[None] = Later()
        later.then(lambda _, error: answer.reject(error or _lost(self, lost)))
        return answer

    def nack(self, ranges: Ranges, delay_ms: int = 0) -> None:
        """Gives events back, to be leased again after `delay_ms`. Raises LeaseLost as `ack` does, InvalidRequest."""
        now = self.group.keeper.now_ms()
        lost: list[Range] = []
        touched: dict[SharedPartition, None] = {}
        for shared, (topic, partition, first, last, _) in self._ranges(ranges, lost):
            spans = shared.leases.nack(now, self.name, first, last, delay_ms)
            lost += [(topic, partition, *span) for span in spans]
            touched[shared] = None
        for shared in touched:
            shared.changed()
            self.group.stir(shared)
        if lost:
            raise _lost(self, lost)

    def extend(self, ranges: Ranges, lease_ms: int) -> None:
        """Extends leases, to end `lease_ms` from now. Raises LeaseLost as `ack` does, InvalidRequest."""
        now = self.group.keeper.now_ms()
        lost: list[Range] = []
        touched: dict[SharedPartition, None] = {}
        for shared, (topic, partition, first, last, _) in self._ranges(ranges, lost):
            spans = shared.leases.extend(now, self.name, first, last, lease_ms)
            lost += [(topic, partition, *span) for span in spans]
            touched[shared] = None
        for shared in touched:
            shared.attend()
        if lost:
            raise _lost(self, lost)

    def uncount(self, unseen: Ranges, polls: int | None) -> None:
        """Does not count the deliveries of events that it holds but has not seen.

        `polls`: as in `unseen`.
        """
        for shared, (_, _, first, last, _) in self._ranges(self.unseen(unseen, polls), []):
            shared.leases.uncount(self.name, first, last)

    def unseen(self, told: Ranges, polls: int | None) -> list[Range]:
        """The events that its client has not seen: those that the client names (`told`), and those of the last answer,
        if the client did not get it. `polls`: how many answers with events the client has got; the broker may have sent
        one more."""
        ranges = [(each[0], each[1], each[2], each[3]) for each in told]  # rows come as lists
        if polls is not None and polls < self._polls:
            ranges += [leased[:4] for leased in self._latest]
        return ranges

    async def in_parts(
        self,
        ranges: Ranges,
        settle: Callable[[Ranges], Later[None] | None],
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        """Calls `settle`, which is one of the methods above, with a part of the ranges at a time, and `pause` after
        each. Returns when all of it is durable.

        All is settled, even if the client leaves meanwhile: its other leases go to others only after that. Raises
        InvalidRequest before it has done anything; LeaseLost, which names all that was lost.
        """
        apart, lost = _apart(ranges), list[Range]()
        laters: list[Later[None]] = []
        self._settling += 1
        try:
            with trio.CancelScope(shield=True):
                for start in range(0, len(apart), AT_ONCE):
                    try:
                        later = settle(apart[start : start + AT_ONCE])
                    except LeaseLost as error:
                        lost += error.details["lost"]
                    else:
                        laters += [] if later is None else [later]
                    await pause()
        finally:
            self._settling -= 1
            if self.closed and not self._settling:
                self.group.leave(self)
        for each in laters:
            try:
                await each.wait()
            except LeaseLost as error:
                lost += error.details["lost"]
        if lost:
            raise _lost(self, lost)

    def _ranges(self, ranges: Ranges, lost: list[Range]) -> list[tuple[SharedPartition, EpochRange]]:
        found = []
        for each in _apart(ranges):
            shared = self.group.shared.get((each[0], each[1]))
            if shared is None or each[0] not in self.topics:
                lost.append(each[:4])
            else:
                found.append((shared, each))
        return found

    def forfeit(self) -> None:
        """It has lost its rights: what it wants to become of dead events does not count any more."""
        self.group.forfeit(self)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if not self._settling:
                self.group.leave(self)


def _apart(ranges: Ranges) -> Sequence[EpochRange]:
    """The same events in ranges that do not overlap, in order: an event that is named a thousand times is settled once.
    Raises InvalidRequest."""
    named: list[EpochRange] = [(*each[:4], each[4] if len(each) > 4 else -1) for each in ranges]
    for topic, partition, first, last, _ in named:
        if last < first:
            raise InvalidRequest(f"offsets {first} to {last} of {topic}-{partition}: the last before the first")
    if len(named) < 2:
        return named
    apart: list[EpochRange] = []
    for topic, partition, first, last, epoch in sorted(named, key=_in_order):
        before = apart[-1] if apart else None
        if before is not None and (*before[:2], before[4]) == (topic, partition, epoch) and first <= before[3]:
            _, _, first, end, _ = apart.pop()
            last = max(last, end)
        apart.append((topic, partition, first, last, epoch))
    _check_overlaps(apart)
    return apart


def _check_overlaps(ranges: Sequence[EpochRange]) -> None:
    """Raises InvalidRequest. Each range is looked for in all of the leases, so thousands that name all of them would
    hold up everybody. A client names an offset again for each election that its last few acknowledgements span."""
    at, ends = ("", -1), list[int]()
    for topic, partition, first, last, _ in sorted(ranges):
        if at != (topic, partition):
            at, ends = (topic, partition), []
        ends = [end for end in ends if end >= first]
        ends.append(last)
        if len(ends) > OVERLAPS:
            raise InvalidRequest(
                f"offset {first} of {topic}-{partition} in more than {OVERLAPS} epochs", field="epochs"
            )


def _in_order(each: EpochRange) -> tuple[str, int, int, int]:
    topic, partition, first, _, epoch = each
    return topic, partition, epoch, first


def _lost(member: Member, lost: list[Range]) -> LeaseLost:
    topic, partition, first, last = lost[0]
    what = f"offset {first}" if first == last else f"offsets {first} to {last}"
    more = f", and {len(lost) - 1} more ranges" if len(lost) > 1 else ""
    return LeaseLost(
        f"{what} of {topic}-{partition}{more}: not with {member.name} any more; the rest of the request is done",
        lost=[list(each) for each in lost],
    )
