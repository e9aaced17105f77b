"""Requests with so many positions of a group that they are read in several turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.handlers.kafka.group_offsets import offset_commit, offset_fetch
from krappy.handlers.kafka.rows import FEW
from krappy.testing.sessions import WillingPeer, kafka_session
from krappy.wire.kafka import Code
from tests.broker.engine import running


@pytest.mark.parametrize("anew", [False, True])
def test_a_topic_that_is_deleted_between_two_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: bool) -> None:
    """The positions were those of the deleted topic, which the request names by its id."""

    async def main() -> None:
        async with running(tmp_path) as broker:
            kept, _ = await broker.create_topic("kept", 1, {})
            gone, _ = await broker.create_topic("gone", FEW, {})
            turns = 0

            async def pause(self: WillingPeer) -> None:
                nonlocal turns
                turns += 1
                if turns == 2:  # the first turn has read the positions
                    await broker.delete_topic("gone")
                    if anew:
                        await broker.create_topic("gone", FEW, {})

            monkeypatch.setattr(WillingPeer, "pause", pause)
            topics = [
                {
                    "name": "",
                    "topic_id": topic.id,
                    "partitions": [
                        {"partition_index": index, "committed_offset": 7, "committed_metadata": ""}
                        for index in range(topic.count)
                    ],
                }
                for topic in (gone, kept)
            ]
            member = {"member_id": "", "generation_id_or_member_epoch": -1, "group_instance_id": None}
            done: Any = offset_commit(kafka_session(broker), {"group_id": "g", **member, "topics": topics}, 10)
            answer = await done
            told = [{each["error_code"] for each in topic["partitions"]} for topic in answer["topics"]]
            assert told == [{Code.UNKNOWN_TOPIC_ID}, {Code.NONE}]
            asked = {"groups": [{"group_id": "g", "topics": None}]}
            [group] = (await offset_fetch(kafka_session(broker), asked, 9))["groups"]
            assert [topic["name"] for topic in group["topics"]] == ["kept"]

    trio.run(main)
