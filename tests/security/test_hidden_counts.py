"""A sum over topics leaves out the topics that the client may not describe."""

from __future__ import annotations

from pathlib import Path

import pytest

from krappy.console import history
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.wire import messages as m
from tests.process import wait_until
from tests.security.guarded import ADMIN, Guarded, guarded_broker, rule


def test_what_a_member_has_leased(guarded: Guarded) -> None:
    with guarded.native(ADMIN) as admin, guarded.web(ADMIN) as all_seen:
        for topic, count in (("hidden", 37), ("seen", 5)):
            guarded.admin.make(topic)
            producer = admin.producer(topic)
            for _ in range(count):
                admin.call(m.Message(producer.handle, b"x"))
        member = admin.call(m.ConsumerRegistration(["hidden", "seen"], group="leasing", start="earliest"))
        leased = 0
        while leased < 42:
            polled = admin.call(m.Poll(member.handle, max_records=100, max_wait=5_000))
            leased += sum(last - first + 1 for _, _, first, last, _ in polled.leases)
        assert [each["leased"] for each in all_seen.get("/groups/leasing")["members"]] == [42]
        guarded.allow(rule(Resource.GROUP, "leasing", Op.DESCRIBE), rule(Resource.TOPIC, "seen", Op.DESCRIBE))
        with guarded.web() as web, guarded.native() as native:
            assert [each["leased"] for each in web.get("/groups/leasing")["members"]] == [5]
            [group] = native.call(m.Groups("leasing")).groups
            assert [each["leased"] for each in group["members"]] == [5]
            guarded.allow(rule(Resource.TOPIC, "hidden", Op.DESCRIBE))
            assert [each["leased"] for each in web.get("/groups/leasing")["members"]] == [42]
        guarded.take_away()


def test_how_many_replicas_a_broker_has(guarded: Guarded) -> None:
    guarded.allow(rule(Resource.CLUSTER, CLUSTER_NAME, Op.DESCRIBE), rule(Resource.TOPIC, "told", Op.DESCRIBE))
    guarded.admin.make("untold")
    guarded.admin.make("told")
    with guarded.web() as web, guarded.web(ADMIN) as all_seen:
        [broker] = web.get("/cluster/balance")["brokers"]
        assert {value for name, value in broker.items() if name.endswith(("_before", "_after"))} == {1}
        assert all_seen.get("/cluster/balance")["brokers"][0]["replicas_before"] >= 2
    guarded.take_away()


def test_lags_of_the_last_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "EVERY_SECONDS", 0.05)
    with guarded_broker(tmp_path) as guarded, guarded.native(ADMIN) as admin:
        guarded.admin.make("hidden")
        admin.call(m.Message(admin.producer("hidden").handle, b"x"))
        admin.call(m.Commit("of-hidden", [("hidden", 0, 0)]))
        describe = [(Resource.CLUSTER, CLUSTER_NAME), (Resource.GROUP, "of-hidden"), (Resource.TOPIC, "hidden")]
        with guarded.web(ADMIN) as all_seen, guarded.web() as web:
            wait_until(
                lambda: [each["group_lag"] for each in all_seen.get("/history")["points"]][-1:] == [1], "it is kept"
            )
            for (resource, name), told in zip(describe, (None, None, 1), strict=True):
                guarded.allow(rule(resource, name, Op.DESCRIBE))
                assert web.get("/history")["points"][-1]["group_lag"] == told
