"""Networks between the servers of a round: namespaces of their own that can be cut, or this machine's loopback.

`Namespaces` needs no clean-up. `enter` puts a whole round into namespaces of its own (network, mounts, processes). When
the round ends, in whatever way, all its networks, mounts and processes are gone.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from tests.process import free_ports

INSIDE = "KRAPPY_CHAOS_INSIDE"  # an environment variable that is set if the run is in its namespaces
TOOLS = ("unshare", "nsenter", "mount", "ip", "iptables", "tc")
PROBE = """
mount -t tmpfs tmpfs /run && mkdir -p /run/netns && ip link add probe type bridge && ip netns add probe \
&& ip netns exec probe iptables -A INPUT -s 10.77.0.1 -m statistic --mode random --probability 0.1 -j DROP
"""
SUBNET = "10.77.0"
HERE = f"{SUBNET}.254"  # the address of the clients
SLOW_RATE, SLOW_QUEUE = "2mbit", "400ms"  # if the kernel can't delay packets, the line is made narrow instead


class Missing(Exception):
    """Namespaces can't be made here; the message says why."""


class Host(NamedTuple):
    """Where a server runs: its address, and the words that come before its command."""

    name: str
    address: str
    prefix: tuple[str, ...] = ()


class Loopback:
    """All servers are on 127.0.0.1, each with its own ports. Nothing can be cut."""

    cuts = False
    client_address = "127.0.0.1"

    def __init__(self) -> None:
        self.refused = ""  # why packets can't be delayed

    def join(self, name: str) -> Host:
        return Host(name, "127.0.0.1")

    def ports(self, count: int) -> list[int]:
        return free_ports(count)


class Namespaces:
    """Each server has a network namespace of its own; a bridge connects them. Call `enter` before."""

    cuts = True
    client_address = HERE

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}
        self._ports = itertools.count(9100)
        for command in (
            "ip link set lo up",
            "ip link add chaos type bridge",
            f"ip address add {HERE}/24 dev chaos",
            "ip link set chaos up",
        ):
            _run(command.split())
        self.refused = self._try_netem()

    def _try_netem(self) -> str:
        try:
            _run(["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
        except OSError as error:
            return f"this kernel can't delay packets, so lines are made narrow instead ({error})"
        _run(["tc", "qdisc", "del", "dev", "lo", "root"])
        return ""

    def join(self, name: str) -> Host:
        """The host of this name. The first call makes its namespace."""
        if name not in self._hosts:
            number = len(self._hosts) + 1
            address = f"{SUBNET}.{number}"
            for command in (
                f"ip netns add {name}",
                f"ip link add v{number} type veth peer name eth0 netns {name}",
                f"ip link set v{number} master chaos up",
                f"ip -n {name} address add {address}/24 dev eth0",
                f"ip -n {name} link set lo up",
                f"ip -n {name} link set eth0 up",
            ):
                _run(command.split())
            self._hosts[name] = Host(name, address, ("nsenter", f"--net=/run/netns/{name}"))
        return self._hosts[name]

    def ports(self, count: int) -> list[int]:
        return list(itertools.islice(self._ports, count))

    # --- trouble of one host; `heal` ends all of it

    def cut(self, name: str, peers: Iterable[str] | None, ways: Sequence[str] = ("in", "out")) -> None:
        """Drops the packets between a host and its peers. `peers`: None means everybody, also clients. `ways`: "in" are
        the packets to the host, "out" those that it sends."""
        for rule in _rules(None if peers is None else [self._hosts[each].address for each in peers], ways):
            self._iptables(name, *rule, "-j", "DROP")

    def lose(self, name: str, share: float) -> None:
        """Loses a share of a host's packets, in both directions."""
        chance = ("-m", "statistic", "--mode", "random", "--probability", f"{share:.3f}")
        for rule in _rules(None, ("in", "out")):
            self._iptables(name, *rule, *chance, "-j", "DROP")

    def slow(self, name: str, delay_ms: int) -> str:
        """Delays the packets that a host sends; returns a text that says how."""
        if self.refused:
            how = f"tbf rate {SLOW_RATE} burst 16kbit latency {SLOW_QUEUE}"
        else:
            how = f"netem delay {delay_ms}ms {delay_ms // 4}ms"
        _run(["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", *how.split()])
        return how

    def heal(self, name: str) -> None:
        self._iptables(name, "-F")
        subprocess.run(["tc", "-n", name, "qdisc", "del", "dev", "eth0", "root"], capture_output=True, check=False)

    def _iptables(self, name: str, *rule: str) -> None:
        _run([*self._hosts[name].prefix, "iptables", "-w", "10", *rule])


Network = Loopback | Namespaces


def _rules(addresses: Sequence[str] | None, ways: Sequence[str]) -> list[list[str]]:
    found = []
    for way in ways:
        chain, side = ("INPUT", "-s") if way == "in" else ("OUTPUT", "-d")
        if addresses is None:
            device = ["-i", "eth0"] if way == "in" else ["-o", "eth0"]
            found.append(["-A", chain, *device])
        else:
            found += [["-A", chain, side, address] for address in addresses]
    return found


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _unshare() -> list[str]:
    flags = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), *flags]


def probe() -> None:
    """Raises Missing, with the reason as a sentence, if namespaces can't be made."""
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise Missing(f"network namespaces need {', '.join(lacking)}: apt-get install util-linux iproute2 iptables")
    command = [*_unshare(), "sh", "-ec", PROBE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise Missing(f"network namespaces can't be made here (as root they usually can): {done.stderr.strip()[-300:]}")


def inside() -> bool:
    return INSIDE in os.environ


def enter() -> NoReturn:
    """Runs this very command anew in namespaces of its own, in place of this process."""
    os.environ[INSIDE] = "1"
    sys.stdout.flush()
    command = [*_unshare(), sys.executable, "-m", "tests.chaos.run", *sys.argv[1:]]
    os.execvp(command[0], command)


def settle() -> None:
    """Makes a place for the names of namespaces that only this run sees. Call it first inside the namespaces."""
    _run(["mount", "-t", "tmpfs", "tmpfs", "/run"])
    Path("/run/netns").mkdir()
