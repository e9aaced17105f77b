"""The process from which `tests.process.Launcher` forks brokers: everything is imported, nothing runs.

Its first argument is the number of a socket, from which it takes one JSON line at a time. {"start": [arguments]} comes
with three file descriptors, stdin, stdout and stderr of a child that runs `krappy ARGUMENTS`; the answer is its pid.
"environ" may have more environment variables.
The answer to {"reap": pid} is the exit status of a child that has ended. When the socket ends, it kills its remaining
children. Its second argument is the module whose `run` is `krappy`: krappy.cli.main, or one that stands in its place.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import itertools
import json
import os
import pkgutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

import krappy.handlers.kafka
import krappy.handlers.native
from krappy.cli.main import cli
from krappy.memory import keep_freed_memory
from krappy.wire.kafka import RANGES, ApiKey, codec

# What a broker imports at its start or later, in part by the names of modules.
PACKAGES = ("krappy.broker", "krappy.cluster", "krappy.console", "krappy.handlers", "krappy.server", "krappy.store")
# Partitions of each internal topic of a cluster, in place of Kafka's 50. Whenever a broker starts or ends, all of them
# change, at each broker: most of the CPU time of tests of groups, and none of what they test.
INTERNAL_PARTITIONS = 10
MODULES = (
    *("krappy.app", "krappy.logs", "krappy.cli.commands.serve", "krappy.cli.serving", "krappy.settings.described"),
    *("pickle", "encodings.idna"),  # rocksdict and socket import them when they are first needed
)
# Requests that each broker of a cluster gets, or sends. Their functions are compiled at first use.
KNOWN = (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FETCH)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    run = importlib.import_module(sys.argv[2]).run
    for name in MODULES:
        importlib.import_module(name)
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for handlers in (krappy.handlers.kafka, krappy.handlers.native):
        handlers.registry()
    cli.list_commands(click.Context(cli))
    for key, response in itertools.product(KNOWN, (False, True)):
        codec._reader(key, RANGES[key][1], response)
        codec._writer(key, RANGES[key][1], response)
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
                    os.environ.update(asked["environ"])
                    _child(run, asked["start"], array.array("i", fds))
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


def _child(run: Callable[[list[str]], int], arguments: list[str], fds: array.array[int]) -> NoReturn:
    status = 1
    try:
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        if "--zookeeper-connect" in arguments:
            for name in ("krappy.broker.topics.internal_topics", "krappy.broker.replication.joining"):
                sys.modules[name].PARTITIONS = INTERNAL_PARTITIONS  # type: ignore[attr-defined]
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
