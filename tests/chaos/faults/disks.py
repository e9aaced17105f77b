"""Disks that are replaced, and losses of power."""

from __future__ import annotations

import time

from tests.chaos.faults.base import TOPICS, Fault, fault
from tests.chaos.world import World


def is_well(world: World) -> bool:
    """Whether nothing is wrong, and all replicas are in sync."""
    machines = world.machines.values()
    troubled = world.zookeeper_down or any(each.busy or each.cut or not each.up for each in machines)
    return not troubled and not world.lagging(TOPICS)


@fault("disk", "the disk of one broker is replaced by an empty one, while all replicas are in sync", (1, 6))
class ReplacedDisk(Fault):
    """It happens only while nothing else is wrong: afterwards an acknowledged event may be on only two other disks."""

    def begin(self, world: World) -> str:
        machines = list(world.machines.values())
        if not is_well(world):
            return ""
        self.take(world, machines)  # no other disk may be replaced until this broker is in sync again
        machine = world.machines[self.random.choice(sorted(world.machines))]
        self.victim_id = machine.id
        self.registrations = len(machine.process.events("registered"))
        machine.kill()
        machine.replace_disk()
        return f"broker {machine.id} is killed, its folder removed"

    def end(self, world: World) -> str:
        machine = world.machines[self.victim_id]
        machine.begin()
        until = time.monotonic() + 40  # others count on the lost disk until its broker has left the ISRs
        while len(machine.process.events("registered")) <= self.registrations and time.monotonic() < until:
            time.sleep(0.1)
        seconds, lacking = world.until_in_sync(TOPICS, 40)
        self.free()
        return f"broker {self.victim_id} is started; " + (
            f"not in sync yet: {lacking[:2]}" if lacking else f"all in sync after {seconds:.1f} s"
        )


@fault("power", "the machine of one broker loses power: what was not synced is lost", (0.5, 8), needs="power")
class PowerLoss(Fault):
    def begin(self, world: World) -> str:
        for machine in self.take(world, [self.victim(world)]):
            return f"loss of power: {machine.lose_power(self.random)}"
        return ""

    def end(self, world: World) -> str:
        return self.start_again()


@fault("power-of-all", "all machines lose power at the same moment", (1, 6), needs="power", weight=1)
class PowerLossOfAll(PowerLoss):
    def begin(self, world: World) -> str:
        machines = self.take(world, list(world.machines.values()))
        for machine in machines:
            machine.kill()  # all machines must be dead before the first disk is computed
        told = [machine.lose_power(self.random) for machine in machines]
        return f"loss of power: {'; '.join(told)}" if told else ""
