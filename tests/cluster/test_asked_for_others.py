"""A broker's console sends requests of its users to other brokers. The audit log names the user, and only his quotas
limit such requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from krappy.clients.acls import AclInfo
from krappy.types import TopicPartition
from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import SharedProcesses
from tests.cluster.secured import PASSWORDS, SecuredProcesses
from tests.console.web import CHANGES
from tests.process import json_lines, wait_until
from tests.security.authority import Authority

TOPIC = "t"
GROUPS = [f"g{number}" for number in range(6)]


@pytest.fixture
def secured(tmp_path: Path, shared_processes: SharedProcesses) -> Iterator[SecuredProcesses]:
    made = SecuredProcesses(tmp_path, Authority(tmp_path), shared_processes)
    for id, each in made.brokers.items():
        each.settings["audit_log"] = f"file:{tmp_path}/audit-{id}"
    try:
        made.start()
        yield made
    finally:
        made.kill()


def lines(folder: Path, id: int, event: str, user: str) -> list[dict[str, Any]]:
    """The lines of a user in a broker's audit log."""
    file = folder / f"audit-{id}"
    found = json_lines(file) if file.exists() else []
    return [each for each in found if each["event"] == event and each["principal"] == f"User:{user}"]


@contextmanager
def console(secured: SecuredProcesses, user: str) -> Iterator[httpx.Client]:
    """A client of the console of broker 1."""
    with httpx.Client(
        base_url=f"https://{secured.address(1, 'listen_http')}/api/v1",
        verify=secured.authority.context(),
        trust_env=False,
        auth=(user, PASSWORDS[user]),
        timeout=60,
        headers=CHANGES,
    ) as web:
        yield web


def test_the_user_who_asks_for_a_change_at_another_broker_is_told(secured: SecuredProcesses, tmp_path: Path) -> None:
    with secured.connect(1) as admin:
        admin.create_topic(TOPIC, 3, replication_factor=3)
        admin.add_acls([AclInfo(kind, "*", "User:eve", "all") for kind in ("topic", "group")])
        with admin.producer(TOPIC) as producer:
            for index in range(3):
                producer.send("x", partition=index).result()
        for group in GROUPS:
            admin.commit(group, {TopicPartition(TOPIC, 0): 0})
    assert {each.leader for each in secured.partitions(TOPIC).values()} == set(secured.brokers)
    with console(secured, "eve") as web:
        dry = web.post(f"/groups/{GROUPS[0]}/reset", json={"to": "latest"})
        assert dry.status_code == 200, dry.text
        for group in GROUPS:
            moved = web.post(f"/groups/{group}/reset", json={"to": "latest", "dry_run": False})
            assert moved.status_code == 200, moved.text
            gone = web.delete(f"/groups/{group}", params={"confirm": group})
            assert gone.status_code == 200, gone.text
        for _ in range(2):  # the second request changes nothing
            body = {"confirm": TOPIC, "before": dict.fromkeys("012", 1)}
            deleted = web.post(f"/topics/{TOPIC}/delete-records", json=body)
            assert deleted.json() == {"start": dict.fromkeys("012", 1)}
        missing = web.delete("/groups/none", params={"confirm": "none"})
        assert missing.status_code == 404
        made = web.post("/topics", json={"name": "last", "partitions": 1})
        assert made.status_code == 201, made.text
    wait_until(lambda: any(each["name"] == "last" for each in lines(tmp_path, 1, "changed", "eve")), "it is written")
    told = lines(tmp_path, 1, "changed", "eve")
    records = sorted((each for each in told if each["kind"] == "records"), key=lambda each: str(each["name"]))
    assert [each["name"] for each in records] == [f"{TOPIC}-{index}" for index in range(3)]
    assert all((each["before"], each["after"]) == ({"start": 0}, {"start": 1}) for each in records)
    assert [each["name"] for each in told if each["kind"] == "positions"] == GROUPS
    assert [each["name"] for each in told if each["kind"] == "group"] == GROUPS
    assert {each["host"] for each in told} == {"127.0.0.1"}


def test_a_broker_that_asks_for_others_has_no_quota(secured: SecuredProcesses, tmp_path: Path) -> None:
    """Otherwise the reads of one user would use up the default quota for all users who ask this broker."""
    with secured.connect(1) as admin:
        admin.create_topic(TOPIC, 3, replication_factor=3)
        admin.add_acls([AclInfo("topic", "*", "User:eve", "all")])
        with admin.producer(TOPIC) as producer:
            for _ in range(40):
                producer.send(b"x" * 50_000, partition=1)
        assert secured.partitions(TOPIC)[1].leader != 1
        admin.security.alter_quotas({"consumer_byte_rate": 1_000_000}, user="")  # the default for all users
    with console(secured, "eve") as web:
        asked: dict[str, int | str] = {"partition": 1, "start": "offset", "at": 0, "limit": 30}

        def throttled() -> bool:
            found = web.get(f"/topics/{TOPIC}/events", params=asked)
            assert found.status_code in (200, 429), found.text
            return bool(lines(tmp_path, 1, "throttled", "eve"))

        wait_until(throttled, "she is over her quota")
        made = web.post("/topics", json={"name": "last", "partitions": 1})
        assert made.status_code == 201, made.text
    # Once these changes are written, all earlier lines are, too.
    with secured.connect(2) as admin, secured.connect(3) as other:
        for each in (admin, other):
            each.security.alter_quotas({"producer_byte_rate": 1e9}, user="nobody")
            each.security.alter_quotas({"producer_byte_rate": None}, user="nobody")
    for id in (2, 3):
        wait_until(lambda id=id: bool(lines(tmp_path, id, "changed", "admin")), "it is written")  # type: ignore[misc]
        assert not lines(tmp_path, id, "throttled", "broker")


def test_transactions_that_are_ended_by_hand_are_told_also_if_the_user_might_be_a_broker(
    secured: SecuredProcesses, tmp_path: Path
) -> None:
    """A super user may do all that brokers may. What brokers end themselves is not told."""
    with secured.connect(1) as admin:
        admin.create_topic(TOPIC, 3, replication_factor=3)
    secured.until_in_sync(TOPIC)
    producer = secured.producer(**{"transactional.id": "usual"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for index in range(3):
        producer.produce(TOPIC, b"v", partition=index)
    producer.commit_transaction(60)
    leader = secured.partitions(TOPIC)[0].leader
    ended = {"producer_id": 1 << 40, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
    with secured.asked(leader) as raw:
        topics = [{"name": TOPIC, "partition_indexes": [0]}]
        [told] = raw.ask(ApiKey.WRITE_TXN_MARKERS, {"markers": [{**ended, "topics": topics}]})["markers"]
    assert told["topics"][0]["partitions"][0]["error_code"] == 0
    wait_until(lambda: bool(ends_told(tmp_path, leader, "admin")), "it is told")
    assert ends_told(tmp_path, leader, "admin") == [f"{TOPIC}-0"]
    assert not [each for id in secured.brokers for each in ends_told(tmp_path, id, "broker")]


def ends_told(folder: Path, id: int, user: str) -> list[str]:
    return [each["name"] for each in lines(folder, id, "changed", user) if each["kind"] == "open transactions"]
