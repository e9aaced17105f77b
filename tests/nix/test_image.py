"""The image: Nix builds it twice to the same bytes, it is small, runs as it is meant to, is killed, and is whole
afterwards."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from krappy import blocking
from krappy.demos import flights
from tests.long import LONG
from tests.nix.containers import Podman, own_network, require

ROOT = Path(__file__).parents[2]
NIX = ROOT / "nix"
BUDGET = 60_000_000  # bytes, compressed
TESTING = NIX / "testing"


@pytest.mark.parametrize("path", sorted(NIX.rglob("*.nix")), ids=lambda path: str(path.relative_to(NIX)))
def test_every_nix_file_parses(path: Path) -> None:
    require()
    done = subprocess.run(["nix-instantiate", "--parse", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_lock_is_of_the_flake() -> None:
    lock = json.loads((NIX / "flake.lock").read_text())
    original = lock["nodes"]["nixpkgs"]["original"]
    assert f'"github:{original["owner"]}/{original["repo"]}/{original["ref"]}"' in (NIX / "flake.nix").read_text()


def run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that writes the image."""
    if not LONG:
        pytest.skip("builds the image, which takes minutes: `make test-long` does (KRAPPY_LONG=1)")
    require()
    folder = tmp_path_factory.mktemp("image")
    os.environ.setdefault("PYTHON", sys.executable)
    run(TESTING / "fetch", folder / "vendor")
    run(TESTING / "build", folder / "vendor", folder / "image")
    return folder / "image"


@pytest.fixture(scope="module")
def archive(built: Path) -> bytes:
    return subprocess.run([str(built)], capture_output=True, timeout=300, check=True).stdout


def test_built_twice_it_is_the_same(built: Path, archive: bytes) -> None:
    run(TESTING / "check", built)
    again = subprocess.run([str(built)], capture_output=True, timeout=300, check=True).stdout
    assert again == archive


def test_it_is_within_its_budget_and_so_are_its_parts(archive: bytes) -> None:
    """`nix/sizes` tells the sizes. This finds what nobody thinks of: a part that doubles, or a part that came along."""
    done = subprocess.run([NIX / "sizes", "--json"], input=archive, capture_output=True, timeout=300, check=True)
    found = json.loads(done.stdout)
    assert found["compressed"] < BUDGET
    parts = {part["part"]: part["compressed"] for part in found["parts"]}
    known = {
        r"python3-3\.\d+": 18_000_000,
        r"python3\.\d+-rocksdict.*": 8_000_000,
        r"python3\.\d+-cryptography.*": 6_000_000,
        r"python3\.\d+-krappy-.*": 4_700_000,
    }
    for name, most in known.items():
        [size] = [parts.pop(part) for part in list(parts) if re.fullmatch(name, part)]
        assert 100_000 < size < most, name
    assert all(size < 4_000_000 for size in parts.values()), parts


def test_it_says_what_it_is(podman: Podman) -> None:
    [image] = json.loads(podman("image", "inspect", "localhost/krappy:0.1.0"))
    labels = image["Labels"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert labels["org.opencontainers.image.version"] == project["version"]
    assert labels["org.opencontainers.image.licenses"] == project["license"]
    assert labels["org.opencontainers.image.description"] == project["description"]
    assert image["Config"]["Entrypoint"][1:] == ["-m", "krappy"]
    assert image["Config"]["Cmd"] == ["serve", "--json"]
    assert image["Config"]["StopSignal"] == "SIGTERM"


@pytest.fixture(scope="module")
def podman(archive: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    folder = tmp_path_factory.mktemp("podman")
    found = Podman(folder)
    image = folder / "image.tar"
    image.write_bytes(archive)
    found("load", "--quiet", "--input", image)
    image.unlink()
    with own_network():
        yield found


@contextmanager
def running(podman: Podman, volume: str, *more: object) -> Iterator[str]:
    """A container as a cluster would run it: it can write only to its volume, and has no rights and little memory."""
    name = f"krappy-{secrets.token_hex(4)}"
    podman(
        *("run", "--detach", "--name", name, "--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"),
        *("--env", "KRAPPY_INSECURE_LISTENERS=allow"),
        *("--memory", "512m", "--pids-limit", "200", "--volume", f"{volume}:/data", "--tmpfs", "/tmp:size=16m"),
        *("--publish", "127.0.0.1::7092", "--publish", "127.0.0.1::8092", *more),
        "localhost/krappy:0.1.0",
    )
    try:
        podman.wait_until_healthy(name)
        yield name
    finally:
        podman("rm", "--force", "--time", "1", name)


@pytest.fixture
def volume(podman: Podman) -> Iterator[str]:
    name = f"krappy-{secrets.token_hex(4)}"
    podman("volume", "create", name)
    yield name
    podman("volume", "rm", "--force", name)


def test_it_keeps_what_it_was_given_through_a_kill(podman: Podman, volume: str) -> None:
    """Stores the flights over the network, sends SIGKILL, and starts it with the same volume: nothing is lost. SIGTERM
    then ends it with 0."""
    names, *rows = flights.rows(flights.find_file())
    keys = [row[names.index("tailnum")] for row in rows]
    values = [",".join(row) for row in rows]
    with running(podman, volume) as name:
        with blocking.connect(podman.address(name, 7092)) as client:
            client.create_topic("flights", partitions=3)
            with client.producer("flights") as producer:
                producer.send_columns(keys, values)
        podman("kill", "--signal", "KILL", name)
    with running(podman, volume) as name:
        with blocking.connect(podman.address(name, 7092)) as client:
            with client.consumer("flights", start="earliest", end="now") as consumer:
                stored = sorted(event.value for event in consumer if event.value is not None)
            assert stored == sorted(value.encode() for value in values)
            latest = dict(zip(keys, values, strict=True))
            table = client.table("flights")
            found = {entry.key: entry.value for entry in table.scan()}
            assert found == {key.encode(): value.encode() for key, value in latest.items()}
        podman("stop", "--time", "60", name)
        assert podman.state(name)["ExitCode"] == 0


def test_nothing_runs_as_root_and_nothing_needs_a_shell(podman: Podman, volume: str) -> None:
    with running(podman, volume) as name:
        who = podman("exec", name, "/bin/python3", "-c", "import os; print(os.getuid(), os.getgid())")
        assert who == "10001 10001"
        assert podman("exec", name, "/bin/krappy", "--version") == "krappy, version 0.1.0"
        assert podman("exec", name, "/bin/sh", "-c", "true", check=False) == ""
        assert podman("exec", name, "/bin/krappy", "topic", "list", "--json") == "[]"


SIGNED = """
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from krappy.server import tokens

key = ec.generate_private_key(ec.SECP256R1())
print(jwt.decode(jwt.encode({"sub": "ada"}, key, "ES256"), key.public_key(), ["ES256"])["sub"])
"""


def test_it_checks_tokens_of_an_identity_provider(podman: Podman, volume: str) -> None:
    """The image has krappy[oauth], which settings for tokens need."""
    keys = {"oauth_issuer": "https://idp.example", "oauth_audience": "krappy", "oauth_jwks_url": "file:///none"}
    settings = {"sasl_enabled_mechanisms": "OAUTHBEARER", **keys, "listen_native": "SASL_PLAINTEXT://0.0.0.0:7092"}
    given = [each for name, value in settings.items() for each in ("--env", f"KRAPPY_{name.upper()}={value}")]
    with running(podman, volume, *given) as name:
        assert podman("exec", name, "/bin/python3", "-c", SIGNED) == "ada"
        assert "oauth_keys_not_read" in podman.said(name)


def test_any_user_may_run_it_and_its_settings_come_from_a_file_or_the_environment(
    podman: Podman, volume: str, tmp_path: Path
) -> None:
    """OpenShift gives each namespace a user id, in the group 0; and a ConfigMap is mounted so.

    All that the broker prints is JSON, one line for each event.
    """
    file = tmp_path / "krappy.toml"
    file.write_text('default_partitions = 7\nlog_level = "info"\n')
    file.chmod(0o644)
    settings = ("--volume", f"{file}:/etc/krappy/krappy.toml:ro", "--env", "KRAPPY_CONFIG=/etc/krappy/krappy.toml")
    with running(podman, volume, "--user", "1000650000:0", *settings, "--env", "KRAPPY_RACK=a") as name:
        with blocking.connect(podman.address(name, 7092)) as client, client.producer("t") as producer:
            producer.send("1").result()
            assert len(client.describe("t").partitions) == 7
        said = podman.said(name).splitlines()
    lines = [json.loads(line) for line in said]
    assert {"broker_ready", "topic_created"} <= {line.get("event") for line in lines}
    [ready] = [line for line in lines if line.get("ready")]
    assert ready["native"] == "0.0.0.0:7092"


def test_a_backup_comes_out_of_a_container(podman: Podman, volume: str, tmp_path: Path) -> None:
    with running(podman, volume) as name:
        with blocking.connect(podman.address(name, 7092)) as client, client.producer("t") as producer:
            producer.send_columns([b"k"], [b"v"])
        with (tmp_path / "copy.tar").open("wb") as out:
            subprocess.run(
                ["podman", "exec", name, "/bin/krappy", "backup", "-"],
                env=podman.environ,
                stdout=out,
                stderr=subprocess.DEVNULL,
                timeout=120,
                check=True,
            )
    run(sys.executable, "-m", "krappy", "restore", tmp_path / "copy.tar", "--data", tmp_path / "data")
    run(sys.executable, "-m", "krappy", "doctor", "--data", tmp_path / "data")
