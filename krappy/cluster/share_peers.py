"""Asks other brokers for what they keep of share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from krappy.cluster.followed import named_code
from krappy.cluster.inter_broker import InterBroker
from krappy.cluster.peer_links import MANY, TOGETHER, PeerLinks
from krappy.cluster.peers import Message, PeerLink
from krappy.core.cluster.image import Image
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.share_state import ShareState, leases_of
from krappy.errors import BrokerError, CoordinatorNotAvailable, KrappyError, UnknownTopic
from krappy.ports.audit import whose
from krappy.ports.shares import KeptState, PartitionId, StatesRead, StatesWritten
from krappy.settings.topic import SHARES
from krappy.wire.kafka import ApiKey, Code

PATIENCE_S = 5.0  # for an answer
AT_ONCE = 500  # partitions, or topics, in one request
COUNTS_SINCE = 1  # the version of ReadShareGroupStateSummary with the number of settled records (KIP-1226)
REFUSALS = {
    Code.GROUP_ID_NOT_FOUND,
    Code.FENCED_LEADER_EPOCH,
    Code.FENCED_STATE_EPOCH,
    Code.INVALID_REQUEST,
}


class SharePeers:
    """Implements `SharePeersPort`."""

    def __init__(self, image: Callable[[], Image], way: InterBroker) -> None:
        self._states = PeerLinks(image, way, "krappy-share-states", timeout_s=PATIENCE_S, together=MANY)
        self._asked = PeerLinks(image, way, "krappy-share-groups", timeout_s=PATIENCE_S, together=TOGETHER)

    async def begin(self, broker: int, name: str) -> None:
        body = {"group_id": name, "topics": [], "owner": whose()}
        await self._do(broker, name, ApiKey.INITIALIZE_SHARE_GROUP_STATE, body)

    async def move(self, broker: int, name: str, moves: Mapping[PartitionId, int]) -> None:
        ids = [*moves]
        for first in range(0, len(ids), AT_ONCE):
            rows = ((id, {"start_offset": moves[id]}) for id in ids[first : first + AT_ONCE])
            body = {"group_id": name, "topics": _by_topic(rows), "owner": whose()}
            await self._do(broker, name, ApiKey.INITIALIZE_SHARE_GROUP_STATE, body)

    async def delete(self, broker: int, name: str, topics: Collection[bytes] | None) -> bool:
        ids, found = [*(topics or ())], False
        for first in range(0, max(1, len(ids)), AT_ONCE):
            rows = [{"topic_id": id, "partitions": []} for id in ids[first : first + AT_ONCE]]
            body = {"group_id": name, "topics": rows, "whole": topics is None}
            found |= (await self._do(broker, name, ApiKey.DELETE_SHARE_GROUP_STATE, body))["found"]
        return found

    async def kept(self, broker: int, name: str) -> dict[PartitionId, KeptState]:
        body = {"group_id": name, "topics": []}
        answer = await self._do(broker, name, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, body, least=COUNTS_SINCE)
        return {
            id: KeptState(
                *(row["state_epoch"], row["leader_epoch"], row["start_offset"], row["delivery_complete_count"])
            )
            for id, row in _rows(answer)
        }

    async def read(self, broker: int, name: str, asked: Mapping[PartitionId, int]) -> StatesRead:
        rows = ((id, {"leader_epoch": epoch}) for id, epoch in asked.items())
        body = {"group_id": name, "topics": _by_topic(rows), "owner": whose()}
        answer = await _ask(self._states, broker, name, ApiKey.READ_SHARE_GROUP_STATE, body)
        found: StatesRead = {id: _error(broker, row) or _state(asked[id], row) for id, row in _rows(answer)}
        if found.keys() != asked.keys():
            raise CoordinatorNotAvailable(f"broker {broker} answers for other partitions than it was asked for")
        return found

    async def write(self, broker: int, name: str, states: Mapping[PartitionId, ShareState]) -> StatesWritten:
        rows = ((id, _row(state)) for id, state in states.items())
        body = {"group_id": name, "topics": _by_topic(rows)}
        answer = await _ask(self._states, broker, name, ApiKey.WRITE_SHARE_GROUP_STATE, body)
        found = {id: _error(broker, row) for id, row in _rows(answer)}
        if found.keys() != states.keys():
            raise CoordinatorNotAvailable(f"broker {broker} answers for other partitions than it was sent")
        return {id: error for id, error in found.items() if error is not None}

    async def _do(self, broker: int, name: str, key: ApiKey, body: Message, least: int = 0) -> Message:
        """The answer to a request, none of whose rows was refused. Raises the error of one that was."""
        answer = await _ask(self._asked, broker, name, key, body, least)
        for _, row in _rows(answer):
            error = _error(broker, row)
            if error is not None:
                raise error
        return answer


async def _ask(links: PeerLinks, broker: int, name: str, key: ApiKey, body: Message, least: int = 0) -> Message:
    """The answer to a request about a group. Raises an error that concerns the whole request."""
    answer = await _asked(links.to_coordinator(broker, SHARES, name), broker, key, body, least)
    error = _error(broker, answer)
    if error is not None:
        raise error
    return answer


async def _asked(link: PeerLink, broker: int, key: ApiKey, body: Message, least: int) -> Message:
    try:
        return await link.ask(key, body, least=least)
    except KrappyError as error:
        raise CoordinatorNotAvailable(f"broker {broker} does not answer: {error}") from error


def _by_topic(rows: Iterable[tuple[PartitionId, Message]]) -> list[Message]:
    topics: dict[bytes, list[Message]] = {}
    for id, row in rows:
        topics.setdefault(id.topic_id, []).append({"partition": id.partition, **row})
    return [{"topic_id": id, "partitions": partitions} for id, partitions in topics.items()]


def _rows(answer: Message) -> Iterator[tuple[PartitionId, Message]]:
    for topic in answer["results"]:
        for row in topic["partitions"]:
            yield PartitionId(bytes(topic["topic_id"]), row["partition"]), row


def _row(state: ShareState) -> Message:
    return {
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "version": state.version,
        "lineage": state.lineage,
        "start_offset": state.start,
        "delivery_complete_count": state.complete,
        "state_batches": [
            dict(zip(("first_offset", "last_offset", "delivery_state", "delivery_count"), batch, strict=True))
            for batch in state.batches()
        ],
    }


def _state(leader_epoch: int, row: Message) -> ShareState | KrappyError:
    batches = [
        (each["first_offset"], each["last_offset"], each["delivery_state"], each["delivery_count"])
        for each in row["state_batches"]
    ]
    try:
        leases = leases_of(row["start_offset"], batches, row["lineage"])
        return ShareState(row["state_epoch"], leader_epoch, row["version"], leases)
    except Refused as error:
        return error


def _error(broker: int, row: Mapping[str, Any]) -> KrappyError | None:
    code = row["error_code"]
    if code == Code.NONE:
        return None
    text = row.get("error_message") or f"broker {broker} answers {named_code(code)}"
    if code in REFUSALS:
        return Refused(Fault(code), text)
    if code in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID):
        return UnknownTopic(text)
    if code in (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_LOAD_IN_PROGRESS):
        return CoordinatorNotAvailable(text)
    return BrokerError(text)
