"""Nobody can hide lines of the audit log: not among many others, not by a full disk, a stop or a log level."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trio
from trio.testing import trio_test

from krappy import errors
from krappy.broker import audit as audit_module
from krappy.broker import audit_backlog
from krappy.broker.audit_topic import AuditTopic
from krappy.console import sessions
from krappy.core.security.audit import FAILED, KEPT, USUAL
from krappy.core.security.operations import Grant, Op, Resource
from krappy.core.security.principal import Principal
from krappy.logs import AUDIT, Logger, Reporter
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire.kafka import ApiKey
from tests.kafka.raw import Raw
from tests.process import json_lines, wait_until
from tests.security.guarded import rule
from tests.security.test_audit import SECRET, Audited, logged_in

TOPIC = "__krappy_audit"
BROAD = "\U0001f600"  # a character that takes twelve bytes in JSON


@contextmanager
def audited(folder: Path, **more: Any) -> Iterator[Audited]:
    """A broker with the users admin, who may do everything, and ada, who may do nothing."""
    users = folder / "users"
    users.mkdir()
    for name in ("admin", "ada"):
        (users / name).write_text(SECRET)
    listeners = dict.fromkeys(("listen_native", "listen_kafka", "listen_http"), "SASL_PLAINTEXT://127.0.0.1:0")
    settings: dict[str, Any] = {
        "users_dir": str(users),
        "super_users": "User:admin",
        "sasl_enabled_mechanisms": "PLAIN",
        **listeners,
    }
    settings |= {"failed_authentication_delay_ms": 1, "audit_log": f"file:{folder}/audit", **more}
    with run_broker(folder / "data", durability="os", **settings) as broker:
        yield Audited(broker, folder / "audit")


def make(raw: Raw, name: str) -> int:
    made = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    asked = {"topics": [made], "timeout_ms": 9000, "validate_only": False}
    code: int = raw.ask(ApiKey.CREATE_TOPICS, asked)["topics"][0]["error_code"]
    return code


# --- among many others


def test_many_commits_hide_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do denials. Of those that are told together, the last is told, whatever else comes meanwhile."""
    monkeypatch.setattr(audit_module, "DUE_S", 0.1)

    def commit(raw: Raw, group: str, offset: int) -> None:
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        raw.ask(ApiKey.OFFSET_COMMIT, {"group_id": group, "topics": [{"name": "t", "partitions": [part]}]}, 8)

    with audited(tmp_path) as log, logged_in(log.broker, "admin") as admin, logged_in(log.broker, "ada") as ada:
        assert make(admin, "t") == 0
        rights = [rule(Resource.TOPIC, "t", Op.READ, host="*", principal="User:ada")]
        rights += [rule(Resource.GROUP, "*", Op.READ, host="*", principal="User:ada")]
        admin.ask(ApiKey.CREATE_ACLS, {"creations": rights})
        for number in range(USUAL.most + 10):
            commit(ada, f"own-{number}", 0)
        commit(ada, "hers", 3)
        commit(ada, "hers", 19)
        ada.ask(ApiKey.METADATA, {"topics": [{"name": f"x{number}"} for number in range(KEPT + 1)]})
        monkeypatch.setattr("krappy.core.security.audit.REPEAT_S", 0.0)
        line = log.wait(lambda line: line.get("name") == "hers" and "repeated" in line)
    assert line["after"] == {"t-0": 19}
    assert [each["after"] for each in log.lines() if each.get("name") == "hers"] == [{"t-0": 3}, {"t-0": 19}]


def test_denials_hide_no_change_and_nobody_elses_line(tmp_path: Path) -> None:
    with audited(tmp_path) as log, logged_in(log.broker, "admin") as admin, logged_in(log.broker, "ada") as ada:
        ada.ask(ApiKey.METADATA, {"topics": [{"name": f"x{number}"} for number in range(2 * USUAL.most)]})
        for number in range(3):
            admin.ask(ApiKey.CREATE_ACLS, {"creations": [rule(Resource.TOPIC, f"hers-{number}", Op.ALL, host="*")]})
            assert make(admin, f"copy-{number}") == 0
        with logged_in(log.broker, "admin", client_id="another"):
            pass
        assert make(ada, "made-by-ada") != 0  # a denial without a line: she has used up her lines
        log.wait(lambda line: line.get("name") == "copy-2")
        lines = log.lines()
    changed = [line for line in lines if line["event"] == "changed"]
    assert sorted(line["kind"] for line in changed) == ["acl"] * 3 + ["topic"] * 3
    denied = [line for line in lines if line["event"] == "denied"]
    assert len(denied) <= USUAL.most + 2
    assert sum(line.get("left_out", 0) for line in lines) >= 2 * USUAL.most - len(denied)


def test_the_addresses_of_one_network_have_the_lines_of_one() -> None:
    """Whoever has one address of IPv6 has all of its /64. Otherwise his lines would fill the file, and drive others
    out."""
    lines: list[tuple[str, str]] = []
    config: Any = SimpleNamespace(audit_sink="stderr", audit_allowed="all")
    lender: Any = SimpleNamespace(config=config, report=lambda event, **facts: lines.append((event, facts["host"])))
    audit = audit_module.Audit(lender)
    grant = Grant(Resource.TOPIC, "orders", Op.READ)

    def seen(event: str) -> list[str]:
        return [host for what, host in lines if what == event]

    for name in ("denied", "allowed", "ended", "authenticated", "throttled"):
        for number in range(2 * USUAL.most):
            host = f"2001:db8::{number + 1:x}"
            user = Principal(name=name, mechanism="PLAIN", host=host)
            audit.authenticated(user) if name == "authenticated" else None
            audit.denied(user, grant, "no ACL allows it") if name == "denied" else None
            audit.allowed(user, grant) if name == "allowed" else None
            audit.ended(user, "its time is over") if name == "ended" else None
            audit.throttled("producer_byte_rate", "", "", host, 1.0) if name == "throttled" else None
        assert len(set(seen(name))) == len(seen(name)), "each line has its own address"
        assert len(seen(name)) <= USUAL.most + 2, name
    audit.denied(Principal(name="denied", host="2001:db8:1::1"), grant, "no ACL allows it")
    assert seen("denied")[-1] == "2001:db8:1::1", "another network has lines of its own"


def fail(broker: RunningBroker, user: str, client_id: str = "x") -> None:
    with logged_in(broker, user, "wrong", client_id=client_id):
        pass


def test_failed_logins_drive_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One address fails to log in many times. The file of changes stays as it is, and the failures are summed up."""
    monkeypatch.setattr(audit_backlog, "FILE_BYTES", 8000)
    monkeypatch.setattr("krappy.core.security.audit.REPEAT_S", 0.5)
    monkeypatch.setattr(audit_module, "DUE_S", 0.1)
    attempts = 200
    with audited(tmp_path) as log:
        with logged_in(log.broker, "admin") as admin:
            assert make(admin, "told-before") == 0
            log.wait(lambda line: line.get("name") == "told-before")
            before = log.file.read_text()
            for number in range(attempts):
                fail(log.broker, f"{number}{BROAD * 200}", BROAD * 249)
            assert make(admin, "told-after") == 0
            log.wait(lambda line: line.get("name") == "told-after")
        assert log.file.read_text().startswith(before)
        assert "authentication_failed" not in log.file.read_text()

        def failures() -> list[dict[str, Any]]:
            files = [each for each in (log.failures, Path(f"{log.failures}.1")) if each.exists()]
            return [line for each in files for line in json_lines(each)]

        wait_until(lambda: any("repeated" in line for line in failures()), "they are summed")
        lines = failures()
    alone = [line for line in lines if "user" in line]
    assert len(alone) <= 2 * FAILED.most + 10  # the limit grows while lines come
    assert all(len(json.dumps(line)) < 3000 for line in lines)
    assert {each.name for each in tmp_path.glob("audit*")} <= {"audit", "audit.failures", "audit.failures.1"}
    assert (log.failures.stat().st_mode & 0o077) == 0


def test_failed_logins_have_a_partition_of_their_own(tmp_path: Path) -> None:
    with audited(tmp_path, audit_log=f"topic:{TOPIC}") as log:
        fail(log.broker, "eve")
        with logged_in(log.broker, "admin") as admin:
            assert make(admin, "t") == 0
            wait_until(lambda: bool(values(admin, 0)) and bool(values(admin, 1)), "both are written")
            assert {line["event"] for line in values(admin, 0)} <= {"changed", "authenticated"}
            assert [(line["event"], line["user"]) for line in values(admin, 1)] == [("authentication_failed", "eve")]


def values(raw: Raw, partition: int) -> list[dict[str, Any]]:
    asked = {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}
    if raw.ask(ApiKey.METADATA, asked)["topics"][0]["error_code"]:
        return []
    return [json.loads(value or b"") for value in raw.values(TOPIC, index=partition)]


# --- what failures tell


def test_who_failed_over_http_is_told(tmp_path: Path) -> None:
    said: list[tuple[str, dict[str, Any]]] = []

    def report(event: str, **facts: Any) -> None:
        said.append((event, facts))

    with audited(tmp_path, report=report) as log:
        base = f"http://{log.broker.http_address}/api/v1"
        httpx.get(f"{base}/topics", auth=("admin", "guess"), trust_env=False)
        headers = {"Krappy-Request": "1"}
        httpx.post(f"{base}/login", json={"user": "carl", "password": "x"}, headers=headers, trust_env=False)
        for user in ("admin", "carl"):
            log.wait(lambda line, user=user: (line.get("mechanism"), line.get("user")) == ("HTTP", user))  # type: ignore[misc]
    told = [facts["user"] for event, facts in said if event == "authentication_failed"]
    assert told == ["admin", "carl"]  # in the broker's log, too, which is the audit log by default


def test_a_login_as_another_user_is_told(tmp_path: Path) -> None:
    with audited(tmp_path) as log, logged_in(log.broker, "ada") as raw:
        raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
        answer = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0admin\0" + SECRET.encode()})
        assert answer["error_code"] != 0
        found = log.wait(lambda line: line["event"] == "authentication_failed")
    assert (found["user"], found["mechanism"]) == ("admin", "PLAIN")
    assert "first" in found["reason"]


def test_a_console_session_whose_time_is_over_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request of anybody makes the broker notice, because the session's own browser may be gone."""
    monkeypatch.setattr("krappy.console.login.SESSION_MS", 1)
    with audited(tmp_path) as log:
        base = f"http://{log.broker.http_address}"
        with httpx.Client(base_url=base, trust_env=False, headers={"Krappy-Request": "1"}) as browser:
            assert browser.post("/api/v1/login", json={"user": "ada", "password": SECRET}).status_code == 200

        def told() -> bool:
            httpx.get(f"{base}/healthz", trust_env=False)
            return any(line["event"] == "ended" and line["principal"] == "User:ada" for line in log.lines())

        wait_until(told, "it is told")
        assert len([line for line in log.lines() if line["event"] == "ended"]) == 1


def test_a_console_session_that_gives_way_is_told() -> None:
    ended: list[tuple[str, str]] = []
    held = sessions.Sessions(b"secret", 0, lambda principal, why: ended.append((str(principal), why)))
    for _ in range(sessions.MOST + 1):
        held.open(0)
    assert ended == [("User:ANONYMOUS", sessions.TOO_MANY)]
    held.expire(sessions.SESSION_MS)
    assert len(ended) == sessions.MOST + 1
    held.expire(sessions.SESSION_MS)
    assert len(ended) == sessions.MOST + 1


# --- a disk that is full


class FullDisk:
    """Stands for the module `os`. `room`: so many bytes can still be written."""

    def __init__(self) -> None:
        self.room = 1 << 30

    def write(self, opened: int, data: Any) -> int:
        if self.room <= 0:  # it may be negative if a test made the room smaller during a write
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.write(opened, bytes(data[: self.room]))
        self.room -= written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def test_a_full_disk_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes half a line, and then nothing until there is room again."""
    disk = FullDisk()
    monkeypatch.setattr(audit_backlog, "os", disk)
    monkeypatch.setattr(audit_module, "AGAIN_S", 0.05)
    said: list[str] = []
    with (
        run_broker(
            tmp_path / "data",
            durability="os",
            audit_log=f"file:{tmp_path}/audit",
            report=lambda event, **facts: said.append(event),
        ) as broker,
        broker.connect() as client,
    ):
        client.create_topic("t0")
        wait_until(lambda: (tmp_path / "audit").exists(), "it is written")
        disk.room = 150
        for number in range(1, 20):
            client.create_topic(f"t{number}")
        wait_until(lambda: said.count("audit_failed") > 1, "it is full")
        disk.room = 1 << 30
        client.create_topic("t20")
        wait_until(lambda: '"t20"' in (tmp_path / "audit").read_text(), "there is room again")
    lines = json_lines(tmp_path / "audit")
    assert [line["name"] for line in lines] == [f"t{number}" for number in range(21)]
    assert "audit_unwritten" not in said


def test_what_there_is_no_room_for_is_counted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics and the next line say how many lines were lost. Denials leave room for changes."""
    monkeypatch.setattr(audit_backlog, "MOST_WAITING", 10_000)
    monkeypatch.setattr(audit_module, "AGAIN_S", 0.05)
    disk = FullDisk()
    monkeypatch.setattr(audit_backlog, "os", disk)
    with audited(tmp_path) as log, logged_in(log.broker, "admin") as admin, logged_in(log.broker, "ada") as ada:
        log.wait(lambda line: line["principal"] == "User:ada")
        assert number_of(log, "krappy_audit_lines_lost_total") == 0
        log.wait(lambda line: line["listener"] == "HTTP")
        disk.room = 0
        ada.ask(ApiKey.METADATA, {"topics": [{"name": f"x{number}"} for number in range(USUAL.most - 5)]})
        for number in range(3):
            assert make(admin, f"t{number}") == 0
        lost = number_of(log, "krappy_audit_lines_lost_total")
        assert lost > 0
        wait_until(lambda: number_of(log, "krappy_audit_failed") == 1, "it is told that nothing is written")
        disk.room = 1 << 30
        wait_until(lambda: number_of(log, "krappy_audit_failed") == 0, "there is room again")
        assert make(admin, "last") == 0
        log.wait(lambda line: line.get("name") == "last")
        lines = log.lines()
    assert [line["name"] for line in lines if line["event"] == "changed"] == ["t0", "t1", "t2", "last"]
    assert sum(line.get("lost", 0) for line in lines) == lost
    assert len([line for line in lines if line["event"] == "denied"]) + lost == USUAL.most - 5


def number_of(log: Audited, metric: str) -> float:
    text = httpx.get(f"http://{log.broker.http_address}/metrics", auth=("admin", SECRET), trust_env=False).text
    [line] = [line for line in text.splitlines() if line.startswith(metric + " ")]
    return float(line.split()[1])


def test_a_line_that_was_torn_ruins_no_other(tmp_path: Path) -> None:
    """The machine went down while the line was written."""
    (tmp_path / "audit").write_text('{"event":"cha')
    audit_backlog.append(tmp_path / "audit", ["{}"])
    assert (tmp_path / "audit").read_text() == '{"event":"cha\n{}\n'


def test_a_file_that_can_not_be_turned_ends_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is closed twice, because by then its number may belong to a client's connection."""
    monkeypatch.setattr(audit_backlog, "FILE_BYTES", 10)
    audit_backlog.append(tmp_path / "audit", ["{}"])
    (tmp_path / "audit.1").mkdir()
    closed: list[int] = []

    def close(opened: int) -> None:
        closed.append(opened)
        os.close(opened)

    disk = FullDisk()
    monkeypatch.setattr(audit_backlog, "os", disk)
    monkeypatch.setattr(disk, "close", close, raising=False)
    with pytest.raises(OSError, match="irectory"):
        audit_backlog.append(tmp_path / "audit", ["{}" * 10])
    assert len(closed) == len(set(closed))
    assert (tmp_path / "audit").read_text() == "{}\n"


@trio_test
async def test_failed_logins_whose_partition_hangs_keep_no_other_line_from_being_written() -> None:
    """Anybody can cause them."""
    written: list[str] = []

    async def write(lines: Sequence[str], place: int) -> None:
        if place == audit_module.FAILURES:
            await trio.sleep_forever()
        written.extend(lines)

    config: Any = SimpleNamespace(audit_sink=f"topic:{TOPIC}", audit_allowed="none")
    lender: Any = SimpleNamespace(config=config, report=lambda *_, **__: None)
    audit = audit_module.Audit(lender)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(audit.run, write)
            for number in range(3):
                audit.failed("PLAIN", "10.0.0.1", "ada", "a wrong password")
                audit.changed("topic", f"t{number}", None, {})
                while len(written) <= number:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


# --- a stop, and a log level


def test_what_waits_for_a_topic_is_written_before_an_orderly_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is so for the first lines, too: the topic is there before they come."""
    held, write = True, AuditTopic.write

    async def write_later(topic: AuditTopic, lines: Sequence[str], place: int) -> None:
        if held:
            raise errors.StorageError("not yet")
        await write(topic, lines, place)

    monkeypatch.setattr(AuditTopic, "write", write_later)
    names = [f"t{number}" for number in range(6)]
    with run_broker(tmp_path, durability="os", audit_log=f"topic:{TOPIC}") as broker, Raw(broker.kafka_address) as raw:
        wait_until(lambda: partitions(raw) == 2, "there is the topic")
        for name in names:
            assert make(raw, name) == 0
        assert not values(raw, 0)
        held = False
    with run_broker(tmp_path, durability="os", audit_log="none") as broker, Raw(broker.kafka_address) as raw:
        assert [line["name"] for line in values(raw, 0)] == names


@pytest.mark.parametrize("sink", ["topic", "file"])
def test_what_can_not_be_written_at_the_end_is_in_the_log(tmp_path: Path, sink: str) -> None:
    """The disk is full, or the topic could not be made. No line is lost silently."""
    said: list[tuple[str, dict[str, Any]]] = []
    (tmp_path / "folder").mkdir()
    where = f"file:{tmp_path}/folder" if sink == "file" else f"topic:{TOPIC}"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AuditTopic, "_topic", refused)
        with (
            run_broker(
                tmp_path / "data",
                durability="os",
                audit_log=where,
                report=lambda event, **facts: said.append((event, facts)),
            ) as broker,
            Raw(broker.kafka_address) as raw,
        ):
            for number in range(30):
                assert make(raw, f"t{number}") == 0
            wait_until(lambda: any(event == "audit_failed" for event, _ in said), "it can't be written")
    lines = [json.loads(facts["line"]) for event, facts in said if event == "audit_unwritten"]
    assert [line["name"] for line in lines] == [f"t{number}" for number in range(30)]
    written = io.StringIO()
    report = Reporter(Logger("error", "json", written))
    for line in lines:
        report("audit_unwritten", line=line)
    assert len(written.getvalue().splitlines()) == 30  # no log level leaves one out


async def refused(topic: AuditTopic) -> Any:
    raise errors.StorageError("the disk is full")


def partitions(raw: Raw) -> int:
    [topic] = raw.ask(ApiKey.METADATA, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False})["topics"]
    return len(topic["partitions"])


@pytest.mark.parametrize("level", ["warning", "error"])
def test_the_log_level_takes_nothing_from_the_audit_log(level: str) -> None:
    written = io.StringIO()
    report = Reporter(Logger(level, "json", written))
    for event in sorted(AUDIT):
        report(event, principal="User:admin")
    report("topic_created", topic="t")
    assert [json.loads(line)["event"] for line in written.getvalue().splitlines()] == sorted(AUDIT)
