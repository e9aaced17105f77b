"""The audit log of a real broker: what is in it, and that no peer can damage it."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from krappy import errors
from krappy.broker import audit as audit_module
from krappy.broker import audit_backlog
from krappy.clients.acls import AclInfo
from krappy.core.security.audit import USUAL
from krappy.core.security.operations import Op, Resource
from krappy.settings.server import load
from krappy.testing.running import RunningBroker, run_broker
from krappy.types import TopicPartition
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.batches import Row, encode_rows
from tests.handlers.raw import Raw as Native
from tests.kafka.raw import Raw
from tests.kafka.transactional import Transactional
from tests.process import json_lines, wait_until
from tests.security.guarded import filtered, rule

SECRET = "correct-horse-battery"
Line = dict[str, Any]


class Audited:
    def __init__(self, broker: RunningBroker, file: Path) -> None:
        self.broker = broker
        self.file = file
        self._marks = count()

    def lines(self) -> list[Line]:
        """The lines of both files."""
        files = [each for each in (self.file, self.failures) if each.exists()]
        return [line for each in files for line in json_lines(each)]

    @property
    def failures(self) -> Path:
        return Path(f"{self.file}.failures")

    def wait(self, wanted: Callable[[Line], bool]) -> Line:
        """Waits until a line is wanted; returns the first such line."""
        found: list[Line] = []

        def there() -> bool:
            found[:] = filter(wanted, self.lines())
            return bool(found)

        wait_until(there, "the line is written")
        return found[0]

    def settle(self) -> None:
        """Waits until all earlier lines are written, except for failures to log in. It makes a change and waits for its
        line, because every change has one."""
        name = f"mark-{next(self._marks)}"
        with self.broker.connect(user="admin", password=SECRET) as client:
            client.create_topic(name)
        self.wait(lambda line: line["event"] == "changed" and line["name"] == name)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    folder = tmp_path_factory.mktemp("audited")
    users = folder / "users"
    users.mkdir()
    for name in ("admin", "ada"):
        (users / name).write_text(SECRET)
    with run_broker(
        folder / "data",
        durability="os",
        users_dir=str(users),
        super_users="User:admin",
        sasl_enabled_mechanisms="SCRAM-SHA-512,PLAIN",
        listen_native="SASL_PLAINTEXT://127.0.0.1:0",
        listen_kafka="SASL_PLAINTEXT://127.0.0.1:0",
        listen_http="SASL_PLAINTEXT://127.0.0.1:0",
        failed_authentication_delay_ms=1,
        audit_log=f"file:{folder}/audit",
        audit_allowed="writes",
        group_initial_rebalance_delay_ms=0,
    ) as broker:
        yield Audited(broker, folder / "audit")


def logged_in(broker: RunningBroker, user: str, password: str = SECRET, client_id: str = "his-program") -> Raw:
    raw = Raw(broker.kafka_addresses["SASL_PLAINTEXT"], client_id=client_id)
    raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
    raw.answer = raw.ask(  # type: ignore[attr-defined]
        ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0" + user.encode() + b"\0" + password.encode()}
    )
    return raw


@contextlib.contextmanager
def logged_in_natively(broker: RunningBroker, user: str) -> Iterator[Native]:
    with Native(broker.address) as raw:
        assert raw.call(m.Authenticate("PLAIN", f"\0{user}\0{SECRET}".encode())).done
        yield raw


def test_who_logs_in_and_who_fails(audited: Audited) -> None:
    with logged_in(audited.broker, "ada"):
        found = audited.wait(lambda line: line["event"] == "authenticated" and line["listener"] == "SASL_PLAINTEXT")
    assert {"principal": "User:ada", "host": "127.0.0.1", "mechanism": "PLAIN"}.items() <= found.items()
    assert (found["api"], found["client_id"]) == ("sasl_authenticate", "his-program")
    with logged_in(audited.broker, "ada", "wrong-password"):
        found = audited.wait(lambda line: line["event"] == "authentication_failed")
    assert {"user": "ada", "host": "127.0.0.1", "mechanism": "PLAIN"}.items() <= found.items()
    web = httpx.get(
        f"http://{audited.broker.http_address}/api/v1/topics", auth=("ada", "wrong-password"), trust_env=False
    )
    assert web.status_code == 401
    audited.wait(lambda line: line["event"] == "authentication_failed" and line["mechanism"] == "HTTP")


def test_who_names_an_unknown_mechanism_is_told(audited: Audited) -> None:
    with Raw(audited.broker.kafka_addresses["SASL_PLAINTEXT"]) as raw, Native(audited.broker.address) as native:
        told = raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "GSSAPI" + "I" * 1000})
        assert told["error_code"] == Code.UNSUPPORTED_SASL_MECHANISM
        with pytest.raises(errors.UnsupportedMechanism):
            native.call(m.Authenticate("ANONYMOUS", b""))
    for begins in ("GSSAPI", "ANONYMOUS"):
        line = audited.wait(lambda line, begins=begins: line.get("mechanism", "").startswith(begins))  # type: ignore[misc]
        assert (line["event"], line["host"]) == ("authentication_failed", "127.0.0.1")
        assert line["reason"] == "a mechanism that is not enabled here"


def test_denials_are_told_once_and_counted(audited: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    with logged_in(audited.broker, "ada", client_id="nosy") as raw:
        for _ in range(20):
            [topic] = raw.ask(ApiKey.METADATA, {"topics": [{"name": "not-hers"}]})["topics"]
            assert topic["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
    found = audited.wait(lambda line: line.get("resource") == "not-hers")
    wanted = {"event": "denied", "principal": "User:ada", "resource_type": "TOPIC", "operation": "DESCRIBE"}
    assert wanted.items() <= found.items()
    assert (found["api"], found["client_id"], found["reason"]) == ("metadata", "nosy", "no ACL allows it")
    audited.settle()
    assert len([each for each in audited.lines() if each.get("resource") == "not-hers"]) == 1


def test_the_acl_that_denies_is_named(audited: Audited) -> None:
    with logged_in(audited.broker, "admin") as admin, logged_in(audited.broker, "ada") as raw:
        made = rule(Resource.TOPIC, "denied-by-one", Op.ALL, host="*", principal="User:ada", deny=True)
        assert admin.ask(ApiKey.CREATE_ACLS, {"creations": [made]})["results"][0]["error_code"] == 0
        raw.ask(ApiKey.METADATA, {"topics": [{"name": "denied-by-one"}]})
    acl = audited.wait(lambda line: line["event"] == "changed" and line["kind"] == "acl")
    assert acl["after"]["principal"] == "User:ada"
    found = audited.wait(lambda line: line["event"] == "denied" and line.get("resource") == "denied-by-one")
    assert found["reason"] == f"ACL {acl['name']} denies it"


def test_a_denial_names_nothing_of_anothers_request_that_brings_it_about(audited: Audited) -> None:
    """A member waits for the other one of its group, and may not read the group any more when that one comes."""
    times = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000}
    group = {"group_id": "waits", "protocol_type": "consumer", "protocols": [{"name": "range"}], **times}
    allowed = rule(Resource.GROUP, "waits", Op.READ, host="*", principal="User:ada")
    with (
        logged_in(audited.broker, "admin", client_id="the-other") as other,
        logged_in(audited.broker, "ada", client_id="hers") as raw,
    ):
        assert other.ask(ApiKey.CREATE_ACLS, {"creations": [allowed]})["results"][0]["error_code"] == 0
        joined = other.ask(ApiKey.JOIN_GROUP, group, 3)
        raw.send(ApiKey.JOIN_GROUP, group, 3)
        alive = {"group_id": "waits", "member_id": joined["member_id"], "generation_id": joined["generation_id"]}
        wait_until(lambda: other.ask(ApiKey.HEARTBEAT, alive)["error_code"] != 0, "she waits for the other")
        other.ask(ApiKey.DELETE_ACLS, {"filters": [filtered(principal_filter="User:ada")]})
        assert other.ask(ApiKey.JOIN_GROUP, {**group, "member_id": joined["member_id"]}, 3)["error_code"] == 0
        assert raw.receive()["error_code"] == Code.GROUP_AUTHORIZATION_FAILED
    found = audited.wait(lambda line: line["event"] == "denied" and line.get("resource") == "waits")
    assert found["principal"] == "User:ada"
    assert not {"api", "client_id"} & found.keys()


def test_what_several_users_ask_over_one_connection_is_told_of_each(audited: Audited) -> None:
    """As over a proxy, which keeps its connection."""
    transport = httpx.HTTPTransport(local_address="127.0.0.9")
    url = f"http://{audited.broker.http_address}"
    with httpx.Client(base_url=url, transport=transport, trust_env=False) as web:
        assert web.get("/api/v1/groups", auth=("admin", SECRET)).status_code == 200
        assert web.get("/metrics", auth=("ada", SECRET)).status_code == 403
        assert web.get("/api/v1/topics", auth=("ada", "wrong-password")).status_code == 401
    denied, failed = (
        audited.wait(lambda line, event=event: line["event"] == event and line["host"] == "127.0.0.9")  # type: ignore[misc]
        for event in ("denied", "authentication_failed")
    )
    assert (denied["principal"], denied["api"]) == ("User:ada", "metrics")
    assert "api" not in failed


def test_a_logout_of_everybody_is_told_if_nobody_is_logged_in_at_this_broker(audited: Audited) -> None:
    """At other brokers of a cluster they may be."""
    url = f"http://{audited.broker.http_address}/api/v1/logout?all=true"
    assert httpx.post(url, auth=("admin", SECRET), trust_env=False).status_code == 200
    found = audited.wait(lambda line: line["event"] == "changed" and line["kind"] == "sessions")
    assert (found["principal"], found["api"]) == ("User:admin", "log_out")


def test_every_change_is_told_with_before_and_after(audited: Audited) -> None:
    with audited.broker.connect(user="admin", password=SECRET) as client:
        client.create_topic("changed", partitions=2)
        client.alter_topic("changed", {"retention.ms": 1000})
        client.delete_topic("changed")
        client.security.set_password("new", SECRET, ["SCRAM-SHA-512"])
        client.security.delete_user("new")
        client.security.alter_quotas({"producer_byte_rate": 1e9}, user="new")
        client.security.alter_quotas({"producer_byte_rate": None}, user="new")

    def told(kind: str, name: str) -> list[tuple[Any, Any]]:
        found = [line for line in audited.lines() if line["event"] == "changed" and line["kind"] == kind]
        return [(line.get("before"), line.get("after")) for line in found if line["name"] == name]

    audited.settle()
    plain, kept = {"partitions": 2, "config": {}}, {"partitions": 2, "config": {"retention.ms": "1000"}}
    assert told("topic", "changed") == [(None, plain), (plain, kept), (kept, None)]
    assert told("user", "new") == [(None, {"SCRAM-SHA-512": 8192}), ({"SCRAM-SHA-512": 8192}, None)]
    assert told("quota", "user new") == [(None, {"producer_byte_rate": 1e9}), ({"producer_byte_rate": 1e9}, None)]
    with logged_in(audited.broker, "admin") as raw:
        change = [{"name": "log.retention.ms", "config_operation": 0, "value": "604800000"}]
        asked = {"resources": [{"resource_type": 4, "resource_name": "", "configs": change}]}
        raw.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, asked)
    found = audited.wait(lambda line: line.get("kind") == "broker")
    assert (found["before"], found["after"]) == ({}, {"log.retention.ms": "604800000"})
    assert found["api"] == "incremental_alter_configs"


def test_groups_that_are_moved_and_deleted_are_told(audited: Audited) -> None:
    """This is so in every way: by the native protocol, by the requests of Kafka's tools, and by HTTP."""
    with audited.broker.connect(user="admin", password=SECRET) as client:
        client.create_topic("moved")
        with client.producer("moved") as producer:
            for _ in range(5):
                producer.send("x").result()
        client.commit("native", {TopicPartition("moved", 0): 2})
        client.reset_group("native", "latest")
        client.reset_group("native", "earliest", dry_run=True)
        client.delete_group("native")
    audited.settle()

    def told(group: str) -> list[tuple[str, Any, Any]]:
        found = [line for line in audited.lines() if line["event"] == "changed" and line.get("name") == group]
        assert {line["principal"] for line in found} == {"User:admin"}
        return [(line["kind"], line.get("before"), line.get("after")) for line in found]

    assert told("native") == [
        ("positions", None, {"moved-0": 2}),
        ("positions", {"moved-0": 2}, {"moved-0": 5}),
        ("group", {"protocol": "native"}, None),
    ]

    def committed(offset: int) -> dict[str, Any]:
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        return {"group_id": "classic", "topics": [{"name": "moved", "partitions": [part]}]}

    topics = [{"name": "moved", "partitions": [{"partition_index": 0}]}]
    move = [{"topic_name": "moved", "partitions": [{"partition_index": 0, "start_offset": 1}]}]
    with logged_in(audited.broker, "admin") as raw:
        for offset in (3, 4, 4):
            raw.ask(ApiKey.OFFSET_COMMIT, committed(offset), 8)
        raw.ask(ApiKey.OFFSET_DELETE, {"group_id": "classic", "topics": topics})
        raw.ask(ApiKey.OFFSET_DELETE, {"group_id": "classic", "topics": topics})
        raw.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, {"group_id": "shared", "topics": move})
        raw.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, {"group_id": "shared", "topics": [{"topic_name": "moved"}]})
        raw.ask(ApiKey.DELETE_GROUPS, {"groups_names": ["classic", "shared", "absent"]})
    audited.settle()
    assert told("classic") == [
        ("positions", None, {"moved-0": 3}),  # a consumer commits often, so only one commit a minute is told
        ("positions", {"moved-0": 4}, None),
        ("group", {"protocol": "classic"}, None),
    ]
    assert told("shared") == [
        ("positions", None, {"moved-0": 1}),
        ("positions", {"topics": ["moved"]}, None),
        ("group", {"protocol": "share"}, None),
    ]
    assert not [line for line in audited.lines() if line.get("name") == "absent"]


def test_a_topic_for_dead_letters_is_not_the_work_of_whoever_gives_an_event_back(audited: Audited) -> None:
    """Another member of the group has named it."""
    names = {"topic": ("buried", "grave"), "group": ("bearers",)}
    rights = [AclInfo(kind, name, "User:ada", "all") for kind, some in names.items() for name in some]
    with audited.broker.connect(user="admin", password=SECRET) as client:
        client.add_acls(rights)
        client.create_topic("buried")
        with client.producer("buried") as producer:
            producer.send("x").result()
    with logged_in_natively(audited.broker, "admin") as admin, logged_in_natively(audited.broker, "ada") as ada:
        joins: dict[str, Any] = {"group": "bearers", "start": "earliest", "max_deliveries": 1}
        joined = admin.call(m.ConsumerRegistration(["buried"], **joins))
        ada.call(m.ConsumerRegistration(["buried"], dead_letter="grave", **joins))
        [lease] = admin.call(m.Poll(joined.handle, max_wait=60_000)).leases
        admin.call(m.Nack(joined.handle, [tuple(lease[:4])]))
        line = audited.wait(lambda line: line.get("name") == "grave")
    assert (line["kind"], line["principal"], line.get("api")) == ("topic", "User:broker", None)


@pytest.mark.parametrize("member", ["", "whoever"])
def test_positions_that_are_committed_without_a_membership_are_told(audited: Audited, member: str) -> None:
    """So they are in a transaction. Nobody checks which member such a commit names."""
    part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
    who = {"member_id": member, "topics": [{"name": "read", "partitions": [part]}]}
    with logged_in(audited.broker, "admin") as raw:
        raw.make("read")
        plain = {"group_id": f"plain-{member}", "generation_id_or_member_epoch": -1, **who}
        [done] = raw.ask(ApiKey.OFFSET_COMMIT, plain, 8)["topics"]
        assert done["partitions"][0]["error_code"] == 0
        producer = Transactional(raw).init()
        assert producer.add_offsets(f"in-transaction-{member}") == Code.NONE
        sent = {"transactional_id": producer.name, "producer_id": producer.id, "producer_epoch": producer.epoch}
        staged = {"group_id": f"in-transaction-{member}", "generation_id": -1, **sent, **who}
        [done] = raw.ask(ApiKey.TXN_OFFSET_COMMIT, staged, 3)["topics"]
        assert done["partitions"][0]["error_code"] == 0
        assert producer.end(True) == Code.NONE
    for name in (f"plain-{member}", f"in-transaction-{member}"):
        line = audited.wait(lambda line, name=name: line.get("name") == name)  # type: ignore[misc]
        assert (line["principal"], line["kind"], line["after"]) == ("User:admin", "positions", {"read-0": 7})


def test_an_aborted_job_is_told(audited: Audited) -> None:
    with logged_in_natively(audited.broker, "admin") as raw:
        stages = [raw.call(m.Stage("staged", "nightly", f"{task}", "0")).stage for task in range(2)]
        for each in (stages[0], stages[0], None, None):  # each second request finds nothing to abort
            raw.call(m.AbortStaged("nightly", each))
        raw.call(m.AbortStaged("not-begun"))
    audited.settle()
    found = [line for line in audited.lines() if line.get("kind") == "job"]
    assert {(line["principal"], line["api"]) for line in found} == {("User:admin", "AbortStaged")}
    assert [(line["name"], line.get("before"), line["after"]) for line in found] == [
        ("nightly", {"state": "Open", "attempts": 2}, {"state": "Open", "attempts": 1}),
        ("nightly", {"state": "Open", "attempts": 1}, {"state": "Aborted"}),
        ("not-begun", None, {"state": "Aborted"}),  # the job can't begin any more
    ]


def test_what_is_revoked_while_it_is_open_is_told(audited: Audited) -> None:
    with audited.broker.connect(user="admin", password=SECRET) as admin:
        admin.create_topic("revoked")
        acl = AclInfo("topic", "revoked", "User:ada", "read")
        admin.add_acls([acl])
        with audited.broker.connect(user="ada", password=SECRET) as ada, ada.consumer("revoked") as consumer:
            consumer.poll(0)
            admin.delete_acls(name="revoked")
            found = audited.wait(lambda line: line["event"] == "ended")
    assert {"principal": "User:ada", "resource": "revoked", "operation": "READ"}.items() <= found.items()
    assert found["reason"] == "no ACL allows it"
    assert not {"api", "client_id"} & found.keys()  # they would be those of the request that deleted the ACL


def test_a_console_session_that_ends_with_its_password_is_told(audited: Audited) -> None:
    with audited.broker.connect(user="admin", password=SECRET) as client:
        client.security.set_password("carl", "c")
        with httpx.Client(base_url=f"http://{audited.broker.http_address}/api/v1", trust_env=False) as browser:
            assert browser.post("/login", json={"user": "carl", "password": "c"}).status_code == 200
            client.security.set_password("carl", "other")
            assert browser.get("/topics").status_code == 401
            assert browser.get("/topics").status_code == 401
    audited.settle()
    ended = [line for line in audited.lines() if line["event"] == "ended" and line["principal"] == "User:carl"]
    assert len(ended) == 1
    assert "password" in ended[0]["reason"]


def test_a_session_that_is_not_renewed_is_told(tmp_path: Path) -> None:
    """This is so in both protocols. A client that never logged in had no session, so nothing is told of it."""
    users = tmp_path / "users"
    users.mkdir()
    (users / "ada").write_text(SECRET)
    said: list[tuple[str, Any]] = []

    def report(event: str, **facts: Any) -> None:
        said.append((event, facts.get("principal")))

    settings = {"sasl_enabled_mechanisms": "PLAIN", "super_users": "User:ada", "users_dir": str(users)}
    listeners = dict.fromkeys(("listen_native", "listen_kafka"), "SASL_PLAINTEXT://127.0.0.1:0")
    with run_broker(
        tmp_path / "data",
        durability="os",
        connections_max_reauth_ms=300,
        authentication_timeout_ms=3000,
        report=report,
        **settings,
        **listeners,
    ) as broker:
        with Raw(broker.kafka_addresses["SASL_PLAINTEXT"]) as stranger:
            assert stranger.closed()
        assert "ended" not in [event for event, _ in said]
        with logged_in(broker, "ada") as raw, contextlib.suppress(EOFError, OSError):
            while True:
                raw.ask(ApiKey.METADATA, {"topics": None})
        wait_until(lambda: ("ended", "User:ada") in said, "it is told")
        said.clear()
        with logged_in_natively(broker, "ada"):
            wait_until(lambda: ("ended", "User:ada") in said, "it is told")


def test_what_is_allowed_is_told_if_it_is_no_read(audited: Audited) -> None:
    with audited.broker.connect(user="admin", password=SECRET) as client:
        client.create_topic("allowed")
        with client.producer("allowed") as producer:
            producer.send("x", key="k").result()
        client.table("allowed").get("k")
    audited.wait(lambda line: line["event"] == "allowed" and line["operation"] == "WRITE")
    audited.settle()
    assert not [line for line in audited.lines() if line["event"] == "allowed" and line["operation"] == "READ"]


def test_throttling_is_told(audited: Audited) -> None:
    with audited.broker.connect(user="admin", password=SECRET) as client:
        client.security.alter_quotas({"controller_mutation_rate": 1e-5}, user="admin")
        client.create_topic("throttled")
        client.security.alter_quotas({"controller_mutation_rate": 0.001}, user="admin")
        client.create_topic("throttled-2")
        with logged_in(audited.broker, "admin") as raw:
            raw.ask(ApiKey.CREATE_TOPICS, {"topics": [{"name": "x", "num_partitions": 1, "replication_factor": 1}]})
        client.security.alter_quotas({"controller_mutation_rate": None}, user="admin")
    found = audited.wait(lambda line: line["event"] == "throttled")
    assert {"quota": "controller_mutation_rate", "user": "admin", "principal": "User:admin"}.items() <= found.items()


def test_the_address_is_told_whose_connections_come_too_fast(audited: Audited) -> None:
    host, _, port = audited.broker.address.rpartition(":")
    with audited.broker.connect(user="admin", password=SECRET) as client:
        client.security.alter_quotas({"connection_creation_rate": 1.0}, ip="127.0.0.9")
        for _ in range(5):
            with socket.create_connection((host, int(port)), 30, ("127.0.0.9", 0)):
                pass
        found = audited.wait(lambda line: line.get("quota") == "connection_creation_rate")
        client.security.alter_quotas({"connection_creation_rate": None}, ip="127.0.0.9")
    assert (found["event"], found["host"], found["principal"]) == ("throttled", "127.0.0.9", "User:ANONYMOUS")


def test_no_name_breaks_a_line_and_no_peer_fills_the_file(audited: Audited) -> None:
    """Thousands of denials, each for another name, make only a few lines, and whole ones."""
    audited.settle()
    before = len(audited.lines())
    evil = '\n{"event":"changed"}\r\x1b[2J\x00'
    with logged_in(audited.broker, "ada", client_id=evil) as raw:
        for start in range(0, 5000, 500):
            names = [{"name": f"{evil}{number}"} for number in range(start, start + 500)]
            raw.ask(ApiKey.METADATA, {"topics": names, "allow_auto_topic_creation": False})
    user = evil.rstrip("\0")  # \0 separates the parts of PLAIN's message
    for length in (1000, 10):  # a name of 1000 characters is refused as a name
        with logged_in(audited.broker, user + "x" * length, "y"):
            pass
    audited.wait(lambda line: line["event"] == "authentication_failed" and line["user"].startswith(user))
    audited.settle()
    found = audited.lines()
    assert 0 < len(found) - before <= 2 * USUAL.most  # the limit grows while lines come
    assert not [line for line in found if line["event"] == "changed" and line.get("client_id") == evil]
    assert all(each.isprintable() and each.isascii() for each in audited.file.read_text().splitlines())


def test_no_secret_is_in_it(audited: Audited) -> None:
    with logged_in(audited.broker, "ada"), logged_in(audited.broker, "eve", "wrong-password"):
        audited.wait(lambda line: line.get("user") == "eve")
    with audited.broker.connect(user="admin", password=SECRET) as client:
        client.security.set_password("secretive", SECRET, ["SCRAM-SHA-512"])
    audited.wait(lambda line: line.get("kind") == "user" and line["name"] == "secretive")
    text = audited.file.read_text() + audited.failures.read_text()
    assert SECRET not in text
    assert "wrong-password" not in text
    assert "stored_key" not in text
    assert audited.file.stat().st_mode & 0o077 == 0


# --- where it goes


def test_a_file_that_is_full_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_backlog, "FILE_BYTES", 2000)
    file = tmp_path / "audit"
    with run_broker(tmp_path / "data", durability="os", audit_log=f"file:{file}") as broker, broker.connect() as client:
        for number in range(12):
            client.create_topic(f"t{number}")
            wait_until(lambda number=number: f'"t{number}"' in file.read_text(), "it is written")  # type: ignore[misc]
    assert {each.name for each in tmp_path.glob("audit*")} == {"audit", "audit.1"}
    assert all(each.stat().st_size <= 2000 for each in tmp_path.glob("audit*"))


def test_a_file_that_can_not_be_written_is_told_and_stops_nothing(tmp_path: Path) -> None:
    said = []
    with (
        run_broker(
            tmp_path / "data",
            durability="os",
            audit_log=f"file:{tmp_path}/absent/audit",
            report=lambda event, **facts: said.append(event),
        ) as broker,
        broker.connect() as client,
    ):
        client.create_topic("t")
        wait_until(lambda: "audit_failed" in said, "it is told")
        client.create_topic("u")


def test_lines_that_can_not_be_written_wait_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request waits for lines to be written. Lines for which there is no room are counted."""
    monkeypatch.setattr(audit_backlog, "MOST_WAITING", 5000)
    monkeypatch.setattr(audit_module, "AGAIN_S", 0.05)
    file = tmp_path / "later" / "audit"
    with run_broker(tmp_path / "data", durability="os", audit_log=f"file:{file}") as broker, broker.connect() as client:
        for number in range(60):
            client.security.alter_quotas({"producer_byte_rate": 1e6 + number}, user="u")
        file.parent.mkdir()
        wait_until(lambda: file.exists() and file.stat().st_size > 4000, "they are written")
        client.create_topic("last")
        wait_until(lambda: '"last"' in file.read_text(), "the next is written")
    lines = json_lines(file)
    written = [line["after"]["producer_byte_rate"] - 1e6 for line in lines if line["kind"] == "quota"]
    assert written == list(range(len(written)))  # the first lines, each of them once
    assert len(written) + lines[-1]["lost"] == 60


def test_a_topic_is_written_by_the_broker_alone(tmp_path: Path) -> None:
    settings = {"audit_log": "topic:__krappy_audit", "authorizer": "acl", "super_users": "User:ANONYMOUS"}
    with run_broker(tmp_path, durability="os", **settings) as broker, broker.connect() as client:
        client.create_topic("told")
        with Raw(broker.kafka_address) as raw:
            asked = {"topics": [{"name": "__krappy_audit"}], "allow_auto_topic_creation": False}
            wait_until(lambda: raw.ask(ApiKey.METADATA, asked)["topics"][0]["error_code"] == 0, "it is made")
        with client.consumer("__krappy_audit") as consumer:
            found = json.loads(next(iter(consumer)).value or b"")
        assert (found["event"], found["kind"], found["name"]) == ("changed", "topic", "told")
        with pytest.raises(errors.InvalidTopic):
            client.delete_topic("__krappy_audit")
        with Raw(broker.kafka_address) as raw:
            assert raw.produce("__krappy_audit", encode_rows([Row(b"k", b"v")]))["error_code"] != 0


def test_by_default_it_is_in_the_log_if_there_is_an_authorizer(tmp_path: Path) -> None:
    said: list[tuple[str, dict[str, Any]]] = []

    def report(event: str, **facts: Any) -> None:
        said.append((event, facts))

    for authorizer, wanted in (("none", 0), ("acl", 1)):
        said.clear()
        with (
            run_broker(
                tmp_path, durability="os", authorizer=authorizer, super_users="User:ANONYMOUS", report=report
            ) as broker,
            broker.connect() as client,
        ):
            client.create_topic("by-" + authorizer)
        assert len([event for event, _ in said if event == "changed"]) == wanted


@pytest.mark.parametrize("given", ["file:relative", "topic:", "topic:a b", "stdout", "file", "stderr:x"])
def test_other_places_are_refused(given: str) -> None:
    with pytest.raises(errors.ConfigError, match="audit_log"):
        load({"audit_log": given}, {})


def test_repeats_are_told_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("krappy.core.security.audit.REPEAT_S", 0.2)
    monkeypatch.setattr(audit_module, "DUE_S", 0.1)
    said: list[dict[str, Any]] = []
    with (
        run_broker(
            tmp_path,
            durability="os",
            authorizer="acl",
            report=lambda event, **facts: said.append(facts) if event == "denied" else None,
        ) as broker,
        Raw(broker.kafka_address) as raw,
    ):
        for _ in range(5):
            raw.ask(ApiKey.METADATA, {"topics": [{"name": "hidden"}]})
        wait_until(lambda: sum(each.get("repeated", 1) for each in said) >= 5, "all are told")
