"""Groups to whose members the broker assigns partitions (KIP-848)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from krappy.core.kafka.assignors import Partition
from krappy.core.kafka.modern import ModernGroup
from krappy.core.kafka.modern_member import JOINING, Beat, Beaten
from krappy.core.security import needs
from krappy.core.security.operations import Op, Resource
from krappy.errors import KrappyError
from krappy.handlers.kafka.groups import group_code, kafka_host, once_matched
from krappy.handlers.kafka.operations import authorized
from krappy.handlers.kafka.registry import Answer, Message, Now, serves
from krappy.handlers.kafka.rows import FEW, counted
from krappy.handlers.kafka.sources import denied_topics, topic_by_id
from krappy.ports import KafkaSessionPort
from krappy.waiting import Later
from krappy.wire.kafka import ApiKey, Code

OWN_ID_SINCE = 1  # the version from which members choose their ids themselves (KIP-1082)
CLASSIC_MEMBER, MEMBER_OF_KIP_848 = 0, 1  # KIP-1099

NOT_ALL = "The group has described topic(s) that the client is not authorized to describe."


def by_topic(partitions: frozenset[Partition]) -> list[tuple[bytes, list[int]]]:
    """(topic id, its partitions), both sorted."""
    found: dict[bytes, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return [*found.items()]


@serves(ApiKey.CONSUMER_GROUP_HEARTBEAT, needs=needs.group(Op.READ) + needs.topic(Op.DESCRIBE))
def consumer_group_heartbeat(session: KafkaSessionPort, request: Message, version: int) -> Answer:
    """All there is between a member and the broker: join, stay, be assigned, leave."""
    name, owned = request["group_id"], request["topic_partitions"]
    topics = request["subscribed_topic_names"]
    member_id = request["member_id"]
    access = session.access
    groups = access.kafka_group(name, Op.READ)
    if not access.may(Resource.GROUP, name, Op.READ):
        return groups.beat(name, Beat(member_id, request["member_epoch"])).map(refused)
    if not member_id and version < OWN_ID_SINCE and request["member_epoch"] == JOINING:
        member_id = groups.new_member_id()
    beat = Beat(
        member_id,
        request["member_epoch"],
        request["instance_id"],
        request["rack_id"],
        request["rebalance_timeout_ms"],
        None if topics is None else tuple(topics),
        request.get("subscribed_topic_regex"),
        request["server_assignor"],
        None if owned is None else frozenset((t["topic_id"], at) for t in owned for at in t["partitions"]),
        session.client_id or "",
        kafka_host(session),
        access.sees,
    )

    def answer(beaten: Beaten | KrappyError) -> Message:
        told: Message = {
            "heartbeat_interval_ms": groups.settings.heartbeat_ms(name),
        }
        if isinstance(beaten, KrappyError):
            return refused(beaten)
        told |= {"error_code": Code.NONE, "member_id": beaten.member_id, "member_epoch": beaten.epoch}
        if beaten.assignment is not None:
            parts = [
                {"topic_id": topic, "partitions": some}
                for topic, some in by_topic(beaten.assignment)
                if access.sees is None or topic_by_id(session, topic, Op.DESCRIBE) is not None
            ]
            told["assignment"] = {"topic_partitions": parts}
        return told

    def serve() -> Answer:
        return once_matched(session, name, beat.regex, lambda groups: groups.beat(name, beat).map(answer))

    return if_described(session, topics or (), serve)


NOT_DESCRIBED: Message = {"error_code": Code.TOPIC_AUTHORIZATION_FAILED, "heartbeat_interval_ms": 0}


def if_described(session: KafkaSessionPort, topics: Sequence[str], serve: Callable[[], Answer]) -> Answer:
    """What `serve` answers a member, if the member may describe all topics that it names."""
    if len(topics) > FEW:
        return _if_all_described(session, topics, serve)
    if any(session.access.denies(Resource.TOPIC, each, Op.DESCRIBE) for each in topics):
        return dict(NOT_DESCRIBED)
    return serve()


async def _if_all_described(session: KafkaSessionPort, topics: Sequence[str], serve: Callable[[], Answer]) -> Now:
    """As `if_described`, for many topics, in several turns."""
    if await denied_topics(session, topics, Op.DESCRIBE):
        return dict(NOT_DESCRIBED)
    answer = serve()
    if isinstance(answer, Later):
        return await answer.wait()
    return answer if isinstance(answer, dict | None) else await answer


def refused(error: Beaten | KrappyError) -> Message:
    assert isinstance(error, KrappyError)
    return {"error_code": group_code(error), "error_message": error.text, "heartbeat_interval_ms": 0}


@serves(ApiKey.CONSUMER_GROUP_DESCRIBE, needs=needs.group(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def consumer_group_describe(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Groups, their members, and the current and the target assignment of each."""
    return await described(session, request, _describe)


async def described(
    session: KafkaSessionPort, request: Message, describe: Callable[[KafkaSessionPort, str], Awaitable[Message]]
) -> Message:
    """What `describe` tells of each group that the request names, and what may be done with it if that is asked."""
    groups = []
    async with counted(session) as rows:
        for name in request["group_ids"]:
            group = await describe(session, name)
            if request["include_authorized_operations"]:
                group["authorized_operations"] = authorized(session, Resource.GROUP, name)
            groups.append(group)
            await rows.add(1 + sum(map(_rows, group["members"])))
    return {"groups": groups}


def _rows(member: Message) -> int:
    """How many rows a member counts for: one, and one for every two topics assigned or ten topic names subscribed."""
    assigned = (member[name] for name in ("assignment", "target_assignment") if name in member)
    parts = sum(len(each["topic_partitions"]) for each in assigned)
    return 1 + parts // 2 + len(member["subscribed_topic_names"]) // 10


def parts_of(
    session: KafkaSessionPort, group: ModernGroup, names: dict[bytes, str]
) -> Callable[[frozenset[Partition]], Message] | None:
    """A function that tells some partitions, with their topics' `names`. None: who asks may not know all topics of the
    group."""
    topics = {*names.values(), *(topic for each in group.members.values() for topic in each.topics)}
    if not all(session.access.may(Resource.TOPIC, topic, Op.DESCRIBE) for topic in topics):
        return None
    return lambda partitions: {
        "topic_partitions": [
            {"topic_id": topic, "topic_name": names.get(topic, ""), "partitions": some}
            for topic, some in by_topic(partitions)
        ]
    }


async def _describe(session: KafkaSessionPort, name: str) -> Message:
    answer: Message = {"group_id": name, "group_state": "", "assignor_name": "", "members": [], "error_code": Code.NONE}
    try:
        group, names = await session.access.kafka_group(name, Op.DESCRIBE).admin.describe_modern(name)
    except KrappyError as error:
        code = group_code(error) if name else Code.INVALID_GROUP_ID
        return answer | {"error_code": code, "error_message": error.text}
    parts = parts_of(session, group, names)
    if parts is None:
        return answer | {"error_code": Code.TOPIC_AUTHORIZATION_FAILED, "error_message": NOT_ALL}
    return answer | {
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": group.assignor,
        "members": [
            {
                "member_id": each.id,
                "instance_id": each.instance_id,
                "rack_id": each.rack,
                "member_epoch": each.epoch,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "subscribed_topic_names": list(each.topics),
                "subscribed_topic_regex": each.pattern,
                "assignment": parts(each.assigned),
                "target_assignment": parts(group.target.get(each.id, frozenset())),
                "member_type": MEMBER_OF_KIP_848 if each.classic is None else CLASSIC_MEMBER,
            }
            for each in group.members.values()
        ],
    }
