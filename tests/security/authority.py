"""Certificates for tests, made by `trustme`: an authority, and certificates that it signs."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from trustme import KeyType

from krappy.tls import client_context

PEM = serialization.Encoding.PEM


class Authority:
    """`ca`: the PEM file of its own certificate."""

    def __init__(self, folder: Path, seconds: float | None = None) -> None:
        """`seconds`: how long the authority is valid from now on. None: it is valid for years."""
        self._folder = folder
        self._made = trustme.CA() if seconds is None else _valid_for(seconds)
        self._number = 0
        self.ca = str(folder / f"ca-{id(self)}.pem")
        self._made.cert_pem.write_to_path(self.ca)

    def issue(
        self,
        *names: str,
        seconds: float = 86_400.0,
        since: float = -86_400.0,
        subject: str | None = None,
        pkcs8: bool = False,
        key: KeyType = KeyType.ECDSA,
    ) -> str:
        """Makes a certificate for these hosts or addresses; returns the path of a PEM file with it and its key. It is
        valid from `since` until `seconds`, both in seconds from now. `subject`: its common name; empty: its
        subject is empty. `pkcs8`: the key is in the format that Java reads."""
        self._number += 1
        issued = self._made.issue_cert(
            *names,
            common_name=subject or None,
            organization_name="Acme",
            not_before=datetime.now(UTC) + timedelta(seconds=since),
            not_after=datetime.now(UTC) + timedelta(seconds=seconds),
            key_type=key,
        )
        path = self._folder / f"cert-{id(self)}-{self._number}.pem"
        secret = issued.private_key_pem.bytes()
        if pkcs8:
            made = serialization.load_pem_private_key(secret, None)
            secret = made.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        chain = [each.bytes() for each in issued.cert_chain_pems]
        if subject == "":
            chain[0] = self._without_subject(chain[0])
        path.write_bytes(secret + b"".join(chain))
        path.chmod(0o600)
        return str(path)

    def _without_subject(self, pem: bytes) -> bytes:
        like = x509.load_pem_x509_certificate(pem)
        return _signed(self._made, like, x509.Name([]), like.not_valid_before_utc, like.not_valid_after_utc)

    def context(self, cert: str | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this authority."""
        return client_context(self.ca, cert)


def _valid_for(seconds: float) -> trustme.CA:
    """An authority like those of `trustme`, but its own certificate expires after `seconds`."""
    made, now = trustme.CA(), datetime.now(UTC)
    like = x509.load_pem_x509_certificate(made.cert_pem.bytes())
    pem = _signed(made, like, like.subject, now - timedelta(days=1), now + timedelta(seconds=seconds))
    return trustme.CA.from_pem(pem, made.private_key_pem.bytes())


def _signed(by: trustme.CA, like: x509.Certificate, subject: x509.Name, since: datetime, until: datetime) -> bytes:
    """A certificate with the key, the issuer and the extensions of another one."""
    key = serialization.load_pem_private_key(by.private_key_pem.bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    names = like.issuer, subject, like.public_key(), like.serial_number
    builder = x509.CertificateBuilder(*names, since, until, list(like.extensions))
    return builder.sign(key, hashes.SHA256()).public_bytes(PEM)
