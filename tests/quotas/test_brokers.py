"""No quota limits a broker that sends requests for its clients. But whoever only claims to be a broker has quotas."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import trio_test

from krappy.core.security.acl import Acl, Pattern, Permission
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.core.security.principal import Principal
from krappy.handlers.kafka.transactions import write_txn_markers
from krappy.handlers.native.topics import ping
from krappy.testing.sessions import kafka_session, native_session
from krappy.wire import messages as m
from tests.broker.engine import running


@trio_test
async def test_a_client_that_claims_to_be_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, authorizer="acl", super_users="User:broker") as broker:
        said, silent = native_session(broker), native_session(broker)
        ping(said, m.Ping(broker=True))
        for session in (said, silent):
            session.principal = Principal(name="eve")
            assert not session.is_broker
            session.principal = Principal(name="broker")
        assert not said.is_broker  # this broker is alone, so there are no other brokers
        monkeypatch.setattr(broker, "in_cluster", True)
        assert said.is_broker
        assert not silent.is_broker
        said.principal = Principal(name="eve")
        assert not said.is_broker


@trio_test
async def test_a_client_that_is_no_broker_any_more_has_quotas_in_kafkas_protocol_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow = Acl(
        *(Resource.CLUSTER, Pattern.LITERAL, CLUSTER_NAME, "User:broker", "*", Op.CLUSTER_ACTION, Permission.ALLOW)
    )
    async with running(tmp_path, authorizer="acl", super_users="User:ada") as broker:
        monkeypatch.setattr(broker, "in_cluster", True)
        await broker.authorizer.add([allow])
        session = kafka_session(broker)
        session.principal = Principal(name="broker")
        write_txn_markers(session, {"markers": []}, 1)
        assert session.is_broker
        await broker.authorizer.remove([allow])
        assert not session.is_broker
