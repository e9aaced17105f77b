"""What brokers ask of the broker that keeps the states of a share group (KIP-932): APIs 83 to 87."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.share_state import MOST_BATCHES, ShareState, leases_of
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.groups import group_code
from krappy.handlers.kafka.refusals import DONE
from krappy.handlers.kafka.registry import Message, serves
from krappy.ports import KafkaSessionPort, PartitionId, ShareStatesPort
from krappy.ports.audit import asked_for
from krappy.waiting import Later
from krappy.wire.kafka import ApiKey

MOST = 1000  # topics, and partitions, of a request
NEEDS = needs.cluster(Op.CLUSTER_ACTION)


def _states(session: KafkaSessionPort) -> ShareStatesPort:
    return session.access.share_states(Op.CLUSTER_ACTION)


def _check_size(request: Message) -> None:
    """Raises Refused for more than brokers ask for at once."""
    topics = request["topics"]
    if len(topics) > MOST or sum(len(topic["partitions"]) for topic in topics) > MOST:
        raise Refused(Fault.INVALID_REQUEST, f"a request for more than {MOST} partitions")


def _asked(request: Message) -> Iterator[tuple[PartitionId, Message]]:
    for topic in request["topics"]:
        for row in topic["partitions"]:
            yield PartitionId(bytes(topic["topic_id"]), row["partition"]), row


def _answer(rows: Iterable[tuple[PartitionId, Mapping[str, Any]]], **more: Any) -> Message:
    topics: dict[bytes, list[Message]] = {}
    for id, row in rows:
        topics.setdefault(id.topic_id, []).append({"partition": id.partition, **DONE, **row})
    return {"results": [{"topic_id": id, "partitions": rows} for id, rows in topics.items()], **DONE, **more}


def _refusal(error: KrappyError) -> Message:
    return {"error_code": group_code(error), "error_message": error.text}


def _refused(error: KrappyError) -> Message:
    """The answer that refuses a whole request."""
    return {"results": [], **_refusal(error)}


@serves(ApiKey.INITIALIZE_SHARE_GROUP_STATE, needs=NEEDS)
async def initialize_share_group_state(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """The group reads these partitions anew. If none is named, the name only becomes that of a share group."""
    name = request["group_id"]
    try:
        _check_size(request)
        moves = {id: row["start_offset"] for id, row in _asked(request)}
        if any(offset < 0 for offset in moves.values()):
            raise Refused(Fault.INVALID_REQUEST, "StartOffset must be at least 0")
        states = _states(session)
        with asked_for(request["owner"]):
            await (states.move(name, moves) if moves else states.begin(name))
    except KrappyError as error:
        return _refused(error)
    return _answer((id, {}) for id in moves)


@serves(ApiKey.READ_SHARE_GROUP_STATE, needs=NEEDS)
def read_share_group_state(session: KafkaSessionPort, request: Message, version: int) -> Later[Message]:
    try:
        _check_size(request)
        asked = {id: row["leader_epoch"] for id, row in _asked(request)}
        states = _states(session)
        with asked_for(request["owner"]):
            found = states.read(request["group_id"], asked)
    except KrappyError as error:
        return _now(_refused(error))
    return _told(found.map(lambda states: _answer((id, _row(state)) for id, state in states.items())))


def _row(state: ShareState | KrappyError) -> Message:
    if isinstance(state, KrappyError):
        return _refusal(state)
    batches = [
        {"first_offset": first, "last_offset": last, "delivery_state": delivery, "delivery_count": count}
        for first, last, delivery, count in state.batches()
    ]
    return {
        "state_epoch": state.state_epoch,
        "start_offset": state.start,
        "state_batches": batches,
        "version": state.version,
        "lineage": state.lineage,
    }


@serves(ApiKey.WRITE_SHARE_GROUP_STATE, needs=NEEDS)
def write_share_group_state(session: KafkaSessionPort, request: Message, version: int) -> Later[Message]:
    states: dict[PartitionId, ShareState] = {}
    refused: dict[PartitionId, KrappyError] = {}
    try:
        _check_size(request)
        if sum(len(row["state_batches"]) for _, row in _asked(request)) > MOST_BATCHES:
            raise Refused(Fault.INVALID_REQUEST, f"a request with more than {MOST_BATCHES} batches")
        for id, row in _asked(request):
            try:
                states[id] = _state(row)
            except KrappyError as error:
                refused[id] = error
        written = _states(session).write(request["group_id"], states)
    except KrappyError as error:
        return _now(_refused(error))
    at = [id for id, _ in _asked(request)]

    def answer(found: Mapping[PartitionId, KrappyError]) -> Message:
        errors = {**found, **refused}
        return _answer((id, _refusal(errors[id]) if id in errors else {}) for id in at)

    return _told(written.map(answer))


def _state(row: Message) -> ShareState:
    """Raises Refused."""
    batches = [
        (each["first_offset"], each["last_offset"], each["delivery_state"], each["delivery_count"])
        for each in row["state_batches"]
    ]
    leases = leases_of(row["start_offset"], batches, row["lineage"])
    return ShareState(row["state_epoch"], row["leader_epoch"], row["version"], leases)


@serves(ApiKey.DELETE_SHARE_GROUP_STATE, needs=NEEDS)
async def delete_share_group_state(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Deletes what is kept in the topics that are named, in all their partitions; or the whole group."""
    try:
        _check_size(request)
        topics = None if request["whole"] else {bytes(topic["topic_id"]) for topic in request["topics"]}
        found = await _states(session).delete(request["group_id"], topics)
    except KrappyError as error:
        return _refused(error)
    return _answer(((id, {}) for id, _ in _asked(request)), found=found)


@serves(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, needs=NEEDS)
async def read_share_group_state_summary(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """How far the group is in the partitions that are named; if none is, in all in which it has begun to read."""
    try:
        _check_size(request)
        wanted = {id for id, _ in _asked(request)}
        kept = await _states(session).kept(request["group_id"])
    except KrappyError as error:
        return _refused(error)
    return _answer(
        (
            id,
            {
                "state_epoch": each.state_epoch,
                "leader_epoch": each.leader_epoch,
                "start_offset": each.start,
                "delivery_complete_count": each.complete,
            },
        )
        for id, each in kept.items()
        if not wanted or id in wanted
    )


def _now(message: Message) -> Later[Message]:
    later: Later[Message] = Later()
    later.resolve(message)
    return later


def _told(later: Later[Message]) -> Later[Message]:
    """The same answer; a KrappyError becomes an answer, too."""
    told: Later[Message] = Later()

    def settle(answer: Message | None, error: Exception | None) -> None:
        if isinstance(error, KrappyError):
            told.resolve(_refused(error))
        elif error is not None:
            told.reject(error)
        else:
            assert answer is not None
            told.resolve(answer)

    later.then(settle)
    return told
