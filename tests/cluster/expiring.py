"""A broker whose session with ZooKeeper expires at a step that the test chooses.

`expiring` starts `krappy serve --data FOLDER …`. The file FOLDER.expires has a list of steps. When the broker comes to
the first step of the list, its session ends, as if it had expired; then the next step counts. The steps are writes:

    bumps    its broker epoch, before it registers      controls   it becomes the controller
    enters   it registers                               elects     it changes partitions' states, as the controller
    renews   its lease, each second                     leads      a partition's state, as the leader

The session can end in three ways at each step: `before` the write; `after` its answer; or after the write, with its
answer `lost`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import trio

from krappy.cluster.zk import jute
from krappy.cluster.zk.client import ZooKeeper
from krappy.cluster.zk.jute import Opcode
from krappy.core.cluster import paths
from krappy.core.cluster.tree import Check, Create, Operation
from krappy.errors import ConnectionLost
from tests.process import BrokerProcess, Child, launcher, write_at_once

WRITES = "bumps", "enters", "renews", "controls", "elects", "leads"
WAYS = "before", "after", "lost"
_file = Path()


def expiring(arguments: list[str], stdin: int, stdout: int, stderr: int) -> Child:
    return launcher(__name__)(arguments, stdin, stdout, stderr)


def _file_of(data: Path) -> Path:
    return data.with_name(f"{data.name}.expires")


def expires_at(broker: BrokerProcess, *steps: str) -> None:
    """Lets the session expire at these steps, in this order. Without steps it does not expire any more."""
    assert all(step.split()[0] in WAYS and step.split()[1] in WRITES for step in steps)
    write_at_once(_file_of(broker.data), json.dumps(steps))


def is_expired(broker: BrokerProcess) -> bool:
    """Whether the broker has come to all steps."""
    return bool(json.loads(_file_of(broker.data).read_text()) == [])


def _name(operations: Sequence[Operation]) -> str:
    names = {
        "/brokers/ids/": "enters",
        f"{paths.LEASES}/": "renews",
        paths.CONTROLLER: "controls",
        paths.epoch(0).removesuffix("0"): "bumps",
    }
    last = operations[-1]
    if last.path.endswith("/state"):
        first = operations[0]
        return "elects" if isinstance(first, Check) and first.path == paths.CONTROLLER_EPOCH else "leads"
    if last.path == paths.CONTROLLER and not isinstance(last, Create):
        return ""
    return next((name for path, name in names.items() if last.path.startswith(path)), "")


async def _expire(client: Any) -> None:
    """Ends the session at once, and so deletes its ephemeral znodes. Another connection takes the session over and
    closes it. The broker may take the session back before that, so this is repeated until the session is over."""
    session = client.session
    while True:
        async with await trio.open_tcp_stream(*client._servers[0]) as stream:
            await stream.send_all(jute.connect(session.timeout_ms, session.id, session._password, session.zxid))
            answer = await stream.receive_some(1 << 16)
            if answer and jute.JuteReader(answer[4:]).connected().timeout_ms <= 0:
                return
            await stream.send_all(jute.request(1, Opcode.CLOSE))
            while await stream.receive_some(1 << 16):
                pass


def run(arguments: list[str]) -> int:
    """Runs `krappy ARGUMENTS` with the steps."""
    from krappy.cli.main import run

    global _file
    _file = _file_of(Path(arguments[arguments.index("--data") + 1]))
    multi = ZooKeeper.multi

    def comes_to(way: str, name: str) -> bool:
        try:
            [step, *more] = json.loads(_file.read_text())
        except (FileNotFoundError, ValueError):
            return False
        if step != f"{way} {name}":
            return False
        write_at_once(_file, json.dumps(more))
        return True

    async def write(self: Any, operations: Sequence[Operation]) -> None:
        name = _name(operations) if operations else ""
        if comes_to("before", name):
            await _expire(self)
        await multi(self, operations)
        is_lost = comes_to("lost", name)
        if is_lost or comes_to("after", name):
            await _expire(self)
        if is_lost:
            raise ConnectionLost("the answer is lost", sent=True)

    cast("Any", ZooKeeper).multi = write
    return run(arguments)
