"""What brokers ask each other for their users counts for these users, not for the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.clients import admin, gateway
from krappy.cluster.inter_broker import InterBroker
from krappy.cluster.share_peers import SharePeers
from krappy.cluster.transaction_peers import TransactionPeers
from krappy.core.cluster.image import Image
from krappy.core.kafka.offset import Offset
from krappy.core.security.acl import Acl, Pattern, Permission
from krappy.core.security.operations import Op, Resource
from krappy.core.security.principal import Principal
from krappy.errors import InvalidRequest, KrappyError, Overloaded
from krappy.handlers.kafka import registry
from krappy.handlers.native import registry as native_registry
from krappy.ports import PartitionId
from krappy.ports.audit import ASKED, AskedFor
from krappy.testing.sessions import kafka_session, native_session
from krappy.types import TopicPartition
from krappy.waiting import Later
from krappy.wire import messages as m
from krappy.wire.kafka import (
    RANGES,
    ApiKey,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_header,
)
from tests.broker.engine import asks, running

MIB = 1 << 20


class Links:
    """Links to a broker, in place of `PeerLinks`, over which another broker asks."""

    def __init__(self, broker: LocalBroker) -> None:
        self.session = kafka_session(broker)
        self.session.principal = Principal(name="broker", mechanism="PLAIN")

    def to(self, id: int) -> Links:
        return self

    def to_coordinator(self, id: int, topic: str, name: str) -> Links:
        return self

    async def ask(self, key: ApiKey, body: Mapping[str, Any], *, least: int = 0) -> dict[str, Any]:
        version = RANGES[key][1]
        data = memoryview(encode_request(key, version, 1, "x", body))[4:]
        request = decode_request(key, version, data[parse_header(data).body_at :])
        handler = registry().find(key, version)
        assert handler is not None
        token = ASKED.set(AskedFor(self.session, "a test"))
        try:
            found: Any = handler(self.session, request, version)
            answer = await (found.wait() if isinstance(found, Later) else found)
        finally:
            ASKED.reset(token)
        frame = b"".join(map(bytes, encode_response(key, version, 1, answer)))[4:]
        return decode_response(key, version, memoryview(frame))[1]


@trio_test
async def test_a_transaction_whose_partitions_leaders_add_stays_that_of_its_user(tmp_path: Path) -> None:
    """The broker that leads a partition adds it to a transaction (KIP-890)."""
    settings = {"authorizer": "acl", "super_users": "User:broker", "max_transactional_ids": 8}
    async with running(tmp_path, **settings) as broker:
        await broker.create_topic("t", 1, {})
        coordinator, peers = broker.transactions, TransactionPeers(Image, InterBroker())
        peers._questions = Links(broker)  # type: ignore[assignment]

        async def begin(user: str, name: str) -> None:
            asks(user)
            who = await coordinator.init_producer(name, 60_000)
            await peers.verify(1, name, *who, TopicPartition("t", 0), adds=True)

        for number in range(4):
            await begin("eve", f"hers-{number}")
        with pytest.raises(Overloaded, match="one user has at most"):
            await begin("eve", "hers-4")
        assert coordinator._number._of == {"User:eve": 4}
        assert coordinator._memory._of == {"User:eve": coordinator._memory.total}
        await begin("bob", "his")


@trio_test
async def test_what_one_user_has_in_share_groups_leaves_room_to_others(tmp_path: Path) -> None:
    """The broker that coordinates a share group, or leads a partition, asks the one that keeps its states."""
    async with running(tmp_path, authorizer="acl", super_users="User:broker", memory_bytes=MIB) as broker:
        topic, _ = await broker.create_topic("t", 50, {})
        peers = SharePeers(Image, InterBroker())
        peers._states = peers._asked = Links(broker)  # type: ignore[assignment]
        refused: list[object] = []
        asks("eve")
        for number in range(9):
            name, id = f"hers-{number}", PartitionId(topic.id, 0)
            try:
                await peers.begin(1, name)
                await peers.move(1, name, {id: 5})
            except KrappyError as error:
                refused.append(error)
                refused.append((await peers.read(1, name, {id: 0}))[id])
        assert refused
        assert all("one user has at most" in str(each) for each in refused), refused
        asks("bob")
        await broker.groups.commit("his", [("t", 0, 0)])
        await peers.begin(1, "his-too")
        assert set(broker.groups.room.places._of) == {"User:eve", "User:bob"}


@pytest.mark.parametrize("who", ["broker", "eve"])
@trio_test
async def test_a_group_that_is_reset_at_another_broker_counts_for_who_asked_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """The console of each broker resets groups. But only a broker may say for whom."""
    everything = [
        Acl(kind, Pattern.LITERAL, "*", "User:eve", "*", Op.ALL, Permission.ALLOW)
        for kind in (Resource.TOPIC, Resource.GROUP)
    ]
    async with running(tmp_path, authorizer="acl", super_users="User:broker") as broker:
        await broker.authorizer.add(everything)
        await broker.create_topic("t", 9, {})
        session = native_session(broker)
        session.principal, session.says_broker = Principal(name=who, mechanism="PLAIN"), True
        asks("ada")
        await broker.groups.commit("g", [("t", 0, 0)])
        await broker.kafka_groups.offsets.commit_as(
            "k", "", -1, None, {("t", 0): Offset(0, -1, "", 0)}, version=8
        ).wait()
        asks(who)
        monkeypatch.setattr(broker, "in_cluster", True)
        for group in ("g", "k"):
            reset: Any = native_registry().served[m.ResetGroup][0]
            await reset(session, m.ResetGroup(group, "t", owner="User:bob"))
        found = "User:bob" if who == "broker" else "User:eve"
        assert broker.groups.room.places._of == {"User:ada": 2, found: 8}
        assert set(broker.kafka_groups.offsets._memory._of) == {found}


@trio_test
async def test_a_share_group_that_begins_to_read_many_topics_at_once_is_counted_as_a_whole(tmp_path: Path) -> None:
    async with running(tmp_path, authorizer="acl", memory_bytes=MIB) as broker:
        topics = [(await broker.create_topic(f"t{number}", 50, {}))[0] for number in range(8)]
        states, room = broker.groups.states, broker.groups.room
        asks("eve")
        for name in ("read", "moved"):
            await states.begin(name)
        found = await states.read("read", {PartitionId(topic.id, 0): 0 for topic in topics}).wait()
        assert isinstance(found[PartitionId(topics[-1].id, 0)], Overloaded)
        with pytest.raises(Overloaded, match="one user has at most"):
            await states.move("moved", {PartitionId(topic.id, 0): 5 for topic in topics})
        assert room.places.total <= room.places.most // 2


@trio_test
async def test_an_older_broker_is_not_told_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []

    async def ask(router: Any, request: m.ResetGroup, answer: Any) -> m.GroupReset:
        told.append("owner" in m.unpack(request.body(1)))
        if told[-1]:
            raise InvalidRequest("the field 'owner' is unknown", field="owner")
        return m.GroupReset([])

    async def router() -> Any:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(gateway, "ask_coordinator", ask)
    monkeypatch.setattr(admin, "ask_coordinator", ask)
    await gateway.GatewayGroups(router).reset("g", None, None, "earliest", None, dry_run=False, owner="User:eve")
    await admin.reset_group(await router(), "g", "earliest", None, None, dry_run=False)
    assert told == [True, False, False]
