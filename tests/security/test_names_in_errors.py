"""Errors name nothing that the client may not see: no topic, no file and no address of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from krappy import errors
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.records import batch
from krappy.testing.running import run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from tests.security.authority import Authority
from tests.security.guarded import ADMIN, USER, Guarded, guarded_broker, rule
from tests.security.identity import CLIENT, CLIENT_SECRET, IdentityProvider


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("names")) as found:
        with found.native(ADMIN) as native:
            native.call(m.CreateTopic("payroll_2026.q1"))
            native.call(m.CreateTopic("merger", config={"max.compaction.lag.ms": 1000, "cleanup.policy": "compact"}))
        grants = (Resource.TOPIC, "payroll", Op.CREATE), (Resource.CLUSTER, CLUSTER_NAME, Op.ALTER_CONFIGS)
        found.allow(rule(*grants[0], prefixed=True), rule(*grants[1]))
        yield found


def new_topic(*, validate_only: bool) -> dict[str, Any]:
    made = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return {
        "topics": [{"name": "payroll_2026_q1", **made}],
        "timeout_ms": 1000,
        "validate_only": validate_only,
    }


@pytest.mark.parametrize("validate_only", [True, False])
def test_a_topic_that_a_new_one_collides_with(guarded: Guarded, validate_only: bool) -> None:
    for host, named in ((USER, False), (ADMIN, True)):
        with guarded.kafka(host) as raw:
            [answer] = raw.ask(ApiKey.CREATE_TOPICS, new_topic(validate_only=validate_only))["topics"]
        assert answer["error_code"] == errors.InvalidTopic.code
        assert ("payroll_2026.q1" in answer["error_message"]) is named
        assert "collides" in answer["error_message"]
        with guarded.native(host) as native, pytest.raises(errors.InvalidTopic, match="collides") as refused:
            native.call(m.CreateTopic("payroll_2026_q1"))
        assert ("payroll_2026.q1" in refused.value.text) is named
        with guarded.web(host) as web:
            told = web.client.post("/api/v1/topics", json={"name": "payroll_2026_q1"}, headers={"Krappy-Request": "1"})
        assert "collides" in told.text or not named
        assert ("payroll_2026.q1" in told.text) is named


@pytest.mark.parametrize("validate_only", [True, False])
def test_a_topic_that_could_not_have_new_defaults(guarded: Guarded, validate_only: bool) -> None:
    config = {"name": "log.cleaner.min.compaction.lag.ms", "config_operation": 0, "value": "5000"}
    asked = {"resources": [{"resource_type": 4, "resource_name": "", "configs": [config]}]}
    for host, named in ((USER, False), (ADMIN, True)):
        with guarded.kafka(host) as raw:
            asked["validate_only"] = validate_only  # type: ignore[assignment]
            [answer] = raw.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, asked)["responses"]
        assert "could not have these defaults" in answer["error_message"]
        assert ("merger" in answer["error_message"]) is named


def test_what_the_console_says_of_the_identity_provider(tmp_path: Path) -> None:
    """Anybody may begin a login at the provider. So only the broker's log says what is wrong with it."""
    authority, provider, said = Authority(tmp_path), IdentityProvider(), list[dict[str, Any]]()
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "admin").write_text("correct-horse")
    secret = tmp_path / "the-secret"
    secret.write_text(CLIENT_SECRET)

    def report(event: str, **facts: Any) -> None:
        if event == "oidc_login_not_possible":
            said.append(facts)

    with (
        run_broker(
            tmp_path / "data",
            durability="os",
            report=report,
            users_dir=str(tmp_path / "users"),
            super_users="User:admin",
            sasl_enabled_mechanisms="PLAIN,OAUTHBEARER",
            tls_certificate=authority.issue("127.0.0.1"),
            listen_native="none",
            listen_kafka="none",
            listen_http="SASL_SSL://127.0.0.1:0",
            console_oidc_client_id=CLIENT,
            console_oidc_secret_file=str(secret),
            console_oidc_redirect="https://127.0.0.1:1/",
            **provider.settings,
        ) as broker,
        httpx.Client(
            base_url=f"https://{broker.http_address}",
            headers={"Krappy-Request": "1"},
            verify=authority.context(),
            trust_env=False,
            timeout=60,
        ) as browser,
    ):
        where = browser.post("/api/v1/login/provider").json()["location"]
        code = {"code": "x", "state": parse_qs(urlsplit(where).query)["state"][0]}

        def told(status: int) -> str:
            answer = browser.post("/api/v1/login", json=code)
            assert answer.status_code == status, answer.text
            assert str(secret) not in answer.text
            assert "/token" not in answer.text
            assert "127.0.0.1" not in answer.text
            return answer.text

        told(401)  # the provider refuses the code
        secret.unlink()
        told(503)
        secret.write_text(CLIENT_SECRET)
        provider.stop()
        told(503)
    assert str(secret) in said[0]["error"]
    assert len(said) == 2


def test_a_job_that_is_over(guarded: Guarded) -> None:
    """A client that may write only to some of the job's topics is not told of the others, neither when it commits nor
    when it stages."""
    guarded.allow(rule(Resource.TRANSACTIONAL_ID, "over", Op.WRITE), rule(Resource.TOPIC, "mine", Op.WRITE))
    with guarded.native(ADMIN) as admin, guarded.native() as eve:
        tokens = []
        for topic in ("mine", "hidden"):
            admin.call(m.CreateTopic(topic))
            staged = admin.call(m.Stage(topic, "over", f"task {topic}", "1", 600_000))
            header = {"producer_id": staged.producer_id, "producer_epoch": staged.producer_epoch, "base_sequence": 0}
            data = batch.encode([b"k"], [b"v"], timestamps=1000, **header)
            admin.call(m.Batch(staged.handle, 0, data))
            tokens.append(admin.call(m.SealStaged("over", staged.stage, 1)).token)
        assert len(admin.call(m.CommitStaged("over", tokens, 30_000)).published) == 2
        for some in ([], tokens):
            with pytest.raises(errors.AuthorizationFailed, match="each topic of the job") as refused:
                eve.call(m.CommitStaged("over", some, 1000))
            assert "hidden" not in str(refused.value)
        admin.call(m.DeleteTopic("hidden"))
        admin.call(m.CreateTopic("hidden"))
        with pytest.raises(errors.UnknownTopic, match="a topic that it was published to") as unknown:
            eve.call(m.Stage("mine", "over", "another", "1", 600_000))
        assert "hidden" not in str(unknown.value)
        assert "topic" not in unknown.value.details
