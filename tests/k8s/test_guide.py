"""The operations guide: what it tells to type can be typed. And the manifests that it has beside the overlays."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from krappy.cli.main import cli
from krappy.settings.server import load
from tests.k8s.manifests import ROOT, Manifest, build, built, container, example, only, validate

GUIDE = (ROOT / "k8s" / "README.md").read_text()
COMMAND = re.compile(r"(?:^|-- |`)(krappy [^`|>&\n]+)", re.MULTILINE)


def shell_lines() -> list[str]:
    """The lines of its blocks of shell, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def krappy_commands() -> list[str]:
    text = "\n".join([*shell_lines(), *re.findall(r"`krappy [^`]+`", GUIDE)])
    return sorted({found.partition("<")[0].strip() for found in COMMAND.findall(text)})


def test_every_krappy_command_is_understood() -> None:
    found = krappy_commands()
    assert len(found) > 10
    for line in found:
        command: click.Command = cli
        words = shlex.split(line)[1:]
        context = click.Context(cli)
        while isinstance(command, click.Group) and words:
            following = command.get_command(context, words[0])
            assert following is not None, line
            command, words = following, words[1:]
        if words and words != ["--help"] and not any("…" in word for word in words):
            command.make_context(line, words)


def test_every_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"(?:components|overlays|restore|base)/[\w./-]*", GUIDE))
    assert len(named) > 6
    for name in named:
        assert (ROOT / "k8s" / name.rstrip(".")).exists(), name
    for path in re.findall(r"apply -k (\S+)", GUIDE):
        assert path == "my-krappy" or (ROOT / path / "kustomization.yaml").exists(), path


def test_every_link_leads_to_a_heading() -> None:
    headings = re.findall(r"^#+ (.+)$", GUIDE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([\w-]+)\)", GUIDE)) <= anchors


INSECURE = {"KRAPPY_INSECURE_LISTENERS": "allow"}  # as the base's krappy.toml has it


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """The guide's own example of an overlay, with the lines that the guide adds for clients outside."""
    whole, outside, _ = re.findall(r"^```yaml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    folder = example(tmp_path_factory.mktemp("guide"), [], [])
    text, more = yaml.safe_load(whole), yaml.safe_load(outside)
    text["components"] += more.pop("components")
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({**text, **more}))
    return build(folder)


def test_the_overlay_that_it_shows_is_valid(mine: list[Manifest]) -> None:
    for each in mine:
        validate(each)
    job = only(mine, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    assert container(mine)["image"] == job["image"] == "registry.example/krappy:0.1.0"


def test_the_overlay_with_tls_and_users_is_valid(tmp_path: Path) -> None:
    *_, secured = re.findall(r"^```yaml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    folder = example(tmp_path, [], [])
    (folder / "kustomization.yaml").write_text(secured)
    found = build(folder)
    for each in found:
        validate(each)
    assert "SASL_SSL" in str(container(found)["env"])


def test_clients_outside_have_a_listener_of_their_own(mine: list[Manifest]) -> None:
    """The broker reads the settings as the kubelet would give them; Service, port and policy fit them."""
    environment: dict[str, str] = {"POD_NAME": "krappy-0", "POD_NAMESPACE": "krappy"}
    pod = container(mine)
    names = [each["name"] for each in pod["env"]]
    assert len(set(names)) == len(names)
    maps = {each["metadata"]["name"]: each["data"] for each in mine if each["kind"] == "ConfigMap"}
    seen: set[str] = set()
    for each in pod["env"]:
        source = each.get("valueFrom", {})
        if "configMapKeyRef" in source:
            reference = source["configMapKeyRef"]
            environment[each["name"]] = maps[reference["name"]][reference["key"]]
        elif "value" in each:
            referred = re.findall(r"\$\((\w+)\)", each["value"])
            assert set(referred) <= seen, "the kubelet knows only what stands before"
            environment[each["name"]] = re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], each["value"])
        seen.add(each["name"])
    config = load({}, {name: value for name, value in environment.items() if name.startswith("KRAPPY_")} | INSECURE)
    inside, outside = config.kafka_listeners
    assert inside.advertised == "krappy-0.krappy-headless.krappy.svc:9092"
    assert outside.advertised == "krappy.example.com:9094"
    ports = {each["name"]: each["containerPort"] for each in pod["ports"]}
    assert (ports["kafka"], ports["kafka-outside"]) == tuple(int(each.address[-4:]) for each in (inside, outside))
    [service] = [each for each in mine if each["kind"] == "Service" and each["spec"].get("type") == "LoadBalancer"]
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["kafka-outside"]
    name = service["metadata"]["name"]
    [policy] = [each for each in mine if (each["kind"], each["metadata"]["name"]) == ("NetworkPolicy", name)]
    assert [port["port"] for port in policy["spec"]["ingress"][0]["ports"]] == ["kafka-outside"]
    labels = only(mine, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    for selector in (service["spec"]["selector"], policy["spec"]["podSelector"]["matchLabels"]):
        assert selector.items() <= labels.items()


def test_a_backup_runs_where_the_data_is(tmp_path: Path) -> None:
    """It runs on the broker's node, with its volume and path, and as its user; and no Service takes it for a broker."""
    manifests = build(example(tmp_path, ["single"], ["backup"]))
    broker = only(manifests, "StatefulSet")
    pod = only(manifests, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    [near] = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = broker["spec"]["template"]["metadata"]["labels"]
    assert near["labelSelector"]["matchLabels"].items() <= labels.items()
    for service in (each for each in manifests if each["kind"] == "Service"):
        assert not service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    [claim] = broker["spec"]["volumeClaimTemplates"]
    volumes = {each["name"]: each["persistentVolumeClaim"]["claimName"] for each in pod["spec"]["volumes"]}
    assert volumes["data"] == f"{claim['metadata']['name']}-{broker['metadata']['name']}-0"
    made = only(manifests, "PersistentVolumeClaim")["metadata"]["name"]
    assert volumes["backups"] == made
    paths = {each["name"]: each["mountPath"] for each in container(manifests)["volumeMounts"]}
    [job] = pod["spec"]["containers"]
    mounts = {each["name"]: each for each in job["volumeMounts"]}
    assert mounts["data"] == {"name": "data", "mountPath": paths["data"], "readOnly": True}
    assert job["args"][1].startswith(mounts["backups"]["mountPath"] + "/")
    assert job["image"] == container(manifests)["image"]
    for name in ("runAsUser", "runAsGroup", "fsGroup", "runAsNonRoot"):
        same = broker["spec"]["template"]["spec"]["securityContext"][name]
        assert pod["spec"]["securityContext"][name] == same
    [address] = [each.removeprefix("--address=") for each in job["args"] if each.startswith("--address=")]
    assert address.partition(":")[0] in {each["metadata"]["name"] for each in manifests if each["kind"] == "Service"}
    command = cli.get_command(click.Context(cli), job["args"][0])
    assert command is not None
    command.make_context("backup", job["args"][1:])


@pytest.mark.parametrize("folder", ["restore", "restore/nightly"])
def test_a_restore_takes_the_brokers_place(folder: str) -> None:
    """Its volume has the name that the StatefulSet will look for; and no Service takes the pod for a broker."""
    manifests, broker = built(folder), built("overlays/single")
    for each in manifests:
        validate(each)
        assert each["metadata"]["namespace"] == only(broker, "StatefulSet")["metadata"]["namespace"]
    pod = only(manifests, "Pod") if folder == "restore" else only(manifests, "Job")["spec"]["template"]
    [claim] = only(broker, "StatefulSet")["spec"]["volumeClaimTemplates"]
    made = only(manifests, "PersistentVolumeClaim")
    assert made["metadata"]["name"] == f"{claim['metadata']['name']}-krappy-0"
    assert made["spec"] == claim["spec"]
    [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "data"]
    assert volume["persistentVolumeClaim"]["claimName"] == made["metadata"]["name"]
    for each in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]:
        assert each["image"] == container(broker)["image"]
        assert each["securityContext"] == container(broker)["securityContext"]
    for name in ("runAsUser", "runAsGroup", "fsGroup", "seccompProfile"):
        same = only(broker, "StatefulSet")["spec"]["template"]["spec"]["securityContext"][name]
        assert pod["spec"]["securityContext"][name] == same
    selectors = [each["spec"]["selector"] for each in broker if each["kind"] == "Service"]
    assert all(not selector.items() <= pod["metadata"]["labels"].items() for selector in selectors)


def test_what_a_night_backs_up_is_what_the_job_restores(tmp_path: Path) -> None:
    backup = only(build(example(tmp_path, ["single"], ["backup"])), "CronJob")["spec"]["jobTemplate"]["spec"]
    pod = only(built("restore/nightly"), "Job")["spec"]["template"]["spec"]
    [job] = backup["template"]["spec"]["containers"]
    [restore], [doctor] = pod["initContainers"], pod["containers"]
    assert restore["args"][1] == job["args"][1]
    claims = {
        each["name"]: each["persistentVolumeClaim"]["claimName"]
        for each in backup["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in each
    }
    for volume in pod["volumes"]:
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] == claims[volume["name"]]
    mounts = {each["name"]: each["mountPath"] for each in restore["volumeMounts"]}
    assert mounts["backups"] == {each["name"]: each["mountPath"] for each in job["volumeMounts"]}["backups"]
    for each in (restore, doctor):
        command = cli.get_command(click.Context(cli), each["args"][0])
        assert command is not None
        command.make_context(each["args"][0], each["args"][1:])
