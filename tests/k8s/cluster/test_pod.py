"""The pod as the kubelet runs it: without rights, within its memory, and in service only while its probes say so."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.k8s.cluster.krappy import Krappy
from tests.k8s.cluster.kubectl import Refused
from tests.k8s.cluster.test_data import client_pod

GIB = 1 << 30


def test_it_has_no_rights(krappy: Krappy) -> None:
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{krappy.process()}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert status["Uid"].split() == ["10001"] * 4
    assert status["Gid"].split() == ["10001"] * 4
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"  # 2: with a filter


@pytest.mark.parametrize("path", ["/new", "/etc/krappy/krappy.toml", "/bin/new"])
def test_it_can_write_nowhere_but_to_its_volumes(krappy: Krappy, path: str) -> None:
    with pytest.raises(Refused, match=r"Read-only file system|Permission denied"):
        krappy.python(f"open({path!r}, 'a')")
    krappy.python("open('/tmp/new', 'a')")


def test_it_has_no_token_of_the_cluster(krappy: Krappy) -> None:
    assert krappy.python("import os; print(os.path.exists('/var/run/secrets'))") == "False"


def test_its_volume_belongs_to_its_group(krappy: Krappy) -> None:
    assert krappy.python("import os; print(os.stat('/data').st_gid)") == "10001"


def test_its_namespace_admits_no_pod_with_rights(krappy: Krappy) -> None:
    pod = client_pod("krappy", "--version")
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(Refused, match='violates PodSecurity "restricted'):
        krappy.kubectl.apply(pod)


def test_its_memory_is_limited(krappy: Krappy) -> None:
    """The kernel limits it to what the manifest says."""
    folder = krappy.cgroup("memory")
    files = [folder / name for name in ("memory.limit_in_bytes", "memory.max")]
    [limit] = [int(file.read_text()) for file in files if file.exists()]
    assert limit == 2 * GIB


def test_a_broker_that_hangs_gets_no_clients(krappy: Krappy) -> None:
    """The readiness probe takes it out of the Service, and puts it back. The process is the same one afterwards."""
    assert krappy.endpoints() == [krappy.pod()["status"]["podIP"]]
    process, restarts = krappy.process(), krappy.status()["restartCount"]
    os.kill(process, signal.SIGSTOP)
    try:
        krappy.kubectl.until("out of service", lambda: not krappy.status()["ready"] and not krappy.endpoints())
    finally:
        os.kill(process, signal.SIGCONT)
    krappy.wait_until_ready()
    assert (krappy.process(), krappy.status()["restartCount"]) == (process, restarts)


def test_a_broker_that_goes_on_hanging_is_restarted(krappy: Krappy) -> None:
    """The liveness probe restarts it: by SIGTERM, which it can't hear, and by SIGKILL when its time is up."""
    restarts = krappy.status()["restartCount"]
    os.kill(krappy.process(), signal.SIGSTOP)
    krappy.kubectl.until("restarted", lambda: bool(krappy.status()["restartCount"] == restarts + 1), seconds=600)
    krappy.wait_until_ready()
    assert krappy.status()["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGKILL
    events = krappy.kubectl.get("events", "--field-selector", "reason=Unhealthy")["items"]
    assert any(each["message"].startswith("Liveness probe failed") for each in events)


def test_the_network_policy_is_taken(krappy: Krappy) -> None:
    """The API server accepts it. No more can be shown: this cluster's network enforces no policy."""
    assert set(krappy.kubectl.get("networkpolicy", "krappy")["spec"]["policyTypes"]) == {"Ingress", "Egress"}
