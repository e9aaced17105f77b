"""A broker that repairs failed logs after seconds instead of minutes, and dies at a step that the test chooses.

`dying` starts `krappy serve --data FOLDER …`. The broker kills itself (SIGKILL) when it comes to the step that the file
FOLDER.dies names. It removes the file first, so the next process does not die there. Its disk may fail, too
(failing_disk.py)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster import failing_disk
from tests.process import BrokerProcess, Child, launcher

STEPS = (
    "noted",
    "written",
    "about to set aside",
    "set aside",
    "made anew",
    "began to copy",
)  # the steps of a replica that is made anew
REGISTERS, EXCLUDES = "registers", "excludes itself"


def dying(arguments: list[str], stdin: int, stdout: int, stderr: int) -> Child:
    return launcher(__name__)(arguments, stdin, stdout, stderr)


def _file(data: Path) -> Path:
    return data.with_name(f"{data.name}.dies")


def dies_at(broker: BrokerProcess, step: str) -> None:
    assert step in (*STEPS, REGISTERS, EXCLUDES)
    _file(broker.data).write_text(step)


def has_died(broker: BrokerProcess) -> bool:
    return not _file(broker.data).exists() and not broker.running


def run(arguments: list[str]) -> int:
    from krappy.broker.partition.follower import Follower
    from krappy.broker.replication import failed_logs, home
    from krappy.broker.replication.assignments import Assignments
    from krappy.broker.replication.replica_logs import ReplicaLogs
    from krappy.cluster.member import ClusterMember

    failed_logs.RETRY_S, failed_logs.ANEW_S, failed_logs.WAIT_S = 2.0, 4.0, 2.0
    home.PULSE_S = 0.5
    file = _file(Path(arguments[arguments.index("--data") + 1]))

    def may_die(step: str) -> None:
        if file.exists() and file.read_text() == step:
            file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def dies(where: Any, name: str, before: str, after: str) -> None:
        real: Callable[..., Any] = getattr(where, name)

        def wrapped(*args: Any, **named: Any) -> Any:
            may_die(before)
            found = real(*args, **named)
            may_die(after)
            return found

        setattr(where, name, wrapped)

    dies(ReplicaLogs, "note_damage", "", "noted")
    dies(Assignments, "replace", "written", "")
    dies(ReplicaLogs, "_set_aside", "about to set aside", "set aside")
    dies(ReplicaLogs, "replace", "", "made anew")
    dies(Follower, "_append", "", "began to copy")
    dies(ClusterMember, "_register", REGISTERS, "")
    dies(ClusterMember, "_exclude", EXCLUDES, "")
    return failing_disk.run(arguments)
