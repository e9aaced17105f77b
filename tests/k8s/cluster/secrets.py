"""The Secrets of k8s/README.md's "TLS and users": what cert-manager and an operator put into them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import yaml

from tests.k8s.cluster.krappy import Krappy
from tests.k8s.cluster.kubectl import Kubectl, Object
from tests.security.authority import Authority

USERS = ("admin", "prometheus", "broker")


class Secrets:
    """`passwords`: by user."""

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        self._kubectl = kubectl
        self.authority = Authority(folder)
        self.passwords = {user: secrets.token_hex(16) for user in USERS}

    def apply(self, certificate: Object) -> None:
        """Applies all of them. `certificate`: the manifest that cert-manager would carry out."""
        self.certify(certificate)
        self.users()
        self.put("krappy-metrics", {"username": "prometheus", "password": self.passwords["prometheus"]})

    def certify(self, certificate: Object) -> None:
        """Makes a certificate for the names that are asked for; it takes the place of the one before."""
        spec = certificate["spec"]
        pem = Path(self.authority.issue(*spec["dnsNames"])).read_text()
        key, mark, chain = pem.partition("-----BEGIN CERTIFICATE-----")
        authority = Path(self.authority.ca).read_text()
        self.put(spec["secretName"], {"tls.key": key, "tls.crt": mark + chain, "ca.crt": authority})

    def users(self) -> None:
        self.put("krappy-users", self.passwords)

    def put(self, name: str, values: dict[str, str]) -> None:
        self._kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values})

    def native(self, user: str) -> dict[str, Any]:
        """How Krappy's clients log in."""
        return {"ca": self.authority.ca, "user": user, "password": self.passwords[user]}

    def kafka(self, user: str) -> dict[str, Any]:
        """How librdkafka logs in."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.authority.ca,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": self.passwords[user],
        }

    def log_in(self, krappy: Krappy, user: str = "admin") -> None:
        """From now on Krappy's clients log in as this user."""
        krappy.login, krappy.kafka_login = self.native(user), self.kafka(user)


def certificate(kubectl: Kubectl, folder: Path) -> Object:
    """The Certificate that an overlay has, before it is applied."""
    built = yaml.safe_load_all(kubectl("kustomize", folder))
    [found] = [each for each in built if each["kind"] == "Certificate"]
    assert isinstance(found, dict)
    return found
