"""Alert rules and the dashboard: valid, and about metrics that a broker really has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from krappy.testing.running import run_broker
from tests.k8s.manifests import ROOT, Manifest, build, example, only

ALERTS = Path(__file__).with_name("alerts.yaml")
FOLDER = ROOT / "k8s" / "components" / "monitoring"
GUIDE = ROOT / "k8s" / "README.md"
FOREIGN = {  # metrics of Prometheus, the kubelet and kube-state-metrics, with the labels that they are known to have
    "up": {"job", "namespace", "pod"},
    "kubelet_volume_stats_available_bytes": {"namespace", "persistentvolumeclaim"},
    "kubelet_volume_stats_capacity_bytes": {"namespace", "persistentvolumeclaim"},
    "kube_pod_container_resource_limits": {"namespace", "pod", "container", "resource"},
}
TARGET = {"job", "namespace", "pod"}  # labels that the operator adds to every sample
LABEL = re.compile(r"\$labels\.(\w+)|\{\{(\w+)\}\}")


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load((FOLDER / "prometheusrule.yaml").read_text())
    return [rule for group in found["spec"]["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    return found


def expressions() -> list[tuple[str, str]]:
    """(where it is, PromQL), with Grafana's variables filled in."""
    found = [(rule["alert"], rule["expr"]) for rule in rules()]
    found += [(panel["title"], target["expr"]) for panel in panels() for target in panel.get("targets", [])]
    return [(name, text.replace("$__rate_interval", "5m")) for name, text in found]


def selected(text: str) -> list[promql_parser.VectorSelector]:
    """The selectors of a PromQL expression."""
    found: list[promql_parser.VectorSelector] = []

    def look(expr: promql_parser.Expr) -> None:
        if isinstance(expr, promql_parser.MatrixSelector):
            found.append(expr.vector_selector)
        elif isinstance(expr, promql_parser.VectorSelector):
            found.append(expr)

    promql_parser.walk(promql_parser.parse(text), look)
    assert found, text
    return found


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[Metric]:
    """The metrics that a broker shows after a little work."""
    folder = tmp_path_factory.mktemp("exposed")
    with run_broker(folder, listen_http="127.0.0.1:0", durability="fsync") as broker:
        with broker.connect() as client:
            client.create_topic("t")
            with client.producer("t") as producer:
                producer.send("1", key="k").result()
                producer.send("2", key="k").result()
            with client.consumer("t", group="g", max_records=1) as consumer:
                consumer.ack(next(iter(consumer)), wait=True)
            assert client.table("t").get("k") is not None
        text = httpx.get(f"http://{broker.http_address}/metrics", timeout=60, trust_env=False).text
    return list(text_string_to_metric_families(text))


@pytest.fixture(scope="module")
def exposed(families: list[Metric]) -> dict[str, set[str]]:
    """The names of all samples, with their labels."""
    found: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_the_guide_has_a_row_for_every_number(families: list[Metric]) -> None:
    """If this fails, put in the rows that it prints: they are what the broker itself says of its metrics."""
    rows = []
    for family in families:
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        shown = ", ".join(f"`{label}`" for label in sorted(labels))
        rows.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} |")
    wanted = "\n".join(["| metric | kind | labels | what |", "|---|---|---|---|", *rows])
    assert wanted in GUIDE.read_text(), wanted


def test_what_is_asked_for_is_there(exposed: dict[str, set[str]]) -> None:
    for name, text in expressions():
        for selector in selected(text):
            metric = str(selector.name)
            assert metric in FOREIGN or metric in exposed, f"{name}: there is no {metric}"
            known = FOREIGN.get(metric) or exposed[metric] | TARGET
            asked = {matcher.name for matcher in selector.matchers.matchers}
            assert asked <= known, f"{name}: {metric} has no {asked - known}"
            assert metric in FOREIGN or "job" in asked, f"{name}: {metric} of any job"


def test_every_number_of_the_broker_has_a_panel_or_is_known_not_to(exposed: dict[str, set[str]]) -> None:
    def family(name: str) -> str:
        return name.removesuffix("_sum").removesuffix("_count").removesuffix("_bucket")

    shown = {family(str(selector.name)) for _, text in expressions() for selector in selected(text)}
    rest = {family(name) for name in exposed if name.startswith("krappy_")} - shown
    assert rest == {
        "krappy_appended_events_total",  # krappy_topic_events_total says it more precisely
        "krappy_metrics_left_out",
        "krappy_scrubbed_bytes_total",  # it only tells that scrubbing goes on
        "krappy_throttled_total",  # whoever sets quotas looks at it
        "krappy_throttled_seconds_total",
        "krappy_tls_handshakes_failed_total",  # anybody who looks for open ports makes it rise
    }


def test_alerts_are_told_and_their_words_have_labels(exposed: dict[str, set[str]]) -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        first = selected(rule["expr"])[0]
        known = FOREIGN.get(str(first.name)) or exposed[str(first.name)] | TARGET
        told = {match[0] for text in rule["annotations"].values() for match in LABEL.findall(text) if match[0]}
        assert told <= known, f"{rule['alert']} tells of {told - known}"


def test_every_alert_has_a_heading_in_the_guide() -> None:
    headings = re.findall(r"^#+ (.+)$", GUIDE.read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    for rule in rules():
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page.endswith("k8s/README.md")
        assert anchor == rule["alert"].lower()
        assert anchor in anchors, f"the guide says nothing of {rule['alert']}"


def test_the_dashboard_is_laid_out() -> None:
    """Grafana takes anything, so this is checked: ids are unique, nothing overlaps, every query has a letter of its
    own."""
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for panel in panels():
        grid = panel["gridPos"]
        cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
        assert grid["x"] + grid["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        letters = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(letters)) == len(letters)
        assert panel["type"] == "row" or letters


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """The overlay `single` with the component `monitoring`."""
    folder = tmp_path_factory.mktemp("monitored")
    return build(example(folder, ["single"], ["monitoring"]))


def test_prometheus_finds_each_pod_once(monitored: list[Manifest]) -> None:
    monitor = only(monitored, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [each for each in monitored if each["kind"] == "Service"]
    [found] = [each for each in services if wanted <= each["metadata"]["labels"].items()]
    assert found["metadata"]["name"] == "krappy-headless"
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in found["spec"]["ports"]}
    assert found["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "krappy"
    pods = only(monitored, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert found["spec"]["selector"].items() <= pods.items()
    [policy] = [each for each in monitored if each["metadata"]["name"] == "krappy-metrics"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pods.items()
    assert {each["metadata"]["namespace"] for each in monitored if each["kind"] != "Namespace"} == {"krappy"}


def test_the_dashboard_is_in_a_config_map(monitored: list[Manifest]) -> None:
    [found] = [each for each in monitored if each["metadata"]["name"] == "krappy-dashboard"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["krappy.json"])["title"] == "Krappy"
    assert len(json.dumps(found)) < 900_000  # a ConfigMap holds 1 MiB


def program(name: str) -> str:
    """The path of a program of Prometheus. Where it is not installed, skips the test, but not in CI."""
    found = shutil.which(name)
    if found is None and os.environ.get("CI") == "true":
        pytest.fail(f"CI needs {name}")
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: prometheus)")
    return found


def promtool(*arguments: object, folder: Path) -> None:
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_rules_and_they_fire(tmp_path: Path) -> None:
    groups = yaml.safe_load((FOLDER / "prometheusrule.yaml").read_text())["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(groups))
    shutil.copy(ALERTS, tmp_path)
    promtool("check", "rules", "rules.yaml", folder=tmp_path)
    promtool("test", "rules", ALERTS.name, folder=tmp_path)


def test_every_alert_is_seen_to_fire_and_to_be_quiet() -> None:
    cases = [case for test in yaml.safe_load(ALERTS.read_text())["tests"] for case in test["alert_rule_test"]]
    for fires in (True, False):
        assert {case["alertname"] for case in cases if bool(case["exp_alerts"]) is fires} == {
            rule["alert"] for rule in rules()
        }
