"""The page of a cluster, in a real browser, while a broker of three dies and comes back; and that of a broker alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from confluent_kafka.admin import NewTopic
from playwright.sync_api import Page, expect

from krappy import blocking
from krappy.errors import KrappyError
from krappy.testing.running import RunningBroker
from tests.cluster.brokers import ClusterProcesses, brokers
from tests.cluster.zookeeper import Missing
from tests.console.pages import NARROW, rows, visit
from tests.served import alone

PARTITIONS = 6


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    try:
        with brokers(tmp_path) as made:
            made.admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(120)
            yield made
    except Missing as reason:
        pytest.skip(str(reason))


def test_a_broker_dies_and_comes_back(page: Page, cluster: ClusterProcesses) -> None:
    page.goto(f"http://{cluster.brokers[1].http}/#/cluster")
    expect(page.get_by_role("heading", level=1, name="Cluster")).to_be_visible()
    expect(rows(page, "Brokers")).to_have_count(3)
    expect(rows(page, "Partitions")).to_have_count(PARTITIONS)
    expect(rows(page, "Partitions").get_by_text("leader", exact=True)).to_have_count(PARTITIONS)
    expect(page.get_by_role("status").filter(has_text="0 under-replicated")).to_be_visible()
    expect(rows(page, "Changes").filter(has_text="the topic t was created")).to_have_count(1)
    expect(rows(page, "Brokers").filter(has_text="controller")).to_have_count(1)

    cluster.brokers[3].kill()
    expect(rows(page, "Brokers")).to_have_count(2)
    expect(rows(page, "Changes").filter(has_text="broker 3 is gone")).to_have_count(1)
    expect(rows(page, "Changes").filter(has_text=re.compile("instead of 3"))).to_have_count(2)
    expect(rows(page, "Partitions").get_by_text("out of sync, away")).to_have_count(PARTITIONS)
    expect(page.get_by_role("status").filter(has_text=f"{PARTITIONS} under-replicated")).to_be_visible()
    expect(rows(page, "Changes").filter(has_text="in sync are")).to_have_count(0)
    page.get_by_label("With changes of ISRs").check()
    expect(rows(page, "Changes").filter(has_text="(broker 3 left)").first).to_be_visible()
    page.get_by_label("With changes of ISRs").uncheck()
    page.get_by_label("Only those in trouble").check()
    expect(rows(page, "Partitions")).to_have_count(PARTITIONS)

    cluster.brokers[3].start()
    expect(page.get_by_text("No such partition.")).to_be_visible()
    page.get_by_label("Only those in trouble").uncheck()
    expect(rows(page, "Partitions").get_by_text("in sync", exact=True)).to_have_count(2 * PARTITIONS)
    page.get_by_label("Filter").fill("none of these")
    expect(page.get_by_text("No such partition.")).to_be_visible()


def test_a_damaged_replica(page: Page, cluster: ClusterProcesses) -> None:
    """There is no other replica, so the damaged one stays."""
    cluster.admin.create_topics([NewTopic("alone", 1, 1)])["alone"].result(30)
    cluster.until_in_sync("alone")
    with blocking.connect(cluster.native) as client:
        with client.producer("alone") as producer:
            producer.send(b"x" * 300).result(30)
        [log] = (cluster.brokers[cluster.partitions("alone")[0].leader].data / "topics" / "alone-0").glob("*.log")
        with log.open("r+b") as file:
            file.seek(200)
            file.write(b"y")
        with pytest.raises(KrappyError), client.consumer("alone", end="now") as consumer:
            list(consumer)
    page.goto(f"http://{cluster.brokers[1].http}/#/cluster")
    expect(rows(page, "Changes").filter(has_text="is spoiled (damaged)")).to_have_count(1)
    page.get_by_label("Only those in trouble").check()
    expect(rows(page, "Partitions")).to_have_count(1)
    expect(rows(page, "Partitions").get_by_text("leader, spoiled (damaged)")).to_be_visible()


@alone
def test_a_broker_alone(page: Page, console: RunningBroker) -> None:
    with console.connect() as client:
        client.create_topic("mine", partitions=2)
    visit(page, console, "#/cluster")
    expect(page.get_by_text("This broker is alone")).to_be_visible()
    expect(rows(page, "Partitions").filter(has_text="mine-")).to_have_count(2)
    page.set_viewport_size(NARROW)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert Axe().run(page).response["violations"] == []
