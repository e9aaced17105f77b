"""The listeners' TLS as sslyze sees it, compared with Mozilla's "intermediate" configuration."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trustme import KeyType

from krappy.testing.running import RunningBroker, run_broker
from tests.compat import tools
from tests.compat.clients.base import PATIENCE
from tests.security.authority import Authority

OLD = ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1")
NO_FAULTS = ("Certificate path validation failed",)  # Mozilla's lists do not have our authority
SCANS = ("heartbleed", "robot", "openssl_ccs", "compression", "reneg", "fallback", "early_data", "ems")
VERSIONS = ("sslv2", "sslv3", "tlsv1", "tlsv1_1", "tlsv1_2", "tlsv1_3")


@pytest.fixture(scope="module", params=[KeyType.ECDSA, KeyType.RSA], ids=["ecdsa", "rsa"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("scanned")
    certificate = Authority(folder).issue("127.0.0.1", key=request.param)
    listeners = dict.fromkeys(("listen_native", "listen_kafka", "listen_http"), "SSL://127.0.0.1:0")
    with run_broker(folder / "data", durability="os", tls_certificate=certificate, **listeners) as found:
        yield found


@pytest.mark.parametrize("listener", ["native", "kafka", "http"])
def test_sslyze_finds_nothing(broker: RunningBroker, tmp_path: Path, listener: str) -> None:
    addresses = {"native": broker.address, "kafka": broker.kafka_addresses["SSL"], "http": broker.http_address}
    try:
        tools.wanted("sslyze")
        python = tools.python("sslyze")
    except tools.Missing as missing:
        pytest.skip(str(missing))
    options = [f"--{each}" for each in (*SCANS, *VERSIONS, "mozilla_config=intermediate")]
    done = subprocess.run(
        [python, "-m", "sslyze", f"--json_out={tmp_path}/found", *options, addresses[listener]],
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE,
        check=False,
    )
    [server] = json.loads((tmp_path / "found").read_text())["server_scan_results"]
    assert server["scan_status"] == "COMPLETED", done.stdout
    found: dict[str, Any] = {name: scan["result"] for name, scan in server["scan_result"].items() if scan["result"]}
    for version in OLD:
        assert not found[f"{version}_cipher_suites"]["is_tls_version_supported"], version
    for version in ("tls_1_2", "tls_1_3"):
        accepted = {
            each["cipher_suite"]["name"] for each in found[f"{version}_cipher_suites"]["accepted_cipher_suites"]
        }
        assert accepted
        assert all("GCM" in name or "CHACHA20" in name for name in accepted), accepted
    assert not found["tls_compression"]["supports_compression"]
    assert not found["session_renegotiation"]["is_vulnerable_to_client_renegotiation_dos"]
    assert found["session_renegotiation"]["supports_secure_renegotiation"]
    assert not found["heartbleed"]["is_vulnerable_to_heartbleed"]
    assert not found["openssl_ccs_injection"]["is_vulnerable_to_ccs_injection"]
    assert found["robot"]["robot_result"].startswith("NOT_VULNERABLE")
    assert found["tls_fallback_scsv"]["supports_fallback_scsv"]
    assert found["tls_extended_master_secret"]["supports_ems_extension"]
    assert not found["tls_1_3_early_data"]["supports_early_data"]
    said = re.findall(r"^ +\* \w+: (.*)$", done.stdout.partition("COMPLIANCE AGAINST")[2], re.MULTILINE)
    assert said, done.stdout  # what is in NO_FAULTS was found
    assert [each for each in said if not each.startswith(NO_FAULTS)] == []
