"""ZooKeepers that die or stand still: one of several, or all."""

from __future__ import annotations

from tests.chaos.faults.base import Fault, fault
from tests.chaos.world import World


class OfZooKeepers(Fault):
    def _all(self, world: World) -> bool:
        return False

    def _take(self, world: World) -> list[int]:
        """The indexes of the ZooKeepers that get this fault; empty while any ZooKeeper has a fault."""
        self.indexes: list[int] = []
        if not world.zookeeper_down:
            every = range(len(world.zookeepers))
            leading = [each for each in every if world.zookeepers[each].leads()]
            one = leading if leading and self.random.random() < 0.5 else [self.random.choice(every)]
            self.indexes = list(every) if self._all(world) else one
            world.zookeeper_down.update(self.indexes)
        return self.indexes


@fault("kill-a-ZooKeeper", "a ZooKeeper dies (of three: the others go on), half of the time their leader", (1, 6))
class KillZooKeeper(OfZooKeepers):
    def begin(self, world: World) -> str:
        for index in self._take(world):
            world.kill_zookeeper(index)
        return f"SIGKILL to ZooKeepers {[each + 1 for each in self.indexes]}" if self.indexes else ""

    def end(self, world: World) -> str:
        for index in self.indexes:
            world.start_zookeeper(index)
        return f"ZooKeepers {[each + 1 for each in self.indexes]} are started"


@fault("no-ZooKeeper", "all ZooKeepers are down for a while, and come back with their data", (2, 8, 20), weight=1)
class NoZooKeeper(KillZooKeeper):
    def _all(self, world: World) -> bool:
        return True


@fault("pause-ZooKeeper", "ZooKeepers stand still: sessions may end when they go on", (1, 4, 9))
class PauseZooKeeper(OfZooKeepers):
    def _all(self, world: World) -> bool:
        return self.random.random() < 0.5

    def begin(self, world: World) -> str:
        for index in self._take(world):
            world.zookeepers[index].pause(True)
        return f"SIGSTOP to ZooKeepers {[each + 1 for each in self.indexes]}" if self.indexes else ""

    def end(self, world: World) -> str:
        for index in self.indexes:
            world.zookeepers[index].pause(False)
            world.zookeeper_down.discard(index)
        return f"SIGCONT to ZooKeepers {[each + 1 for each in self.indexes]}"
