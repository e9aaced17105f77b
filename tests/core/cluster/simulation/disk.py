"""What a simulated broker's disk does to the log, beside losing what was not synced: it refuses syncs, damages events,
and loses events whose sync it had confirmed. And what the broker does about it (`krappy.core.cluster.healing`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from krappy.core.cluster.healing import Deed, LogTrouble, Step
from krappy.core.cluster.roles import Role
from krappy.core.cluster.tree import RefusedMulti
from tests.core.cluster.simulation.zookeeper import TOPIC

if TYPE_CHECKING:
    from tests.core.cluster.simulation.broker import Broker

ANEW_MS = 15_000  # ms at least between two times that a replica is made anew, or that a damaged one gives the lead away
WAIT_MS = 8_000  # ms for which a damaged replica stays in an ISR that would be too small without it
RETRY_MS = 3_000
FOUND = 0.05  # the share of ticks in which damage is found, as compaction or a lookup would find it


class SimulatedDisk:
    """`damaged`: offsets that can't be read. `spoiled`: the broker knows that its log is not whole. `refuses`: the disk
    takes no more events."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._world = broker, broker.world
        self.damaged: set[int] = set()
        self.spoiled = self.refuses = False
        self._led_until = self._anew = self._since = -1e18
        self._retry = 0.0
        self._asking = False
        self.barred = -1  # the broker leads in no epoch up to this one: it may have led in it with another log

    @property
    def is_whole(self) -> bool:
        return not (self.damaged or self.spoiled or self.refuses or self._broker.lost)

    @property
    def copies(self) -> bool:
        """Whether the broker may ask its leader for more."""
        if self.refuses:
            return False
        broker, rules = self._broker, self._world.rules
        in_sync = broker.id in broker.image.topics[TOPIC].partitions[0].state.isr
        return in_sync or not self.spoiled or not rules.copies_when_whole

    def emptied(self) -> None:
        self.damaged, self.spoiled, self.refuses = set(), False, False

    def cut(self, end: int) -> None:
        self.damaged = {each for each in self.damaged if each < end}

    def restarted(self) -> None:
        """The process was killed. The next process knows of a loss, but of damage only if that was noted."""
        self.refuses = self._asking = False
        self.barred = -1
        self.cut(len(self._broker.log))
        self.spoiled = self.spoiled and (not self.damaged or self._world.chance.random() < 0.7)

    def connected(self) -> None:
        self._asking = False

    def readable(self, offset: int, count: int) -> int:
        """How many of `count` events from `offset` on can be read. If that is none, the damage is found."""
        for at in range(offset, offset + count):
            if at in self.damaged:
                self.spoiled |= at == offset
                return at - offset
        return count

    # --- what goes wrong

    def damage(self, below: int) -> None:
        """Damages an event before this offset."""
        end = min(below, len(self._broker.log))
        if end:
            self._world.count("damages")
            self.damaged.add(self._world.chance.randrange(end))

    def fail(self) -> None:
        self._world.count("failed syncs")
        self.refuses = True
        self._retry = self._world.now + RETRY_MS

    def lose_some(self) -> None:
        """Events that were on the disk are gone: a start cuts the log before the first of them."""
        broker, chance = self._broker, self._world.chance
        broker.kill(power=True)
        if broker.log:
            self._world.count("losses")
            self._cut_short(chance.randrange(len(broker.log)))
            broker.some_lost = True

    def _cut_short(self, end: int) -> None:
        broker = self._broker
        del broker.log[end:]
        broker.on_disk = end
        broker.recover()
        self.cut(end)
        broker.lost = self.spoiled = True

    # --- what is done about it

    def look(self) -> None:
        world, broker = self._world, self._broker
        if self.damaged and world.chance.random() < FOUND:
            self.spoiled = True
        if self._asking or not (self.spoiled or self.refuses or broker.lost):
            self._since = world.now if not (self.spoiled or self.refuses or broker.lost) else self._since
            return
        topic = broker.image.topics[TOPIC]
        trouble = LogTrouble.LOST if broker.lost else LogTrouble.DAMAGED if self.spoiled else LogTrouble.REFUSES
        if broker.role is Role.LEADER and not self.refuses and world.now < self._led_until + ANEW_MS:
            return
        empties = world.now >= self._anew + ANEW_MS
        waits = world.now < self._since + WAIT_MS and not self.refuses
        step: Step | None = world.rules.next_step(
            broker.image, topic, 0, broker.id, trouble, empties=empties, waits=waits
        )
        if step is None:
            if self.refuses and trouble is not LogTrouble.LOST and world.now >= self._retry:
                self._retry = world.now + 2 * RETRY_MS
                if world.healing or world.chance.random() < 0.5:  # else the disk still refuses
                    self._try_again()
            return
        if not world.rules.empties_when_written and step.deed is Deed.BEGIN_ANEW:
            self._begin_anew(broker.starts)
        self._asking = True
        broker.link.ask(step.operations, lambda answer: self._done(answer, step, trouble))

    def _done(self, answer: Any, step: Step, trouble: LogTrouble) -> None:
        broker, world = self._broker, self._world
        self._asking = False
        if isinstance(answer, RefusedMulti):
            return
        world.count(str(step.deed))
        if trouble is LogTrouble.LOST:
            broker.lost = False
        if step.deed is Deed.HAND_OVER:
            self._led_until = world.now
        elif step.deed is Deed.BEGIN_ANEW:
            self._anew = world.now
            world.after(world.short(30, 3000), self._begin_anew, broker.starts)

    def _begin_anew(self, starts: int) -> None:
        """Sets the log's folder aside. A kill before that leaves all as it was."""
        broker = self._broker
        if not broker.is_up or broker.starts != starts or broker.role is Role.LEADER:
            return
        self._world.count("made anew")
        broker.log, broker.on_disk, broker.high_watermark = [], 0, 0
        broker.epochs = self._world.rules.epochs()
        broker.forget_fetch()
        self.emptied()

    def _try_again(self) -> None:
        broker = self._broker
        if broker.role is not Role.LEADER:
            return self._reopen()
        operations = self._world.rules.lead_anew(broker.image.topics[TOPIC], 0, broker.id)

        def done(answer: Any) -> None:
            self._asking = False
            if not isinstance(answer, RefusedMulti) and self.refuses:
                self._world.count("led anew")
                broker.rest()
                self._reopen()

        if operations:
            self._asking = True
            broker.link.ask(operations, done)
        return None

    def _reopen(self) -> None:
        """Opens the log anew. Events that were not synced may be lost; if no other replica is harmed, synced ones may
        be, too."""
        broker, world = self._broker, self._world
        if broker.role is Role.LEADER or not self.refuses:
            return
        world.count("opened anew")
        self.refuses = False
        self.barred = max(self.barred, broker.led)
        broker.forget_fetch()
        del broker.log[world.chance.randint(broker.on_disk, len(broker.log)) :]
        broker.on_disk = len(broker.log)
        broker.recover()
        self.cut(len(broker.log))
        if broker.log and world.chance.random() < 0.3 and world.may_harm(broker, itself=True):
            world.count("losses")
            world.harmed = broker.id
            self._cut_short(world.chance.randrange(len(broker.log)))
            if world.rules.excludes:
                broker.rest()
        broker.take_again()
