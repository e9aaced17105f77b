"""The dashboard with a real Prometheus that has scraped a real broker: every query of every panel has data."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from krappy.testing.running import RunningBroker, run_broker
from tests.k8s.test_monitoring import FOLDER, panels, program

PATIENCE_S = 60.0
WINDOW = "10s"  # the range of every rate here; Grafana takes four scrapes
TARGET = {"namespace": "krappy", "pod": "krappy-0"}  # what the operator adds to every sample
OTHERS = """\
kubelet_volume_stats_available_bytes{namespace="krappy",persistentvolumeclaim="data-krappy-0"} 5e9
kubelet_volume_stats_capacity_bytes{namespace="krappy",persistentvolumeclaim="data-krappy-0"} 20e9
kube_pod_container_resource_limits{namespace="krappy",pod="krappy-0",container="krappy",resource="memory"} 2e9
"""  # metrics that the kubelet and kube-state-metrics would have


class Load:
    """Does a little of everything that a broker does, again and again, until it is stopped."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self._stop = threading.Event()
        self.failed: list[Exception] = []
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            servers = {"bootstrap.servers": self._broker.kafka_address}
            kafka, reader = Producer(servers), Consumer({**servers, "group.id": "kafka"})
            with self._broker.connect() as client:
                client.create_topic("t", partitions=2)
                with client.producer("t") as producer, client.consumer("t", group="g", max_records=1) as consumer:
                    while not self._stop.is_set():
                        producer.send_columns([b"k"] * 100, [b"v" * 100] * 100)
                        consumer.ack(next(iter(consumer)), wait=True)
                        assert client.table("t").get("k") is not None
                        kafka.produce("t", b"from a Kafka client", b"k")
                        assert kafka.flush(60) == 0
                        reader.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
            reader.close()
        except Exception as error:
            self.failed.append(error)


class Others(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = OTHERS.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


@contextmanager
def others() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Others)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Prometheus:
    """A Prometheus of Debian, or from anywhere, on an address of this process's own, whose ports no other program is
    given."""

    def __init__(self, folder: Path, targets: list[dict[str, Any]]) -> None:
        config = {"global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"}, "scrape_configs": targets}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        pid = os.getpid()
        self.address = f"127.{64 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}:19090"
        self.log = (folder / "log").open("w+")
        command = [
            program("prometheus"),
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'series'}",
            f"--web.listen-address={self.address}",
        ]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def ask(self, path: str, **parameters: str) -> Any:
        """The answer of its API; None while it does not answer yet."""
        assert self.process.poll() is None, self.said()
        try:
            answer = httpx.get(f"http://{self.address}/api/v1/{path}", params=parameters, timeout=30, trust_env=False)
        except httpx.TransportError:
            return None
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return None
        found = answer.json()
        assert found["status"] == "success", found
        return found["data"]

    def values(self, query: str) -> list[float]:
        """The values of a query that are numbers."""
        found = self.ask("query", query=query)
        numbers = [float(each["value"][1]) for each in found["result"]] if found else []
        return [number for number in numbers if not math.isnan(number)]

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()[-2000:]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self.log.close()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with (
        run_broker(folder / "data", listen_http="127.0.0.1:0", durability="fsync") as broker,
        others() as more,
        Load(broker) as load,
    ):
        targets: list[dict[str, Any]] = [
            {"job_name": "krappy", "static_configs": [{"targets": [broker.http_address], "labels": TARGET}]},
            {"job_name": "kubelet", "honor_labels": True, "static_configs": [{"targets": [more]}]},
        ]
        running = Prometheus(folder, targets)
        try:
            yield running
        finally:
            running.close()
    assert not load.failed


def filled_in(text: str) -> str:
    for name, value in (("$__rate_interval", WINDOW), ("$namespace", ".*"), ("$pod", ".*")):
        text = text.replace(name, value)
    assert "$" not in text, text
    return text


def test_grafana_knows_all_that_it_says() -> None:
    """Read and written by Grafana's own types it says the same: what those types did not know would be gone."""
    plugins.register_default_plugins()
    ours = json.loads((FOLDER / "dashboard.json").read_text())
    known = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(ours)))
    assert not list(lost(ours, known))


def lost(ours: Any, known: Any, path: str = "") -> Iterator[str]:
    """What `known` lacks of `ours`, or has otherwise. `known` may have more, as defaults."""
    if isinstance(ours, dict) and isinstance(known, dict):
        for name, value in ours.items():
            yield from lost(value, known.get(name), f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(known, list) and len(ours) == len(known):
        for index, (one, other) in enumerate(zip(ours, known, strict=True)):
            yield from lost(one, other, f"{path}[{index}]")
    elif ours != known:
        yield path


def test_every_panel_has_data(prometheus: Prometheus) -> None:
    missing = {
        f"{panel['title']}: {target['expr']}": filled_in(target["expr"])
        for panel in panels()
        for target in panel.get("targets", [])
    }
    assert len(missing) > 30
    deadline = time.monotonic() + PATIENCE_S
    while missing:
        missing = {name: query for name, query in missing.items() if not prometheus.values(query)}
        if missing and time.monotonic() > deadline:
            pytest.fail("no data: " + "; ".join(missing))
        time.sleep(0.2)


def test_its_variables_have_values(prometheus: Prometheus) -> None:
    listed = json.loads((FOLDER / "dashboard.json").read_text())["templating"]["list"]
    queries = [each["query"]["query"] for each in listed if each["type"] == "query"]
    assert len(queries) == 2
    for query in queries:
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert found is not None
        deadline = time.monotonic() + PATIENCE_S
        while not (series := prometheus.ask("series", **{"match[]": filled_in(found[1])})):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert {each[found[2]] for each in series} == {TARGET[found[2]]}


def test_no_rule_is_beside_the_point(prometheus: Prometheus) -> None:
    """What each alert compares exists: a rule over metrics that nobody has would be quiet for ever."""
    rules = yaml.safe_load((FOLDER / "prometheusrule.yaml").read_text())["spec"]["groups"][0]["rules"]
    for rule in rules:
        if rule["alert"] == "KrappyAbsent":
            continue  # `absent` has data when there is none
        compared = re.split(r" (?:==|>|<) [\d.]+", " ".join(rule["expr"].split()))[0]
        query = re.sub(r"\[\d+m\]", f"[{WINDOW}]", compared)
        deadline = time.monotonic() + PATIENCE_S
        while not prometheus.values(query):
            assert time.monotonic() < deadline, f"{rule['alert']}: nothing is {query}"
            time.sleep(0.2)
