"""The Dockerfile and the compose file: they are read in each run, and with KRAPPY_LONG=1 built and run by Podman.

The official Python image can't be fetched everywhere. So the long test makes an image in its place from Debian's
packages (mmdebstrap): the same Debian, with Debian's own Python 3.11.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer

from krappy import blocking
from krappy.errors import ConnectionLost
from krappy.settings.described import describe
from tests.long import LONG
from tests.nix.containers import CONFIG, own_network

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "nix" / "docker"
DOCKERFILE = (FOLDER / "Dockerfile").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
SERVICE = COMPOSE["services"]["krappy"]
IMAGE = (ROOT / "nix" / "image.nix").read_text("utf-8")
SECONDS = 600


def test_it_is_what_the_image_of_nix_is() -> None:
    """Both have the same user, ports, settings, signal and health check."""
    for setting in re.findall(r'"(KRAPPY_\w+=\S+)"', IMAGE):
        assert setting in DOCKERFILE
    for port in re.findall(r'"(\d+)/tcp"', IMAGE):
        assert re.search(rf"^EXPOSE.*\b{port}\b", DOCKERFILE, re.MULTILINE)
    [user] = re.findall(r'id = "(\d+)"', IMAGE)
    assert f"USER {user}:{user}" in DOCKERFILE
    assert re.findall(r'StopSignal = "(\w+)"', IMAGE) == re.findall(r"^STOPSIGNAL (\w+)", DOCKERFILE, re.MULTILINE)
    assert re.findall(r"urlopen\('(\S+)'", IMAGE) == re.findall(r"urlopen\('(\S+)'", DOCKERFILE)


def test_it_copies_all_that_is_installed_and_no_more() -> None:
    copied = set(re.findall(r"^COPY (?!--)(.+) /src", DOCKERFILE, re.MULTILINE))
    named = {name for line in copied for name in line.split()}
    let = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text("utf-8"), re.MULTILINE))
    assert named == let
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {project["readme"], *project["license-files"]} <= named


def test_the_compose_file_fits_the_image() -> None:
    assert (FOLDER / SERVICE["build"]["context"]).resolve() == ROOT
    assert (ROOT / SERVICE["build"]["dockerfile"]) == FOLDER / "Dockerfile"
    settings = {each.variable for each in describe()}
    assert set(SERVICE["environment"]) <= settings
    for published in SERVICE["ports"]:
        host, outer, inner = published.rsplit(":", 2)
        assert (host, outer) == ("127.0.0.1", inner), "on this machine only"
        assert re.search(rf"^EXPOSE.*\b{inner}\b", DOCKERFILE, re.MULTILINE)


@contextmanager
def calling(folder: Path) -> Iterator[Any]:
    """Runs programs in the checkout."""
    config = folder / "containers.conf"
    config.write_text(CONFIG)
    beside_python = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "CONTAINERS_CONF": str(config), "PATH": beside_python}

    def call(*arguments: object) -> str:
        command = [str(each) for each in arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    yield call


@contextmanager
def removed(call: Any) -> Iterator[None]:
    """Removes the container, the volume and the network at the end."""
    try:
        yield
    finally:
        call(*UP_AND_DOWN, "down", "--volumes")


UP_AND_DOWN = ("podman-compose", "-f", "nix/docker/compose.yaml")


@pytest.mark.skipif(not LONG, reason="builds an image: KRAPPY_LONG=1, with podman, mmdebstrap and root")
def test_it_is_built_and_run(tmp_path: Path) -> None:
    base = tmp_path / "base.tar"
    with calling(tmp_path) as call:
        call("mmdebstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", "bookworm", base)
        call("podman", "import", "--quiet", base, "localhost/python-of-debian")
        # This machine may reach PyPI through a mirror, with certificates and settings of its own.
        own = [f"--volume={path}:{path}:ro" for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]
        build = ("podman", "build", "--isolation=chroot", "--format=docker", "--file=nix/docker/Dockerfile")
        call(*build, *own, "--build-arg=PYTHON=localhost/python-of-debian", "--tag=krappy:compose", ".")
    with own_network(), calling(tmp_path) as call, removed(call):
        call(*UP_AND_DOWN, "up", "--detach")
        with closing(answering()) as client, client.producer("users") as producer:
            producer.send("Ada", key="u1").result()
        assert read_by_kafka("users") == b"Ada"
        asked = urllib.request.Request("http://127.0.0.1:8092/api/v1/topics")
        asked.add_header("Authorization", "Bearer krappy-on-this-machine")
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert b'"users"' in answer.read()
        call("podman", "healthcheck", "run", call("podman", "ps", "--quiet").strip())
        call(*UP_AND_DOWN, "down")  # the volume stays
        call(*UP_AND_DOWN, "up", "--detach")
        with closing(answering()) as client:
            found = client.table("users").get("u1")
            assert found is not None
            assert found.value == b"Ada"


def answering() -> blocking.Client:
    """A client of the broker, once it answers."""
    end = time.monotonic() + 60
    while True:
        try:
            return blocking.connect("127.0.0.1:7092").open()
        except ConnectionLost:
            assert time.monotonic() < end
            time.sleep(0.2)


def read_by_kafka(topic: str) -> bytes | None:
    """The first value of a topic, read at the address that the broker tells Kafka's clients of this machine."""
    consumer = Consumer({"bootstrap.servers": "localhost:9092", "group.id": "compose", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        end = time.monotonic() + 60
        while (message := consumer.poll(1)) is None or message.error():
            assert time.monotonic() < end
        value: bytes | None = message.value()
        return value
    finally:
        consumer.close()
