"""A broker that stops itself at a step of a transaction, of a staged job, of a share group's acknowledgement, or of a
join.

`stepping` starts `krappy serve --data FOLDER …`. The test writes into the file FOLDER.step at which step the broker
stops itself, how many times it must have come there, and by which signal.

The steps of a coordinator, in this order:   and of a leader, whichever partition it leads:
    writes PrepareCommit                      takes marker
    wrote PrepareCommit    in its own log     queued marker
    saved PrepareCommit    committed          wrote marker    committed
    sends marker           to each broker
    sent marker            the broker has answered
    writes CompleteCommit
    wrote CompleteCommit   in its own log

The steps of a staged job's coordinator, besides markers, and of a leader:
    puts Open, put Open              at the beginning of an attempt, and when it is sealed
    stages row, staged row           committed
    puts Publishing, put Publishing  committed
    sends batch, sent batch          to another broker
    appends batch                    at the leader, even if that is the coordinator itself
    puts Marking, put Marking        committed
    ends Committed, ended Committed  committed

The steps of the leader of a share group's partition, and of the broker that keeps the group's states:
    takes acks, took acks            in memory
    sends state, sent state          sent: the other broker has answered that it is committed
    keeps state, kept state          in its own log, or its own database
    committed state                  it is committed, and on the disk; the broker answers after this step

The steps of a broker whose folder was alone, when it joins a cluster:
    gives topic                      for each of its topics
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, cast

from tests.process import PATIENCE, BrokerProcess, Child, launcher, wait_until, write_at_once

_step_file = Path()


def stepping(arguments: list[str], stdin: int, stdout: int, stderr: int) -> Child:
    return launcher(__name__)(arguments, stdin, stdout, stderr)


def _file(data: Path) -> Path:
    return data.with_name(f"{data.name}.step")


@contextmanager
def stopping_at(
    broker: BrokerProcess, step: str, times: int = 1, by: signal.Signals = signal.SIGKILL
) -> Iterator[None]:
    """The broker gets the signal when it comes to the step for the nth time (`times`) within the block. The end of the
    block waits until it has got the signal."""
    file = _file(broker.data)
    write_at_once(file, json.dumps([step, times, by]))
    yield
    wait_until(lambda: not file.exists(), f"it comes to '{step}'")
    if by is signal.SIGKILL:
        assert broker.ended(PATIENCE) == -signal.SIGKILL
    if by is signal.SIGSTOP:  # otherwise the test might continue it before it has stopped
        stat = Path(f"/proc/{broker.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it stands still")


def reached(step: str) -> None:
    try:
        wanted, times, by = json.loads(_step_file.read_text())
    except FileNotFoundError:
        return
    if wanted != step:
        return
    if times > 1:
        _step_file.write_text(json.dumps([step, times - 1, by]))
        return
    _step_file.unlink()
    os.kill(os.getpid(), by)


def _around(cls: Any, name: str, before: Callable[..., None], after: Callable[..., None] = lambda *_: None) -> None:
    work = getattr(cls, name)

    @wraps(work)
    def stepped(*given: Any, **named: Any) -> Any:
        before(*given)
        result = work(*given, **named)
        after(result, *given)
        return result

    @wraps(work)
    async def stepped_later(*given: Any, **named: Any) -> Any:
        before(*given)
        result = await work(*given, **named)
        after(result, *given)
        return result

    setattr(cls, name, stepped_later if iscoroutinefunction(work) else stepped)


def _add_steps() -> None:
    from krappy.broker.groups.share_group import ShareLeases
    from krappy.broker.groups.share_keepers import ShareKeepers
    from krappy.broker.groups.share_states import ShareStates
    from krappy.broker.partition.partition import Partition
    from krappy.broker.replication import joining
    from krappy.broker.staging.replicated import JobTable, RowData
    from krappy.broker.transactions.ending import TransactionEnds
    from krappy.broker.transactions.replicated import LeaderTerm
    from krappy.cluster.log_peers import LogPeers
    from krappy.cluster.transaction_peers import TransactionPeers
    from krappy.waiting import Later

    _around(
        *(LeaderTerm, "keep"),
        lambda term, transaction: reached(f"writes {transaction.stage}"),
        lambda _, term, transaction: reached(f"wrote {transaction.stage}"),
    )
    _around(LeaderTerm, "save", lambda *_: None, lambda _, term, transaction: reached(f"saved {transaction.stage}"))
    _around(TransactionPeers, "write_markers", lambda *_: reached("sends marker"), lambda *_: reached("sent marker"))

    for name, doing, done in (("put", "puts", "put"), ("end", "ends", "ended")):
        _around(
            *(JobTable, name),
            lambda _, job, *more, doing=doing: reached(f"{doing} {job.state}"),
            lambda _, term, job, *more, done=done: reached(f"{done} {job.state}"),
        )
    _around(RowData, "append", lambda *_: reached("stages row"), lambda *_: reached("staged row"))
    _around(LogPeers, "append_staged", lambda *_: reached("sends batch"), lambda *_: reached("sent batch"))
    _around(Partition, "publish_own", lambda *_: reached("appends batch"))

    _around(joining, "_topic", lambda *_: reached("gives topic"))

    def committed(refused: Any) -> Any:
        reached("committed state")
        return refused

    def write(self: Any, *given: Any) -> Later[Any]:
        reached("keeps state")
        written: Later[Any] = write_state(self, *given)
        reached("kept state")
        return written.map(committed)

    write_state = ShareStates.write
    cast("Any", ShareStates).write = write
    _around(ShareLeases, "_settle", lambda *_: reached("takes acks"), lambda *_: reached("took acks"))
    _around(ShareKeepers, "write", lambda *_: reached("sends state"), lambda *_: reached("sent state"))

    def end(self: Any, *given: Any) -> Later[None]:
        reached("takes marker")
        later, told = queue(self, *given), Later[None]()
        reached("queued marker")

        def ended(value: None, error: Exception | None) -> None:
            if error is not None:
                told.reject(error)
            else:
                reached("wrote marker")
                told.resolve(value)

        later.then(ended)
        return told

    queue = TransactionEnds._end
    cast("Any", TransactionEnds)._end = end


def run(arguments: list[str]) -> int:
    """Runs `krappy ARGUMENTS` with the steps."""
    from krappy.cli.main import run

    global _step_file
    _step_file = _file(Path(arguments[arguments.index("--data") + 1]))
    _add_steps()
    return run(arguments)
