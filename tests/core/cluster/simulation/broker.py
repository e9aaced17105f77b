"""A simulated broker: what a broker does between the real rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from krappy.core.cluster import paths, registration
from krappy.core.cluster.claims import Claim, Cut, judge
from krappy.core.cluster.decide import decide
from krappy.core.cluster.elections import NotElected, elect_uncleanly, moved
from krappy.core.cluster.healing import take_over
from krappy.core.cluster.image import Image, PartitionImage
from krappy.core.cluster.isr import change_isr
from krappy.core.cluster.presence import RENEW_MS, Presence
from krappy.core.cluster.reassign import original, reassigned
from krappy.core.cluster.replica_set import Proposal, ReplicaSet
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import NOBODY, PartitionState, read_state
from krappy.core.cluster.tree import Check, Create, Delete, Operation, Put, RefusedMulti, Znode
from krappy.core.cluster.znodes import controlled_by
from tests.core.cluster.simulation.disk import SimulatedDisk
from tests.core.cluster.simulation.rules import Violation
from tests.core.cluster.simulation.zookeeper import TOPIC, Link

if TYPE_CHECKING:
    from tests.core.cluster.simulation.world import World

ASK_MS = 1_000  # a fetch without an answer is sent again
NO_CLAIM = (-1, 0)
Event = tuple[int, int]  # (epoch, value)


class Broker:
    def __init__(self, world: World, id: int) -> None:
        self.world, self.id = world, id
        self.is_up = False
        self.starts = 0
        self.paused = 0.0
        # what is on its disk
        self.log: list[Event] = []
        self.on_disk = 0  # how many events of the log are synced
        self.epochs = world.rules.epochs()
        self.high_watermark = 0
        self.lost = False  # the disk has lost events, and the broker has told nobody yet
        self.some_lost = False  # it has lost some events, but not all
        self.leased = -1  # the version of its lease that it has written last
        self.claim: Claim = NO_CLAIM
        self._doubts_until = 0.0
        self.disk = SimulatedDisk(self)
        self.link = Link(self)
        self.role = Role.OFFLINE
        self.epoch_of = 0

    # --- life

    @property
    def works(self) -> bool:
        return self.is_up and self.paused <= self.world.now

    def clock(self) -> float:
        return self.world.now * self._speed + self._offset

    def start(self) -> None:
        chance = self.world.chance
        self.is_up = True
        self.starts += 1
        self.claim = NO_CLAIM
        self._speed, self._offset = chance.uniform(0.95, 1.05), chance.uniform(-1e7, 1e7)
        self.link = Link(self)
        self._renewed = -1e18
        self._fetching: tuple[int, float] | None = None
        self._begin_session()
        self.epoch = -1  # the last leader epoch that it knows
        self.led = -1  # the last leader epoch in which it led
        self._compared = (-1, -1)  # the leader epoch in which it has compared its log with its leader's, and that one

    def _begin_session(self) -> None:
        self.image = Image()
        self.is_current = False  # whether the image has all changes that the broker was told of
        self._noted = self._seen = 0
        self.epoch_of = 0  # its broker epoch; 0: not registered
        self.lease = self.world.rules.lease()
        self._last_leased = -1  # in this session
        self.control: int | None = None  # if it is the controller: the version of the znode with the controller epoch
        self.presence: Presence = self.world.rules.presence()
        self._looking = self._registering = self._controlling = False
        self._offline()

    def _offline(self) -> None:
        self.role = Role.OFFLINE
        self.replicas: ReplicaSet | None = None
        self._waiting: list[tuple[int, int]] = []  # (end, value) of events that are not acknowledged yet
        self._version = -1  # the version of the partition's state
        self._fetching = None

    def kill(self, *, power: bool) -> None:
        """`power`: the machine loses what was not synced. Else only the process ends."""
        chance = self.world.chance
        self.is_up = False
        self._offline()
        if power:
            del self.log[chance.randint(self.on_disk, len(self.log)) :]
        self.on_disk = len(self.log)  # a start syncs what it finds
        self.recover()
        self.disk.restarted()

    def lose_disk(self) -> None:
        self.kill(power=True)
        self.log, self.on_disk, self.lost, self.some_lost = [], 0, True, False
        self.recover()
        self.disk.emptied()

    def rest(self) -> None:
        """The broker takes part in nothing until it is told its role again."""
        self._offline()

    def take_again(self) -> None:
        """The broker takes its role again, with another log."""
        partition = self.image.topics[TOPIC].partitions[0]
        if self.epoch_of and partition.version >= 0 and partition.state.leader_epoch >= self.epoch:
            self._take(partition)

    def forget_fetch(self) -> None:
        self._fetching = None

    def recover(self) -> None:
        self.epochs = self.world.rules.epochs()
        for offset, (epoch, _) in enumerate(self.log):
            self.epochs.note(epoch, offset)
        # It is written to disk from time to time, so after a start it may be lower.
        self.high_watermark = self.world.chance.randint(0, min(self.high_watermark, len(self.log)))

    def restart(self) -> None:
        if not self.is_up:
            self.start()

    def expired(self) -> None:
        self._begin_session()

    def tick(self) -> None:
        world = self.world
        world.after(world.chance.uniform(100, 300) * world.pace, self.tick)
        world.zookeeper.expire()
        if not self.works:
            return
        self._sync()
        link = self.link
        if not link.number and link.open():
            self._looking = self._registering = self._controlling = False
            self.disk.connected()
            self._settle()  # the answer to a proposal may be lost
        link.alive()
        if link.number:
            if not self.epoch_of:
                self._register()
            else:
                self._renew()
                self._control()
                if self.world.damages and TOPIC in self.image.topics:
                    self.disk.look()
        if self.role is Role.FOLLOWER:
            self._fetch()
        elif self.role is Role.LEADER:
            self._propose()

    # --- registration

    def _register(self) -> None:
        """The registration has several steps, each after the answer to the one before. A lost answer makes it begin
        anew."""
        if self._registering:
            return
        self._registering = True
        tree, chance = self.world.zookeeper.tree, self.world.chance
        path = paths.epoch(self.id)

        def again(answer: Any = None) -> None:
            self._registering = False

        def ask(what: list[Operation] | Callable[[], Any], done: Callable[[Any], Any]) -> None:
            """Asks after a while: anything may happen between two steps."""
            self.link.later(self.world.short(50, 2000), lambda: self.link.ask(what, done))

        def first() -> None:
            if self.world.rules.bumps_first:
                ask(lambda: tree.get(path), bump)
            else:
                exclude(None)

        def bump(found: Znode) -> None:
            ask(registration.bump(self.id, found), exclude)

        def exclude(answer: Any) -> None:
            if isinstance(answer, RefusedMulti):
                return again()
            if self.world.rollbacks:
                return ask(lambda: (self.world.zookeeper.image, tree.get(paths.lease(self.id))), doubt)
            return doubted(None)

        def doubt(found: tuple[Image, Znode | None]) -> None:
            """Looks whether ZooKeeper was given older data."""
            image, lease = found
            seen = max([self.epoch, *(epoch for epoch, _ in self.epochs.known)])
            passed = registration.pass_epoch(image.topics[TOPIC], 0, seen)
            version = -1 if lease is None else lease.version
            if (passed or self.leased > version) and self.world.rules.claims:
                self.world.count("claims")
                self.claim = (self.epochs.at(len(self.log) - 1), len(self.log))
                self._doubts_until = self.world.now + 60_000
            if passed:
                return ask(passed, doubted)
            return doubted(None)

        def doubted(answer: Any) -> None:
            if isinstance(answer, RefusedMulti):
                return again()
            if not (self.lost and self.world.rules.excludes):
                return read(None)
            return ask(lambda: self.world.zookeeper.image, leave)

        def leave(image: Image) -> None:
            return ask(registration.exclude(image.topics[TOPIC], 0, self.id, emptied=not self.some_lost), read)

        def read(answer: Any) -> None:
            if isinstance(answer, RefusedMulti):
                return again()
            return ask(lambda: tree.get(path), enter)

        def enter(found: Znode) -> None:
            epoch, operations = registration.enter(self.id, found, {}, None, self.link.session)
            ask(operations, lambda answer: entered(answer, epoch))

        def entered(answer: Any, epoch: int) -> None:
            if isinstance(answer, RefusedMulti):
                ask(lambda: tree.get(paths.broker(self.id)), remove)
                return
            again()
            self.lost = False
            self.epoch_of = epoch
            self._read_image()

        def remove(found: Znode | None) -> None:
            """The registration that is found may be its own, if the answer to it was lost. Or it is that of a process
            which is dead, for this process holds the lock of the folder. The broker may also wait for the end of that
            session."""
            if found is not None and (found.owner == self.link.session or chance.random() < 0.5):
                ask([Delete(paths.broker(self.id))], again)
            else:
                again()

        first()

    def _renew(self) -> None:
        """Renews the read lease: by a write of this session, and the lease counts from when the write was sent."""
        now = self.clock()
        if now - self._renewed < RENEW_MS:
            return None
        self._renewed = now
        path = paths.lease(self.id)

        def done(answer: Any) -> None:
            if answer is None:
                self.lease.answered(now)
                self._last_leased = max(self._last_leased, version + 1)
                if self._last_leased > self.leased or self.world.now > self._doubts_until:
                    self.leased = self._last_leased

        there = self.world.zookeeper.tree.get(path)
        version = -1 if there is None else there.version
        if self.world.rollbacks and version < self._last_leased:
            self.world.zookeeper.end(self.link.session)
            self.link.session = self.link.number = 0
            return self.expired()
        write: Operation = Create(path) if there is None else Put(path, b"")
        self.link.ask([Check(paths.broker(self.id)), write], done)
        return None

    # --- controller

    def _control(self) -> None:
        """Looks which brokers are there. Becomes the controller if there is none, or if that one is silent. As the
        controller, decides."""
        if not self._looking:
            self._looking = True
            self.link.ask(self._leases, self._look)

    def _leases(self) -> dict[int, int]:
        tree = self.world.zookeeper.tree
        return {int(each): tree._znodes[f"{paths.LEASES}/{each}"].version for each in tree.children(paths.LEASES)}

    def _look(self, leases: dict[int, int]) -> None:
        self._looking = False
        self.presence.look(self.image, leases, self.clock())
        controller = self.image.controller
        if controller not in (None, self.id):
            self.control = None
            deposing: list[Operation] = [*self.presence.fence(controller)]
            if deposing and not self._controlling:
                self.world.count("deposed controllers")
                self._seek_control(controller, [*deposing, Delete(paths.CONTROLLER)])
        elif self.control is None and self.is_current and not self._controlling:
            self._seek_control(None, [])
        if self.control is not None:
            for operations in decide(self.image, self.image.topics.values(), self.presence):
                self.world.count("decisions")
                self.link.ask([Check(paths.CONTROLLER_EPOCH, self.control), *operations], lambda answer: None)

    def _seek_control(self, silent: int | None, deposing: list[Operation]) -> None:
        """Becomes the controller in the place of a silent one; or learns that it is the controller already, if the
        answer that said so was lost."""
        self._controlling = True
        tree, session = self.world.zookeeper.tree, self.link.session

        def take(found: tuple[Znode | None, Znode]) -> None:
            controller, epoch = found
            if controller is not None and deposing and controlled_by(controller.data) != silent:
                self._controlling = False
            elif controller is None or deposing:
                wanted = [*deposing, *registration.control(self.id, self.epoch_of, epoch, session)]
                self.link.ask(wanted, lambda answer: done(answer, epoch.version + 1))
            else:
                self._controlling = False
                if controller.owner == session:
                    self.control = epoch.version

        def done(answer: Any, version: int) -> None:
            self._controlling = False
            if not isinstance(answer, RefusedMulti):
                self.control = version

        self.link.ask(lambda: (tree.get(paths.CONTROLLER), tree.get(paths.CONTROLLER_EPOCH)), take)

    def move_leader(self) -> None:
        """Moves the lead as a preferred election does: a replica in sync takes over from a leader that lives."""
        assert self.control is not None
        if TOPIC not in self.image.topics:
            return
        topic = self.image.topics[TOPIC]
        state = topic.partitions[0].state
        leader = self.image.brokers.get(state.leader)
        others = [each for each in state.isr if each != state.leader and each in self.image.brokers]
        if leader is None or leader.epoch != state.leader_inc or not others:
            return
        operations = moved(self.image, topic, 0, self.world.chance.choice(others))
        self.link.ask([Check(paths.CONTROLLER_EPOCH, self.control), *operations], lambda answer: None)

    def reassign(self, to: list[int]) -> None:
        """Somebody asks this broker to give the partition these replicas; with none, to cancel the reassignment under
        way."""
        topic = self.image.topics.get(TOPIC)
        if topic is not None:
            partition = topic.partitions[0]
            after = reassigned(partition, to or original(partition))
            self.link.ask([topic.put_replicas([after])], lambda answer: None)

    def elect_by_hand(self) -> None:
        """Somebody asks this broker for an unclean election."""
        topic = self.image.topics.get(TOPIC)
        operations = elect_uncleanly(self.image, topic, 0, self.image.brokers) if topic is not None else []
        if not isinstance(operations, NotElected):
            self.link.ask(operations, lambda answer: None)

    # --- what ZooKeeper tells

    def noted(self, changes: int) -> None:
        self._noted = max(self._noted, changes)
        self.is_current = not self.world.rules.suspects and self.is_current
        self._read_image()

    def _read_image(self) -> None:
        zookeeper = self.world.zookeeper
        self.link.ask(lambda: (zookeeper.image, zookeeper.changes), self._see)

    def _see(self, found: tuple[Image, int]) -> None:
        image, changes = found
        self._seen = changes
        self._noted = max(self._noted, changes)
        self.is_current = self._seen >= self._noted
        self.image = image
        mine = image.brokers.get(self.id)
        if self.epoch_of and (mine is None or mine.epoch != self.epoch_of):
            self.epoch_of = 0  # a late request of the earlier process has removed the registration
            return self._offline()
        partition = image.topics[TOPIC].partitions[0]
        if self.epoch_of and partition.version >= 0 and partition.state.leader_epoch >= self.epoch:
            self._take(partition)
        return None

    def _take(self, partition: PartitionImage) -> None:
        state, now = partition.state, self.clock()
        found = self.world.rules.role(state, self.id, self.epoch_of)
        if self._leaves(partition):
            return
        cant = self.disk.refuses or (self.lost and self.world.rules.excludes)
        cant |= state.leader_epoch <= self.disk.barred and self.world.rules.leads_anew
        if found is Role.LEADER and cant:
            if self.role is not Role.LEADER or self.epoch != state.leader_epoch:
                self._offline()
            return
        if found is Role.LEADER:
            if self.role is not Role.LEADER or self.epoch != state.leader_epoch:
                self._offline()
                self._sync()
                self.role = Role.LEADER
                self.epoch = self.led = state.leader_epoch
                self.world.takes_over(self)
                self.epochs.lead(self.epoch, len(self.log))
                known = (self.high_watermark, len(self.log), now)
                self.replicas = self.world.rules.replica_set(self.id, state.isr, state.min_isr, *known)
                self._version = partition.version
                self.world.count("leaders")
                if not self.world.rollbacks and self.world.leaders.setdefault(self.epoch, (self.id, self.starts)) != (
                    self.id,
                    self.starts,
                ):
                    raise Violation(f"two leaders of epoch {self.epoch}")
                self._synced()
            elif partition.version > self._version:
                self._know(partition.version, state)
            return
        if self.role is Role.LEADER or self.epoch != state.leader_epoch:
            self._offline()
            if self.world.rules.forgets_empty_epochs:
                self.epochs.cut(len(self.log))
        follows = found is Role.FOLLOWER and state.leader != NOBODY and not self.lost
        self.role, self.epoch = (Role.FOLLOWER if follows else Role.OFFLINE), state.leader_epoch
        self._leader = state.leader

    def _leaves(self, partition: PartitionImage) -> bool:
        """Whether it is no replica of the partition, or not any more. If so, it deletes its log."""
        stays = set(partition.replicas)
        if not self.world.rules.keeps_until_certain:
            stays -= {*partition.removing}
        if self.id in stays:
            return False
        if self.log:
            self.world.count("left")
        self._offline()
        self.log, self.on_disk, self.high_watermark = [], 0, 0
        self.epochs = self.world.rules.epochs()
        self.disk.emptied()
        self.world.left(self)
        return True

    def _know(self, version: int, state: PartitionState, proposal: Proposal | None = None) -> None:
        """The leader has read which ISR is in force. `proposal`: it has read this after it wrote that proposal."""
        replicas, isr, min_isr = self.replicas, state.isr, state.min_isr
        assert replicas is not None
        newer, self._version = version > self._version, version
        if replicas.take(isr, min_isr) if newer else replicas.settle(proposal, isr, min_isr):
            self._rose()

    # --- leader

    def produce(self, value: int) -> None:
        assert self.replicas is not None
        if self.replicas.enough and not self.disk.refuses:
            self.log.append((self.epoch, value))
            self._waiting.append((len(self.log), value))

    def _sync(self) -> None:
        if self.disk.refuses:
            return
        self.on_disk = len(self.log)
        self._synced()

    def _synced(self) -> None:
        if self.replicas is not None and self.replicas.synced(self.on_disk):
            self._rose()

    def _rose(self) -> None:
        assert self.replicas is not None
        world = self.world
        self.high_watermark = end = self.replicas.high_watermark
        if self.epoch < world.unclean_epoch:
            return  # it was replaced by an unclean election that it has not heard of; what it acknowledges is lost
        world.committed_to(self, end)
        while self._waiting and self._waiting[0][0] <= end:
            offset, value = self._waiting.pop(0)
            world.acked[value] = offset - 1
            world.known = max(world.known, offset)
            world.count("acks")

    def read(self, known: int) -> None:
        """A strong read: the answer is made now, and leaves later if the lease still holds then."""
        assert self.replicas is not None
        if self.world.rollbacks:
            return
        world, seen, starts, epoch = self.world, self.high_watermark, self.starts, self.epoch
        if world.rules.waits_for_end and not self.replicas.knows_end:
            return

        def leave() -> None:
            if not self.is_up or self.starts != starts:
                return
            if self.paused > world.now:
                world.after(self.paused - world.now + 1, leave)
            elif (
                self.role is Role.LEADER and self.epoch == epoch and self.is_current and self.lease.holds(self.clock())
            ):
                world.count("reads")
                if seen < known:
                    raise Violation(f"stale read: {self.id} in epoch {epoch} told {seen}, {known} was known before")
                world.known = max(world.known, seen)

        world.after(world.chance.expovariate(1 / 5), leave)

    def fetch_came(
        self, source: int, broker_epoch: int, epoch: int, offset: int, last: int, number: int, value: int | None
    ) -> None:
        """`value`: of the last event before `offset`; None: it was compared before."""
        if self.role is not Role.LEADER or epoch != self.epoch or self.replicas is None:
            return
        end = len(self.log)
        told: tuple[int, int] | list[Event] | None = self.epochs.diverging(last, offset, end)
        if told is None and value is not None and 0 < offset <= end and self.log[offset - 1] != (last, value):
            told = (last - 1, self.epochs.start_of(last) or 0)
        if told is None:
            if offset > end:
                return
            if self.replicas.fetched(source, broker_epoch, offset, end, self.clock()):
                self._rose()
            told = self.log[offset : offset + self.world.chance.randint(1, 6)]
            del told[self.disk.readable(offset, len(told)) :]
        self.world.send(self.id, source, "fetched", epoch, offset, told, self.high_watermark, number)

    def _propose(self) -> None:
        replicas = self.replicas
        assert replicas is not None
        if not self.link.number or self.world.chance.random() < 0.3:
            return
        topic = self.image.topics[TOPIC]
        partition = topic.partitions[0]
        alive = self.world.rules.addable(self.image, partition)
        if partition.version != self._version or not self.is_current:
            return
        proposal = replicas.propose(alive, self.clock(), self.world.lag_ms)
        if proposal is None:
            return
        *checks, put = change_isr(topic, 0, proposal)
        assert isinstance(put, Put)
        after = read_state(put.data)
        epoch = self.epoch

        def done(answer: Any) -> None:
            if self.role is not Role.LEADER or self.epoch != epoch:
                return
            if answer is None and self._version == put.version:
                self.world.count("expanded" if proposal.added else "shrunk")
                self._know(put.version + 1, after)
            elif answer is not None:
                self._settle()

        self.link.ask([*checks, put], done)

    def _settle(self) -> None:
        """A proposal was refused, or the answer to it was lost: what is read after that is in force."""
        epoch, proposal = self.epoch, None if self.replicas is None else self.replicas.proposed

        def done(found: tuple[Image, int]) -> None:
            self._see(found)
            partition = self.image.topics[TOPIC].partitions[0]
            if self.role is Role.LEADER and self.epoch == epoch and self._version == partition.version:
                self._know(partition.version, partition.state, proposal)

        zookeeper = self.world.zookeeper
        self.link.ask(lambda: (zookeeper.image, zookeeper.changes), done)

    # --- follower

    def _fetch(self) -> None:
        now = self.world.now
        if not self.disk.copies:
            return
        if self._fetching is not None and now - self._fetching[1] < ASK_MS:
            return
        offset = len(self.log)
        if self.world.rules.asks_when_synced:
            self._sync()
        last = self.log[offset - 1][0] if offset else -1
        number = int(self.world.chance.random() * 1e12)
        self._fetching = (number, now)
        value = None
        if (
            offset
            and self.world.rollbacks
            and self._compared != (self.epoch, self._leader)
            and self.world.rules.compares
        ):
            value = self.log[offset - 1][1]
        asked = (self.id, self.epoch_of, self.epoch, offset, last, number, value)
        self.world.send(self.id, self._leader, "fetch_came", *asked)

    def fetched(self, epoch: int, offset: int, told: tuple[int, int] | list[Event], end: int, number: int) -> None:
        if self.role is not Role.FOLLOWER or epoch != self.epoch or offset != len(self.log):
            return
        if self._fetching is None or self._fetching[0] != number or self.disk.refuses:
            return
        self._fetching = None
        if isinstance(told, tuple):
            cut = self.epochs.common(told, len(self.log))
            if self.world.rollbacks and self._keeps(cut, end):
                return
            if cut < self.high_watermark and self.world.unclean:
                self.high_watermark = cut
            if cut < self.high_watermark:
                raise Violation(f"follower {self.id} would cut its log at {cut}, below {self.high_watermark}")
            self.world.count("cuts")
            del self.log[cut:]
            self.on_disk = min(self.on_disk, cut)
            self.disk.cut(cut)
            self.epochs.cut(cut)
        else:
            self._compared = (epoch, self._leader)
            for event in told:
                if event[0] > epoch:
                    break
                self.epochs.note(event[0], len(self.log))
                self.log.append(event)
            if self.world.rules.asks_when_synced:
                self._sync()
            self.high_watermark = max(self.high_watermark, min(end, len(self.log)))
        self.world.after(self.world.chance.expovariate(1 / 20), self._go_on, self.starts)

    def _keeps(self, cut: int, high_watermark: int) -> bool:
        """Whether it keeps the events from `cut` on, which its leader lacks. Then it takes the lead."""
        topic = self.image.topics[TOPIC]
        committed = (self.epochs.at(self.high_watermark - 1), self.high_watermark)
        state = topic.partitions[0].state
        verdict = judge(state, self.id, cut, committed, self.claim, high_watermark)
        if verdict is Cut.ASIDE:
            self.world.count("aside")
            if cut < self.high_watermark:
                raise Violation(f"{self.id} has committed events up to {self.high_watermark}, and its leader others")
        if verdict is not Cut.AHEAD:
            return False
        self.world.count("taken over")
        self.link.ask(take_over(self.image, topic, 0, self.id, max(committed, self.claim), state), lambda answer: None)
        return True

    def _go_on(self, starts: int) -> None:
        if self.works and self.starts == starts and self.role is Role.FOLLOWER and self.epoch_of:
            self._fetch()
