"""Brokers that are killed, stopped and paused."""

from __future__ import annotations

from tests.chaos.faults.base import Fault, fault
from tests.chaos.machines import Machine
from tests.chaos.world import World


@fault(
    "kill",
    "a broker's process dies; its supervisor starts it again soon, or its machine is gone",
    (0.5, 2, 12),
    weight=4,
)
class Kill(Fault):
    def begin(self, world: World) -> str:
        for machine in self.take(world, [self.victim(world)]):
            machine.kill()
            return f"SIGKILL to broker {machine.id}"
        return ""

    def end(self, world: World) -> str:
        for machine in self.machines:
            machine.begin()
        self.free()
        return f"broker {self.machines[0].id} is started"


def note_end(world: World, machine: Machine) -> None:
    if wrong := machine.ended():
        world.died.append(wrong)


@fault("stop", "a broker is stopped, as for maintenance: it hands over first", (1, 5, 12), weight=3)
class Stop(Fault):
    def begin(self, world: World) -> str:
        for machine in self.take(world, [self.victim(world)]):
            machine.terminate()
            return f"SIGTERM to broker {machine.id}"
        return ""

    def end(self, world: World) -> str:
        [machine] = self.machines
        note_end(world, machine)
        machine.begin()
        self.free()
        return f"broker {machine.id} has ended, and is started"


@fault(
    "pause",
    "a broker stands still, for less than its session or longer; then it goes on as if nothing were",
    (1, 3, 8, 18),
    weight=4,
)
class Pause(Fault):
    def begin(self, world: World) -> str:
        for machine in self.take(world, [self.victim(world)]):
            machine.pause(True)
            return f"SIGSTOP to broker {machine.id}"
        return ""

    def end(self, world: World) -> str:
        [machine] = self.machines
        machine.pause(False)
        self.free()
        return f"SIGCONT to broker {machine.id}"


@fault("kill-all", "all brokers die at the same moment", (0.5, 3, 10), weight=1)
class KillAll(Fault):
    def begin(self, world: World) -> str:
        for machine in self.take(world, list(world.machines.values())):
            machine.kill()
        return "SIGKILL to all brokers" if self.machines else ""

    def end(self, world: World) -> str:
        return self.start_again()


@fault("kill-two", "two brokers are dead: events are refused, until one of them is back", (2, 9), weight=1)
class KillTwo(Fault):
    def begin(self, world: World) -> str:
        chosen = self.random.sample(sorted(world.machines), 2)
        for machine in self.take(world, [world.machines[id] for id in chosen]):
            machine.kill()
        return f"SIGKILL to brokers {chosen}" if self.machines else ""

    end = KillAll.end


@fault("roll", "each broker in turn is stopped and started, as for an upgrade", (1,), weight=1)
class Roll(Fault):
    def begin(self, world: World) -> str:
        for machine in self.take(world, list(world.machines.values())):
            machine.terminate()
            note_end(world, machine)
            machine.begin()
        return "each broker was stopped, and is started" if self.machines else ""

    def end(self, world: World) -> str:
        self.free()
        return ""


@fault("clock", "a wall clock is set ahead or back by up to a day", (2, 10), needs="clock")
class Clock(Fault):
    def begin(self, world: World) -> str:
        machine = world.machines[self.random.choice(sorted(world.machines))]
        seconds = self.random.choice([-86400, -3600, -60, 60, 3600, 86400])
        machine.jump(seconds)
        self.machines = [machine]
        return f"the clock of broker {machine.id} is off by {seconds:+} s"

    def end(self, world: World) -> str:
        self.machines[0].jump(0)
        return f"the clock of broker {self.machines[0].id} is right"
