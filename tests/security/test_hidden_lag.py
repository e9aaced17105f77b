"""The history of groups tells nothing of topics that the client may not describe."""

from __future__ import annotations

from pathlib import Path

import pytest

from krappy.console import history
from krappy.core.security.operations import Op, Resource
from krappy.wire import messages as m
from tests.console.web import Web
from tests.process import wait_until
from tests.security.guarded import guarded_broker, rule

HIDDEN = "hidden-from-him"


def test_the_lag_of_a_group_tells_nothing_of_hidden_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "EVERY_SECONDS", 0.05)
    with (
        guarded_broker(tmp_path) as guarded,
        guarded.native("127.0.0.1") as admin,
        guarded.web("127.0.0.1") as all_seen,
    ):
        for topic in (HIDDEN, "seen"):
            guarded.admin.make(topic)
            admin.call(m.Commit("of-" + topic, [(topic, 0, 0)]))
            admin.call(m.Commit("of-both", [(topic, 0, 0)]))
        kept = ["of-both", f"of-{HIDDEN}", "of-seen"]
        wait_until(lambda: groups_of(all_seen) == kept, "the groups are kept")
        guarded.allow(rule(Resource.GROUP, "*", Op.DESCRIBE), rule(Resource.TOPIC, "seen", Op.DESCRIBE))
        with guarded.web() as web:
            assert groups_of(web) == ["of-seen"]


def groups_of(web: Web) -> list[str]:
    return sorted(each["group"] for each in web.get("/history/groups")["groups"])
