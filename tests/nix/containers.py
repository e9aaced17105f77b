"""Podman as the tests use it: with runc and cgroupfs, which work where there is no systemd."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CONFIG = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=8192:8192"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
"""
NEEDED = ("nix", "podman", "runc", "patchelf", "dpkg-deb", "apt-get")
READY_S = 120
NEW_NETWORK = 0x40000000  # CLONE_NEWNET of unshare(2)
SET_FLAGS = 0x8914  # SIOCSIFFLAGS of netdevice(7)
UP_AND_RUNNING = 0x41


def require() -> None:
    """Skips the test where an image can't be built and run. In CI it must be possible."""
    missing = [tool for tool in NEEDED if shutil.which(tool) is None]
    reason = f"not installed: {', '.join(missing)}" if missing else "needs root" if os.geteuid() else ""
    if reason and os.environ.get("CI") == "true":
        pytest.fail(f"CI must build and run the image, but {reason}")
    if reason:
        pytest.skip(reason)


@contextmanager
def own_network() -> Iterator[None]:
    """Puts this thread, and all threads and programs that it starts, into a network of their own.

    Podman makes an interface for each container. If that were in the machine's network, a browser of another test would
    see the network change, and give up what it is loading with ERR_NETWORK_CHANGED.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def must(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    with open("/proc/thread-self/ns/net") as before:
        must(libc.unshare(NEW_NETWORK))
        try:
            with socket.socket() as any_socket:
                fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", UP_AND_RUNNING))
            yield
        finally:
            must(libc.setns(before.fileno(), NEW_NETWORK))


class Podman:
    def __init__(self, folder: Path) -> None:
        config = folder / "containers.conf"
        config.write_text(CONFIG)
        self.environ = {**os.environ, "CONTAINERS_CONF": str(config)}

    def __call__(self, *arguments: object, stdin: Any = None, check: bool = True) -> str:
        command = ["podman", *map(str, arguments)]
        done = subprocess.run(
            command, stdin=stdin, env=self.environ, capture_output=True, text=True, timeout=300, check=False
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def said(self, name: str) -> str:
        """What the container has written to stdout and stderr."""
        done = subprocess.run(
            ["podman", "logs", name],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("inspect", "--type", "container", name))[0]["State"]
        return found

    def address(self, name: str, port: int) -> str:
        return self("port", name, f"{port}/tcp").splitlines()[0]

    def wait_until_healthy(self, name: str) -> None:
        """Waits until the container is healthy by the image's own health check."""
        deadline = time.monotonic() + READY_S
        while True:
            if "exited" in (status := self.state(name)["Status"]):
                pytest.fail(f"the container ended: {self('logs', name, check=False)}")
            if status == "running" and not self._unhealthy(name):
                return
            assert time.monotonic() < deadline, self("logs", name, check=False)
            time.sleep(0.2)

    def _unhealthy(self, name: str) -> bool:
        return bool(
            subprocess.run(
                ["podman", "healthcheck", "run", name], env=self.environ, capture_output=True, timeout=60, check=False
            ).returncode
        )
