"""A broker of this machine with the settings of components/tls and components/auth: probes, Prometheus and the backup
can connect."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from krappy.cli.contexts import VARIABLES
from krappy.cli.main import run
from krappy.clients.acls import AclInfo
from krappy.errors import AuthenticationFailed
from krappy.testing.running import run_broker
from tests.k8s.manifests import Manifest, build, container, example, only
from tests.k8s.test_secured_manifests import MOUNTED, settings
from tests.process import free_address
from tests.security.authority import Authority


@pytest.fixture
def manifests(tmp_path: Path) -> list[Manifest]:
    return build(example(tmp_path, ["single"], ["monitoring", "backup", "tls", "auth"]))


def here(config: Any) -> dict[str, Any]:
    """Its settings, with free ports of this machine in place of those on all addresses."""
    found = config.flat()
    for name in ("listen_native", "listen_kafka", "listen_http", "listen_health"):
        found[name] = re.sub(r"0\.0\.0\.0:\d+", free_address(), found[name])
    return {name: value for name, value in found.items() if name != "data"}


def test_who_comes_in(
    manifests: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, mounted = Authority(tmp_path), tmp_path / "mounted"
    tls = mounted / "tls"
    tls.mkdir(parents=True)
    given = here(settings(manifests, mounted))
    names = only(manifests, "Certificate")["spec"]["dnsNames"]
    (tls / "ca.crt").write_text(Path(authority.ca).read_text())
    whole = Path(authority.issue(*names, "127.0.0.1")).read_text()
    begins = whole.index("-----BEGIN CERTIFICATE")
    (tls / "tls.key").write_text(whole[:begins])
    (tls / "tls.crt").write_text(whole[begins:])
    (tls / "tls.key").chmod(0o440)
    (mounted / "users" / "prometheus").write_text("its secret")
    with run_broker(tmp_path / "data", **{**given, "ballast_bytes": 0}) as broker:
        probes = [container(manifests)[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
        for probe in probes:  # as the kubelet asks: by an address, over HTTP
            url = f"http://{given['listen_health']}{probe['path']}"
            assert httpx.get(url, trust_env=False, timeout=30).status_code == 200
        with (
            pytest.raises(AuthenticationFailed),
            broker.connect(ca=str(tls / "ca.crt"), user="admin", password="wrong"),
        ):
            pass
        with broker.connect(ca=str(tls / "ca.crt"), user="admin", password="secret") as client:
            client.create_topic("kept")
            client.add_acls([AclInfo("cluster", "kafka-cluster", "User:prometheus", "describe")])
        [endpoint] = only(manifests, "ServiceMonitor")["spec"]["endpoints"]
        metrics = f"{endpoint['scheme']}://{broker.http_address}{endpoint['path']}"
        with httpx.Client(verify=authority.context(), trust_env=False, timeout=30) as web:
            assert web.get(metrics, auth=("prometheus", "its secret")).text.count("krappy_") > 100
            assert web.get(metrics).status_code == 401
        [job] = only(manifests, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        for name in VARIABLES.values():
            monkeypatch.delenv(name, raising=False)
        for each in job["env"]:
            if each["name"] in VARIABLES.values():
                monkeypatch.setenv(each["name"], each["value"].replace(MOUNTED, str(mounted)))
        assert run(["topic", "list", "--address", broker.address]) == 0
        assert "kept" in capsys.readouterr().out
