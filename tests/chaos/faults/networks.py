"""Brokers that are cut off, from some or all, in both directions or one; lost packets; slow lines."""

from __future__ import annotations

from typing import ClassVar

from tests.chaos.faults.base import Fault, fault
from tests.chaos.machines import Machine
from tests.chaos.networks import Namespaces
from tests.chaos.world import World

LENGTHS = (2, 5, 9, 20)


class OfLine(Fault):
    """A fault of one broker's network line."""

    def harm(self, world: World, network: Namespaces, machine: Machine) -> str:
        """Harms the line; returns what it did."""
        raise NotImplementedError

    def begin(self, world: World) -> str:
        assert isinstance(world.network, Namespaces)
        for machine in self.take(world, [self.victim(world)], "cut"):
            return self.harm(world, world.network, machine)
        return ""

    def end(self, world: World) -> str:
        assert isinstance(world.network, Namespaces)
        [machine] = self.machines
        world.network.heal(machine.host.name)
        self.free("cut")
        return f"broker {machine.id} reaches everything"


class Cut(OfLine):
    """`among`: from which peers the broker is cut off. `both`: packets are dropped in both directions."""

    among: ClassVar[str]
    both: ClassVar[bool] = True

    def harm(self, world: World, network: Namespaces, machine: Machine) -> str:
        others = [each.host.name for each in world.machines.values() if each is not machine]
        zookeepers = [f"zookeeper-{number + 1}" for number in range(len(world.zookeepers))]
        among = self.among if self.among != "any" else self.random.choice(["brokers", "ZooKeeper", "servers"])
        peers = {"brokers": others, "ZooKeeper": zookeepers, "servers": others + zookeepers, "all": None}[among]
        ways = ("in", "out") if self.both else (self.random.choice(["in", "out"]),)
        network.cut(machine.host.name, peers, ways)
        return f"broker {machine.id} is cut from {among}" + ("" if self.both else f", only {ways[0]}")


@fault("cut-from-brokers", "a broker does not reach the others, but ZooKeeper and clients", LENGTHS, needs="cuts")
class CutFromBrokers(Cut):
    among = "brokers"


@fault("cut-from-ZooKeeper", "a broker does not reach ZooKeeper, but the others and clients", LENGTHS, needs="cuts")
class CutFromZooKeeper(Cut):
    among = "ZooKeeper"


@fault("cut-from-servers", "a broker reaches clients only", LENGTHS, needs="cuts")
class CutFromServers(Cut):
    among = "servers"


@fault("cut-from-all", "a machine without a network", LENGTHS, needs="cuts")
class CutFromAll(Cut):
    among = "all"


@fault("cut-one-way", "packets come, and none go, or the other way round", LENGTHS, needs="cuts")
class CutOneWay(Cut):
    among, both = "any", False


@fault("loss", "a broker's line loses packets", (5, 15), needs="cuts")
class Loss(OfLine):
    def harm(self, world: World, network: Namespaces, machine: Machine) -> str:
        share = self.random.choice([0.02, 0.1, 0.3])
        network.lose(machine.host.name, share)
        return f"broker {machine.id} loses {share:.0%} of its packets"


@fault("slow", "a broker's line is slow", (5, 15), needs="cuts")
class Slow(OfLine):
    def harm(self, world: World, network: Namespaces, machine: Machine) -> str:
        how = network.slow(machine.host.name, self.random.choice([20, 100, 500]))
        return f"broker {machine.id} sends slowly: {how}"
