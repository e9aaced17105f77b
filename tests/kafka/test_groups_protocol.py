"""The APIs of groups, message by message: errors, versions, hostile requests. Rules of time are in tests/core/kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from krappy.wire.kafka import RANGES, ApiKey, Code
from tests.kafka.raw import Raw
from tests.process import BrokerProcess, Launcher, broker_process

UUID_ZERO = bytes(16)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("groups") / "data"
    with broker_process(data, launch=launcher, durability="os", group_initial_rebalance_delay_ms=0) as running:
        yield running
        assert not running.events("internal_error"), running.last_words()
        assert running.stop() == 0


def join(group: str, member: str = "", **more: Any) -> dict[str, Any]:
    body = {"group_id": group, "member_id": member, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
    return body | {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"meta"}]} | more


def enter(raw: Raw, group: str, **more: Any) -> tuple[str, int]:
    """Makes a member that is alone in its group; returns its id and generation."""
    told = raw.ask(ApiKey.JOIN_GROUP, join(group, **more), 3)
    assert told["error_code"] == 0, told
    member, generation = told["member_id"], told["generation_id"]
    given = [{"member_id": member, "assignment": b"all"}]
    body = {"group_id": group, "member_id": member, "generation_id": generation, "assignments": given}
    assert raw.ask(ApiKey.SYNC_GROUP, body, 3)["assignment"] == b"all"
    return member, generation


def commit(group: str, topic: Any, **more: Any) -> dict[str, Any]:
    told = {"partition_index": more.pop("index", 0), "committed_offset": 5, "committed_leader_epoch": 2}
    told["committed_metadata"] = more.pop("metadata", "note")
    name = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
    return {"group_id": group, "generation_id_or_member_epoch": -1, "topics": [name | {"partitions": [told]}]} | more


def code(answer: dict[str, Any]) -> int:
    """The error code of the one partition."""
    return int(answer["topics"][0]["partitions"][0]["error_code"])


def position(raw: Raw, group: str, topic: str) -> tuple[int, int, str]:
    asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
    (told,) = raw.ask(ApiKey.OFFSET_FETCH, asked, 5)["topics"][0]["partitions"]
    return told["committed_offset"], told["committed_leader_epoch"], told["metadata"]


@pytest.mark.parametrize("version", range(RANGES[ApiKey.JOIN_GROUP][1] + 1))
def test_every_version_of_joining(raw: Raw, version: int) -> None:
    group = f"join-{version}"
    told = raw.ask(ApiKey.JOIN_GROUP, join(group), version)
    if version >= 4:
        assert told["error_code"] == Code.MEMBER_ID_REQUIRED
        assert told["member_id"]
        told = raw.ask(ApiKey.JOIN_GROUP, join(group, told["member_id"]), version)
    assert (told["error_code"], told["generation_id"], told["protocol_name"]) == (0, 1, "range")
    assert told["leader"] == told["member_id"] == told["members"][0]["member_id"]
    assert told["members"][0]["metadata"] == b"meta"
    for last in range(RANGES[ApiKey.SYNC_GROUP][1] + 1):
        body = {"group_id": group, "member_id": told["member_id"], "generation_id": 1}
        body |= {"assignments": [{"member_id": told["member_id"], "assignment": b"x"}]}
        assert raw.ask(ApiKey.SYNC_GROUP, body | {"protocol_type": "consumer", "protocol_name": "range"}, last) == {
            **{"throttle_time_ms": 0, "error_code": 0, "assignment": b"x"},
            "protocol_type": "consumer" if last >= 5 else None,
            "protocol_name": "range" if last >= 5 else None,
        }
    assert raw.ask(ApiKey.SYNC_GROUP, body, 5)["error_code"] == Code.INCONSISTENT_GROUP_PROTOCOL
    for last in range(RANGES[ApiKey.HEARTBEAT][1] + 1):
        assert raw.ask(ApiKey.HEARTBEAT, body, last)["error_code"] == 0
    leave = {"group_id": group, "member_id": told["member_id"], "members": [{"member_id": told["member_id"]}]}
    told = raw.ask(ApiKey.LEAVE_GROUP, leave, min(version, 5))
    assert [told["error_code"], *(each["error_code"] for each in told["members"])] == [0, 0][: 1 + (version >= 3)]
    told = raw.ask(ApiKey.LEAVE_GROUP, leave, min(version, 5))
    codes = [told["error_code"], *(each["error_code"] for each in told["members"])]
    assert codes == ([0, Code.UNKNOWN_MEMBER_ID] if version >= 3 else [Code.UNKNOWN_MEMBER_ID])


def test_refusals_of_joining(raw: Raw) -> None:
    for body, expected in (
        (join(""), Code.INVALID_GROUP_ID),
        (join("x" * 9000), Code.INVALID_GROUP_ID),
        (join("", session_timeout_ms=1), Code.INVALID_GROUP_ID),  # the group's name is checked first
        (join("refused", session_timeout_ms=5999), Code.INVALID_SESSION_TIMEOUT),
        (join("refused", session_timeout_ms=1_800_001), Code.INVALID_SESSION_TIMEOUT),
        (join("refused", "nobody"), Code.UNKNOWN_MEMBER_ID),
        (join("refused", protocols=[]), Code.INCONSISTENT_GROUP_PROTOCOL),
        (join("refused", protocol_type=""), Code.INCONSISTENT_GROUP_PROTOCOL),
    ):
        assert raw.ask(ApiKey.JOIN_GROUP, body)["error_code"] == expected
    assert raw.ask(ApiKey.HEARTBEAT, {"group_id": ""})["error_code"] == Code.INVALID_GROUP_ID
    assert raw.ask(ApiKey.HEARTBEAT, {"group_id": "refused"})["error_code"] == Code.UNKNOWN_MEMBER_ID
    assert raw.ask(ApiKey.SYNC_GROUP, {"group_id": "refused"}, 4)["error_code"] == Code.UNKNOWN_MEMBER_ID


def test_one_who_waits_holds_up_nothing_behind_it(raw: Raw, broker: BrokerProcess) -> None:
    """A join that waits is answered later. A request behind it on the connection is done at once, and answered after
    it."""
    member, generation = enter(raw, "parked")
    with Raw(broker.kafka) as other:
        other.send(ApiKey.JOIN_GROUP, join("parked"), 3)
        other.send(ApiKey.METADATA, {"topics": [{"name": "parked-topic"}]})
        beat = {"group_id": "parked", "member_id": member, "generation_id": generation}
        told = Code.NONE
        while told != Code.REBALANCE_IN_PROGRESS:
            told = raw.ask(ApiKey.HEARTBEAT, beat)["error_code"]
        assert raw.ask(ApiKey.JOIN_GROUP, join("parked", member))["generation_id"] == generation + 1
        assert other.receive()["generation_id"] == generation + 1
        assert other.receive()["topics"][0]["error_code"] == 0


def test_connections_that_vanish_while_they_wait_leave_the_group_alive(raw: Raw, broker: BrokerProcess) -> None:
    member, _ = enter(raw, "vanish")
    for _ in range(20):
        with Raw(broker.kafka) as other:
            other.send(ApiKey.JOIN_GROUP, join("vanish"), 3)
    raw.send(ApiKey.JOIN_GROUP, join("vanish", member, rebalance_timeout_ms=500))
    assert raw.receive()["error_code"] == 0


@pytest.mark.parametrize("version", range(*RANGES[ApiKey.OFFSET_COMMIT]))
def test_every_version_of_committing(raw: Raw, version: int) -> None:
    raw.make("offsets")
    group = f"commit-{version}"
    assert code(raw.ask(ApiKey.OFFSET_COMMIT, commit(group, "offsets"), version)) == 0
    assert position(raw, group, "offsets") == (5, 2 if version >= 6 else -1, "note")


def test_topics_by_id(raw: Raw) -> None:
    topic = raw.make("by-id")
    assert code(raw.ask(ApiKey.OFFSET_COMMIT, commit("by-id", topic), 10)) == 0
    for unknown in (UUID_ZERO, b"x" * 16):
        assert code(raw.ask(ApiKey.OFFSET_COMMIT, commit("by-id", unknown), 10)) == Code.UNKNOWN_TOPIC_ID
    wanted = [{"topic_id": each, "partition_indexes": [0]} for each in (topic, b"x" * 16)]
    for asked in (wanted, None):
        (group,) = raw.ask(ApiKey.OFFSET_FETCH, {"groups": [{"group_id": "by-id", "topics": asked}]}, 10)["groups"]
        assert group["error_code"] == 0
        assert [each["topic_id"] for each in group["topics"]] == [topic, b"x" * 16][: 2 if asked else 1]
        told = group["topics"][0]["partitions"][0]
        assert (told["committed_offset"], told["metadata"], told["error_code"]) == (5, "note", 0)
    assert group["topics"][-1]["partitions"][0]["error_code"] == 0


@pytest.mark.parametrize("version", range(1, 10))
def test_every_version_of_fetching(raw: Raw, version: int) -> None:
    raw.make("offsets")
    raw.ask(ApiKey.OFFSET_COMMIT, commit("fetch", "offsets"), 9)
    wanted = [{"name": "offsets", "partition_indexes": [0, 7]}, {"name": "nope", "partition_indexes": [0]}]
    for group, found in (("fetch", 5), ("nobody-fetched", -1)):
        asked: dict[str, Any] = {"group_id": group, "topics": wanted, "groups": [{"group_id": group, "topics": wanted}]}
        told = raw.ask(ApiKey.OFFSET_FETCH, asked, version)
        told = told["groups"][0] if version >= 8 else told
        parts = [part for topic in told["topics"] for part in topic["partitions"]]
        assert [part["committed_offset"] for part in parts] == [found, -1, -1]
        assert {part["error_code"] for part in parts} | {told["error_code"]} == {0}
    if version >= 2:
        asked = {"group_id": "fetch", "topics": None, "groups": [{"group_id": "fetch", "topics": None}]}
        told = raw.ask(ApiKey.OFFSET_FETCH, asked, version)
        told = told["groups"][0] if version >= 8 else told
        assert [topic["name"] for topic in told["topics"]] == ["offsets"]


def test_refusals_of_committing(raw: Raw) -> None:
    raw.make("offsets")
    member, generation = enter(raw, "strict")
    ours = {"member_id": member, "generation_id_or_member_epoch": generation}
    for body, expected in (
        (commit("strict", "offsets", **ours), Code.NONE),
        (commit("strict", "offsets"), Code.UNKNOWN_MEMBER_ID),
        (commit("strict", "offsets", member_id="nobody", generation_id_or_member_epoch=1), Code.UNKNOWN_MEMBER_ID),
        (commit("strict", "offsets", **ours | {"generation_id_or_member_epoch": 9}), Code.ILLEGAL_GENERATION),
        (commit("strict", "nope", **ours), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (commit("strict", "offsets", index=1, **ours), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (commit("strict", "offsets", index=-1, **ours), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (commit("strict", "offsets", metadata="x" * 4096, **ours), Code.NONE),
        (commit("strict", "offsets", metadata="x" * 4097, **ours), Code.OFFSET_METADATA_TOO_LARGE),
        (commit("strict", "offsets", metadata=None, **ours), Code.NONE),
        (commit("", "offsets"), Code.INVALID_GROUP_ID),
        (commit("nobody-strict", "offsets", generation_id_or_member_epoch=3), Code.ILLEGAL_GENERATION),
    ):
        assert code(raw.ask(ApiKey.OFFSET_COMMIT, body, 8)) == expected
    assert position(raw, "strict", "offsets") == (5, 2, "")
    body = commit("nobody-strict", "offsets", generation_id_or_member_epoch=3)
    assert code(raw.ask(ApiKey.OFFSET_COMMIT, body, 9)) == Code.GROUP_ID_NOT_FOUND


def test_megabytes_of_metadata(raw: Raw) -> None:
    """Where it is too much, it is refused, and nothing else is harmed."""
    raw.make("offsets")
    nine = [{"name": "range", "metadata": bytes(9 << 20)}]
    big = enter(raw, "nine", protocols=nine)[0]
    assert raw.ask(ApiKey.JOIN_GROUP, join("nine", protocols=nine), 3)["error_code"] == Code.GROUP_MAX_SIZE_REACHED
    raw.ask(ApiKey.LEAVE_GROUP, {"group_id": "nine", "members": [{"member_id": big}]})
    with_big = commit("big", "offsets")
    with_big["topics"][0]["partitions"][0]["committed_metadata"] = "x" * 30_000
    assert code(raw.ask(ApiKey.OFFSET_COMMIT, with_big, 7)) == Code.OFFSET_METADATA_TOO_LARGE
    with_big["topics"] *= 100
    assert code(raw.ask(ApiKey.OFFSET_COMMIT, with_big, 8)) == Code.OFFSET_METADATA_TOO_LARGE
    assert enter(raw, "big")[1] == 1


def test_listing_and_describing(raw: Raw) -> None:
    member, _ = enter(raw, "listed")
    for version in range(RANGES[ApiKey.LIST_GROUPS][1] + 1):
        told = raw.ask(ApiKey.LIST_GROUPS, {"states_filter": ["stable"], "types_filter": ["CLASSIC"]}, version)
        (found,) = [each for each in told["groups"] if each["group_id"] == "listed"]
        assert found["protocol_type"] == "consumer"
        assert found["group_state"] == ("Stable" if version >= 4 else "")
        assert found["group_type"] == ("classic" if version >= 5 else "")
    told = raw.ask(ApiKey.LIST_GROUPS, {"states_filter": ["Empty"]})
    assert "listed" not in [each["group_id"] for each in told["groups"]]
    for version in range(RANGES[ApiKey.DESCRIBE_GROUPS][1] + 1):
        found, dead = raw.ask(ApiKey.DESCRIBE_GROUPS, {"groups": ["listed", "nobody-listed"]}, version)["groups"]
        assert (found["group_state"], found["protocol_type"], found["protocol_data"]) == ("Stable", "consumer", "range")
        (told,) = found["members"]
        assert (told["member_id"], told["client_id"], told["client_host"]) == (member, "raw", "/127.0.0.1")
        assert (told["member_metadata"], told["member_assignment"]) == (b"meta", b"all")
        assert dead["group_state"] == "Dead"
        assert dead["error_code"] == (Code.GROUP_ID_NOT_FOUND if version >= 6 else 0)


def test_deleting(raw: Raw) -> None:
    raw.make("offsets")
    member, generation = enter(raw, "deleted")
    ours = {"member_id": member, "generation_id_or_member_epoch": generation}
    assert code(raw.ask(ApiKey.OFFSET_COMMIT, commit("deleted", "offsets", **ours), 8)) == 0
    parts = [{"partition_index": 0}]
    gone = {"group_id": "deleted", "topics": [{"name": name, "partitions": parts} for name in ("offsets", "nope")]}

    def delete_offsets() -> list[int]:
        told = raw.ask(ApiKey.OFFSET_DELETE, gone)
        return [told["error_code"], *(each["partitions"][0]["error_code"] for each in told["topics"])]

    def delete(name: str) -> int:
        (told,) = raw.ask(ApiKey.DELETE_GROUPS, {"groups_names": [name]})["results"]
        return int(told["error_code"])

    assert delete("deleted") == Code.NON_EMPTY_GROUP
    assert delete_offsets() == [0, 0, Code.UNKNOWN_TOPIC_OR_PARTITION]  # b"meta" subscribes to nothing
    assert position(raw, "deleted", "offsets")[0] == -1
    raw.ask(ApiKey.OFFSET_COMMIT, commit("deleted", "offsets", **ours), 8)
    raw.ask(ApiKey.LEAVE_GROUP, {"group_id": "deleted", "members": [{"member_id": member}]})
    assert position(raw, "deleted", "offsets")[0] == 5
    assert delete("deleted") == 0
    assert position(raw, "deleted", "offsets")[0] == -1
    assert delete("deleted") == Code.GROUP_ID_NOT_FOUND
    assert delete("") == Code.INVALID_GROUP_ID
    assert delete_offsets() == [Code.GROUP_ID_NOT_FOUND]


def test_offsets_of_topics_that_are_read_stay(raw: Raw) -> None:
    raw.make("offsets")
    reads = b"\0\1\0\0\0\1\0\7offsets\0\0\0\0"
    member, generation = enter(raw, "reads", protocols=[{"name": "range", "metadata": reads}])
    ours = {"member_id": member, "generation_id_or_member_epoch": generation}
    raw.ask(ApiKey.OFFSET_COMMIT, commit("reads", "offsets", **ours), 8)
    body = {"group_id": "reads", "topics": [{"name": "offsets", "partitions": [{"partition_index": 0}]}]}
    assert code(raw.ask(ApiKey.OFFSET_DELETE, body)) == Code.GROUP_SUBSCRIBED_TO_TOPIC
    assert position(raw, "reads", "offsets")[0] == 5


# --- KIP-848


def beat(group: str, member: str, epoch: int, **more: Any) -> dict[str, Any]:
    body = {"group_id": group, "member_id": member, "member_epoch": epoch}
    if epoch == 0:
        body |= {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": ["modern"], "topic_partitions": []}
    return body | more


def test_a_member_of_a_kip_848_group(raw: Raw) -> None:
    topic = raw.make("modern")
    told = raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, beat("m", "", 0), 0)  # before KIP-1082 the broker makes the id
    member = told["member_id"]
    assert (told["error_code"], told["member_epoch"], told["heartbeat_interval_ms"]) == (0, 1, 5000)
    assert told["assignment"] == {"topic_partitions": [{"topic_id": topic, "partitions": [0]}]}
    told = raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, beat("m", member, 1))
    assert (told["member_epoch"], told["assignment"]) == (1, None)
    ours = {"member_id": member, "generation_id_or_member_epoch": 1}
    assert code(raw.ask(ApiKey.OFFSET_COMMIT, commit("m", "modern", **ours), 9)) == 0
    assert code(raw.ask(ApiKey.OFFSET_COMMIT, commit("m", "modern", **ours), 8)) == Code.UNSUPPORTED_VERSION
    stale = ours | {"generation_id_or_member_epoch": 0}
    assert code(raw.ask(ApiKey.OFFSET_COMMIT, commit("m", "modern", **stale), 9)) == Code.STALE_MEMBER_EPOCH
    for epoch, expected in ((1, 0), (0, Code.STALE_MEMBER_EPOCH)):
        asked = {"group_id": "m", "member_id": member, "member_epoch": epoch, "topics": None}
        assert raw.ask(ApiKey.OFFSET_FETCH, {"groups": [asked]}, 9)["groups"][0]["error_code"] == expected
    (found,) = raw.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, {"group_ids": ["m"]})["groups"]
    assert (found["error_code"], found["group_state"], found["group_epoch"]) == (0, "Stable", 1)
    assert found["assignor_name"] == "uniform"
    parts = {"topic_partitions": [{"topic_id": topic, "topic_name": "modern", "partitions": [0]}]}
    (who,) = found["members"]
    assert (who["member_id"], who["assignment"], who["target_assignment"]) == (member, parts, parts)
    assert raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, beat("m", member, -1))["member_epoch"] == -1
    (found,) = raw.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, {"group_ids": ["m"]})["groups"]
    assert (found["group_state"], found["members"]) == ("Empty", [])


def test_refusals_of_heartbeats(raw: Raw) -> None:
    raw.make("modern")
    member, _ = enter(raw, "classic-one")
    raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, beat("modern-one", "a", 0))
    for body, expected in (
        (beat("", "a", 0), Code.INVALID_REQUEST),
        (beat("n", "", 0), Code.INVALID_REQUEST),
        (beat("n", "a", 7), Code.GROUP_ID_NOT_FOUND),
        (beat("classic-one", "a", 0), Code.GROUP_ID_NOT_FOUND),
        (beat("modern-one", "b", 1), Code.UNKNOWN_MEMBER_ID),
        (beat("modern-one", "a", 9), Code.FENCED_MEMBER_EPOCH),
        (beat("modern-one", "b", 0, server_assignor="mine"), Code.UNSUPPORTED_ASSIGNOR),
        (beat("modern-one", "b", 0, subscribed_topic_regex="("), Code.INVALID_REGULAR_EXPRESSION),
    ):
        told = raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, body)
        assert (told["error_code"], bool(told["error_message"])) == (expected, True)
    assert raw.ask(ApiKey.JOIN_GROUP, join("modern-one"))["error_code"] == Code.INCONSISTENT_GROUP_PROTOCOL
    asked = {"groups": ["modern-one"]}
    assert raw.ask(ApiKey.DESCRIBE_GROUPS, asked)["groups"][0]["error_code"] == Code.GROUP_ID_NOT_FOUND
    told = raw.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, {"group_ids": ["classic-one", "nobody-modern", ""]})["groups"]
    not_found = Code.GROUP_ID_NOT_FOUND
    assert [each["error_code"] for each in told] == [not_found, not_found, Code.INVALID_GROUP_ID]
    assert raw.ask(ApiKey.HEARTBEAT, {"group_id": "modern-one", "member_id": member})["error_code"] == 25


def test_a_pattern_subscribes_to_topics_that_come_later(raw: Raw) -> None:
    raw.make("later-1")
    body = beat("pattern", "a", 0, subscribed_topic_names=None, subscribed_topic_regex="later-[0-9]+")
    told = raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, body)
    assert len(told["assignment"]["topic_partitions"]) == 1
    raw.make("later-22")
    told = raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, beat("pattern", "a", 1))
    assert len(told["assignment"]["topic_partitions"]) == 2


def test_random_ids_and_numbers_harm_nobody(raw: Raw) -> None:
    member, generation = enter(raw, "hostile")
    for number in (-(2**31), -3, -1, 0, 2**31 - 1):
        for key, body in (
            (ApiKey.HEARTBEAT, {"generation_id": number}),
            (ApiKey.SYNC_GROUP, {"generation_id": number, "protocol_type": "consumer", "protocol_name": "range"}),
            (ApiKey.CONSUMER_GROUP_HEARTBEAT, {"member_epoch": number, "rebalance_timeout_ms": number}),
            (ApiKey.JOIN_GROUP, {"session_timeout_ms": number, "rebalance_timeout_ms": number}),
        ):
            for name in ("hostile", "hostile-2", "\0", "ä" * 300):
                for who in ("", "x" * 32_767, member if key is not ApiKey.JOIN_GROUP else "x"):
                    told = raw.ask(key, {"group_id": name, "member_id": who, **body})
                    assert told["error_code"] != 0
                    assert told["error_code"] != Code.UNKNOWN_SERVER_ERROR
    ours = {"group_id": "hostile", "member_id": member, "generation_id": generation}
    assert raw.ask(ApiKey.HEARTBEAT, ours)["error_code"] == 0


# --- from one protocol to the other


SUBSCRIBES = b"\0\1\0\0\0\1\0\6modern" + b"\xff\xff\xff\xff" + b"\0\0\0\0"  # version 1; the member owns nothing
ASSIGNED = b"\0\1\0\0\0\1\0\6modern\0\0\0\1\0\0\0\0" + b"\xff\xff\xff\xff"  # partition 0


def test_a_group_moves_to_kip_848_and_back(raw: Raw) -> None:
    topic = raw.make("modern")
    protocols = [{"name": "range", "metadata": SUBSCRIBES}]
    told = raw.ask(ApiKey.JOIN_GROUP, join("moves", protocols=protocols), 3)
    old, generation = told["member_id"], told["generation_id"]
    given = [{"member_id": old, "assignment": ASSIGNED}]
    ours = {"group_id": "moves", "member_id": old, "generation_id": generation}
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    assert raw.ask(ApiKey.SYNC_GROUP, ours | named | {"assignments": given})["assignment"] == ASSIGNED
    as_member = {"member_id": old, "generation_id_or_member_epoch": generation}
    assert code(raw.ask(ApiKey.OFFSET_COMMIT, commit("moves", "modern", **as_member), 8)) == 0

    told = raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, beat("moves", "new", 0))
    assert (told["error_code"], told["member_epoch"]) == (0, generation + 1)
    assert told["assignment"] == {"topic_partitions": []}
    (found,) = raw.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, {"group_ids": ["moves"]})["groups"]
    assert sorted((each["member_id"], each["member_type"]) for each in found["members"]) == sorted(
        [(old, 0), ("new", 1)]
    )
    assert raw.ask(ApiKey.HEARTBEAT, ours)["error_code"] == Code.REBALANCE_IN_PROGRESS
    assert code(raw.ask(ApiKey.OFFSET_COMMIT, commit("moves", "modern", **as_member), 8)) == 0  # before it joins again
    for version in (*range(RANGES[ApiKey.JOIN_GROUP][1] + 1),):
        told = raw.ask(ApiKey.JOIN_GROUP, join("moves", old, protocols=protocols), version)
        assert (told["error_code"], told["generation_id"], told["protocol_name"]) == (0, generation + 1, "range")
        assert (told["leader"], told["members"]) == ("", [])
    ours["generation_id"] = as_member["generation_id_or_member_epoch"] = generation + 1
    stale = ours | {"generation_id": generation}
    assert raw.ask(ApiKey.SYNC_GROUP, stale | named)["error_code"] == Code.ILLEGAL_GENERATION
    wrong = ours | {"protocol_type": "consumer", "protocol_name": "sticky"}
    assert raw.ask(ApiKey.SYNC_GROUP, wrong)["error_code"] == Code.INCONSISTENT_GROUP_PROTOCOL
    for version in range(RANGES[ApiKey.SYNC_GROUP][1] + 1):
        assert raw.ask(ApiKey.SYNC_GROUP, ours | named, version)["assignment"] in (
            ASSIGNED,
            b"\0\1\0\0\0\0" + b"\xff" * 4,
        )
    for version in range(RANGES[ApiKey.HEARTBEAT][1] + 1):
        assert raw.ask(ApiKey.HEARTBEAT, ours, version)["error_code"] == 0
    assert raw.ask(ApiKey.HEARTBEAT, stale)["error_code"] == Code.ILLEGAL_GENERATION
    assert raw.ask(ApiKey.HEARTBEAT, ours | {"member_id": "new"})["error_code"] == Code.UNKNOWN_MEMBER_ID
    other = [{"name": "sticky", "metadata": SUBSCRIBES}]
    told = raw.ask(ApiKey.JOIN_GROUP, join("moves", protocols=other))
    assert told["error_code"] == Code.INCONSISTENT_GROUP_PROTOCOL
    assert raw.ask(ApiKey.JOIN_GROUP, join("moves", protocols=protocols))["error_code"] == Code.MEMBER_ID_REQUIRED

    assert raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, beat("moves", "new", -1))["error_code"] == 0
    (found,) = raw.ask(ApiKey.DESCRIBE_GROUPS, {"groups": ["moves"]})["groups"]
    assert (found["group_state"], found["protocol_type"]) == ("PreparingRebalance", "consumer")
    assert raw.ask(ApiKey.HEARTBEAT, ours)["error_code"] == Code.REBALANCE_IN_PROGRESS
    assert code(raw.ask(ApiKey.OFFSET_COMMIT, commit("moves", "modern", **as_member), 8)) == 0
    told = raw.ask(ApiKey.JOIN_GROUP, join("moves", old, protocols=protocols))
    assert (told["error_code"], told["leader"], told["generation_id"]) == (0, old, generation + 3)
    assert position(raw, "moves", "modern") == (5, 2, "note")
    assert raw.topic_id("modern") == topic


def test_what_keeps_a_group_from_moving(raw: Raw) -> None:
    raw.make("modern")
    custom = ASSIGNED[:-4] + b"\0\0\0\4user"
    for name, metadata, assigned in (("opaque", b"meta", b""), ("custom", SUBSCRIBES, custom)):
        told = raw.ask(ApiKey.JOIN_GROUP, join(name, protocols=[{"name": "range", "metadata": metadata}]), 3)
        ours = {"group_id": name, "member_id": told["member_id"], "generation_id": 1}
        given = [{"member_id": told["member_id"], "assignment": assigned}]
        assert raw.ask(ApiKey.SYNC_GROUP, ours | {"assignments": given}, 3)["error_code"] == 0
        told = raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, beat(name, "new", 0))
        assert told["error_code"] == Code.GROUP_ID_NOT_FOUND
        assert "can't become a consumer group" in told["error_message"]
        assert raw.ask(ApiKey.HEARTBEAT, ours)["error_code"] == 0  # members do not notice
        bad = beat(name, "new", 0, subscribed_topic_regex="(")
        assert raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, bad)["error_code"] == Code.INVALID_REGULAR_EXPRESSION
