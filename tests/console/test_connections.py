"""Connections, cluster and the overview."""

from __future__ import annotations

from krappy.testing.running import RunningBroker
from tests.console.web import Web
from tests.served import alone


@alone
def test_a_connection_tells_what_it_registered_and_sent(web: Web, console: RunningBroker) -> None:
    path = web.topic("registered")
    with (
        console.connect() as client,
        client.producer("registered", name="till") as producer,
        client.consumer("registered", group="books") as consumer,
    ):
        producer.send(b"x" * 10_000).result()
        consumer.ack(next(iter(consumer)), wait=True)
        found = web.get("/connections", filter="registered", protocol="native")
        kinds = {each["kind"]: each for one in found["connections"] for each in one["registrations"]}
        sent = kinds["producer"].pop("bytes")
        assert kinds["producer"] == {"kind": "producer", "topics": ["registered"], "name": "till"}
        assert kinds["member"]["group"] == "books"
        assert 10_000 < sent < 20_000
        assert 10_000 < kinds["member"]["bytes"] < 20_000
        assert sum(each["received_bytes"] for each in found["connections"]) > 10_000
        assert sum(each["sent_bytes"] for each in found["connections"]) > 10_000
        assert all(each["requests"] > 0 for each in found["connections"])
    assert web.get(path)["summary"]["events"] == 1
    assert web.get("/connections", protocol="http")["total"] >= 1


@alone
def test_the_cluster_tells_its_settings_but_no_secret(web: Web, console: RunningBroker) -> None:
    told = web.get("/cluster")
    assert told["listening"]["http"] == console.http_address
    assert told["listening"]["native"] == console.address
    assert told["settings"]["durability"] == "os"
    assert "console_token" not in told["settings"]
    assert told["disk_bytes"] >= told["disk_free_bytes"] > 0


@alone
def test_the_overview_counts(web: Web, console: RunningBroker) -> None:
    before = web.get("/overview")
    path = web.topic("counted")
    with console.connect() as client, client.producer("counted") as producer:
        for number in range(1000):
            producer.send(b"x" * 100, key=str(number))
    web.get(f"{path}/table/entry", key="1")  # waits for the view
    after = web.get("/overview")
    assert after["appended_events"] - before["appended_events"] == 1000
    assert after["appended_bytes"] - before["appended_bytes"] > 100_000
    assert after["topics"] - before["topics"] == 1
    assert after["log_bytes"] > before["log_bytes"]
    assert after["received_bytes"]["native"] - before["received_bytes"].get("native", 0) > 100_000
    assert after["resident_bytes"] > 1_000_000
    batches = {each["request"]: each["latency"] for each in after["requests"] if each["protocol"] == "native"}
    assert sum(batches["Batch"]["counts"]) == batches["Batch"]["count"] > 0
    assert batches["Batch"]["sum"] > 0
