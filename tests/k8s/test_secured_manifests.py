"""TLS, users and the cluster, as kustomize builds them: the broker itself reads the settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from krappy.settings.listeners import HTTP, NATIVE
from krappy.settings.server import ServerConfig, load
from tests.k8s.manifests import Manifest, build, built, container, example, only, validate

MOUNTED = "/etc/krappy"


def environment(manifests: list[Manifest], **told: str) -> dict[str, str]:
    """The variables of the broker's container. `told`: those whose values Kubernetes fills in."""
    known = {"POD_NAME": "krappy-2", "POD_NAMESPACE": "krappy", "KRAPPY_BROKER_ID": "2", **told}
    found: dict[str, str] = {}
    for each in container(manifests)["env"]:
        text = each.get("value", known.get(each["name"], "a token of enough letters"))
        for name in re.findall(r"\$\((\w+)\)", text):
            assert name in found, f"{name} comes behind {each['name']}, which refers to it"
            text = text.replace(f"$({name})", found[name])
        found[each["name"]] = text
    return found


def settings(manifests: list[Manifest], folder: Path, **told: str) -> ServerConfig:
    """The settings as the broker reads them; what is mounted is in `folder`."""
    [text] = [each["data"]["krappy.toml"] for each in manifests if "krappy.toml" in each.get("data", {})]
    for name in ("users/broker", "users/admin", "zookeeper/password"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("secret")
    file = folder / "krappy.toml"
    file.write_text(text.replace(MOUNTED, str(folder)))
    return load(
        {},
        {
            name: value.replace(MOUNTED, str(folder))
            for name, value in environment(manifests, **told).items()
            if name.startswith("KRAPPY_")
        },
        file,
    )


def mounts(manifests: list[Manifest]) -> dict[str, str]:
    """The Secrets, by the path at which the broker has them; only the broker's group may read them."""
    pod = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    secrets = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
    assert all(each["defaultMode"] == 0o440 for each in secrets.values())
    mounted = {each["name"]: each["mountPath"] for each in container(manifests)["volumeMounts"]}
    return {mounted[name]: each["secretName"] for name, each in secrets.items()}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """One broker, with everything that has to know of TLS and users."""
    folder = tmp_path_factory.mktemp("example")
    return build(example(folder, ["single"], ["monitoring", "backup", "tls", "auth"]))


@pytest.fixture(scope="module")
def cluster() -> list[Manifest]:
    return built("overlays/cluster")


def test_they_are_valid(one: list[Manifest]) -> None:
    for each in one:
        validate(each)


def test_tls_alone(tmp_path: Path) -> None:
    config = settings(build(example(tmp_path, ["single"], ["tls"])), tmp_path)
    assert {each.protocol for each in config.listeners} == {"SSL"}


def test_everybody_logs_in_over_tls(one: list[Manifest], cluster: list[Manifest], tmp_path: Path) -> None:
    for manifests in (one, cluster):
        config = settings(manifests, tmp_path)
        assert {each.protocol for each in config.listeners} == {"SASL_SSL"}
        assert config.insecure_listeners == "refuse"
        assert config.authorizes
        assert {"User:admin"} <= set(config.super_user_names)
        found = mounts(manifests)
        assert found[config.users_dir.replace(str(tmp_path), MOUNTED)] == "krappy-users"
        certificate, key, ca = (
            Path(each.replace(str(tmp_path), MOUNTED))
            for each in (config.tls_certificate, config.tls_key, config.tls_client_ca)
        )
        assert found[str(certificate.parent)] == only(manifests, "Certificate")["spec"]["secretName"]
        assert (certificate.name, key.name, ca.name) == ("tls.crt", "tls.key", "ca.crt")  # as cert-manager writes them
        probes = [container(manifests)[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
        assert {(each["port"], each.get("scheme")) for each in probes} == {("health", None)}  # that listener has no TLS


def test_the_certificate_is_for_every_name(one: list[Manifest], cluster: list[Manifest], tmp_path: Path) -> None:
    for manifests in (one, cluster):
        spec = only(manifests, "Certificate")["spec"]
        assert {"server auth", "client auth"} == set(spec["usages"])
        [cronjob] = [each for each in one if each["kind"] == "CronJob"]
        hosts = {each.advertised.rpartition(":")[0] for each in settings(manifests, tmp_path).listeners} - {""}
        assert hosts
        hosts |= {"krappy", "krappy.krappy"}  # the Service, and the name in README.md
        assert "--address=krappy:7092" in str(cronjob)
        for host in hosts:
            assert host in spec["dnsNames"] or f"*.{host.partition('.')[2]}" in spec["dnsNames"]


def test_prometheus_and_the_backup_log_in(one: list[Manifest]) -> None:
    [endpoint] = only(one, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["serverName"] in only(one, "Certificate")["spec"]["dnsNames"]
    assert endpoint["basicAuth"]["password"] == {"name": "krappy-metrics", "key": "password"}
    assert "authorization" not in endpoint
    [pod] = [each["spec"]["jobTemplate"]["spec"]["template"]["spec"] for each in one if each["kind"] == "CronJob"]
    [backup] = pod["containers"]
    env = {each["name"]: each["value"] for each in backup["env"]}
    assert env == {
        "KRAPPY_CA": "/etc/krappy/tls/ca.crt",
        "KRAPPY_USER": "admin",
        "KRAPPY_PASSWORD_FILE": "/etc/krappy/users/admin",
    }
    items: dict[str, Any] = {
        each["secret"]["secretName"]: each["secret"]["items"] for each in pod["volumes"] if "secret" in each
    }
    assert items == {  # but not the key, and no passwords of others
        "krappy-tls": [{"key": "ca.crt", "path": "ca.crt"}],
        "krappy-users": [{"key": "admin", "path": "admin"}],
    }


# --- the cluster


def test_brokers_reach_each_other(cluster: list[Manifest], tmp_path: Path) -> None:
    config = settings(cluster, tmp_path)
    assert config.broker_id == 2
    way = config.inter_broker_listener
    assert (way.name, way.protocol, way.advertised) == (
        "BROKERS",
        "SASL_SSL",
        "krappy-2.krappy-headless.krappy.svc:9093",
    )
    assert f"User:{config.inter_broker_user}" in config.super_user_names
    native, http = config.listener(NATIVE), config.listener(HTTP)
    assert native is not None
    assert http is not None
    assert native.advertised == "krappy-2.krappy-headless.krappy.svc:7092"
    assert config.zookeeper_set_acl
    assert config.zookeeper_ssl_client_enable
    assert config.zookeeper == ([("zookeeper.krappy.svc", 2182)], "/krappy")
    assert mounts(cluster)[f"{MOUNTED}/zookeeper"] == "krappy-zookeeper"


def test_nobody_else_reaches_the_port_of_brokers(cluster: list[Manifest]) -> None:
    ports = {each["name"]: each["containerPort"] for each in container(cluster)["ports"]}
    assert ports["brokers"] == 9093
    policies = {each["metadata"]["name"]: each["spec"] for each in cluster if each["kind"] == "NetworkPolicy"}
    brokers = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "krappy"}}}
    for spec in policies.values():
        for rule in spec["ingress"]:
            if "brokers" in {each["port"] for each in rule["ports"]}:
                assert rule["from"] == [brokers]
    to = [rule for rule in policies["krappy"]["egress"] if rule.get("to") == [brokers]]
    assert {each["port"] for rule in to for each in rule["ports"]} == {"brokers", "native"}
    allowed = {each["port"] for rule in policies["krappy"]["egress"] for each in rule["ports"]}
    assert allowed == {"brokers", "native", 2182, 53}
    services = [each for each in cluster if each["kind"] == "Service"]
    assert not [port for each in services for port in each["spec"]["ports"] if port["targetPort"] == "brokers"]


def test_one_may_be_away(cluster: list[Manifest]) -> None:
    pods = only(cluster, "StatefulSet")["spec"]
    assert (pods["replicas"], pods["podManagementPolicy"]) == (3, "Parallel")
    assert only(cluster, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_the_whole_cluster_is_backed_up_each_night(one: list[Manifest], tmp_path: Path) -> None:
    """Over the network: from any node, and without a broker's volume. It logs in as the backup of one broker does, and
    keeps as much; no Service takes its pod for a broker."""
    manifests = build(example(tmp_path, ["cluster"], ["cluster-backup"]))
    for each in manifests:
        validate(each)
    template = only(manifests, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    pod, alone = template["spec"], only(one, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [backup], [of_one] = pod.pop("containers"), alone.pop("containers")
    del alone["affinity"]
    volumes = pod.pop("volumes")
    assert by_name(volumes) == by_name(alone.pop("volumes"))
    for name in ("volumeMounts", "env"):
        assert by_name(backup.pop(name)) == by_name(of_one.pop(name))
    assert (pod, backup) == (alone, of_one)
    [claim] = [each for each in volumes if "persistentVolumeClaim" in each]
    assert claim["persistentVolumeClaim"]["claimName"] == only(manifests, "PersistentVolumeClaim")["metadata"]["name"]
    [address] = [each.removeprefix("--address=") for each in backup["args"] if each.startswith("--address=")]
    services = {each["metadata"]["name"]: each["spec"] for each in manifests if each["kind"] == "Service"}
    host, _, port = address.partition(":")
    assert int(port) in {each["port"] for each in services[host]["ports"]}
    assert host in only(manifests, "Certificate")["spec"]["dnsNames"]
    for spec in services.values():
        assert not spec["selector"].items() <= template["metadata"]["labels"].items()


def by_name(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The manifests by name, without the broker's volume."""
    return {each["name"]: each for each in found if each["name"] != "data"}
