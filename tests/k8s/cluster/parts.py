"""What the cluster is made of: which tools must be there, and how the rest is fetched and built, once.

Kubernetes, etcd and CoreDNS are Go modules and are built with Go; containerd and the network plugins come from Debian's
packages, which are unpacked and not installed; the image is the project's own, built with Nix. All of it goes to
`.cache/k8s`, and is made anew when what it is made from has changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CACHE = ROOT / ".cache" / "k8s"
GO = CACHE / "go"  # etcd (`server`), kube-apiserver, …, kubectl, dns, pause
DEBIAN = CACHE / "debian"
IMAGE = CACHE / "image.tar"

OLDEST_GO = (1, 24)
PACKAGES = ("containerd", "containernetworking-plugins")
TOOLS = {  # command: the Debian package that has it
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "ip": "iproute2",
    "iptables": "iptables",
    "mount": "mount",
    "nix": "nix-bin",
    "openssl": "openssl",
    "patchelf": "patchelf",
    "runc": "runc",
    "unshare": "util-linux",
}


class Missing(Exception):
    """Something is missing; the text says what, and what to do."""


def check() -> None:
    """Raises Missing, with all that this machine lacks."""
    lacks = []
    if os.geteuid() or not sys.platform.startswith("linux"):
        lacks.append("needs Linux, and root: it makes namespaces, mounts and cgroups")
    packages = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if packages:
        lacks.append(f"apt-get install --no-install-recommends {' '.join(packages)}")
    if shutil.which("go") is None:
        lacks.append(f"needs Go {'.'.join(map(str, OLDEST_GO))} or newer, to build Kubernetes")
    elif (found := _go_version()) < OLDEST_GO:
        lacks.append(f"Go is {'.'.join(map(str, found))}, {'.'.join(map(str, OLDEST_GO))} or newer is needed")
    if lacks:
        raise Missing("\n".join(lacks))


def _go_version() -> tuple[int, ...]:
    words = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in words.strip().removeprefix("go").split("-")[0].split(".")[:2])


def fetch() -> None:
    """Makes what is missing, and says so on stderr. Raises Missing."""
    _step("Kubernetes and etcd (10 minutes on 2 idle cores)", _stamp(HERE / "kubernetes"), _kubernetes)
    _step("CoreDNS", _stamp(HERE / "programs"), _programs)
    _step("containerd", hashlib.sha256(" ".join(PACKAGES).encode()), _debian)
    _step("the image", _stamp(*_image_sources()), _image)


def _stamp(*paths: Path) -> hashlib._Hash:
    """A digest of these files, and of all files of these folders."""
    stamp = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                stamp.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return stamp


def _image_sources() -> list[Path]:
    return [ROOT / name for name in ("krappy", "store", "handlers", "nix", "pyproject.toml", "README.md", "LICENSE")]


def _step(what: str, stamp: hashlib._Hash, make: Callable[[], None]) -> None:
    file = CACHE / f".{make.__name__.strip('_')}"
    if file.exists() and file.read_text() == stamp.hexdigest():
        return
    began = time.monotonic()
    sys.stderr.write(f"making {what}\n")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    make()
    file.write_text(stamp.hexdigest())
    sys.stderr.write(f"made {what.partition(' (')[0]} in {time.monotonic() - began:.0f} s\n")


def _kubernetes() -> None:
    folder = HERE / "kubernetes"
    found = re.search(r"k8s\.io/kubernetes v((\d+)\.(\d+)\S*)", (folder / "go.mod").read_text())
    assert found, "kubernetes/go.mod names no version"
    version = "k8s.io/component-base/version"  # Kubernetes' own Makefile would set these
    told = " ".join(
        f"-X {version}.{name}={value}"
        for name, value in zip(
            ("gitVersion", "gitMajor", "gitMinor"), ("v" + found[1], found[2], found[3]), strict=True
        )
    )
    _go("install", "-v", "-trimpath", "-ldflags", f"-s -w {told}", "tool", folder=folder)


def _programs() -> None:
    _go("install", "-v", "-trimpath", "-ldflags", "-s -w", "./dns", "./pause", folder=HERE / "programs")


def _go(*arguments: str, folder: Path) -> None:
    """Runs Go, and counts the packages that it has compiled."""
    environ = {**os.environ, "GOBIN": str(GO), "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
    with subprocess.Popen(
        ["nice", "-n", "5", "go", *arguments], cwd=folder, env=environ, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stderr is not None
        last: list[str] = []
        for number, line in enumerate(child.stderr, 1):
            last = [*last[-20:], line]
            if number % 100 == 0:
                sys.stderr.write(f"  {number} packages\n")
    if child.returncode:
        raise Missing("go could not build it:\n" + "".join(last))


def _debian() -> None:
    shutil.rmtree(DEBIAN, ignore_errors=True)
    DEBIAN.mkdir(parents=True)
    _run(["apt-get", "download", "-q", *PACKAGES], DEBIAN)
    for package in DEBIAN.glob("*.deb"):
        _run(["dpkg-deb", "--extract", str(package), str(DEBIAN)])
        package.unlink()


def _image() -> None:
    testing, vendor, program = ROOT / "nix" / "testing", CACHE / "vendor", CACHE / "image"
    os.environ.setdefault("PYTHON", sys.executable)
    _run([str(testing / "fetch"), str(vendor)])
    _run([str(testing / "build"), str(vendor), str(program)])
    with IMAGE.open("wb") as file:
        subprocess.run([str(program)], stdout=file, check=True)


def _run(command: list[str], folder: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Missing(f"{' '.join(command)}\nfailed: {(done.stdout + done.stderr)[-2000:]}")
