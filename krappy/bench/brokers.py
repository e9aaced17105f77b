"""Which broker of a cluster a bench talks to: its own thin client, `Pipe`, knows only one."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from krappy.bench.pipe import close_pipes, open_pipes
from krappy.cli.errors import Failure
from krappy.errors import KrappyError, NotCoordinator, NotLeader, UnknownGroup, UnknownPartition, UnknownTopic
from krappy.wire.messages import ConsumerRegistration, DeleteGroup, Metadata

NOBODY = -1
PATIENCE = 10.0  # seconds for a group to get its coordinator, and for the leader of a new topic to know that it leads


def leader_of(address: str, topic: str) -> str:
    """HOST:PORT of the broker that leads all partitions of a topic, as the one at `address` tells. Raises Failure if
    there is none."""
    brokers, leaders = _told(address, topic)
    if len(brokers) == 1:
        return address
    if len(leaders) > 1:
        raise Failure(
            f"{len(leaders)} brokers lead the {sum(leaders.values())} partitions of this topic, and this bench talks "
            "to one: measure with --partitions 1, or a single broker"
        )
    [leader] = leaders
    if (found := brokers.get(leader)) is None:
        raise Failure("no broker leads the topic of this bench now: try again")
    _until_it_leads(found, topic)
    return found


def _until_it_leads(address: str, topic: str) -> None:
    """Waits until the broker knows that it leads the topic: others may hear of a new topic before its leader does.
    Raises the broker's last error."""
    end = time.monotonic() + PATIENCE
    while True:
        (pipe,) = open_pipes(address, 1)
        try:
            pipe.ask(ConsumerRegistration([topic]))  # it goes with the connection
            return
        except (NotLeader, UnknownTopic, UnknownPartition):
            if time.monotonic() > end:
                raise
        finally:
            close_pipes([pipe])
        time.sleep(0.05)


def coordinator_of(address: str, group: str) -> str:
    """HOST:PORT of the broker that coordinates a group that is not there yet. Raises the broker's error."""
    end = time.monotonic() + PATIENCE
    while True:
        (pipe,) = open_pipes(address, 1)
        try:
            pipe.ask(DeleteGroup(group))
        except UnknownGroup:
            return address
        except NotCoordinator as error:
            if time.monotonic() > end:
                raise
            address = _addresses(pipe.ask(Metadata([]))).get(error.details.get("coordinator", NOBODY), address)
        except KrappyError as error:
            if not error.retriable or time.monotonic() > end:
                raise
        finally:
            close_pipes([pipe])
        time.sleep(0.05)


def _told(address: str, topic: str) -> tuple[dict[int, str], Counter[int]]:
    """The brokers' addresses, and of how many partitions each is the leader."""
    (pipe,) = open_pipes(address, 1)
    try:
        found = pipe.ask(Metadata([topic]))
    finally:
        close_pipes([pipe])
    [known] = found["topics"]
    return _addresses(found), Counter(each["leader"] for each in known["partitions"])


def _addresses(found: dict[str, Any]) -> dict[int, str]:
    return {each["id"]: each["native"] for each in found["brokers"] if each["native"] is not None}
