"""The image whose one process holds a pod's namespaces; its program does nothing else."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

NAME = "cluster.test/pause:1"


def write(program: Path, target: Path) -> None:
    """Writes the image as `docker save` would: https://github.com/moby/docker-image-spec."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        _add(archive, "pause", program.read_bytes())
    image = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        _add(archive, "config.json", json.dumps(image).encode())
        _add(archive, "layer.tar", layer.getvalue())
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o555
    archive.addfile(info, io.BytesIO(data))
