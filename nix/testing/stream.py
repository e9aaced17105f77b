"""Writes a container image to stdout: one layer for each store path, one for the rest; the same bytes every time.

The archive is what `docker save` makes: https://github.com/moby/docker-image-spec (v1.2, "combined image JSON").
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path


def entry(name: str, *, size: int = 0, kind: bytes = tarfile.REGTYPE, mode: int = 0o444) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.mode, info.mtime = size, kind, mode, 1
    return info


def layer(path: Path) -> bytes:
    """A store path as a tar archive, with its parents."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for parent in ("nix", "nix/store"):
            archive.addfile(entry(parent, kind=tarfile.DIRTYPE, mode=0o755))
        walked = [path, *sorted(path.rglob("*"))] if path.is_dir() and not path.is_symlink() else [path]
        for each in walked:
            name = str(each).lstrip("/")
            if each.is_symlink():
                link = entry(name, kind=tarfile.SYMTYPE, mode=0o777)
                link.linkname = os.readlink(each)
                archive.addfile(link)
            elif each.is_dir():
                archive.addfile(entry(name, kind=tarfile.DIRTYPE, mode=0o555))
            else:
                mode = 0o555 if os.access(each, os.X_OK) and each.stat().st_mode & 0o111 else 0o444
                archive.addfile(entry(name, size=each.stat().st_size, mode=mode), io.BytesIO(each.read_bytes()))
    return packed.getvalue()


def main(parts: Path, tag: str) -> None:
    layers = [layer(Path(path)) for path in (parts / "paths").read_text().split()]
    layers.append((parts / "root.tar").read_bytes())
    digests = [hashlib.sha256(data).hexdigest() for data in layers]
    image = {
        "architecture": "amd64",
        "os": "linux",
        "created": "1970-01-01T00:00:01Z",
        "config": json.loads((parts / "config.json").read_text()),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
    }
    config = json.dumps(image, sort_keys=True).encode()
    name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": [f"{digest}/layer.tar" for digest in digests]}]
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        files = [(f"{digest}/layer.tar", data) for digest, data in zip(digests, layers, strict=True)]
        for file, data in [*files, (name, config), ("manifest.json", json.dumps(manifest).encode())]:
            archive.addfile(entry(file, size=len(data)), io.BytesIO(data))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
