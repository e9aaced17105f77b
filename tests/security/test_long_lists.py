"""Whoever names very much, and has few rights or none, makes nobody wait: rights are looked at in turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from krappy.core.security.operations import Op, Resource
from krappy.errors import UnknownTopic
from krappy.testing.running import run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw
from tests.peer import Peer
from tests.rounds import Rounds
from tests.security.guarded import rule
from tests.security.test_sasl import log_in

WORST = 0.25  # seconds of a round of the event loop, in processor time
PREFIXES = 100  # each length of a prefix makes a look at the ACLs longer
NAMES = [f"{'n' * 280}-{number}" for number in range(8000)]  # decisions about such long names are not remembered
SOME = NAMES[:1500]  # several rights to each of them are looked at: more than a second of work
BEATS = {"group_id": "n", "member_id": "m" * 22, "member_epoch": 0, "subscribed_topic_names": NAMES}
LISTS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.DESCRIBE_GROUPS: {"groups": SOME, "include_authorized_operations": True},
    ApiKey.CONSUMER_GROUP_DESCRIBE: {"group_ids": SOME, "include_authorized_operations": True},
    ApiKey.SHARE_GROUP_DESCRIBE: {"group_ids": SOME, "include_authorized_operations": True},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: {**BEATS, "rebalance_timeout_ms": 60_000, "topic_partitions": []},
    ApiKey.SHARE_GROUP_HEARTBEAT: BEATS,
}


class Guest(NamedTuple):
    """Ada, who may read groups and topics whose names begin with n, and the admin, who may do everything. `native`: the
    address of that listener. `changed`: the kinds of what the audit log tells as changed."""

    ada: Raw
    admin: Raw
    rounds: Rounds
    native: str
    changed: list[str]


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    folder, rounds = tmp_path_factory.mktemp("lists"), Rounds()
    changed: list[str] = []

    def report(event: str, **facts: Any) -> None:
        rounds.report(event)
        if event == "changed":
            changed.append(facts["kind"])

    (folder / "users").mkdir()
    (folder / "users" / "ada").write_text("correct-horse")
    with (
        run_broker(
            folder / "data",
            durability="os",
            listen_native="SASL_PLAINTEXT://127.0.0.1:0",
            listen_kafka="SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
            sasl_enabled_mechanisms="SCRAM-SHA-512,PLAIN",
            users_dir=str(folder / "users"),
            super_users="User:ANONYMOUS",
            report=report,
        ) as broker,
        Raw(broker.kafka_addresses["PLAINTEXT"]) as admin,
        Raw(broker.kafka_addresses["SASL_PLAINTEXT"]) as ada,
    ):
        named = [(kind, "n" * length) for length in range(1, PREFIXES) for kind in (Resource.TOPIC, Resource.GROUP)]
        rules = [rule(kind, name, Op.READ, "*", principal="User:ada", prefixed=True) for kind, name in named]
        made = admin.ask(ApiKey.CREATE_ACLS, {"creations": rules})["results"]
        assert not any(each["error_code"] for each in made)
        assert not log_in(ada, "ada", "correct-horse")["error_code"]
        yield Guest(ada, admin, rounds, broker.address, changed)


@pytest.mark.parametrize("key", LISTS, ids=lambda key: key.name)
def test_a_long_list_of_names(guest: Guest, key: ApiKey) -> None:
    assert guest.rounds.measured.wait(60)
    guest.rounds.longest = 0.0
    guest.ada.ask(key, LISTS[key])
    assert guest.rounds.longest <= WORST


def test_positions_in_very_many_topics(guest: Guest) -> None:
    positions = [(f"{'n' * PREFIXES}-{number}", 0, 0) for number in range(8000)]
    with Peer(guest.native) as peer:
        assert peer.ask(m.Authenticate("PLAIN", b"\0ada\0correct-horse"), m.Authenticated).done
        guest.rounds.longest = 0.0
        peer.send(m.Commit("nn", positions))
        _, told = peer.receive()
    assert isinstance(told, UnknownTopic)
    assert guest.rounds.longest <= WORST


def test_transactions_that_are_ended_by_hand_in_very_many_partitions(guest: Guest) -> None:
    """None of the partitions is there, so nothing is changed: the audit log tells of nothing."""
    assert guest.rounds.measured.wait(60)
    topics = [{"name": f"{'n' * 240}-{number}", "partition_indexes": list(range(20))} for number in range(950)]
    marker = {"producer_id": 1, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
    guest.rounds.longest = 0.0
    [told] = guest.admin.ask(ApiKey.WRITE_TXN_MARKERS, {"markers": [{**marker, "topics": topics}]})["markers"]
    assert guest.rounds.longest <= WORST
    rows = [row for topic in told["topics"] for row in topic["partitions"]]
    assert [row["partition_index"] for row in rows] == list(range(20)) * 950
    assert {row["error_code"] for row in rows} == {Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert "open transactions" not in guest.changed


@pytest.mark.parametrize(
    "key", [ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT], ids=lambda key: key.name
)
@pytest.mark.parametrize("place", [0, 250], ids=["first", "late"])
def test_one_hidden_topic_among_many_refuses_a_member(guest: Guest, key: ApiKey, place: int) -> None:
    names = SOME[:300]
    names[place] = "hidden"
    told = guest.ada.ask(key, {**LISTS[key], "subscribed_topic_names": names})
    assert told["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
