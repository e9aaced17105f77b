"""The manifests are valid, and consistent in what no schema knows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from krappy.endings import STOP_LIMIT_S
from krappy.settings.server import load
from tests.k8s.manifests import OVERLAYS, ROOT, Manifest, built, container, only, validate


@pytest.fixture(params=[each for each in OVERLAYS if each != "cluster"])  # test_secured_manifests.py has that one
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return built(f"overlays/{request.param}")


@pytest.fixture(params=OVERLAYS)
def any_manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return built(f"overlays/{request.param}")


def test_they_are_valid(any_manifests: list[Manifest]) -> None:
    for each in any_manifests:
        validate(each)


def test_selectors_match_labels(manifests: list[Manifest]) -> None:
    pods = only(manifests, "StatefulSet")
    labels = pods["spec"]["template"]["metadata"]["labels"]
    assert pods["spec"]["selector"]["matchLabels"].items() <= labels.items()
    budget = only(manifests, "PodDisruptionBudget")
    policy = only(manifests, "NetworkPolicy")
    selectors = [budget["spec"]["selector"]["matchLabels"], policy["spec"]["podSelector"]["matchLabels"]]
    services = [each for each in manifests if each["kind"] == "Service"]
    selectors += [service["spec"]["selector"] for service in services]
    for selector in selectors:
        assert selector
        assert selector.items() <= labels.items()
    headless = [service["metadata"]["name"] for service in services if service["spec"].get("clusterIP") == "None"]
    assert [pods["spec"]["serviceName"]] == headless


def test_ports_match_the_configuration(manifests: list[Manifest]) -> None:
    """Every port has the same name wherever it is mentioned; the numbers are those that the broker listens on."""
    pod = container(manifests)
    ports = {each["name"]: each["containerPort"] for each in pod["ports"]}
    health = ports.pop("health")  # only the kubelet uses it
    assert {each["name"]: each.get("value") for each in pod["env"]}["KRAPPY_LISTEN_HEALTH"] == f"0.0.0.0:{health}"
    defaults = load({}, {})
    told = {"native": defaults.listen_native, "kafka": defaults.listen_kafka, "http": defaults.listen_http}
    assert ports == {name: int(str(address).rpartition(":")[2]) for name, address in told.items()}
    for each in manifests:
        if each["kind"] == "Service":
            assert {port["targetPort"]: port["port"] for port in each["spec"]["ports"]} == ports
            assert all(port["protocol"] == "TCP" for port in each["spec"]["ports"])
    allowed = [port["port"] for rule in only(manifests, "NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]]
    assert set(allowed) == set(ports)
    image = (ROOT / "nix" / "image.nix").read_text()
    assert {int(port) for port in re.findall(r'"(\d+)/tcp"', image)} == set(ports.values())


def test_probes_match_endpoints(any_manifests: list[Manifest]) -> None:
    pod = container(any_manifests)
    paths = {kind: pod[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    assert {kind: get["path"] for kind, get in paths.items()} == {
        "startup": "/readyz",
        "readiness": "/readyz",
        "liveness": "/healthz",
    }
    assert {get["port"] for get in paths.values()} == {"health"}


def test_settings_are_known(manifests: list[Manifest], tmp_path: Path) -> None:
    """The settings of the file and those of the environment: the broker itself reads them."""
    config = only(manifests, "ConfigMap")
    pod = container(manifests)
    [mount] = [each for each in pod["volumeMounts"] if each["name"] == "config"]
    assert f"{mount['mountPath']}/krappy.toml" in pod["args"]
    file = tmp_path / "krappy.toml"
    file.write_text(config["data"]["krappy.toml"])
    environment = {
        each["name"]: each.get("value", "a token of enough letters")
        for each in pod["env"]
        if each["name"].startswith("KRAPPY_")
    }
    found = load({}, environment, file)
    assert found.memory_bytes == tomllib.loads(file.read_text())["memory_bytes"]
    assert found.console_token
    assert found.advertised_listeners


def test_memory_fits(any_manifests: list[Manifest], tmp_path: Path) -> None:
    """What the broker is told that it may use leaves at least half of the limit for Python, RocksDB's rest
    and buffers."""
    pod = container(any_manifests)
    units = {"Mi": 1 << 20, "Gi": 1 << 30}
    limit, request = (pod["resources"][kind]["memory"] for kind in ("limits", "requests"))
    bytes_of = {text: int(text[:-2]) * units[text[-2:]] for text in (limit, request)}
    config = tomllib.loads(only(any_manifests, "ConfigMap")["data"]["krappy.toml"])
    used = config["memory_bytes"] + config["view_cache_bytes"] + config["view_memtable_bytes"]
    assert used * 2 <= bytes_of[limit]
    assert bytes_of[request] <= bytes_of[limit]


def test_the_grace_period_fits_the_graceful_stop(any_manifests: list[Manifest]) -> None:
    pod = only(any_manifests, "StatefulSet")["spec"]["template"]["spec"]
    [slept] = re.findall(r"time\.sleep\((\d+)\)", str(container(any_manifests)["lifecycle"]["preStop"]))
    assert pod["terminationGracePeriodSeconds"] > int(slept) + STOP_LIMIT_S


def test_the_budget_fits_the_replicas(manifests: list[Manifest]) -> None:
    """The one replica is the only copy of its data: no voluntary disruption takes it."""
    assert only(manifests, "StatefulSet")["spec"]["replicas"] == 1
    assert only(manifests, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 0


def test_pods_are_restricted(any_manifests: list[Manifest]) -> None:
    """Pod Security, level restricted; and the root file system can't be written."""
    pod = only(any_manifests, "StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert all(
        kind in ("configMap", "emptyDir", "secret") for volume in pod["volumes"] for kind in volume if kind != "name"
    )
    secure = container(any_manifests)["securityContext"]
    assert secure["allowPrivilegeEscalation"] is False
    assert secure["readOnlyRootFilesystem"] is True
    assert secure["capabilities"] == {"drop": ["ALL"]}
    namespace = only(any_manifests, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_no_image_is_latest(any_manifests: list[Manifest]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert container(any_manifests)["image"] == f"krappy:{version}"


def test_every_volume_is_there(any_manifests: list[Manifest]) -> None:
    spec = only(any_manifests, "StatefulSet")["spec"]
    claimed = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates") or []]
    volumes = [volume["name"] for volume in spec["template"]["spec"]["volumes"]]
    assert sorted(claimed + volumes) == sorted({each["name"] for each in container(any_manifests)["volumeMounts"]})


@pytest.mark.parametrize("path", sorted((ROOT / "k8s").rglob("*.yaml")), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_is_yaml_with_protocols_said(path: Path) -> None:
    """A Service's port without `protocol` passes every schema, and server-side apply then refuses it."""
    for each in yaml.safe_load_all(path.read_text()):
        assert isinstance(each, dict | list)  # a patch is a list (RFC 6902)
        for port in _ports(each):
            assert "protocol" in port


def _ports(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        found = [each for each in value.get("ports") or [] if isinstance(each, dict)] if "ports" in value else []
        return found + [port for each in value.values() for port in _ports(each)]
    return [port for each in value for port in _ports(each)] if isinstance(value, list) else []
