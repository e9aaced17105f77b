"""Certificates for tests, by `trustme`: an authority, and files that it signs."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from krappy.tls import client_context


class Authority:
    """`ca`: the PEM file of its own certificate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = trustme.CA()
        self._number = 0
        self.ca = str(folder / f"ca-{id(self)}.pem")
        self._made.cert_pem.write_to_path(self.ca)

    def issue(self, *names: str, seconds: float = 86_400.0, subject: str | None = None) -> str:
        """A PEM file of a certificate with its key, for these hosts or addresses; valid from a day ago on. `subject`:
        its common name."""
        self._number += 1
        issued = self._made.issue_cert(
            *names,
            common_name=subject,
            organization_name="Acme",
            not_before=datetime.now(UTC) - timedelta(days=1),
            not_after=datetime.now(UTC) + timedelta(seconds=seconds),
        )
        path = self._folder / f"cert-{id(self)}-{self._number}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))
        path.chmod(0o600)
        return str(path)

    def context(self, cert: str | None = None) -> ssl.SSLContext:
        """For a client that trusts this authority."""
        return client_context(self.ca, cert)
