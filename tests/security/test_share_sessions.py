"""A client that may use a share group, but not read its topics, gets nothing through another member's session."""

from __future__ import annotations

from select import select
from typing import Any

from krappy.core.security.operations import Op, Resource
from krappy.wire.kafka import ApiKey, Code
from tests.batches import Row, encode_rows
from tests.kafka.shares import Member
from tests.security.guarded import Guarded, rule

MEMBER = "AAAAAAAAAAAAAAAAAAAAAA"  # the member's id: whoever may describe the group can learn it


def fetched(raw: Any, group: str, epoch: int, **more: Any) -> dict[str, Any]:
    head = {"group_id": group, "member_id": MEMBER, "share_session_epoch": epoch}
    limits = {"max_bytes": 1 << 20, "max_records": 100, "batch_size": 100, "min_bytes": 1, "max_wait_ms": 0}
    answer: dict[str, Any] = raw.ask(ApiKey.SHARE_FETCH, {**head, **limits, **more})
    return answer


def test_a_session_belongs_to_the_client_that_has_opened_it(guarded: Guarded) -> None:
    guarded.admin.make("session-hers")
    guarded.allow(rule(Resource.GROUP, "of-sessions", Op.READ))
    member = Member(guarded.admin, "of-sessions", MEMBER, "session-hers")
    member.fetch()
    with guarded.kafka() as eve:
        for epoch in (1, -1):
            assert fetched(eve, "of-sessions", epoch)["error_code"] == Code.SHARE_SESSION_NOT_FOUND
    guarded.admin.produce("session-hers", encode_rows([Row(b"k", b"v")]))
    assert member.acquired() == [(0, 0, 1)]
    guarded.take_away()


def test_a_fetch_of_another_client_gets_nothing_that_a_member_adds_to_its_session(guarded: Guarded) -> None:
    for topic in ("beside-both", "beside-hers"):
        guarded.admin.make(topic)
    guarded.allow(rule(Resource.GROUP, "beside", Op.READ), rule(Resource.TOPIC, "beside-both", Op.READ))
    member = Member(guarded.admin, "beside", MEMBER, "beside-both")
    member.fetch()
    with guarded.kafka() as eve:
        head = {"group_id": "beside", "member_id": MEMBER, "share_session_epoch": 1, "topics": []}
        limits = {"max_bytes": 1 << 20, "max_records": 100, "batch_size": 100, "min_bytes": 1, "max_wait_ms": 20_000}
        eve.send(ApiKey.SHARE_FETCH, {**head, **limits})
        part = {"partition_index": 0, "acknowledgement_batches": []}
        hers = [{"topic_id": guarded.admin.topic_id("beside-hers"), "partitions": [part]}]
        while not select([eve.socket], [], [], 0)[0]:  # until Eve's fetch is refused, or the admin's fetch is accepted
            if not fetched(guarded.admin, "beside", 2, topics=hers, max_records=0)["error_code"]:
                break
        guarded.admin.produce("beside-hers", encode_rows([Row(b"k", b"secret")]))
        guarded.admin.produce("beside-both", encode_rows([Row(b"k", b"v")]))
        answer = eve.receive()
    parts = [part for topic in answer["responses"] for part in topic["partitions"]]
    assert b"secret" not in b"".join(bytes(part["records"] or b"") for part in parts)
    assert answer["error_code"] == Code.SHARE_SESSION_NOT_FOUND
    guarded.take_away()
