"""ShareFetch (78) and ShareAcknowledge (79): members of share groups acquire records, and acknowledge them (KIP-932).

- Both belong to a share session, whose epoch grows with each request: 0 begins one, -1 ends it. A session remembers its
  partitions, so a request names only those that are new, or have acknowledgements.
- Either all acknowledgements of a partition are taken, or none. There is one exception: the member may lose what it has
  acquired while a long request is being taken. Then the answer is an error, and a part was taken. Acknowledgements are
  durable when they are answered.
- A ShareFetch waits until there is a record; min_bytes beyond that counts for nothing. It gets at most max_records, in
  both acquire modes.
- A session belongs to the user, at the address, that has opened it: other users of the group may not be allowed to read
  all of its topics.
- A session ends with its connection. Then what its member has acquired goes to others, and counts as delivered: it may
  be what the member died of. So it does when the member ends its session (KAFKA-19972): most programs close their
  consumer in an orderly way when they fail, and a record on which each of them fails would come for ever.
- A partition stays in its session until the member forgets it, whatever becomes of it here. While another broker that
  keeps the group's state is away, the partition brings nothing, as in Kafka; a client would not know the error.
- A request may name a partition only to acknowledge, and forget it, too: Kafka's consumer does so when it is assigned
  other partitions. Then the partition is not in the session. What the member has acquired there may be acknowledged
  later, too. Such a request does not tell whether the partition is to be in the session again: Kafka adds it, and if
  the consumer does not know of that, it throws away what it gets. Here the session ends, and the consumer begins one
  that has what it wants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.share import Ack, AckType, read_acks
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import AuthorizationFailed, CoordinatorNotAvailable, KrappyError, NotCoordinator, UnknownTopic
from krappy.handlers.kafka.groups import group_code
from krappy.handlers.kafka.leader_hints import LeaderHints
from krappy.handlers.kafka.registry import Message, serves
from krappy.handlers.waits import bounded_ms
from krappy.ports import (
    KafkaSessionPort,
    Opener,
    PartitionId,
    PartitionPort,
    ShareConnectionPort,
    ShareLeasesPort,
    ShareSessionPort,
    TopicPort,
)
from krappy.wire.kafka import ApiKey, Code, code_for

FINAL, INITIAL = -1, 0  # epochs
LONGEST_MEMBER = 255  # characters of a member's id
CONNECTION = "share sessions"  # where a connection keeps them
MANY = 200  # partitions that are looked at in one turn, and whose states are asked for at once
MAX_BYTES = 16 << 20  # of records in one answer; a single larger batch still comes whole
# Partitions of a session, and of a request. Any of them may be in an answer, though it does not exist.
MOST_PARTS = 10_000
At = tuple[bytes, int]  # topic id, partition


class ShareRequest:
    """One request of a share session. `rows`: what is answered for each partition that the request names. `is_unclear`:
    it acknowledges records of a partition that is not in the session, and does not forget it."""

    def __init__(self, session: KafkaSessionPort, request: Message) -> None:
        """Begins or resumes the session. Raises KrappyError."""
        self.session, self.request = session, request
        self.epoch: int = request["share_session_epoch"]
        name, member = request["group_id"], request["member_id"]
        if not name or not member or len(member) > LONGEST_MEMBER:
            raise Refused(Fault.INVALID_REQUEST, "GroupId and MemberId must be given")
        if self.epoch < FINAL:
            raise Refused(Fault.INVALID_SHARE_SESSION_EPOCH, f"{self.epoch} is no epoch of a share session")
        self.acks: dict[At, list[Message]] = {}
        for at, batches in self._named():
            if batches:
                self.acks.setdefault(at, []).extend(batches)  # a partition may be named twice
        self.rows: dict[At, Message] = {at: {} for at, _ in self._named()}
        if len(self.rows) > MOST_PARTS:
            raise Refused(Fault.INVALID_REQUEST, f"{len(self.rows)} partitions; at most {MOST_PARTS} are named at once")
        if self.epoch == INITIAL and self.acks:
            raise Refused(Fault.INVALID_REQUEST, "a request that begins a share session can't acknowledge")
        shares = session.access.share_partitions(name, Op.READ)
        connection = session.state.get(CONNECTION)
        if connection is None:
            connection = session.state[CONNECTION] = shares.connect()
            session.on_close.append(connection.close)
        self.connection: ShareConnectionPort = connection
        self.group: ShareLeasesPort
        self.member: ShareSessionPort
        who = session.principal
        opener = Opener(who.names, who.host, who.owner)
        self.group, self.member = connection.session(name, member, self.epoch, opener)
        self._access = -1
        lists = request.get("forgotten_topics_data", ())
        self._forgotten = {(topic["topic_id"], index) for topic in lists for index in topic["partitions"]}
        self.is_unclear = not self.acks.keys() <= self.member.parts.keys() | self._forgotten
        self.hints = LeaderHints(session)

    def _named(self) -> Iterator[tuple[At, list[Message]]]:
        for topic in self.request["topics"]:
            for partition in topic["partitions"]:
                yield (topic["topic_id"], partition["partition_index"]), partition["acknowledgement_batches"]

    @property
    def is_outdated(self) -> bool:
        """Whether ACLs may have changed since the client's right to read was checked."""
        return self.session.access.version not in (0, self._access)

    async def check_access(self) -> dict[At, KrappyError]:
        """Returns the partitions of the session that the client may not read any more, with the errors, and closes
        them; a session has many, so it takes several turns. Raises AuthorizationFailed, and ends the session, if the
        client may not read in this group: what it has forgotten by this request would stay there."""
        access = self.session.access
        denied: dict[At, KrappyError] = {}
        while self.is_outdated:
            self._access = access.version
            try:
                access.share_partitions(self.request["group_id"], Op.READ)
            except AuthorizationFailed:
                self.end()
                raise
            for number, at in enumerate([*self.member.parts], 1):
                try:
                    self._topic(at)
                except KrappyError as error:
                    denied[at] = error
                if number % MANY == 0:
                    await self.session.pause()
        self.member.parts |= dict.fromkeys(at for at in denied if at in self.member.parts)
        return denied

    @property
    def renews(self) -> bool:
        return bool(self.request.get("is_renew_ack"))

    async def acknowledge(self) -> dict[At, KrappyError]:
        """Takes all acknowledgements, durably. Returns the errors."""
        errors: dict[At, KrappyError] = {}
        touched = {}
        for number, (at, batches) in enumerate(self.acks.items(), 1):
            try:
                acks = read_acks(
                    (each["first_offset"], each["last_offset"], each["acknowledge_types"]) for each in batches
                )
                self._check(acks)
                shared = self.member.parts.get(at) or self.group.find(self.led(at))
                for _ in self.group.acknowledge(self.member, shared, acks):
                    touched[at] = shared
                    await self.session.pause()
                touched[at] = shared
            except KrappyError as error:
                errors[at] = error
            if number % MANY == 0:
                await self.session.pause()
        failed = await self.group.durable(touched.values()).wait()
        return errors | {at: failed[shared] for at, shared in touched.items() if shared in failed}

    def _check(self, acks: list[Ack]) -> None:
        if not self.renews and any(ack.kind is AckType.RENEW for ack in acks):
            raise Refused(Fault.INVALID_REQUEST, "a request that renews must say so (IsRenewAck)")

    def led(self, at: At) -> PartitionPort:
        """The partition. Raises UnknownTopic, UnknownPartition, NotLeader."""
        return self._topic(at).led(at[1])

    def _topic(self, at: At) -> TopicPort:
        topic = self.session.access.find_topic_by_id(at[0], Op.READ)
        if topic is None or topic.internal:
            raise UnknownTopic("there is no topic with this id")
        return topic

    async def add_partitions(self) -> dict[At, KrappyError]:
        """Adds the partitions that are named to the session, removes those to be forgotten, and opens what is not open.
        Returns the errors. Raises Refused if the group is no share group."""
        parts = self.member.parts
        for at in self._forgotten:
            parts.pop(at, None)
        fresh = [at for at in self.rows if at not in parts and at not in self._forgotten]
        try:
            if len(parts) + len(fresh) > MOST_PARTS:
                text = f"a share session has at most {MOST_PARTS} partitions"
                raise Refused(Fault.SHARE_SESSION_LIMIT_REACHED, text)
            self.connection.make_room(self.member, len(fresh))
        except KrappyError as error:
            return dict.fromkeys(fresh, error)
        parts |= dict.fromkeys(fresh)
        errors: dict[At, KrappyError] = {}
        led: dict[PartitionId, Any] = {}
        for number, at in enumerate([at for at, shared in parts.items() if shared is None], 1):
            try:
                led[PartitionId(*at)] = self.led(at)
            except KrappyError as error:
                errors[at] = error
            if number % MANY == 0:
                await self.session.pause()
        ids = [*led]
        for first in range(0, len(ids), MANY):
            errors |= await self._open({id: led[id] for id in ids[first : first + MANY]})
        return errors

    async def _open(self, led: dict[PartitionId, Any]) -> dict[At, KrappyError]:
        """Returns the errors that a client can do something about."""
        try:
            opened = await self.connection.open(self.group, led)
        except (NotCoordinator, CoordinatorNotAvailable):
            return {}
        errors: dict[At, KrappyError] = {}
        for id, found in opened.items():
            if not isinstance(found, KrappyError):
                if id in self.member.parts and found.lost is None:
                    self.member.parts[id] = found
            elif not isinstance(found, UnknownTopic):  # else the broker that was asked does not know it yet
                errors[id] = found
        return errors

    def told(self, at: At, row: Message, error: KrappyError) -> int:
        """The code of a partition's error. Puts the leader into the row if that is another broker."""
        if isinstance(error, UnknownTopic):
            return Code.UNKNOWN_TOPIC_ID
        code = group_code(error) if isinstance(error, Refused) else code_for(error)
        topic = None
        if not isinstance(error, AuthorizationFailed):
            topic = self.session.access.find_topic_by_id(at[0], Op.READ)
        if topic is not None:
            row["error_code"] = code
            self.hints.add(row, topic.image, at[1])
        return code

    def open_ids(self) -> dict[tuple[str, int], At]:
        """The partitions that are open now, by topic and partition. Partitions that were open before may be lost."""
        return {shared.at: at for at, shared in self.member.parts.items() if shared is not None}

    def answer(self, rows: dict[At, Message]) -> Message:
        topics: dict[bytes, list[Message]] = {}
        for (topic, index), row in rows.items():
            whole: Message = {"error_code": Code.NONE, "current_leader": {"leader_id": -1, "leader_epoch": -1}, **row}
            topics.setdefault(topic, []).append({"partition_index": index, **whole})
        return {
            "error_code": Code.NONE,
            "acquisition_lock_timeout_ms": self.group.rules.lock_ms,
            "responses": [{"topic_id": topic, "partitions": some} for topic, some in topics.items()],
            "node_endpoints": self.hints.nodes(),
        }

    def end(self) -> None:
        """Ends the session. What the member has acquired counts as delivered if it asks for that end."""
        self.connection.end(self.group, self.member, seen=self.epoch == FINAL)


def _refused(error: KrappyError) -> Message:
    return {"error_code": group_code(error), "error_message": error.text, "responses": [], "node_endpoints": []}


@serves(ApiKey.SHARE_ACKNOWLEDGE, needs=needs.group(Op.READ) + needs.topic(Op.READ))
async def share_acknowledge(session: KafkaSessionPort, request: Message, version: int) -> Message:
    try:
        if request["share_session_epoch"] == INITIAL:
            raise Refused(Fault.INVALID_SHARE_SESSION_EPOCH, "ShareAcknowledge can't begin a share session")
        asked = ShareRequest(session, request)
        await asked.check_access()
    except KrappyError as error:
        return _refused(error)
    refused = await asked.acknowledge()
    if asked.epoch == FINAL:
        asked.end()
    for at, why in refused.items():
        row = asked.rows[at]
        row |= {"error_code": asked.told(at, row, why), "error_message": why.text}
    return asked.answer(asked.rows)


@serves(ApiKey.SHARE_FETCH, needs=needs.group(Op.READ) + needs.topic(Op.READ))
async def share_fetch(session: KafkaSessionPort, request: Message, version: int) -> Message:
    try:
        asked = ShareRequest(session, request)
        errors = await asked.check_access()
    except KrappyError as error:
        return _refused(error)
    refused = await asked.acknowledge()
    rows: dict[At, Message] = {}
    share = session.fetch_share()
    room = min(request["max_bytes"], MAX_BYTES if share is None else min(share, MAX_BYTES))  # 0: over its quota
    try:
        if asked.epoch == FINAL or asked.is_unclear:
            asked.end()
        else:
            errors |= await asked.add_partitions()
            if request["max_records"] > 0 and room > 0 and not asked.renews:
                at_once = bool(errors) or bool(refused)
                rows, more = await _acquired(asked, room, 0 if at_once else request["max_wait_ms"])
                errors |= more
    except (AuthorizationFailed, Refused) as error:
        asked.end()
        return _refused(error)
    except KrappyError as error:
        errors |= dict.fromkeys(asked.member.parts, error)
    for at in asked.acks:
        row = rows.setdefault(at, {})
        if at in refused:
            row |= {"acknowledge_error_code": asked.told(at, row, refused[at])}
            row |= {"acknowledge_error_message": refused[at].text, "error_code": Code.NONE}
    for at, why in errors.items():
        row = rows.setdefault(at, {})
        row |= {"error_code": asked.told(at, row, why), "error_message": why.text}
    if asked.epoch == INITIAL:
        for at in asked.rows:
            rows.setdefault(at, {})
    for row in rows.values():
        row.setdefault("records", b"")
        row.setdefault("acquired_records", [])
    return asked.answer(rows)


async def _acquired(asked: ShareRequest, room: int, wait_ms: int) -> tuple[dict[At, Message], dict[At, KrappyError]]:
    """What the member gets, and the partitions that it has lost meanwhile. Raises StorageError, CorruptBatch;
    AuthorizationFailed."""
    session, request = asked.session, asked.request
    ids: dict[tuple[str, int], At] = {}
    clock = session.broker.clock
    deadline = clock.steady_ms() + bounded_ms(wait_ms, session.proved_for)
    errors: dict[At, KrappyError] = {}
    while True:
        left = max(0, deadline - clock.steady_ms())
        ids |= asked.open_ids()
        some = await asked.group.until_some(asked.member, left, lambda: asked.is_outdated)
        async with session.answering(room) as allowed:
            if not session.proved_for:  # its login has ended while it waited
                return {}, errors
            outdated = asked.is_outdated
            errors |= await asked.check_access()
            ids |= asked.open_ids()  # another connection of the session may have added partitions while this one waited
            if (share := session.fetch_share()) == 0:  # others of its user have got something meanwhile
                return {}, errors
            polled = await asked.group.acquire(asked.member, request["max_records"], min(allowed, share or allowed))
        if polled.leases or errors or not (some or outdated):  # else others were faster
            break
    rows: dict[At, Message] = {}
    for topic, index, _, _, data in polled.parts:
        if (topic, index) in ids:
            rows[ids[topic, index]] = {"records": data, "acquired_records": []}
    for topic, index, first, last, deliveries in polled.leases:
        acquired = {"first_offset": first, "last_offset": last, "delivery_count": deliveries}
        rows[ids[topic, index]]["acquired_records"].append(acquired)
    for at in ids.values():
        if asked.member.parts.get(at) is None and at not in errors:
            try:
                asked.led(at)
            except KrappyError as error:
                errors[at] = error
    return rows, errors
