"""Classic groups (KIP-62); and what tools ask of groups of all kinds, native ones among them."""

from __future__ import annotations

from collections.abc import Callable

from krappy.core.kafka.classic_member import Join, Joined, SyncAnswer
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.name_regex import TopicRegex
from krappy.core.kafka.subscription import assignment, subscribed_topics
from krappy.core.security import needs
from krappy.core.security.operations import Op, Resource
from krappy.errors import KrappyError, ShuttingDown, StorageError
from krappy.handlers.kafka.operations import authorized
from krappy.handlers.kafka.registry import Answer, Message, serves
from krappy.handlers.kafka.rows import FEW, counted, in_turns
from krappy.ports import KafkaGroupsPort, KafkaSessionPort
from krappy.waiting import Later
from krappy.wire.kafka import ApiKey, Code, code_for


def group_code(error: KrappyError) -> int:
    """The code for an error of the coordinator. When the disk fails, it is COORDINATOR_NOT_AVAILABLE: clients retry."""
    if isinstance(error, Refused):
        return error.fault
    if isinstance(error, StorageError | ShuttingDown):
        return Fault.COORDINATOR_NOT_AVAILABLE
    return code_for(error)


def kafka_host(session: KafkaSessionPort) -> str:
    """The client's host as Kafka's tools show it."""
    return f"/{session.client_host}"


Serve = Callable[[KafkaGroupsPort], Message | Later[Message]]


def once_matched(session: KafkaSessionPort, name: str, pattern: str | None, serve: Serve) -> Answer:
    """Serves a member of a group, once the patterns of the members, and the one that it brings, have been matched with
    all topics."""
    groups = session.access.kafka_group(name, Op.READ)
    unmatched = groups.unmatched(name, pattern)
    return _match(session, name, pattern, serve, unmatched) if unmatched else serve(groups)


async def _match(
    session: KafkaSessionPort, name: str, pattern: str | None, serve: Serve, held: list[TopicRegex]
) -> Message:
    """`held`: a pattern that is new is kept by nobody else, before its member is served."""
    await in_turns(session, session.access.kafka_group(name, Op.READ).match(name, pattern))
    answer = serve(session.access.kafka_group(name, Op.READ))  # it may be coordinated elsewhere by now
    return await answer.wait() if isinstance(answer, Later) else answer


CONSUMER = "consumer"  # the protocol type of groups that read topics
ID_FIRST_SINCE = 4  # the version from which a member without an id gets one and joins again (KIP-394)
NULL_PROTOCOL_SINCE = 7
SKIP_SINCE = 9  # the version from which a leader can be told to skip the assignment (KIP-814)


@serves(ApiKey.JOIN_GROUP, needs=needs.group(Op.READ))
def join_group(session: KafkaSessionPort, request: Message, version: int) -> Answer:
    """A consumer joins. The answer comes when the rebalance is over."""
    name, session_ms = request["group_id"], request["session_timeout_ms"]
    rebalance_ms = request["rebalance_timeout_ms"]
    ask = Join(
        request["member_id"],
        request["group_instance_id"],
        request["protocol_type"],
        tuple((each["name"], bytes(each["metadata"])) for each in request["protocols"]),
        session_ms,
        rebalance_ms if rebalance_ms >= 0 else session_ms,
        session.client_id or "",
        kafka_host(session),
        id_first=version >= ID_FIRST_SINCE,
        may_skip=version >= SKIP_SINCE,
    )

    def answer(joined: Joined) -> Message:
        if session.access.denies(Resource.GROUP, name, Op.READ):  # the client has lost the right meanwhile
            joined = Joined(Fault.GROUP_AUTHORIZATION_FAILED, joined.member_id)
        protocol = joined.protocol
        return {
            "error_code": joined.fault,
            "generation_id": joined.generation,
            "protocol_type": joined.protocol_type,
            "protocol_name": "" if protocol is None and version < NULL_PROTOCOL_SINCE else protocol,
            "leader": joined.leader,
            "skip_assignment": joined.skip_assignment,
            "member_id": joined.member_id,
            "members": [
                {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
                for member_id, instance_id, metadata in joined.members
            ],
        }

    return once_matched(session, name, None, lambda groups: groups.join(name, ask).map(answer))


PROTOCOL_SINCE = 5  # the version from which members name the group's protocol (KIP-559)


@serves(ApiKey.SYNC_GROUP, needs=needs.group(Op.READ))
def sync_group(session: KafkaSessionPort, request: Message, version: int) -> Message | Later[Message]:
    """The leader brings the assignment, and each member gets its part."""
    if version >= PROTOCOL_SINCE and (request["protocol_type"] is None or request["protocol_name"] is None):
        return _synced(SyncAnswer(Fault.INCONSISTENT_GROUP_PROTOCOL))
    later = session.access.kafka_group(request["group_id"], Op.READ).sync(
        request["group_id"],
        request["member_id"],
        request["generation_id"],
        request["group_instance_id"],
        request["protocol_type"],
        request["protocol_name"],
        {each["member_id"]: bytes(each["assignment"]) for each in request["assignments"]},
    )

    def answer(synced: SyncAnswer) -> Message:
        if session.access.denies(
            Resource.GROUP, request["group_id"], Op.READ
        ):  # the client has lost the right meanwhile
            synced = SyncAnswer(Fault.GROUP_AUTHORIZATION_FAILED)
        return _synced(synced)

    return later.map(answer)


def _synced(synced: SyncAnswer) -> Message:
    return {
        "error_code": synced.fault,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


@serves(ApiKey.HEARTBEAT, needs=needs.group(Op.READ))
def heartbeat(session: KafkaSessionPort, request: Message, version: int) -> Answer:
    """A member shows that it is alive, and learns whether it must join again."""
    name, member_id, generation = request["group_id"], request["member_id"], request["generation_id"]
    instance_id = request["group_instance_id"]

    def serve(groups: KafkaGroupsPort) -> Message:
        return {"error_code": groups.heartbeat(name, member_id, generation, instance_id)}

    return once_matched(session, name, None, serve)


SEVERAL_SINCE = 3


@serves(ApiKey.LEAVE_GROUP, needs=needs.group(Op.READ))
def leave_group(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Members leave at once, not when their session times out; from version 3 on several (KIP-345)."""
    name = request["group_id"]
    groups = session.access.kafka_group(name, Op.READ)
    if version < SEVERAL_SINCE:
        (fault,) = groups.leave(name, [(request["member_id"], None)])
        return {"error_code": fault}
    leaving = [(each["member_id"], each["group_instance_id"]) for each in request["members"]]
    faults = groups.leave(name, leaving)
    return {
        "error_code": _leaves(session, name),
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": fault}
            for (member_id, instance_id), fault in zip(leaving, faults, strict=True)
        ],
    }


def _leaves(session: KafkaSessionPort, name: str) -> int:
    if session.access.denies(Resource.GROUP, name, Op.READ):
        return Fault.GROUP_AUTHORIZATION_FAILED
    return Fault.NONE if name else Fault.INVALID_GROUP_ID


NOT_FOUND_SINCE = 6  # the version from which a missing group is an error; before, its state is Dead (KIP-1043)


@serves(ApiKey.DESCRIBE_GROUPS, needs=needs.group(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def describe_groups(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Classic groups with their members, and native groups in the same form. What members subscribe to, and what they
    are assigned, is left out where it names a topic that may not be described (Kafka does not leave it out)."""
    groups = []
    async with counted(session) as rows:
        for name in request["groups"]:
            group = await _describe(session, name, version)
            if request["include_authorized_operations"]:
                group["authorized_operations"] = authorized(session, Resource.GROUP, name)
            groups.append(group)
            await rows.add(1 + len(group["members"]))
    return {"groups": groups}


async def _describe(session: KafkaSessionPort, name: str, version: int) -> Message:
    answer: Message = {"group_id": name, "error_code": 0, "protocol_type": "", "protocol_data": "", "members": []}
    if not name:
        return answer | {"error_code": Code.INVALID_GROUP_ID, "group_state": ""}
    try:
        found = await session.access.kafka_group(name, Op.DESCRIBE).admin.describe(name)
    except KrappyError as error:
        answer["group_state"] = "Dead"
        if version >= NOT_FOUND_SINCE or group_code(error) != Fault.GROUP_ID_NOT_FOUND:
            answer |= {"error_code": group_code(error), "error_message": error.text}
        return answer
    return answer | {
        "group_state": found.state,
        "protocol_type": found.protocol_type,
        "protocol_data": found.protocol,
        "members": [
            {
                "member_id": member_id,
                "group_instance_id": instance_id,
                "client_id": client_id,
                "client_host": client_host,
                **_of_topics(session, found.protocol_type, metadata, assigned),
            }
            for member_id, instance_id, client_id, client_host, metadata, assigned in found.members
        ],
    }


def _of_topics(session: KafkaSessionPort, protocol_type: str, metadata: bytes, assigned: bytes) -> Message:
    """A member's subscription and assignment; empty where they may not be told."""
    if protocol_type == CONSUMER and (sees := session.access.sees) is not None:
        wants, has = subscribed_topics(metadata), assignment(assigned)
        if wants is None or not all(map(sees, wants)):
            metadata = b""
        if has is None or not all(sees(topic) for topic, _ in has.partitions):
            assigned = b""
    return {"member_metadata": metadata, "member_assignment": assigned}


@serves(ApiKey.LIST_GROUPS, needs=needs.group(Op.DESCRIBE) + needs.cluster(Op.DESCRIBE))
async def list_groups(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """All groups of the broker, filtered by state (KIP-518) and type (KIP-848). Who may describe the cluster needs no
    right to the groups."""
    states = {state.lower() for state in request.get("states_filter") or ()}
    kinds = {kind.lower() for kind in request.get("types_filter") or ()}
    groups: list[Message] = []
    try:
        there = session.access.listed_groups(Op.DESCRIBE)
    except KrappyError as error:
        return {"error_code": group_code(error), "groups": groups}
    for number, each in enumerate(there, 1):
        if number % FEW == 0:
            await session.pause()
        if (not states or each.state.lower() in states) and (not kinds or each.kind in kinds):
            groups.append(
                {
                    "group_id": each.name,
                    "protocol_type": each.protocol_type,
                    "group_state": each.state,
                    "group_type": each.kind,
                }
            )
    return {"error_code": 0, "groups": groups}


@serves(ApiKey.DELETE_GROUPS, needs=needs.group(Op.DELETE))
async def delete_groups(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Deletes groups without members, with their offsets (KIP-229)."""
    results = []
    for number, name in enumerate(request["groups_names"], 1):
        if number % FEW == 0:
            await session.pause()
        code: int = Code.NONE
        try:
            await session.access.kafka_group(name, Op.DELETE).admin.delete(name)
        except KrappyError as error:
            code = group_code(error) if name else Code.INVALID_GROUP_ID
        results.append({"group_id": name, "error_code": code})
    return {"results": results}
