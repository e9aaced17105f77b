"""A client that may do nothing sends every request that there is, in both protocols and over HTTP. It asks about things
that exist and about things that do not. The answers are the same, and tell nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from krappy.console.app import OPERATIONS
from krappy.core.latest import twin_id
from krappy.core.security.operations import Op, Resource
from krappy.records import batch
from krappy.types import text_id
from krappy.wire import messages as m
from krappy.wire.kafka import RANGES, ApiKey, Code
from tests.security.guarded import NOBODY, Guarded, filtered, rule

SECRET = b"nobody may read this"
ONE = batch.encode([b"a secret key"], [SECRET], timestamps=1_000)
FREE = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
DENIED = {
    *(Code.TOPIC_AUTHORIZATION_FAILED, Code.GROUP_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED),
    *(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Code.UNKNOWN_TOPIC_ID),
}


class Names(NamedTuple):
    """Names of things. `ABSENT` and the names that exist have equal lengths, so that answers can be compared."""

    topic: str
    id: bytes
    group: str
    members: str
    transactional: str
    job: str
    snapshot: str


ABSENT = Names("absent-topic", bytes(range(16)), "absent-group", "absent-modern", "absent-txn", "absent-job", "f" * 24)


@pytest.fixture(scope="module")
def there(guarded: Guarded) -> Any:
    """The names of things that exist, and are kept alive."""
    admin = guarded.admin
    id = admin.make("secret-topic")
    assert admin.produce("secret-topic", ONE)["error_code"] == 0
    commit = {
        "group_id": "secret-group",
        "topics": [{"name": "secret-topic", "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    }
    admin.ask(ApiKey.OFFSET_COMMIT, commit, 8)
    with guarded.native("127.0.0.1") as native, guarded.kafka("127.0.0.1") as other:
        modern = {
            **{"group_id": "secret-modern", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 60_000},
            **{"subscribed_topic_names": ["secret-topic"], "topic_partitions": []},
        }
        assert other.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, modern)["error_code"] == 0
        init = {"transactional_id": "secret-txn", "transaction_timeout_ms": 600_000}
        producer = admin.ask(ApiKey.INIT_PRODUCER_ID, init)
        assert producer["error_code"] == 0
        native.call(m.Stage("secret-topic", "secret-job", "1", "1", 600_000))
        native.call(m.ConsumerRegistration(["secret-topic"], group="secret-shared"))
        snapshot = native.call(m.OpenSnapshot("secret-topic", ttl_ms=600_000)).snapshot
        yield Names("secret-topic", id, "secret-group", "secret-modern", "secret-txn", "secret-job", snapshot)


def bodies(n: Names) -> dict[ApiKey, dict[str, Any]]:
    at = {"partition_index": 0}
    name, id = {"name": n.topic}, {"topic_id": n.id}
    configs = [{"resource_type": kind, "resource_name": of} for kind, of in ((2, n.topic), (4, "0"), (32, n.group))]
    setting = {"configs": [{"name": "retention.ms", "value": "1", "config_operation": 0}]}
    txn = {"transactional_id": n.transactional, "producer_id": 0, "producer_epoch": 0}
    position = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}

    def of_share(more: dict[str, Any]) -> dict[str, Any]:
        return {"group_id": n.group, "topics": [{**id, "partitions": [{"partition": 0, **more}]}]}

    return {
        ApiKey.PRODUCE: {
            **{"transactional_id": None, "acks": -1, "timeout_ms": 1000},
            "topic_data": [{**id, "partition_data": [{"index": 0, "records": ONE}]}],
        },
        ApiKey.FETCH: {
            **{"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20},
            "topics": [{**id, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}],
        },
        ApiKey.LIST_OFFSETS: {
            "replica_id": -1,
            "topics": [{**name, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        },
        ApiKey.METADATA: {
            "topics": [{"name": n.topic}, {"name": None, "topic_id": n.id}, {"name": f"{n.topic}@latest"}],
            "include_topic_authorized_operations": True,
        },
        ApiKey.OFFSET_COMMIT: {"group_id": n.group, "member_id": "", "topics": [{**id, "partitions": [position]}]},
        ApiKey.OFFSET_FETCH: {
            "groups": [
                {"group_id": n.group, "topics": None},
                {"group_id": n.members, "topics": [{**id, "partition_indexes": [0]}]},
            ]
        },
        ApiKey.FIND_COORDINATOR: {"key_type": 0, "coordinator_keys": [n.group]},
        ApiKey.JOIN_GROUP: {
            **{"group_id": n.group, "session_timeout_ms": 6000, "member_id": "", "protocol_type": "consumer"},
            "protocols": [{"name": "range", "metadata": b""}],
        },
        ApiKey.HEARTBEAT: {"group_id": n.group, "generation_id": 0, "member_id": "m"},
        ApiKey.LEAVE_GROUP: {"group_id": n.group, "members": [{"member_id": "m"}]},
        ApiKey.SYNC_GROUP: {
            **{"group_id": n.group, "generation_id": 0, "member_id": "m"},
            **{"protocol_type": "consumer", "protocol_name": "range", "assignments": []},
        },
        ApiKey.DESCRIBE_GROUPS: {"groups": [n.group, n.members], "include_authorized_operations": True},
        ApiKey.LIST_GROUPS: {},
        ApiKey.CREATE_TOPICS: {"topics": [{**name, "num_partitions": 1, "replication_factor": 1}]},
        ApiKey.DELETE_TOPICS: {"topics": [name, {"name": None, **id}], "timeout_ms": 1000},
        ApiKey.DELETE_RECORDS: {"topics": [{**name, "partitions": [{**at, "offset": -1}]}], "timeout_ms": 1000},
        ApiKey.INIT_PRODUCER_ID: {"transactional_id": n.transactional, "transaction_timeout_ms": 1000},
        ApiKey.OFFSET_FOR_LEADER_EPOCH: {
            "topics": [{"topic": n.topic, "partitions": [{"partition": 0, "leader_epoch": 0}]}]
        },
        ApiKey.ADD_PARTITIONS_TO_TXN: {"transactions": [{**txn, "topics": [{**name, "partitions": [0]}]}]},
        ApiKey.ADD_OFFSETS_TO_TXN: {**txn, "group_id": n.group},
        ApiKey.END_TXN: {**txn, "committed": True},
        ApiKey.WRITE_TXN_MARKERS: {
            "markers": [
                {
                    **{"producer_id": 0, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0},
                    "topics": [{**name, "partition_indexes": [0]}],
                }
            ]
        },
        ApiKey.TXN_OFFSET_COMMIT: {
            **{**txn, "group_id": n.group, "generation_id": -1, "member_id": ""},
            "topics": [{**name, "partitions": [position]}],
        },
        ApiKey.DESCRIBE_ACLS: filtered(),
        ApiKey.CREATE_ACLS: {"creations": [rule(Resource.TOPIC, n.topic, Op.READ, NOBODY)]},
        ApiKey.DELETE_ACLS: {"filters": [filtered()]},
        ApiKey.DESCRIBE_CONFIGS: {"resources": [{**each, "configuration_keys": None} for each in configs]},
        ApiKey.ALTER_CONFIGS: {"resources": [{**each, **setting} for each in configs]},
        ApiKey.INCREMENTAL_ALTER_CONFIGS: {"resources": [{**each, **setting} for each in configs]},
        ApiKey.ALTER_REPLICA_LOG_DIRS: {"dirs": [{"path": "/tmp", "topics": [{**name, "partitions": [0]}]}]},
        ApiKey.DESCRIBE_LOG_DIRS: {"topics": None},
        ApiKey.CREATE_PARTITIONS: {"topics": [{**name, "count": 9, "assignments": None}], "timeout_ms": 1000},
        ApiKey.DELETE_GROUPS: {"groups_names": [n.group]},
        ApiKey.ELECT_LEADERS: {"election_type": 0, "topic_partitions": [{"topic": n.topic, "partitions": [0]}]},
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: {"topics": [{**name, "partitions": [{**at, "replicas": [0]}]}]},
        ApiKey.LIST_PARTITION_REASSIGNMENTS: {"topics": None},
        ApiKey.OFFSET_DELETE: {"group_id": n.group, "topics": [{**name, "partitions": [at]}]},
        ApiKey.DESCRIBE_CLIENT_QUOTAS: {"components": []},
        ApiKey.ALTER_CLIENT_QUOTAS: {"entries": [{"entity": [], "ops": []}]},
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {"users": None},
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {"deletions": [{"name": "ada", "mechanism": 1}], "upsertions": []},
        ApiKey.DESCRIBE_QUORUM: {"topics": [{"topic_name": n.topic, "partitions": [at]}]},
        ApiKey.UPDATE_FEATURES: {"feature_updates": []},
        ApiKey.DESCRIBE_CLUSTER: {"include_cluster_authorized_operations": True},
        ApiKey.DESCRIBE_PRODUCERS: {"topics": [{**name, "partition_indexes": [0]}]},
        ApiKey.DESCRIBE_TRANSACTIONS: {"transactional_ids": [n.transactional]},
        ApiKey.LIST_TRANSACTIONS: {"state_filters": [], "producer_id_filters": [], "duration_filter": -1},
        ApiKey.CONSUMER_GROUP_HEARTBEAT: {
            **{"group_id": n.members, "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 1000},
            **{"subscribed_topic_names": [n.topic], "subscribed_topic_regex": ".*", "topic_partitions": []},
        },
        ApiKey.CONSUMER_GROUP_DESCRIBE: {"group_ids": [n.group, n.members], "include_authorized_operations": True},
        ApiKey.LIST_CONFIG_RESOURCES: {"resource_types": []},
        ApiKey.SHARE_GROUP_HEARTBEAT: {
            **{"group_id": n.group, "member_id": "m" * 22, "member_epoch": 0},
            "subscribed_topic_names": [n.topic],
        },
        ApiKey.SHARE_GROUP_DESCRIBE: {"group_ids": [n.group], "include_authorized_operations": True},
        ApiKey.SHARE_FETCH: {
            **{"group_id": n.group, "member_id": "m" * 22, "share_session_epoch": 0, "max_wait_ms": 0, "min_bytes": 0},
            **{"max_records": 10, "batch_size": 10},
            "topics": [{**id, "partitions": [at]}],
        },
        ApiKey.SHARE_ACKNOWLEDGE: {
            **{"group_id": n.group, "member_id": "m" * 22, "share_session_epoch": 1},
            "topics": [{**id, "partitions": [at]}],
        },
        ApiKey.INITIALIZE_SHARE_GROUP_STATE: of_share({"start_offset": 0}),
        ApiKey.READ_SHARE_GROUP_STATE: of_share({"leader_epoch": 0}),
        ApiKey.WRITE_SHARE_GROUP_STATE: of_share({"start_offset": 0}),
        ApiKey.DELETE_SHARE_GROUP_STATE: of_share({}),
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: of_share({"leader_epoch": 0}),
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: {
            "groups": [{"group_id": n.group, "topics": [{"topic_name": n.topic, "partitions": [0]}]}]
        },
        ApiKey.ALTER_SHARE_GROUP_OFFSETS: {
            "group_id": n.group,
            "topics": [{"topic_name": n.topic, "partitions": [{**at, "start_offset": 0}]}],
        },
        ApiKey.DELETE_SHARE_GROUP_OFFSETS: {"group_id": n.group, "topics": [{"topic_name": n.topic}]},
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"topics": [name], "response_partition_limit": 100},
    }


def without(answer: bytes, n: Names) -> bytes:
    """The bytes of an answer without the names that its request had."""
    for each in (n.topic, n.group, n.members, n.transactional, n.job, n.snapshot):
        answer = answer.replace(each.encode(), b"?" * len(each))
    for id in (n.id, twin_id(n.id)):
        answer = answer.replace(id, b"?" * 16).replace(text_id(id).encode(), b"?" * 22)
    return answer


SECRETS = (b"secret", SECRET)


def check_silent(existing: bytes, absent: bytes, n: Names) -> None:
    assert without(existing, n) == without(absent, ABSENT)
    for secret in SECRETS:
        assert secret not in without(existing, n)


@pytest.mark.parametrize("key", [key for key in ApiKey if key not in FREE], ids=lambda key: key.name)
def test_kafka(guarded: Guarded, there: Names, key: ApiKey) -> None:
    def answer(n: Names) -> bytes:
        with guarded.kafka(NOBODY) as raw:
            raw.send(key, bodies(n)[key])
            raw._asked.clear()
            return bytes(raw.receive_frame())

    check_silent(answer(there), answer(ABSENT), there)


@pytest.mark.parametrize("version", range(*RANGES[ApiKey.METADATA]))
def test_kafka_metadata_of_everything(guarded: Guarded, there: Names, version: int) -> None:
    with guarded.kafka(NOBODY) as raw:
        assert raw.ask(ApiKey.METADATA, {"topics": None if version else []}, version)["topics"] == []


def test_kafka_by_names(guarded: Guarded, there: Names) -> None:
    """Older versions name topics; the newest versions have topic ids."""

    def answers(n: Names) -> list[bytes]:
        body, found = bodies(n), []
        data = {"name": n.topic, "partition_data": [{"index": 0, "records": ONE}]}
        produce = {"transactional_id": n.transactional, "acks": -1, "timeout_ms": 1000, "topic_data": [data]}
        wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        fetch = {**body[ApiKey.FETCH], "topics": [{"topic": n.topic, "partitions": [wanted]}]}
        latest = {**body[ApiKey.FETCH], "topics": [{"topic": f"{n.topic}@latest", "partitions": [wanted]}]}
        replica = {**fetch, "replica_id": 1}
        position = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
        commit = {"group_id": n.group, "member_id": "", "topics": [{"name": n.topic, "partitions": [position]}]}
        fetched = {"group_id": n.group, "topics": [{"name": n.topic, "partition_indexes": [0]}]}
        for key, version, asked in (
            (ApiKey.PRODUCE, 12, produce),
            (ApiKey.PRODUCE, 12, {**produce, "transactional_id": None}),
            (ApiKey.FETCH, 12, fetch),
            (ApiKey.FETCH, 12, latest),
            (ApiKey.FETCH, 12, replica),
            (ApiKey.OFFSET_COMMIT, 8, commit),
            (ApiKey.OFFSET_FETCH, 7, fetched),
            (ApiKey.OFFSET_FETCH, 1, fetched),
            (ApiKey.DELETE_TOPICS, 5, {"topic_names": [n.topic], "timeout_ms": 1000}),
            (ApiKey.FIND_COORDINATOR, 3, {"key": n.transactional, "key_type": 1}),
            (ApiKey.DESCRIBE_GROUPS, 5, {"groups": [n.group]}),
            (
                ApiKey.ADD_PARTITIONS_TO_TXN,
                3,
                {
                    **{"v3_and_below_transactional_id": n.transactional, "v3_and_below_producer_id": 0},
                    "v3_and_below_topics": [{"name": n.topic, "partitions": [0]}],
                },
            ),
        ):
            with guarded.kafka(NOBODY) as raw:
                raw.send(key, asked, version)
                raw._asked.clear()
                found.append(bytes(raw.receive_frame()))
        return found

    for existing, absent in zip(answers(there), answers(ABSENT), strict=True):
        check_silent(existing, absent, there)


# --- the native protocol


def requests(n: Names) -> list[m.Request]:
    return [
        m.ProducerRegistration(n.topic),
        m.ConsumerRegistration([n.topic]),
        m.ConsumerRegistration([n.topic], group=n.group),
        m.Offsets(n.topic, "latest"),
        m.Get(n.topic, b"a secret key"),
        m.MultiGet(n.topic, [b"a secret key"]),
        m.Scan(n.topic),
        m.Watch(n.topic),
        m.History(n.topic, b"a secret key"),
        m.OpenSnapshot(n.topic, ttl_ms=1000),
        m.ReadSnapshot(n.snapshot, 0),
        m.KeepSnapshot(n.snapshot, 1),
        m.CloseSnapshot(n.snapshot),
        m.GetColumns(n.topic, b"\0\0\0\0", b""),
        m.ReadLog(n.topic, 0, 0, 1),
        m.ReadLog(n.topic, 0, 0, 1, topic_id=text_id(n.id)),
        m.CreateTopic(n.topic),
        m.CreateTopic(n.topic, if_absent=True),
        m.CreateTopic(n.topic, replication_factor=1, if_absent=True),
        m.AlterTopic(n.topic, {"retention.ms": 1}),
        m.AlterTopic(n.topic, partitions=9),
        m.DeleteTopic(n.topic),
        m.DeleteRecords(n.topic, [(0, -1)]),
        m.DescribeTopics([n.topic]),
        m.DescribeTopics(),
        m.Metadata([n.topic]),
        m.Metadata(),
        m.Commit(n.group, [(n.topic, 0, 0)]),
        m.Positions(n.group),
        m.Groups(n.group),
        m.Groups(),
        m.DeleteGroup(n.group),
        m.ResetGroup(n.group, None, None, "earliest"),
        m.Stage(n.topic, n.job, "2", "2", 1000),
        m.SealStaged(n.job, "s", 0),
        m.CommitStaged(n.job, []),
        m.AbortStaged(n.job),
        m.StagedJobs(),
        m.HoldBackup(),
        m.BeginBackup(),
        m.CreateAcls([("topic", "literal", n.topic, "User:*", "*", "read", "allow")]),
        m.DescribeAcls(),
        m.DeleteAcls(),
        m.DescribeQuotas(),
        m.AlterQuotas({"producer_byte_rate": 1.0}, user="ada"),
        m.AlterUser("ada", {}),
        m.Users(),
    ]


HANDLES = (
    m.Poll,
    m.Message,
    m.Batch,
    m.Ack,
    m.Nack,
    m.Extend,
    m.Seek,
    m.Unregister,
    m.NoteEnds,
    m.ReadBackup,
)  # messages with a handle: this client can register nothing
OPEN = (m.Ping, m.Authenticate)


def test_every_message_is_asked(there: Names) -> None:
    asked = {type(each) for each in requests(there)} | {*HANDLES, *OPEN}
    without = {each.__name__ for each in set(m.REQUESTS.values()) - asked}
    assert not without, f"`requests` here has no example of {without}"
    assert set(bodies(there)) | FREE == set(ApiKey), "`bodies` here has an example of each of Kafka's APIs"


@pytest.mark.parametrize(
    "at", range(len(requests(ABSENT))), ids=lambda at: f"{at}-{type(requests(ABSENT)[at]).__name__}"
)
def test_native(guarded: Guarded, there: Names, at: int) -> None:
    def answer(n: Names) -> bytes:
        with guarded.native(NOBODY) as raw:
            raw.socket.sendall(requests(n)[at].frame(1))
            size = int.from_bytes(raw.socket.recv(4), "big")
            data = b""
            while len(data) < size:
                data += raw.socket.recv(size - len(data))
            return data

    check_silent(answer(there), answer(ABSENT), there)


# --- HTTP


def asked(n: Names, path: str) -> str:
    for name, value in (
        ("topic", n.topic),
        ("group", n.group),
        *(("partition", "0"), ("offset", "0"), ("key", "YQ"), ("scan", "x"), ("id", "1")),
    ):
        path = path.replace("{" + name + "}", value)
    assert "{" not in path, path
    return path


BODIES: dict[str, Callable[[Names], Any]] = {
    "POST /api/v1/topics": lambda n: {"name": n.topic},
    "POST /api/v1/topics/{topic}/events": lambda n: {"key": "a", "value": "b"},
    "PATCH /api/v1/topics/{topic}": lambda n: {"config": {"retention.ms": "1"}},
    "POST /api/v1/topics/{topic}/delete-records": lambda n: {"before": {"0": 1}, "confirm": n.topic},
    "POST /api/v1/groups/{group}/reset": lambda n: {"to": "earliest"},
    "POST /api/v1/cluster/elections": lambda n: {"topic": n.topic},
    "POST /api/v1/cluster/reassignments": lambda n: {"moves": [{"topic": n.topic, "partition": 0, "replicas": [0]}]},
}
WITHOUT_NAMES = {"/healthz", "/readyz", "/api/v1/login", "/api/v1/login/provider", "/api/v1/logout"}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_http(guarded: Guarded, there: Names, operation: Any) -> None:
    if operation.path in WITHOUT_NAMES:
        return

    def answer(n: Names) -> tuple[int, bytes]:
        make = BODIES.get(f"{operation.method} {operation.path}")
        body = None if make is None else make(n)
        with guarded.web(NOBODY) as web:
            found = web.client.request(
                operation.method,
                asked(n, operation.path),
                json=body,
                params={"key": "a"}
                if "lookup" in operation.path
                else {"confirm": n.topic}
                if operation.method == "DELETE"
                else None,
                headers={"Krappy-Request": "1"},
            )
            return found.status_code, found.content

    for _ in range(3):  # the history may get a new point between two answers
        existing, absent = answer(there), answer(ABSENT)
        if existing == answer(there):
            break
    assert existing[0] == absent[0] in (200, 400, 403), existing
    if existing[0] == 400:
        assert b"AUTHORIZATION" in existing[1] or b"INVALID" in existing[1], existing
    check_silent(existing[1], absent[1], there)


def test_http_metrics(guarded: Guarded, there: Names) -> None:
    with guarded.web(NOBODY) as web:
        found = web.client.get("/metrics")
        assert found.status_code == 403
        assert b"secret" not in found.content
