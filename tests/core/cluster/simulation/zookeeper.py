"""A simulated ZooKeeper: the real tree, its sessions, and the connection of each broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from krappy.core.cluster import paths, znodes
from krappy.core.cluster.demands import MIN_INSYNC, UNCLEAN
from krappy.core.cluster.image import Image, PartitionImage
from krappy.core.cluster.state import NOBODY
from krappy.core.cluster.tree import Create, Operation, Put, RefusedMulti, Tree, Znode

if TYPE_CHECKING:
    from tests.core.cluster.simulation.broker import Broker
    from tests.core.cluster.simulation.world import World

TOPIC = "t"
SESSION_MS = 6_000


class ZooKeeper:
    """The tree, its sessions, and which connection each session has."""

    def __init__(self, world: World, brokers: Iterable[int], replicas: list[int], min_isr: int) -> None:
        self.world = world
        self.tree = Tree()
        self.image = Image()
        self.changes = 0
        self.sessions: dict[int, tuple[int, float]] = {}  # by session: (broker, when ZooKeeper heard of it last)
        self.connections: dict[int, int] = {}  # by session: the number of its connection
        self._ids = 0
        for path in (*paths.ROOTS, paths.LEASES):
            self.do([Create(path)])
        self.do([Create(paths.CONTROLLER_EPOCH, b"0")])
        id = b"t" * 16
        below = [Create(paths.identity(TOPIC, id)), Create(paths.partitions(TOPIC))]
        self.do([Create(paths.topic(TOPIC), znodes.topic(id, [replicas], 0)), *below])
        self.do([Create(paths.config(paths.TOPIC_CONFIG, TOPIC), b"{}")])
        self.configure(min_isr)
        for each in brokers:
            self.do([Create(paths.epoch(each), b"{}")])

    def do(self, operations: list[Operation]) -> None:
        """Carries out a multi. Raises RefusedMulti."""
        changes = self.tree.plan(operations)
        self.tree.apply(changes)
        if any(not path.startswith(paths.LEASES) for path in changes):
            before = self.image
            self.image = self.image.after(changes)
            self.changes += 1
            if TOPIC in before.topics:
                self._look(before.topics[TOPIC].partitions[0], self.partition)
            self.world.tell_changed()

    def _look(self, before: PartitionImage, after: PartitionImage) -> None:
        """Tells the world if this change was an unclean election."""
        leader = after.state.leader
        candidates = (*before.state.isr, *before.state.elr)
        elected = after.state.leader_epoch != before.state.leader_epoch and before.version >= 0
        takes_over = self.world.rollbacks and after.state.unclean == before.state.unclean
        if elected and leader not in (NOBODY, *candidates) and not takes_over:
            self.world.elected_uncleanly(leader, after.state.leader_epoch)

    def configure(self, min_isr: int) -> None:
        """Sets the topic's min.insync.replicas."""
        settings = {MIN_INSYNC: str(min_isr), UNCLEAN: "true" if self.world.unclean else "false"}
        self.do([Put(paths.config(paths.TOPIC_CONFIG, TOPIC), znodes.config(settings))])

    @property
    def partition(self) -> PartitionImage:
        return self.image.topics[TOPIC].partitions[0]

    def copy(self) -> tuple[dict[str, Znode], Image, dict[int, tuple[int, float]]]:
        return dict(self.tree.under("/")), self.image, dict(self.sessions)

    def give_back(self, copy: tuple[dict[str, Znode], Image, dict[int, tuple[int, float]]]) -> None:
        """Takes older data in the place of its own. Sessions that are in it go on; no connection does."""
        znodes, self.image, sessions = copy
        self.tree.__init__(znodes)  # type: ignore[misc]
        self.sessions = {session: (broker, self.world.now) for session, (broker, _) in sessions.items()}
        self.connections = {}
        self.changes += 1
        for each in self.world.brokers.values():
            each.link.break_off()

    def begin(self, broker: int) -> int:
        self._ids += 1
        self.sessions[self._ids] = (broker, self.world.now)
        return self._ids

    def end(self, session: int) -> None:
        if self.sessions.pop(session, None) is not None:
            owned = self.tree.owned(session)
            if owned:
                self.do(owned)

    def expire(self) -> None:
        for session, (_, heard) in list(self.sessions.items()):
            if self.world.now - heard > SESSION_MS:
                self.end(session)


class Link:
    """A broker's session and connection with ZooKeeper. What goes through one connection arrives in order. When it
    breaks, what is under way in either direction is lost."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.world = broker, broker.world
        self.session = 0
        self.number = 0  # of the connection; 0: there is none
        self._mean_ms = 20  # mean time that a message of the connection takes
        self._numbers = 0
        self._there = self._back = 0.0  # when the last message of this connection arrives

    def open(self) -> bool:
        """Connects. Returns whether there is a connection now."""
        zookeeper = self.world.zookeeper
        if self.broker.id in self.world.cut_off:
            return False
        if self.session and self.session not in zookeeper.sessions:
            self.session = 0
            self.broker.expired()
            return False
        if not self.session:
            self.session = zookeeper.begin(self.broker.id)
        self._numbers += 1
        self.number = zookeeper.connections[self.session] = self._numbers
        self._there = self._back = self.world.now
        self._mean_ms = 20 if self.world.healing else self.world.chance.choice([20, 20, 20, 20, 400, 1500])
        self.broker.is_current = False  # nobody told it what has changed meanwhile
        return True

    def mend(self) -> None:
        """From now on the connection is quick."""
        self._mean_ms = 20

    def break_off(self) -> None:
        self.number = 0

    def alive(self) -> None:
        zookeeper = self.world.zookeeper
        if self.number and self.broker.id not in self.world.cut_off and self.session in zookeeper.sessions:
            zookeeper.sessions[self.session] = (self.broker.id, self.world.now)

    def ask(self, operations: list[Operation] | Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Sends a multi, or a read. Calls `done(answer)`, with a RefusedMulti if the multi was refused. Never calls it
        if the connection breaks before."""
        if not self.number:
            return
        world, number, session = self.world, self.number, self.session
        self._there = max(self._there, world.now + world.short(self._mean_ms, 400))
        breaks = not world.healing and world.chance.random() < 0.02

        def arrive() -> None:
            zookeeper = world.zookeeper
            if self.broker.id in world.cut_off and world.chance.random() < 0.8:
                return self._break(number)
            if zookeeper.connections.get(session) != number or session not in zookeeper.sessions:
                if session not in zookeeper.sessions:
                    self._later(number, self._ended, session)
                return None
            answer: Any = None
            if callable(operations):
                answer = operations()
            else:
                try:
                    zookeeper.do(operations)
                except RefusedMulti as error:
                    answer = error
            if breaks or self.broker.id in world.cut_off:
                return self._break(number)
            return self._later(number, done, answer)

        world.after(self._there - world.now, arrive)

    def later(self, ms: float, run: Callable[[], None]) -> None:
        """Calls `run` after a while, unless the connection breaks before."""
        self.world.after(ms, self._come, self.number, self.broker.starts, run, ())

    def pass_on(self, run: Callable[..., None], *args: Any) -> None:
        """ZooKeeper sends something without being asked."""
        if self.number and self.session in self.world.zookeeper.sessions:
            self._later(self.number, run, *args)

    def _ended(self, session: int) -> None:
        if self.session == session:
            self.session = self.number = 0
            self.broker.expired()

    def _break(self, number: int) -> None:
        if self.number == number:
            self.break_off()

    def _later(self, number: int, run: Callable[..., None], *args: Any) -> None:
        self._back = max(self._back, self.world.now + self.world.short(self._mean_ms, 1500))
        self.world.after(self._back - self.world.now, self._come, number, self.broker.starts, run, args)

    def _come(self, number: int, starts: int, run: Callable[..., None], args: tuple[Any, ...]) -> None:
        broker = self.broker
        if self.number != number or broker.link is not self or broker.starts != starts or not broker.is_up:
            return  # the connection is broken, or it was that of a process that was killed
        if broker.id in self.world.cut_off:
            self.break_off()
        elif broker.paused > self.world.now:
            self.world.after(broker.paused - self.world.now + 0.01, self._come, number, starts, run, args)
        else:
            run(*args)
