"""kubectl, as the tests use it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 300
Object = dict[str, Any]


class Refused(Exception):
    """kubectl ended with an error; the text is what it wrote."""


class Kubectl:
    """Runs commands in one namespace; `of` gives another one."""

    def __init__(self, program: Path, config: Path, namespace: str = "default") -> None:
        self.program, self.config, self.namespace = program, config, namespace
        self.command = [str(program), "--kubeconfig", str(config), "--namespace", namespace]

    def of(self, namespace: str) -> Kubectl:
        return Kubectl(self.program, self.config, namespace)

    def __call__(self, *arguments: object, stdin: bytes | None = None, seconds: int = PATIENCE_S) -> str:
        """What kubectl writes to stdout. Raises Refused."""
        return self.bytes(*arguments, stdin=stdin, seconds=seconds).decode().strip()

    def bytes(self, *arguments: object, stdin: bytes | None = None, seconds: int = PATIENCE_S) -> bytes:
        command = [*self.command, *map(str, arguments)]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=seconds)
        if done.returncode:
            raise Refused(f"{' '.join(map(str, arguments))}: {done.stderr.decode()}{done.stdout.decode()}")
        return done.stdout

    def get(self, *arguments: object) -> Object:
        found: Object = json.loads(self("get", *arguments, "-o", "json"))
        return found

    def apply(self, manifest: Object | list[Object]) -> str:
        """Applies one object or several."""
        items = manifest if isinstance(manifest, list) else [manifest]
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        return self("apply", "-f", "-", stdin=document.encode())

    def until(self, what: str, found: Callable[[], bool], seconds: int = PATIENCE_S) -> None:
        """Asks again until `found` returns true. Fails with what the namespace looks like."""
        deadline = time.monotonic() + seconds
        while not found():
            if time.monotonic() > deadline:
                raise AssertionError(f"not {what} after {seconds} s:\n{self.look()}")
            time.sleep(0.2)

    def look(self) -> str:
        """The namespace's pods, and what has happened in it."""
        pods = self("get", "pods,persistentvolumeclaims", "-o", "wide")
        return f"{pods}\n{self('get', 'events', '--sort-by=.lastTimestamp')}"
