"""A client that may use a group or a job, but not all of its topics, learns nothing of the other topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from krappy.clients.acls import AclInfo
from krappy.core.kafka.subscription import encode_assignment
from krappy.core.security.operations import Op, Resource
from krappy.errors import TopicAuthorizationFailed
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from tests.console.web import CHANGES
from tests.security.guarded import Guarded, rule
from tests.security.two_users import ada_and_eve

HIDDEN = "hidden-from-him"


def test_a_reset_of_a_group_names_no_hidden_topic(guarded: Guarded) -> None:
    guarded.admin.make(HIDDEN)
    with guarded.native("127.0.0.1") as admin, guarded.native() as raw, guarded.web() as web:
        admin.call(m.Commit("of-many", [(HIDDEN, 0, 0)]))
        guarded.allow(rule(Resource.GROUP, "of-many", Op.READ))
        with pytest.raises(TopicAuthorizationFailed) as refused:
            raw.call(m.ResetGroup("of-many", None, None, "earliest"))
        assert HIDDEN not in str(refused.value)
        answer = web.client.post("/api/v1/groups/of-many/reset", json={"to": "earliest"}, headers=CHANGES)
        assert answer.status_code == 403
        assert HIDDEN not in answer.text
        guarded.allow(rule(Resource.TOPIC, HIDDEN, Op.DESCRIBE))
        with pytest.raises(TopicAuthorizationFailed, match=HIDDEN):
            raw.call(m.ResetGroup("of-many", None, None, "earliest"))
    guarded.take_away()


def test_the_members_of_a_group_name_no_hidden_topic(guarded: Guarded) -> None:
    guarded.admin.make(HIDDEN)
    name = HIDDEN.encode()
    wants = bytes(2) + (1).to_bytes(4, "big") + len(name).to_bytes(2, "big") + name + b"\xff\xff\xff\xff"
    has = encode_assignment([(HIDDEN, 0)])
    group = {"group_id": "of-consumers", "member_id": ""}
    guarded.allow(rule(Resource.GROUP, "of-consumers", Op.READ))
    with guarded.kafka("127.0.0.1") as admin, guarded.kafka() as raw:
        protocols = {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": wants}]}
        times = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000}
        joined = admin.ask(ApiKey.JOIN_GROUP, {**group, **protocols, **times}, 3)
        member = {"member_id": joined["member_id"], "generation_id": joined["generation_id"]}
        assigned = {"assignments": [{"member_id": joined["member_id"], "assignment": has}]}
        assert admin.ask(ApiKey.SYNC_GROUP, {**group, **member, **assigned}, 3)["error_code"] == 0

        def told() -> tuple[bytes, bytes]:
            [found] = raw.ask(ApiKey.DESCRIBE_GROUPS, {"groups": ["of-consumers"]})["groups"]
            [one] = found["members"]
            assert (found["group_state"], one["member_id"]) == ("Stable", joined["member_id"])
            return bytes(one["member_metadata"]), bytes(one["member_assignment"])

        assert told() == (b"", b"")
        guarded.allow(rule(Resource.TOPIC, HIDDEN, Op.DESCRIBE))
        assert told() == (wants, has)
    guarded.take_away()


def test_a_job_names_no_hidden_topic(guarded: Guarded) -> None:
    guarded.admin.make(HIDDEN)
    guarded.admin.make("his-own")
    guarded.allow(rule(Resource.TOPIC, "his-own", Op.WRITE), rule(Resource.TRANSACTIONAL_ID, "of-both", Op.WRITE))
    with guarded.native("127.0.0.1") as admin, guarded.native() as raw:
        stage = admin.call(m.Stage(HIDDEN, "of-both", "1", "1", 60_000)).stage
        sealed = admin.call(m.SealStaged("of-both", stage, 0)).token
        for request in (m.CommitStaged("of-both", [sealed]), m.Stage("his-own", "of-both", "1", "1", 60_000, stage)):
            with pytest.raises(TopicAuthorizationFailed) as refused:
                raw.call(request)
            assert HIDDEN not in str(refused.value)
        admin.call(m.AbortStaged("of-both"))
    guarded.take_away()


def test_who_may_only_create_a_topic_is_not_told_how_many_partitions_it_has(guarded: Guarded) -> None:
    guarded.allow(rule(Resource.TOPIC, "counted", Op.CREATE))
    with guarded.native("127.0.0.1") as admin, guarded.native() as raw:
        admin.call(m.CreateTopic("counted", 7))
        asked = m.CreateTopic("counted", 3, if_absent=True)
        assert raw.call(asked) == m.TopicCreated(created=False, partitions=0)
        assert admin.call(asked) == m.TopicCreated(created=False, partitions=7)
    guarded.take_away()


def test_who_is_not_told_a_topics_settings_may_ask_for_it_if_it_is_absent(tmp_path: Path) -> None:
    """It is there, and nobody says how it differs."""
    with ada_and_eve(tmp_path) as (ada, eve):
        ada.create_topic("there")
        ada.add_acls([AclInfo("topic", "there", "User:eve", each) for each in ("create", "describe")])
        assert not eve.create_topic("there", 1, {"cleanup.policy": "compact"}, if_absent=True)
