"""Groups over HTTP, native and Kafka's."""

from __future__ import annotations

from confluent_kafka import Consumer

from krappy.testing.running import RunningBroker
from krappy.types import TopicPartition
from tests.console.web import Web


def test_members_leases_and_lag_are_told(web: Web, console: RunningBroker) -> None:
    path = web.topic("orders", 2)
    for number in range(4):
        web.publish(path, None, str(number), partition=0)
    with console.connect() as client, client.consumer("orders", group="billing", max_records=3) as consumer:
        event = next(iter(consumer))
        consumer.ack(event, wait=True)
        told = web.get("/groups/billing")
        assert (told["kind"], told["lag"]) == ("shared", 3)
        (member,) = told["members"]
        assert member["leased"] == sum(each["leased"] for each in told["partitions"]) > 0
        assert told["partitions"][0]["position"] == 1
        assert (
            web.post("/groups/billing/reset", {"to": "earliest", "dry_run": False}, status=409)["code"]
            == "NON_EMPTY_GROUP"
        )
        assert web.delete("/groups/billing", confirm="billing", status=409)["code"] == "NON_EMPTY_GROUP"
    listed = web.get("/groups", filter="bill")["groups"]
    assert [(each["group"], each["topics"], each["lag"]) for each in listed] == [("billing", ["orders"], 3)]


def test_a_reset_is_previewed_then_done(web: Web, console: RunningBroker) -> None:
    path = web.topic("moves")
    for number in range(3):
        web.publish(path, None, str(number))
    with console.connect() as client:
        client.commit("mover", {TopicPartition("moves", 0): 2})
    preview = web.post("/groups/mover/reset", {"to": "earliest"})
    assert preview == {
        "group": "mover",
        "dry_run": True,
        "positions": [{"topic": "moves", "partition": 0, "old": 2, "new": 0}],
    }
    assert web.get("/groups/mover")["lag"] == 1
    assert web.post("/groups/mover/reset", {"to": "earliest", "dry_run": False})["positions"] == preview["positions"]
    assert web.get("/groups/mover")["lag"] == 3
    assert "needs `at`" in web.post("/groups/mover/reset", {"to": "offset"}, status=400)["detail"]
    assert web.delete("/groups/mover", status=400, confirm="move")["code"] == "NOT_CONFIRMED"
    assert web.delete("/groups/mover", confirm="mover") == {"deleted": "mover"}
    assert web.get("/groups/mover", status=404)["code"] == "GROUP_ID_NOT_FOUND"


def test_a_name_with_a_slash_is_found(web: Web, console: RunningBroker) -> None:
    web.topic("slashed")
    with console.connect() as client:
        client.commit("a/b c?", {TopicPartition("slashed", 0): 0})
    assert web.get("/groups/a%2Fb%20c%3F")["group"] == "a/b c?"
    assert web.delete("/groups/a%2Fb%20c%3F", confirm="a/b c?") == {"deleted": "a/b c?"}


def test_groups_of_kafkas_clients_are_there_too(web: Web, console: RunningBroker) -> None:
    path = web.topic("kafkaesque")
    web.publish(path, "k", "v")
    settings = {"bootstrap.servers": console.kafka_address, "group.id": "castle", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    try:
        consumer.subscribe(["kafkaesque"])
        event = consumer.poll(60.0)
        assert event is not None
        assert event.value() == b"v"
        consumer.commit(event, asynchronous=False)
        told = web.get("/groups/castle")
        assert (told["kind"], told["lag"], len(told["members"])) == ("classic", 0, 1)
        assert told["partitions"][0]["position"] == 1
    finally:
        consumer.close()
    moved = web.post("/groups/castle/reset", {"to": "earliest", "dry_run": False})
    assert moved["positions"] == [{"topic": "kafkaesque", "partition": 0, "old": 1, "new": 0}]
