"""All faults: importing this registers them in `KINDS`."""

from tests.chaos.faults import anew, disks, doubles, moves, networks, processes, zookeepers

__all__ = ["anew", "disks", "doubles", "moves", "networks", "processes", "zookeepers"]
