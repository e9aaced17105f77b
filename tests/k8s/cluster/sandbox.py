"""Runs a command as if on a machine of its own: with its own processes, mounts, network, host name and cgroup.

Three processes hold it. `run` is outside and waits. `inside` is the first process within (PID 1): when it ends, by
itself or by SIGKILL, the kernel ends all others, and their mounts and network go with them; it dies with `run`. `clean`
is outside too, outlives both whatever happens to them, and removes what no namespace has: cgroups, files, and the few
kernel settings that a kubelet changes for the whole machine.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
INSIDE = Path("/run/node")  # where the run's folder is seen inside
ADDRESS = "10.9.0.1"
CGROUPS = Path("/sys/fs/cgroup")
SETTINGS = tuple(  # kubelet: setupKernelTunables
    Path("/proc/sys") / name
    for name in (
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
        "kernel/keys/root_maxkeys",
        "kernel/keys/root_maxbytes",
    )
)
CLEAN_S = 60
PR_SET_PDEATHSIG = 1


def run(command: list[str], parent: Path, *, seconds: int) -> int:
    """Runs it inside and waits, `seconds` at most; returns its exit status (negative: the signal; 124: the time was
    up).

    `parent`: a folder for what the run writes, on a real disk. All of it is deleted at the end.
    """
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=parent.resolve()))
    cleaner = _cleaner(folder)
    try:
        _make_cgroups(folder.name)
        unshare = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        within = [sys.executable, "-m", __spec__.name, "inside", str(folder), str(seconds), *command]
        child = subprocess.Popen([*unshare, *within], cwd=ROOT, preexec_fn=_die_with_parent)
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:  # the process inside has got the signal, too, and ends
                continue
    finally:
        assert cleaner.stdin is not None
        cleaner.stdin.close()
        cleaner.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# --- the first process within


def inside(folder: Path, seconds: int, command: list[str]) -> int:
    """Prepares the machine, runs the command, and reaps all processes that end meanwhile."""
    _mounts(folder)
    _network()
    child = subprocess.Popen(command, env={**os.environ, "KRAPPY_K8S": folder.name})
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(child.pid, number))
    signal.signal(signal.SIGALRM, lambda *_: os._exit(124))
    signal.alarm(seconds)
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status)


def _mounts(folder: Path) -> None:
    for name in ("etc", "var"):  # read as they are; what is written goes to a layer that is dropped
        upper, work = folder / "layers" / name, folder / "layers" / f"{name}.work"
        upper.mkdir(parents=True)
        work.mkdir()
        options = f"lowerdir=/{name},upperdir={upper},workdir={work}"
        _do("mount", "-t", "overlay", "overlay", "-o", options, f"/{name}")
    _do("mount", "-t", "tmpfs", "tmpfs", "/run")
    INSIDE.mkdir()
    _do("mount", "--bind", str(folder), str(INSIDE))
    Path("/run/lock").mkdir()
    Path("/etc/resolv.conf").unlink(missing_ok=True)  # often a link into /run
    search = "krappy.svc.cluster.local svc.cluster.local cluster.local"
    Path("/etc/resolv.conf").write_text(f"nameserver {ADDRESS}\nsearch {search}\noptions ndots:5\n")


def _network() -> None:
    """The node's one interface leads only to the other end of its own wire: there is nothing outside."""
    _do("hostname", "node")
    _do("ip", "link", "set", "lo", "up")
    _do("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "nowhere")
    _do("ip", "link", "set", "nowhere", "up")
    _do("ip", "address", "add", f"{ADDRESS}/24", "dev", "eth0")
    _do("ip", "link", "set", "eth0", "up")
    _do("ip", "route", "add", "default", "via", "10.9.0.254")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _do(*command: str) -> None:
    subprocess.run(command, check=True)


# --- what no namespace has


def _hierarchies() -> list[Path]:
    """The folders in which cgroups are made: one (version 2), or one for each controller (version 1)."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _make_cgroups(name: str) -> None:
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir()
        for setting in ("cpuset.cpus", "cpuset.mems"):  # version 1 lets nobody in before these are set
            if hierarchy.name == "cpuset" and (hierarchy / setting).exists():
                (hierarchy / name / setting).write_text((hierarchy / setting).read_text())


def _cleaner(folder: Path) -> subprocess.Popen[bytes]:
    """A process that is started first. It begins to clean when its stdin ends, as it does when this process ends in any
    way."""
    settings = [path.read_text().strip() for path in SETTINGS]
    command = [sys.executable, "-m", __spec__.name, "clean", str(folder), *settings]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True)


def clean(folder: Path, settings: list[str]) -> int:
    """Waits for the end of stdin and removes what the run has left. Returns 0 when all of it is gone."""
    sys.stdin.buffer.read()
    for path, value in zip(SETTINGS, settings, strict=True):
        if path.read_text().strip() != value:
            path.write_text(value)
    deadline = time.monotonic() + CLEAN_S  # the last processes may still be ending
    while left := list(_left(folder)):
        if time.monotonic() > deadline:
            sys.stderr.write("left behind: " + " ".join(map(str, left)) + "\n")
            return 1
        time.sleep(0.1)
    return 0


def _left(folder: Path) -> Iterator[Path]:
    """Removes what can be removed, and says what could not."""
    for hierarchy in _hierarchies():
        for path, _, _ in os.walk(hierarchy / folder.name, topdown=False):
            try:
                os.rmdir(path)
            except OSError:
                yield Path(path)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        yield folder


if __name__ == "__main__":
    if sys.argv[1] == "clean":
        sys.exit(clean(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(inside(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
