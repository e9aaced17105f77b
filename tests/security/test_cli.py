"""`krappy acl`, and the client's methods for ACLs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from krappy import blocking
from krappy.clients.acls import AclInfo
from krappy.errors import ClusterAuthorizationFailed, InvalidRequest, SecurityDisabled
from krappy.testing.running import run_broker
from tests.process import krappy as run_krappy
from tests.security.guarded import Guarded


def krappy(guarded: Guarded, *arguments: str, fails: int = 0) -> str:
    done = run_krappy("acl", *arguments, "--address", guarded.broker.address)
    assert done.returncode == fails, done.stderr
    return (done.stderr if fails else done.stdout).decode()


def shown(guarded: Guarded, *arguments: str) -> Any:
    return json.loads(krappy(guarded, *arguments, "--json"))


def test_acls_are_added_shown_and_removed(guarded: Guarded) -> None:
    added = shown(guarded, "add", "ada", "--consumer", "--topic", "orders-", "--prefixed", "--group", "mail")
    assert [(each["resource"], each["name"], each["pattern"], each["operation"]) for each in added] == [
        ("topic", "orders-", "prefixed", "read"),
        ("topic", "orders-", "prefixed", "describe"),
        ("group", "mail", "prefixed", "read"),
    ]
    assert {each["principal"] for each in added} == {"User:ada"}
    krappy(guarded, "add", "Group:ops", "-o", "all", "--cluster", "--deny", "--host", "10.0.0.7")
    assert len(shown(guarded, "list", "--principal", "ada")) == 3
    assert len(shown(guarded, "list", "--topic", "orders-eu", "--principal", "ada")) == 0
    assert len(shown(guarded, "list", "--topic", "orders-eu", "--principal", "ada", "--match")) == 2
    [denied] = shown(guarded, "list", "--cluster", "--principal", "Group:ops")
    assert (denied["permission"], denied["host"], denied["name"]) == ("deny", "10.0.0.7", "kafka-cluster")
    assert "10.0.0.7" in krappy(guarded, "list")
    removed = shown(guarded, "remove", "--principal", "ada", "--operation", "read", "--yes")
    assert len(removed) == 2
    assert len(shown(guarded, "list", "--principal", "ada")) == 1
    krappy(guarded, "remove", "--principal", "ada", "--yes")
    krappy(guarded, "remove", "--principal", "Group:ops", "--yes")
    assert shown(guarded, "list", "--principal", "ada") == []
    assert "there are no such ACLs" in krappy(guarded, "remove", "--principal", "ada", "--yes", fails=1)


def test_a_consumer_may_also_write_the_dead_letters_of_its_groups(guarded: Guarded) -> None:
    command = ["add", "bob", "--consumer", "--topic", "orders", "--topic", "bills", "--group", "mail"]
    dead = {(each["name"], each["operation"]) for each in shown(guarded, *command) if each["name"].endswith(".dead")}
    assert dead == {(f"{topic}.mail.dead", right) for topic in ("orders", "bills") for right in ("write", "create")}
    of_all = shown(guarded, "add", "bob", "--consumer", "--topic", "*", "--group", "mail")
    assert not [each for each in of_all if each["operation"] in ("write", "create")]
    krappy(guarded, "remove", "--principal", "bob", "--yes")


def test_incomplete_commands_are_refused(guarded: Guarded) -> None:
    assert "say which operations it is about" in krappy(guarded, "add", "ada", fails=2)
    assert "name which ones" in krappy(guarded, "remove", "--yes", fails=2)
    assert "CLUSTER_ACTION is not for" in krappy(guarded, "add", "a", "-o", "cluster_action", "--topic", "t", fails=1)


def test_the_client(guarded: Guarded) -> None:
    read = AclInfo("topic", "client", "User:ada", "read")
    with blocking.connect(guarded.broker.address) as client:
        client.add_acls([read, read._replace(operation="write", permission="deny", host="10.0.0.1")])
        assert client.acls(name="client", permission="allow") == [read]
        with pytest.raises(InvalidRequest, match="`operation` is 'rea'"):
            client.add_acls([read._replace(operation="rea")])
        assert len(client.delete_acls(principal="User:ada", resource="topic")) == 2
        assert client.acls(principal="User:ada") == []


def test_without_an_authorizer(tmp_path: Any) -> None:
    refused = pytest.raises(SecurityDisabled, match="No Authorizer")
    with run_broker(tmp_path / "data") as broker, broker.connect() as client, refused:
        client.acls()


def test_a_user_without_the_right_is_refused(guarded: Guarded) -> None:
    from krappy.wire import messages as m
    from tests.security.guarded import NOBODY

    with guarded.native(NOBODY) as raw, pytest.raises(ClusterAuthorizationFailed):
        raw.call(m.DescribeAcls())
