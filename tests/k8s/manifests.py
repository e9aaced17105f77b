"""The overlays as kustomize builds them."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
OVERLAYS = sorted(path.name for path in (ROOT / "k8s" / "overlays").iterdir())

# Kinds of the Prometheus operator and of cert-manager: Kubernetes has no schemas of them.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "Certificate"}

Manifest = dict[str, Any]


def kustomize() -> list[str]:
    """The command that builds a folder. Where there is none, skips the test, but not in CI."""
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    if os.environ.get("CI") == "true":
        pytest.fail("CI needs kubectl or kustomize")
    pytest.skip("neither kubectl nor kustomize is installed")


@cache
def built(folder: str) -> list[Manifest]:
    return build(ROOT / "k8s" / folder)


def build(folder: Path) -> list[Manifest]:
    done = subprocess.run([*kustomize(), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip(), done.stderr  # it would warn of deprecations
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def example(folder: Path, overlays: list[str], components: list[str]) -> Path:
    """Makes an overlay of a user's own, in a copy of k8s/ (kustomize wants relative paths); returns its folder."""
    shutil.copytree(ROOT / "k8s", folder / "k8s")
    mine = folder / "my-krappy"
    mine.mkdir()
    text = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "krappy",
        "resources": [f"../k8s/overlays/{name}" for name in overlays],
        "components": [f"../k8s/components/{name}" for name in components],
    }
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(text))
    return mine


def only(manifests: list[Manifest], kind: str) -> Manifest:
    [found] = [each for each in manifests if each["kind"] == kind]
    return found


def container(manifests: list[Manifest]) -> Manifest:
    [found] = only(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def validate(manifest: Manifest) -> None:
    if manifest["kind"] not in FOREIGN:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
