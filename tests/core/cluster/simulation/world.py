"""A simulated cluster: brokers with the real rules, a ZooKeeper that is the real tree, and a world that is unkind to
them. One seeded source of chance decides everything, so a seed gives the same history each time.

The real parts are `decide`, `Presence`, `ReadLease`, `ReplicaSet`, `role`, the steps of the registration, `Epochs`, the
tree and the image. The simulation has what a broker does between them (broker.py): it sends, waits, fetches and syncs.
There is one partition; its log is a list of (epoch, value).

What goes wrong: messages between brokers are late, lost and overtake each other. Brokers are cut from each other and
from ZooKeeper. Connections with ZooKeeper break with requests and answers under way. Sessions end early, just after a
write of theirs. Processes pause, and are killed. Machines lose what was not synced. Disks are replaced. Clocks are up
to 5 % too fast or slow. Disks refuse syncs, damage events, and lose some (disk.py). ZooKeeper is given older
data. What must hold is in `World.check`, `World.committed_to` and `Broker.read`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Any

from krappy.core.cluster.reassign import is_moving, wanted
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import NOBODY
from tests.core.cluster.simulation.broker import Broker, Event
from tests.core.cluster.simulation.rules import Rules, Violation
from tests.core.cluster.simulation.zookeeper import ZooKeeper

HEAL_MS = 120_000  # within this time after all trouble has ended, everything must be well again
UNDER_WAY_MS = 20_000  # a request may be under way to ZooKeeper for so long


class World:
    def __init__(
        self,
        seed: int,
        rules: Rules | None = None,
        *,
        min_isr: int = 2,
        steps: int = 6000,
        moves: bool = False,
        unclean: bool = False,
        damages: bool = False,
        rollbacks: bool = False,
    ) -> None:
        """`damages`: disks refuse syncs, and lose or damage events. `moves`: replicas and min.insync.replicas change.
        `unclean`: elections may be unclean, by the controller and by hand. Then events that were acknowledged before
        such an election need not be kept, but the logs become the same again. `rollbacks`: ZooKeeper is given older
        data, with the brokers running, or after a kill of all. No disk is lost then, and nobody looks for stale reads:
        a stale leader may lead for a while."""
        self.rollbacks = rollbacks
        self.moves, self.unclean, self.damages = moves, unclean, damages
        self.harmed: int | None = None  # the broker whose log was damaged last
        self.unclean_epoch = -1  # of the last unclean election
        self.chance = random.Random(seed)
        self.rules = rules or Rules()
        self.min_isr, self.steps = min_isr, steps
        self.now = 0.0  # ms
        self.counts: dict[str, int] = {}
        self.committed: list[Event] = []  # all events that a leader ever made readable
        self.acked: dict[int, int] = {}  # value -> offset
        self.known = 0  # the highest end that any client was ever told of
        self.leaders: dict[int, tuple[int, int]] = {}  # epoch -> (broker, its start)
        self.cut: set[tuple[int, int]] = set()
        self.cut_off: set[int] = set()  # brokers without ZooKeeper
        self.healing = False
        self.lost_disk: int | None = None
        self._asked_replicas: list[tuple[float, int]] = []  # when a move was asked for, and to how many replicas
        self._queue: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._number = 0
        self._values = 0
        ids = range(1, self.chance.choice([3, 3, 3, 4, 5]) + 1)
        self.brokers: dict[int, Broker] = {}
        self.zookeeper = ZooKeeper(self, ids, list(ids[:3]), min_isr)
        self.lag_ms = self.chance.choice([4_000.0, 4_000.0, 10_000.0])
        self.pace = self.chance.choice([1.0, 0.2])  # how long things take that go well: a factor
        self.calm_ms = self.chance.choice([2_500.0, 5_000.0, 10_000.0])  # ms at most between two troubles
        for each in ids:
            broker = self.brokers[each] = Broker(self, each)
            broker.start()
            self.after(self.chance.uniform(0, 1000), broker.tick)
        self.after(1000, self._produce)
        self.after(2000, self._read)
        self.after(3000, self._trouble)
        if moves:
            self.after(4000, self._move)
        if damages:
            self.after(3500, self._harm)
        if rollbacks:
            self.after(4000, self._make_copy)

    # --- time

    def after(self, ms: float, run: Callable[..., Any], *args: Any) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now + ms, self._number, run, args))

    @property
    def replicas(self) -> tuple[int, ...]:
        return self.zookeeper.partition.replicas

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def next(self) -> None:
        self.now, _, run, args = heapq.heappop(self._queue)
        run(*args)

    def run(self) -> World:
        """Runs `steps` steps of trouble, then heals everything, and checks the end. Raises Violation."""
        for step in range(round(self.steps / self.pace**0.5)):
            self.next()
            if step % 6 == 0:
                self.check()
        self._heal()
        return self

    def short(self, mean: float, longest: float) -> float:
        """A delay in ms, mostly a short one."""
        if self.chance.random() < (0.9 if self.pace == 1 else 0.98):
            return self.chance.expovariate(1 / (mean * self.pace))
        return self.chance.uniform(0, longest)

    # --- messages between brokers

    def send(self, source: int, target: int, name: str, *args: Any) -> None:
        if (source, target) in self.cut or (target, source) in self.cut:
            return
        if not self.healing and self.chance.random() < 0.05:
            return
        self.after(self.short(50, 3000), self._deliver, target, self.brokers[target].starts, name, args)

    def _deliver(self, target: int, starts: int, name: str, args: tuple[Any, ...]) -> None:
        broker = self.brokers[target]
        if not broker.is_up or broker.starts != starts:
            return
        if broker.paused > self.now:
            self.after(
                broker.paused - self.now + self.chance.uniform(0, 200), self._deliver, target, starts, name, args
            )
        else:
            getattr(broker, name)(*args)

    # --- ZooKeeper

    def tell_changed(self) -> None:
        for broker in self.brokers.values():
            broker.link.pass_on(broker.noted, self.zookeeper.changes)

    # --- clients

    def _asked(self) -> Sequence[int]:
        """The brokers that clients may take for the leader."""
        return list(self.brokers) if self.moves else self.replicas

    def _produce(self) -> None:
        self.after(self.chance.uniform(10, 150), self._produce)
        broker = self.brokers[self.chance.choice(self._asked())]
        if broker.works and broker.role is Role.LEADER and not (self.healing and self.now > self.healed + 5_000):
            self._values += 1
            broker.produce(self._values)

    def _read(self) -> None:
        self.after(self.chance.uniform(20, 120), self._read)
        broker = self.brokers[self.chance.choice(self._asked())]
        if broker.works and broker.role is Role.LEADER:
            broker.read(self.known)

    # --- trouble

    def _trouble(self) -> None:
        if self.healing:
            return
        chance = self.chance
        self.after(chance.uniform(300, self.calm_ms), self._trouble)
        broker = self.brokers[chance.choice(list(self.brokers))]
        leader = self.zookeeper.partition.state.leader
        if leader in self.brokers and chance.random() < 0.4:
            broker = self.brokers[leader]
        what = chance.random()
        if what < 0.18:
            self._end_session_early()
        elif what < 0.32:
            self._kill(broker)
        elif what < 0.42:
            if not self.rollbacks and broker.id in self.replicas and self._may_lose(broker):
                self.count("disks")
                self.lost_disk = broker.id
                broker.lose_disk()
                self.after(self.short(1000, 9000), broker.restart)
        elif what < 0.58:
            self.count("pauses")
            broker.paused = max(broker.paused, self.now + chance.uniform(200, 12_000))
        elif what < 0.72:
            pair = (broker.id, chance.choice([each for each in self.brokers if each != broker.id]))
            self.cut.add(pair)
            self.after(chance.uniform(500, 8000), self.cut.discard, pair)
        elif what < 0.84:
            self.cut_off.add(broker.id)
            self.after(chance.uniform(500, 15_000), self.cut_off.discard, broker.id)
        elif what < 0.92:
            broker.link.break_off()
        elif self.unclean and broker.works and chance.random() < 0.5:
            broker.elect_by_hand()
        else:
            self._move_leader()

    def _make_copy(self) -> None:
        copy = self.zookeeper.copy()
        if self.zookeeper.partition.version < 0:
            self.after(1000, self._make_copy)
        elif not self.healing:
            self.after(self.chance.uniform(1000, 40_000), self._give_back, copy)

    def _give_back(self, copy: Any) -> None:
        if self.healing:
            return
        self.count("rollbacks")
        if self.chance.random() < 0.7:
            for broker in self.brokers.values():
                if broker.is_up:
                    broker.kill(power=False)
                self.after(self.chance.uniform(200, 20_000), broker.restart)
        self.zookeeper.give_back(copy)
        self.after(self.chance.uniform(1000, 20_000), self._make_copy)

    def _harm(self) -> None:
        """A disk refuses a sync, or damages or loses events."""
        if self.healing:
            return
        chance = self.chance
        self.after(chance.uniform(500, 2 * self.calm_ms), self._harm)
        broker = self.brokers[chance.choice(list(self.brokers))]
        leader = self.zookeeper.partition.state.leader
        if leader in self.brokers and chance.random() < 0.4:
            broker = self.brokers[leader]
        what = chance.random()
        if what < 0.4:
            if broker.works:
                broker.disk.fail()
        elif broker.id in self.replicas and self.may_harm(broker, least=1 if what < 0.8 else 2):
            self.harmed = broker.id
            if what < 0.8:
                # If one replica in sync is enough, an event that only it has can be acknowledged although it is
                # damaged.
                broker.disk.damage(len(self.committed) if self._least() < 2 else len(broker.log))
            else:
                broker.disk.lose_some()
                self.after(self.short(1000, 9000), broker.restart)

    def may_harm(self, broker: Broker, *, least: int = 2, itself: bool = False) -> bool:
        """Whether each acknowledged event is still somewhere else if this broker loses it. After such a harm, another
        broker may be harmed only when this one is whole and in sync again. `least`: the smallest min.insync.replicas
        with which this may happen. `itself`: the broker may be the one that was harmed last, since a failed sync may be
        a part of that harm."""
        if self._is_disk_lost() or not broker.is_up:
            return False
        if self._is_harmed() and (self.harmed != broker.id or not itself):
            return False
        state = self.zookeeper.partition.state
        others = [self.brokers[each] for each in {*state.isr, *state.elr} - {broker.id}]
        if least > 1 and self._fewest() < least:
            return False  # a reassignment may take the other replicas away
        return self._least() >= least and any(each.disk.is_whole for each in others)

    def _least(self) -> int:
        return min(self.min_isr, self.zookeeper.partition.state.min_isr)

    def _fewest(self) -> int:
        """How many replicas there may be at the least once all that was asked for is done."""
        under_way = [count for at, count in self._asked_replicas if self.now - at < UNDER_WAY_MS]
        return min([len(wanted(self.zookeeper.partition)), *under_way])

    def _is_harmed(self) -> bool:
        """Whether the replica that was harmed last is not yet whole again and in the ISR."""
        last = self.brokers.get(self.harmed or 0)
        return last is not None and not (last.disk.is_whole and last.id in self.zookeeper.partition.state.isr)

    def _is_one_ill(self) -> bool:
        return self._is_disk_lost() or self._is_harmed()

    def _kill(self, broker: Broker) -> None:
        if broker.is_up:
            self.count("kills")
            broker.kill(power=self.chance.random() < 0.6)
            self.after(self.chance.uniform(200, 9000), broker.restart)

    def _end_session_early(self) -> None:
        """ZooKeeper ends a session although its broker has just written: a write that a follower of ZooKeeper passes on
        does not count at its leader as a sign of life."""
        if not self.zookeeper.sessions:
            return
        session = self.chance.choice(sorted(self.zookeeper.sessions))
        broker = self.zookeeper.sessions[session][0]
        self.count("early ends")
        if self.chance.random() < 0.7:
            self.cut_off.add(broker)
            self.after(self.chance.uniform(500, 5000), self.cut_off.discard, broker)
        if self.chance.random() < 0.4 and self.zookeeper.partition.state.leader == broker:
            self._move_leader()
        self.after(self.chance.uniform(0, 500), self.zookeeper.end, session)

    def _move_leader(self) -> None:
        """The controller makes another replica in sync the leader, while the old leader lives and may not
        hear of it."""
        image, leader = self.zookeeper.image, self.zookeeper.partition.state.leader
        if self.chance.random() < 0.5:
            self.cut_off.add(leader)
            self.after(self.chance.uniform(500, 5000), self.cut_off.discard, leader)
        controller = self.brokers.get(image.controller or 0)
        if controller is not None and controller.works and controller.control is not None:
            controller.move_leader()

    def _move(self) -> None:
        """The replicas change, or the reassignment under way is cancelled, or min.insync.replicas changes."""
        if self.healing:
            return
        chance = self.chance
        self.after(chance.uniform(1000, 3 * self.calm_ms), self._move)
        what, broker = chance.random(), self.brokers[chance.choice(list(self.brokers))]
        if what < 0.15:
            least = 2 if self._is_one_ill() else 1
            self.min_isr = chance.randint(least, 3)
            self.zookeeper.configure(self.min_isr)
        elif broker.works:
            others = list(self.brokers)
            chance.shuffle(others)
            to = others[: chance.choice([1, 2, 3, 3, 3])]
            if what > 0.35 and self._is_one_ill() and len(to) < 2:
                to = others[:2]
            if what > 0.35:
                self._asked_replicas.append((self.now, len(to)))
            broker.reassign([] if what < 0.35 else to)
            if chance.random() < 0.5:  # the leader may not hear of it
                leader = self.zookeeper.partition.state.leader
                self.cut_off.add(leader)
                self.after(chance.uniform(500, 5000), self.cut_off.discard, leader)

    def _is_disk_lost(self) -> bool:
        """Whether a replica has lost its disk, and is not in the ISR again."""
        lost = self.brokers.get(self.lost_disk or 0)
        in_sync = self.zookeeper.partition.state.isr
        return lost is not None and lost.id in self.replicas and (lost.lost or lost.id not in in_sync)

    def _may_lose(self, broker: Broker) -> bool:
        """min.insync.replicas - 1 disks may be lost at a time: the next one only when the one before is in the ISR
        again."""
        state = self.zookeeper.partition.state
        if min(self._least(), self._fewest()) < 2 or not broker.is_up:
            return False
        if not {*state.isr, *state.elr} - {broker.id}:
            return False  # nobody else was in sync yet
        if self._is_harmed():
            return False
        if self.lost_disk is None:
            return True
        last = self.brokers[self.lost_disk]
        return last.id in self.zookeeper.partition.state.isr and last.is_up and not last.lost and last.epoch_of > 0

    def _heal(self) -> None:
        self.healing, self.healed = True, self.now
        self.cut.clear()
        self.cut_off.clear()
        for broker in self.brokers.values():
            broker.link.mend()
            self.after(100, broker.restart)
        steps = 0
        while self.now < self.healed + HEAL_MS:
            self.next()
            steps += 1
            if steps % 64 == 0:
                self.check()
                if self.now > self.healed + 10_000 and self._is_well():
                    break
        self.check()
        if not self._is_well():
            told = {each.id: (each.is_up, each.role, len(each.log), each.high_watermark) for each in self.members()}
            raise Violation(f"not well after {HEAL_MS} ms: {self.zookeeper.partition}, {told}")
        leader = self.brokers[self.zookeeper.partition.state.leader]
        for value, offset in self.acked.items():
            if offset >= len(leader.log) or leader.log[offset][1] != value:
                raise Violation(f"the acknowledged event {value} at offset {offset} is lost")
            if all(offset in each.disk.damaged for each in self.members()) and not self.moves:
                raise Violation(f"nobody can read the acknowledged event {value} at offset {offset}")

    def _is_well(self) -> bool:
        state = self.zookeeper.partition.state
        if self.moves and state.leader != NOBODY and self._has_lost(self.brokers[state.leader]):
            return True  # the replica with the whole event was taken away: nobody can copy the event
        if state.leader == NOBODY or {*state.isr} != {*self.replicas} or is_moving(self.zookeeper.partition):
            return False
        if self.moves and any(each.disk.damaged for each in self.members()):
            return True
        if any(each.disk.spoiled or each.disk.refuses for each in self.members()):
            return False
        end = len(self.brokers[state.leader].log)
        return all(each.high_watermark == len(each.log) == end for each in self.members())

    def _has_lost(self, leader: Broker) -> bool:
        """Whether the leader has a damaged event that no other replica has whole; or its log is not whole, and there is
        no other."""
        others = [each for each in self.members() if each is not leader]
        return (leader.disk.spoiled and not others) or any(
            all(each.log[at : at + 1] != [leader.log[at]] or at in each.disk.damaged for each in others)
            for at in leader.disk.damaged
        )

    # --- what must hold

    def members(self) -> list[Broker]:
        return [self.brokers[each] for each in self.replicas]

    def committed_to(self, broker: Broker, end: int) -> None:
        """A leader makes the events before `end` readable: they must be those that were readable before, and more."""
        for offset in range(min(end, len(self.committed))):
            if self.committed[offset] != broker.log[offset]:
                raise Violation(
                    f"offset {offset} was {self.committed[offset]} and is {broker.log[offset]} at leader {broker.id}"
                )
        self.committed += broker.log[len(self.committed) : end]

    def elected_uncleanly(self, leader: int, epoch: int) -> None:
        """From now on the log that this leader has on its disk is what counts."""
        if not self.unclean:
            raise Violation(f"an unclean election of {leader}, which nobody has allowed")
        self.count("unclean")
        self.unclean_epoch = epoch
        broker = self.brokers[leader]
        self._forget(broker.log[: broker.on_disk])

    def takes_over(self, broker: Broker) -> None:
        """A broker begins to lead; its log is on its disk."""
        if self.unclean and broker.epoch >= self.unclean_epoch:
            self._forget(broker.log)

    def left(self, broker: Broker) -> None:
        """A broker that left has deleted its log. It may be a replica again by now, and may have been elected uncleanly
        before it heard of either. Then that log counts for nothing: whoever allows unclean elections allows this loss.
        """
        state = self.zookeeper.partition.state
        if state.leader == broker.id and broker.epoch < state.leader_epoch == self.unclean_epoch:
            self._forget(broker.log)

    def _forget(self, log: list[Event]) -> None:
        same = 0
        while same < min(len(log), len(self.committed)) and log[same] == self.committed[same]:
            same += 1
        del self.committed[same:]
        self.acked = {value: offset for value, offset in self.acked.items() if offset < same}
        self.known = min(self.known, same)

    def check(self) -> None:
        """Each candidate has all committed events on its disk; logs are the same below their high watermarks."""
        state = self.zookeeper.partition.state
        for each in () if self.rollbacks else {*state.isr, *state.elr}:
            broker = self.brokers[each]
            if not broker.lost and broker.log[: broker.on_disk][: len(self.committed)] != self.committed:
                raise Violation(
                    f"candidate {each} of {state} has not all of the {len(self.committed)} committed events"
                )
        for one in () if self.unclean else self.members():
            for other in self.members():
                end = min(one.high_watermark, other.high_watermark, len(one.log), len(other.log))
                if one.id < other.id and one.log[:end] != other.log[:end]:
                    raise Violation(f"the logs of {one.id} and {other.id} differ below offset {end}")
