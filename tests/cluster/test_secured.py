"""A cluster whose brokers reach each other by SASL_SSL: the requests between them, clients that claim to be brokers,
and brokers with a wrong password or a bad certificate."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer

from krappy import blocking
from krappy.clients.acls import AclInfo
from krappy.core.staging import PUBLISHER
from krappy.errors import AuthenticationFailed, AuthorizationFailed
from krappy.records import batch
from krappy.wire.kafka import ApiKey, Code
from krappy.wire.mistaken import TLS_ALERT
from tests.cluster.brokers import ClusterProcesses, SharedProcesses
from tests.cluster.secured import HOST, PASSWORDS, SecuredProcesses
from tests.cluster.test_moves import make
from tests.kafka.raw import Raw, fetch, produce
from tests.process import free_ports, wait_until
from tests.quotas.quotas import Parts, Quotas
from tests.security.authority import Authority
from tests.security.identity import AUDIENCE, IdentityProvider, identity_provider
from tests.security.test_sasl import poll_on

TOPIC = "t"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses) -> Iterator[SecuredProcesses]:
    folder = tmp_path_factory.mktemp("secured")
    made = SecuredProcesses(folder, Authority(folder), shared_processes)
    try:
        made.start()
        with made.connect(1) as admin:
            admin.create_topic(TOPIC, 6, replication_factor=3)
            everything = [AclInfo(kind, "*", "User:eve", "all") for kind in ("topic", "group", "transactional_id")]
            admin.add_acls(everything)
        yield made
        made.check_errors()
        said = made.logs()
        assert not [each for each in (*PASSWORDS.values(), "not-the-secret") if each in said]
    finally:
        made.kill()


def test_the_requests_between_brokers(secured: SecuredProcesses) -> None:
    """This is replication, markers and verification of a transaction, and lookups at a broker that does not lead."""
    secured.until_in_sync(TOPIC)
    producer = secured.producer(**{"transactional.id": "over-tls", "partitioner": "murmur2_random"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(200):
        producer.produce(TOPIC, b"v%d" % number, b"k%d" % number)
    producer.commit_transaction(60)
    consumer = Consumer({**secured.options(), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    got = 0
    while got < 200:
        got += sum(1 for each in consumer.consume(200, 20) if not each.error())
    consumer.close()
    for id in secured.brokers:
        url = f"https://{secured.address(id, 'listen_http')}"
        with httpx.Client(
            verify=secured.authority.context(), trust_env=False, auth=("admin", PASSWORDS["admin"])
        ) as web:
            for number in range(12):  # these keys are in all partitions
                found = web.get(f"{url}/api/v1/topics/{TOPIC}/table/entry", params={"key": f"k{number}"}, timeout=30)
                assert found.json().get("state") == "value", found.text


def test_a_client_that_claims_to_be_a_broker_is_refused(secured: SecuredProcesses) -> None:
    """Eve claims to be a broker. She may do everything to topics, groups and transactional ids, but that is not
    enough."""
    known = secured.partitions(TOPIC)
    topic = secured.topic(TOPIC)
    assert topic is not None
    leader, index = known[0].leader, 0
    replica = next(each for each in known[0].replicas if each != leader)
    fetch = {
        "replica_id": replica,
        "replica_state": {"replica_id": replica, "replica_epoch": 1},
        "max_wait_ms": 0,
        "topics": [{"topic_id": topic.id, "topic": TOPIC, "partitions": [{"partition": index, "fetch_offset": 0}]}],
    }
    producer = {"producer_id": 1, "producer_epoch": 0}
    marked = [{"name": TOPIC, "partition_indexes": [index]}]
    marker = {**producer, "transaction_result": True, "topics": marked, "coordinator_epoch": 1}
    asked = [{"name": TOPIC, "partitions": [index]}]
    verified = {"transactional_id": "x", **producer, "verify_only": True, "topics": asked}
    with secured.asked(leader, "eve") as eve:
        assert eve.ask(ApiKey.FETCH, {**fetch, "replica_id": -1, "replica_state": {}})["error_code"] == 0
        for version in (12, 15, None):
            assert eve.ask(ApiKey.FETCH, fetch, version)["error_code"] == Code.CLUSTER_AUTHORIZATION_FAILED
        told = eve.ask(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})["markers"]
        codes = {part["error_code"] for each in told for one in each["topics"] for part in one["partitions"]}
        assert codes == {Code.CLUSTER_AUTHORIZATION_FAILED}
        told = eve.ask(ApiKey.ADD_PARTITIONS_TO_TXN, {"transactions": [verified]})
        assert told["error_code"] == Code.CLUSTER_AUTHORIZATION_FAILED
        partition = {"index": index, "records": batch.encode([None], [b"v"], timestamps=[1])}
        topics = [{"name": TOPIC, "topic_id": topic.id, "partition_data": [partition]}]
        told = eve.ask(
            ApiKey.PRODUCE, {"transactional_id": PUBLISHER, "acks": -1, "timeout_ms": 9000, "topic_data": topics}
        )
        [row] = told["responses"][0]["partition_responses"]
        assert row["error_code"] == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    with secured.connect(leader, "eve") as client, pytest.raises(AuthorizationFailed), client.hold_backup():
        pass


def test_a_reassignment_tells_only_of_topics_that_may_be_described(secured: SecuredProcesses) -> None:
    """Broker 3 is paused, so the reassignment goes on until it is cancelled."""
    rights = [
        AclInfo("cluster", "kafka-cluster", "User:eve", "describe"),
        AclInfo("topic", "moved", "User:eve", "all", "deny"),
    ]

    def reassign(replicas: list[int] | None) -> None:
        topics = [{"name": "moved", "partitions": [{"partition_index": 0, "replicas": replicas}]}]
        with secured.asked(1) as raw:
            [told] = raw.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"topics": topics})["responses"]
        assert told["partitions"][0]["error_code"] == Code.NONE

    def listed(user: str, topics: list[dict[str, Any]] | None) -> list[str]:
        with secured.asked(2, user) as raw:
            return [each["name"] for each in raw.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": topics})["topics"]]

    with secured.connect(1) as admin:
        make(secured, "moved", 1, 2)
        admin.add_acls(rights)
        with secured.paused(3):
            reassign([1, 2, 3])
            for topics in (None, [{"name": "moved", "partition_indexes": [0]}]):
                wait_until(lambda topics=topics: listed("admin", topics) == ["moved"], "it goes on")  # type: ignore[misc]
                assert listed("eve", topics) == []
            reassign(None)
        secured.until_known()
        for each in rights:
            admin.delete_acls(resource=each.resource, name=each.name, principal="User:eve")


def test_quotas_of_one_who_is_logged_in_are_in_force_at_each_broker(secured: SecuredProcesses) -> None:
    """One quota is set by the native protocol at one broker, and one by Kafka's protocol at another. Each broker counts
    by itself."""
    secured.until_in_sync(TOPIC)
    secured.spread(TOPIC)
    user: Parts = {"user": "eve"}
    both: Parts = {"user": "eve", "client-id": "etl"}
    topic = secured.topic(TOPIC)
    assert topic is not None
    kinds, value = ("producer_byte_rate", "consumer_byte_rate"), batch.encode([None], [bytes(60_000)], timestamps=[1])
    with secured.connect(1) as admin, Quotas(secured.asked(2)) as quotas:
        admin.security.alter_quotas(dict.fromkeys(kinds, 10_000.0), user="eve")
        quotas.set(both, **dict.fromkeys(kinds, 20_000.0))
        everything = [each for each in quotas.found() if each[0] in (user, both)]
        assert len(everything) == 2
        for id in secured.brokers:
            index = next(index for index, each in topic.partitions.items() if each.leader == id)
            with Quotas(secured.asked(id)) as there:
                found = there.found
                wait_until(lambda found=found: found() == everything, f"broker {id} knows them")  # type: ignore[misc]
            for name, client_id, seconds in (("eve", "etl", 2.0), ("eve", "another", 5.0), ("admin", "etl", 0.0)):
                began = time.monotonic()
                with secured.asked(id, name, client_id) as raw:
                    written = raw.ask(ApiKey.PRODUCE, produce(TOPIC, value, index), 12)
                offset = written["responses"][0]["partition_responses"][0]["base_offset"]
                with secured.asked(id, name, client_id) as raw:
                    read = raw.ask(ApiKey.FETCH, fetch([(topic.id, index, offset)]))
                told = [each["throttle_time_ms"] / 1000 for each in (written, read)]
                took = time.monotonic() - began  # the debt shrinks while a write waits for the other brokers
                assert all(0.9 * seconds - took <= each <= 1.1 * seconds for each in told), (told, took)
        admin.security.alter_quotas(dict.fromkeys(kinds), user="eve")


def test_who_has_no_tls_is_told_so(secured: SecuredProcesses) -> None:
    with Raw(secured.address(1)) as raw:
        raw.send(ApiKey.API_VERSIONS)
        assert raw.socket.recv(100) == TLS_ALERT
        assert raw.closed()


def test_a_broker_with_a_wrong_password_and_with_another_one(secured: SecuredProcesses) -> None:
    """The broker is out of sync until its password is right. It reads the file for each connection."""
    broker = secured.brokers[3]
    secured.until_in_sync(TOPIC)
    secured.password(3, "not-the-secret")
    broker.kill()

    def out() -> bool:
        return all(3 not in each.isrs for each in secured.partitions_at(1, TOPIC).values())

    wait_until(out, "it is out of sync")
    seen = len(secured.events(3, "leader_unreachable"))
    broker.start()

    def told() -> bool:
        found = secured.events(3, "leader_unreachable")[seen:]
        return any("does not let the user 'broker' in" in each["error"] for each in found)

    wait_until(told, "it says what is wrong")
    assert out()
    secured.password(3, PASSWORDS["broker"])
    secured.until_in_sync(TOPIC)


def test_nobody_copies_from_a_broker_whose_certificate_is_not_good(secured: SecuredProcesses, tmp_path: Path) -> None:
    """The other brokers report why. Other kinds of bad certificates are tested in tests/security/test_peer_links.py."""
    broker, good = secured.brokers[3], secured.folder / "3.good"
    shutil.copy(secured.folder / "3.pem", good)
    secured.certify(3, Authority(tmp_path).issue(HOST))
    broker.kill()
    seen = {id: len(secured.events(id, "leader_unreachable")) for id in (1, 2)}
    broker.start()

    def led() -> bool:
        with secured.asked(1) as raw:
            raw.ask(ApiKey.ELECT_LEADERS, {"election_type": 0, "topic_partitions": None, "timeout_ms": 5000})
        return any(each.leader == 3 for each in secured.partitions_at(1, TOPIC).values())

    def told(id: int) -> bool:
        found = secured.events(id, "leader_unreachable")[seen[id] :]
        return any("unable to get local issuer certificate" in each["error"] for each in found)

    wait_until(led, "it leads")
    for id in seen:
        wait_until(lambda id=id: told(id), f"{id} says what is wrong")  # type: ignore[misc]
    broker.kill()
    secured.certify(3, str(good))
    broker.start()
    secured.until_known()
    secured.until_in_sync(TOPIC)


def test_a_reader_whose_password_was_changed_is_told_so_by_the_next_leader(secured: SecuredProcesses) -> None:
    """It stays connected to the brokers where it has logged in. Short polls brought nothing, and no error."""
    secured.until_in_sync(TOPIC)
    gone = secured.partitions(TOPIC)[0].leader
    address, ca = secured.address(gone, "listen_native"), secured.authority.ca
    with secured.connect(next(id for id in secured.brokers if id != gone)) as admin:
        admin.add_acls([AclInfo("topic", TOPIC, "User:carl", "read")])
        admin.security.set_password("carl", "c")
        with (
            blocking.connect(address, ca=ca, user="carl", password="c", timeout=2) as client,
            client.consumer(TOPIC, start="latest", partitions=[0]) as reader,
        ):
            assert reader.poll(0.1) == []
            admin.security.set_password("carl", "other")
            secured.brokers[gone].kill()
            with pytest.raises(AuthenticationFailed):
                poll_on(reader)
    secured.start_again(gone)
    secured.until_in_sync(TOPIC)


def test_a_cold_start_with_a_user_of_the_tree(secured: SecuredProcesses) -> None:
    """The credential of this user is in ZooKeeper alone. So a broker can let another one in, even if no third one
    runs."""
    secured.until_in_sync(TOPIC)
    with secured.connect(1) as admin:
        admin.security.set_password("link", "link-secret")
    for id, each in secured.brokers.items():
        each.kill()
        each.settings.update(inter_broker_user="link", super_users="User:link;User:admin")
        secured.password(id, "link-secret")
    for each in secured.brokers.values():
        each.begin()
    for each in secured.brokers.values():
        each.ready()
    secured.until_known()
    secured.until_in_sync(TOPIC)
    failed: list[Any] = []
    producer = secured.producer(acks="all")
    for number in range(100):
        producer.produce(TOPIC, b"w%d" % number, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(60) == 0
    assert not failed


def test_certificates_in_place_of_passwords(tmp_path: Path, shared_processes: SharedProcesses) -> None:
    """Brokers have a listener of their own, where their certificate is their login (mTLS). At the other listeners
    nobody logs in."""
    authority = Authority(tmp_path)
    cluster = ClusterProcesses(
        *(tmp_path, shared_processes.zookeeper, 2, shared_processes.launch),
        tls_client_ca=authority.ca,
        ssl_client_auth="required",
        ssl_principal_mapping_rules="RULE:^CN=([^,]+).*$/$1/",
        super_users="User:broker;User:ANONYMOUS",
        inter_broker_listener_name="BROKERS",
        listener_security_protocol_map="BROKERS:SSL",
    )
    ports = dict(zip(cluster.brokers, free_ports(2), strict=True))
    plain = {id: str(each.settings["listen_kafka"]) for id, each in cluster.brokers.items()}
    for id, each in cluster.brokers.items():
        each.settings["tls_certificate"] = authority.issue(HOST, subject="broker")
        each.settings["listen_kafka"] = f"{plain[id]},BROKERS://{HOST}:{ports[id]}"
    cluster.asked = lambda id: Raw(plain[id])  # type: ignore[method-assign]
    try:
        cluster.start()
        with Raw(plain[1]) as raw:
            topic = {"name": "t", "num_partitions": 2, "replication_factor": 2}
            [made] = raw.ask(ApiKey.CREATE_TOPICS, {"topics": [topic], "timeout_ms": 30_000})["topics"]
            assert made["error_code"] == 0, made
        cluster.until_in_sync("t")
        known = cluster.topic("t")
        assert known is not None
        fetch = {"replica_state": {"replica_id": 2, "replica_epoch": 1}, "max_wait_ms": 0, "topics": []}
        for subject, code in (("broker", 0), ("eve", Code.CLUSTER_AUTHORIZATION_FAILED)):
            with Raw(f"{HOST}:{ports[1]}") as raw:
                own = authority.context(authority.issue(HOST, subject=subject))
                raw.socket = own.wrap_socket(raw.socket, server_hostname=HOST)
                assert raw.ask(ApiKey.FETCH, fetch)["error_code"] == code
        assert not [each for id in cluster.brokers for each in cluster.events(id, "leader_unreachable")]
    finally:
        cluster.kill()


class Tokens:
    """Gives each broker new tokens all the time, by replacing its token file. `wrong`: the brokers that get tokens for
    another audience."""

    SECONDS = 5.0

    def __init__(self, folder: Path, provider: IdentityProvider, ids: Iterable[int]) -> None:
        self._folder, self._provider, self._ids = folder, provider, list(ids)
        self.wrong: set[int] = set()
        self._giving, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def file(self, id: int) -> Path:
        return self._folder / f"{id}.token"

    def give(self) -> None:
        with self._giving:
            for id in self._ids:
                fresh, audience = self._folder / "fresh", "somebody" if id in self.wrong else AUDIENCE
                claims: dict[str, Any] = {"groups": ["brokers"], "aud": audience}
                fresh.write_text(self._provider.token("links", seconds=self.SECONDS, **claims))
                fresh.rename(self.file(id))

    def _run(self) -> None:
        while not self._over.wait(0.2):
            self.give()

    def __enter__(self) -> Tokens:
        self.give()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def test_tokens_in_place_of_passwords(tmp_path: Path, shared_processes: SharedProcesses) -> None:
    """The tokens are of an identity provider, and their files are replaced under load. A broker with a bad token is out
    of sync until it has a good one."""
    with identity_provider() as provider, Tokens(tmp_path, provider, (1, 2, 3)) as tokens:
        cluster = SecuredProcesses(
            *(tmp_path, Authority(tmp_path), shared_processes),
            **provider.settings,
            inter_broker_user="",
            sasl_enabled_mechanisms="SCRAM-SHA-512,OAUTHBEARER",
            sasl_mechanism_inter_broker_protocol="OAUTHBEARER",
            connections_max_reauth_ms=1500,
            super_users="Group:brokers;User:admin",
        )
        for id, each in cluster.brokers.items():
            del each.settings["inter_broker_password_file"]
            each.settings["inter_broker_token_file"] = str(tokens.file(id))
        try:
            cluster.start()
            began = time.monotonic()
            with cluster.connect(1) as admin:
                admin.create_topic(TOPIC, 3, replication_factor=3, config={"min.insync.replicas": 2})
            _write_while_tokens_change(cluster, began)
            cluster.until_in_sync(TOPIC)
            seen = len(cluster.events(3, "leader_unreachable"))
            cluster.brokers[3].kill()
            tokens.wrong.add(3)
            tokens.give()

            def out() -> bool:
                return all(3 not in each.isrs for each in cluster.partitions_at(1, TOPIC).values())

            wait_until(out, "it is out of sync")
            cluster.brokers[3].start()

            def told() -> bool:
                found = cluster.events(3, "leader_unreachable")[seen:]
                return any("does not let this broker's token in" in each["error"] for each in found)

            wait_until(told, "it says what is wrong")
            assert out()
            tokens.wrong.clear()
            cluster.until_in_sync(TOPIC)
            said = cluster.logs()
            assert "internal_error" not in said
            assert tokens.file(3).read_text().split(".")[1] not in said
        finally:
            cluster.kill()


def _write_while_tokens_change(cluster: SecuredProcesses, began: float) -> None:
    """Writes until the first tokens of the brokers, and several after them, have expired long ago."""
    offsets: dict[int, list[int]] = {}
    failed: list[Any] = []

    def taken(error: Any, message: Any) -> None:
        if error:
            failed.append(error)
        else:
            offsets.setdefault(message.partition(), []).append(message.offset())

    producer = cluster.producer(**{"enable.idempotence": True, "linger.ms": 5})
    sent = 0
    while time.monotonic() < began + 3 * Tokens.SECONDS:
        for _ in range(30):
            producer.produce(TOPIC, b"%d" % sent, partition=sent % 3, on_delivery=taken)
            sent += 1
        producer.poll(0)
        time.sleep(0.05)  # what is written all the time need not be much
    assert producer.flush(60) == 0
    assert not failed
    assert all(found == list(range(len(found))) for found in offsets.values())
    assert sum(map(len, offsets.values())) == sent
