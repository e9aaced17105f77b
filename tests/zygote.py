"""The process from which `tests.process.Launcher` forks brokers: everything is imported, nothing runs.

Its argument is the number of a socket, from which it takes one JSON line at a time. {"start": [arguments]} comes with
three file descriptors, stdin, stdout and stderr of `krappy ARGUMENTS`; the answer is its pid. The answer to {"reap":
pid} is the exit status of a child that has ended. When the socket ends, it kills its remaining children.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import signal
import socket
import sys
from typing import NoReturn

import trio  # noqa: F401  # imported for the children

import krappy.app
import krappy.logs  # noqa: F401
from krappy.cli.main import run
from krappy.memory import keep_freed_memory


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    keep_freed_memory()
    gc.collect()
    gc.freeze()
    children: set[int] = set()
    try:
        while True:
            data, fds, _, _ = socket.recv_fds(control, 1 << 20, 3)
            if not data:
                return
            asked = json.loads(data)
            if "start" in asked:
                pid = os.fork()
                if not pid:
                    control.close()
                    _run(asked["start"], array.array("i", fds))
                children.add(pid)
                for fd in fds:
                    os.close(fd)
                answer = pid
            else:
                pid = asked["reap"]
                children.discard(pid)
                answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            control.sendall(b"%d\n" % answer)
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _run(arguments: list[str], fds: array.array[int]) -> NoReturn:
    status = 1
    try:
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        status = run(arguments)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
