"""One who may use a group or a job, and not all of its topics, learns nothing of the others."""

from __future__ import annotations

import pytest

from krappy.core.security.operations import Op, Resource
from krappy.errors import TopicAuthorizationFailed
from krappy.wire import messages as m
from tests.console.web import CHANGES
from tests.security.guarded import Guarded, rule

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
