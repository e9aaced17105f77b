"""One node that is the whole cluster: etcd, Kubernetes, containerd and CoreDNS, each a process.

The node has to be started inside the sandbox, and ends with it. Whoever is inside may do everything: there is one
token, and the kubelet asks for none. What pods may do is decided as anywhere, by Kubernetes' own Pod Security, RBAC and
so on.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.k8s.cluster import parts, pause_image
from tests.k8s.cluster.kubectl import Kubectl
from tests.k8s.cluster.sandbox import ADDRESS, INSIDE

PATIENCE_S = 300
PODS, SERVICES = "10.244.0.0/24", "10.96.0.0/16"
CONTAINERD = Path("/run/containerd/containerd.sock")
API = "https://127.0.0.1:6443"

CONTAINERD_CONFIG = f"""
version = 2
root = "{INSIDE}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause_image.NAME}"
  restrict_oom_score_adj = true # root in a container or a small virtual machine may lack CAP_SYS_RESOURCE
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{parts.DEBIAN}/usr/lib/cni"
    conf_dir = "{INSIDE}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""
# Routes, not a bridge: what goes from one pod to another by a Service's address passes through the node, and so through
# kube-proxy's rules.
NETWORK: dict[str, Any] = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "ptp",
            "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
    ],
}
NAMES = f"""
.:53 {{
    bind {ADDRESS}
    errors
    ready
    kubernetes cluster.local {{
        kubeconfig {INSIDE}/kubeconfig
    }}
}}
"""
KUBELET: dict[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "clusterDNS": [ADDRESS],
    "clusterDomain": "cluster.local",
    "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
    "enforceNodeAllocatable": [],
    "evictionHard": {"memory.available": "64Mi"},  # how full the machine's disk is does not concern this cluster
    "failSwapOn": False,
    "imageGCHighThresholdPercent": 100,
    "oomScoreAdj": 0,
    "resolvConf": f"{INSIDE}/resolv.conf",
    "volumePluginDir": f"{INSIDE}/plugins",
}
PROXY: dict[str, Any] = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "mode": "iptables",
    "clusterCIDR": PODS,
    "clientConnection": {"kubeconfig": f"{INSIDE}/kubeconfig"},
    "conntrack": {"maxPerCore": 0, "min": 0},  # these belong to the whole machine, and are left as they are
    "oomScoreAdj": 0,
}


class Died(Exception):
    """A part of the node has ended; the text has its last words."""


class Node:
    """`start` once; `kubectl` and `ctr` from then on; `stop` at the end."""

    def __init__(self, cgroup: str) -> None:
        self.cgroup = cgroup
        self.kubectl = Kubectl(parts.GO / "kubectl", INSIDE / "kubeconfig")
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Returns when pods can be scheduled. Raises Died."""
        (INSIDE / "logs").mkdir()
        os.environ["PATH"] = f"{parts.DEBIAN}/usr/bin:{parts.GO}:{os.environ['PATH']}"
        self._configure()
        self._begin("containerd", "containerd", "--config", INSIDE / "containerd.toml")
        self._begin("etcd", "server", "--data-dir", INSIDE / "etcd", "--unsafe-no-fsync", "--log-level", "warn")
        self._apiserver()
        self._wait("containerd", lambda: self._says("ctr", "version"))
        self._images()
        self._wait("kube-apiserver", lambda: self._says(self.kubectl.program, "get", "--raw", "/readyz"))
        kubeconfig = f"--kubeconfig={INSIDE}/kubeconfig"
        self._begin(
            "kube-controller-manager",
            *("kube-controller-manager", kubeconfig, "--leader-elect=false"),
            f"--service-account-private-key-file={INSIDE}/accounts.pem",
            f"--root-ca-file={INSIDE}/apiserver/apiserver.crt",
            f"--flex-volume-plugin-dir={INSIDE}/plugins",
        )
        self._begin("kube-scheduler", "kube-scheduler", kubeconfig, "--leader-elect=false")
        self._begin("kube-proxy", "kube-proxy", f"--config={INSIDE}/proxy.yaml", "--hostname-override=node")
        self._begin("dns", "dns", "-conf", INSIDE / "Corefile")
        self._begin(
            "kubelet",
            *("kubelet", kubeconfig, f"--config={INSIDE}/kubelet.yaml", f"--root-dir={INSIDE}/kubelet"),
            *("--hostname-override=node", f"--node-ip={ADDRESS}"),
        )
        self._wait("kubelet", self._ready)

    def _configure(self) -> None:
        token = secrets.token_hex(16)
        for name in ("cni", "plugins", "apiserver", "volumes"):
            (INSIDE / name).mkdir()
        for name, text in {
            "containerd.toml": CONTAINERD_CONFIG,
            "cni/pods.conflist": json.dumps(NETWORK),
            "resolv.conf": "",
            "Corefile": NAMES,
            "tokens.csv": f"{token},admin,admin,system:masters\n",
            "kubelet.yaml": yaml.safe_dump({**KUBELET, "cgroupRoot": f"/{self.cgroup}"}),
            "proxy.yaml": yaml.safe_dump(PROXY),
            "kubeconfig": yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": {"server": API, "insecure-skip-tls-verify": True}}],
                    "users": [{"name": "admin", "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
                    "current-context": "test",
                }
            ),
        }.items():
            (INSIDE / name).write_text(text)
        subprocess.run(["openssl", "genrsa", "-out", INSIDE / "accounts.pem", "2048"], check=True, capture_output=True)

    def _apiserver(self) -> None:
        self._begin(
            "kube-apiserver",
            *("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", f"--advertise-address={ADDRESS}"),
            *(f"--cert-dir={INSIDE}/apiserver", f"--token-auth-file={INSIDE}/tokens.csv", "--authorization-mode=RBAC"),
            *(f"--service-cluster-ip-range={SERVICES}", "--kubelet-preferred-address-types=InternalIP"),
            "--allow-privileged=true",  # refusing such pods is left to Pod Security
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={INSIDE}/accounts.pem",
            f"--service-account-signing-key-file={INSIDE}/accounts.pem",
        )

    def _images(self) -> None:
        pause_image.write(parts.GO / "pause", INSIDE / "pause.tar")
        for image in (INSIDE / "pause.tar", parts.IMAGE):
            self.ctr("images", "import", image)

    def _ready(self) -> bool:
        """Whether the node takes pods: it is Ready, and no taint of its beginnings is left."""
        done = subprocess.run([*self.kubectl.command, "get", "nodes", "-o", "json"], capture_output=True)
        nodes = json.loads(done.stdout)["items"] if done.returncode == 0 else []
        return any(
            {"type": "Ready", "status": "True"}.items() <= condition.items()
            for node in nodes
            if not node["spec"].get("taints")
            for condition in node["status"]["conditions"]
        )

    def ctr(self, *arguments: object) -> str:
        command = ["ctr", "--address", str(CONTAINERD), "--namespace", "k8s.io", *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout

    # --- processes

    def _begin(self, name: str, *command: object) -> None:
        with (INSIDE / "logs" / name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                [*map(str, command)], cwd=INSIDE, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _says(self, *command: object) -> bool:
        return subprocess.run(self._full(*command), capture_output=True, timeout=30).returncode == 0

    def _full(self, *command: object) -> list[str]:
        if command[0] == "ctr":
            return ["ctr", "--address", str(CONTAINERD), *map(str, command[1:])]
        return [*self.kubectl.command, *map(str, command[1:])]

    def _wait(self, name: str, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            self.check()
            if time.monotonic() > deadline:
                raise Died(f"{name} was not ready after {PATIENCE_S} s:\n{self._last_words(name)}")
            time.sleep(0.2)

    def check(self) -> None:
        """Raises Died if a part has ended."""
        for name, child in self._running.items():
            if child.poll() is not None:
                raise Died(f"{name} ended with {child.returncode}:\n{self._last_words(name)}")

    def stop(self) -> None:
        """Ends the parts, the last one first; the pods end with the sandbox."""
        for child in reversed(self._running.values()):
            child.kill()
            child.wait()

    def _last_words(self, name: str) -> str:
        return "\n".join((INSIDE / "logs" / name).read_text(errors="replace").splitlines()[-30:])

    def save_logs(self, folder: Path) -> None:
        """Copies what all parts have written, for somebody who wants to know why something failed."""
        shutil.copytree(INSIDE / "logs", folder, dirs_exist_ok=True)
