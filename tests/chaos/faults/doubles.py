"""A second broker with the id of one that runs, as after a copied configuration."""

from __future__ import annotations

import shutil

from tests.chaos.faults.base import Fault, fault
from tests.chaos.faults.disks import is_well
from tests.chaos.machines import Machine, Shims
from tests.chaos.world import World

NONE = -1  # in `zookeeper_down`: no ZooKeeper is down, but none may go down now


@fault("same-id", "a second broker has the id of one that runs: it must not take its place", (4, 10), weight=1)
class SameId(Fault):
    """It happens only while nothing else is wrong, and no other fault may begin meanwhile. If the first broker were
    away, the second one would be right to take its place, with a new disk."""

    def begin(self, world: World) -> str:
        if not is_well(world):
            return ""
        self.take(world, list(world.machines.values()))
        self.take(world, list(world.machines.values()), "cut")
        world.zookeeper_down.add(NONE)
        first = world.machines[self.random.choice(sorted(world.machines))]
        native, kafka = world.network.ports(4)[2:]
        settings = dict(first.process.settings)
        settings |= {"listen_native": f"{first.host.address}:{native}", "listen_kafka": f"{first.host.address}:{kafka}"}
        del settings["broker_id"]
        self._folder = world.folder / "same-id"
        self._folder.mkdir(exist_ok=True)
        self._second = Machine(first.id, self._folder, first.host, settings, Shims())
        self._second.begin()
        return f"a second broker {first.id} is started"

    def end(self, world: World) -> str:
        entered = len(self._second.process.events("registered"))
        if entered:
            world.wrong.append("a second broker took the place of one that runs")
        self._second.kill()
        shutil.rmtree(self._folder)
        self.free()
        self.free("cut")
        world.zookeeper_down.discard(NONE)
        return "the second one is killed"
