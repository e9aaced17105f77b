"""TLS: this broker's certificate, which is read again when its files change, and the authorities that it trusts.

Rules, kept here:

- When the files have changed, a new context is made of them, which takes the place of the old one if it is good. With a
  certificate without its key, or one that is not valid now, it is not. Then the old context stays, the log says so, and
  the files are looked at again until they are good.
- A peer that has come in by a client certificate stays only as long as its authority is in the file (`stands_on`): as
  soon as files without the authority are taken, the connection ends. Likewise for a link that this broker has opened to
  another one, and the authority of that broker's certificate; whoever needs the link opens it anew. Likewise for a
  connection to ZooKeeper.
- A peer that resumes an earlier session of TLS is not checked again by OpenSSL. Whether its certificate is still valid
  is looked at here (`certificate_of`). A session belongs to the context that it was made with, so none outlives a
  change of the files.
- TLS 1.2 and later; no compression, no renegotiation. Keys of session tickets are in memory only.
- Keys are agreed on the curve P-256, which every client has (RFC 8446, section 9.1). With another group of those that
  OpenSSL allows by itself (ffdhe8192), 1 KB from a stranger costs the event loop 0.2 s, and Python can name only one
  group. Over TLS 1.2 OpenSSL then takes client certificates with elliptic keys only if these are of this curve.
"""

from __future__ import annotations

import hashlib
import math
import os
import socket
import ssl
import stat
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import trio

from krappy.core.security.certificates import certificates, distinguished_name, period, validity
from krappy.core.security.name_rules import NameRules
from krappy.errors import ConfigError
from krappy.settings.security import SecuritySettings
from krappy.settings.server import ServerConfig
from krappy.settings.zookeeper import ZooKeeperSettings
from krappy.tls import TlsSocket, client_context, load_own, readable_authorities

LOOK_SECONDS = 10.0  # between two looks at the files
KEPT = 10_000  # client certificates whose chains end before them
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2: those of Mozilla's "intermediate"; 1.3 has no others
DEMANDS = {"none": "CERT_NONE", "requested": "CERT_OPTIONAL", "required": "CERT_REQUIRED"}  # names of ssl.VerifyMode
DER, PKCS12 = b"\x30", b"\x02\x01\x03"  # the first byte of either, and the version of PKCS12, which comes soon
OTHER_FORMATS = {b"\xfe\xed\xfe\xed": "JKS", b"\xce\xce\xce\xce": "JCEKS"}  # the first bytes of Java's key stores
CONVERT = "keytool -importkeystore -srckeystore FILE -destkeystore F.p12 -deststoretype PKCS12 && openssl pkcs12"
Report = Callable[..., None]
Authorities = frozenset[bytes]
NOBODY: Authorities = frozenset()
Signature = tuple[tuple[int, int, int] | None, ...]


class Contexts(NamedTuple):
    """`clients`: of Kafka's and the native protocol. `browsers`: of HTTP, whose clients show no certificate. `brokers`:
    with which this broker connects to others of its cluster. `begins`, `expires`: from when until when the certificate
    is valid, in seconds since the epoch. `authorities`, `for_brokers`: hashes of the authorities that vouch for
    clients, and for other brokers."""

    clients: ssl.SSLContext
    browsers: ssl.SSLContext
    brokers: ssl.SSLContext | None
    begins: float
    expires: float
    authorities: Authorities = NOBODY
    for_brokers: Authorities = NOBODY

    def not_now(self, now: float) -> str:
        """Why the certificate is not valid now; empty: it is."""
        if now < self.begins:
            return f"is not valid before {_shown(self.begins)}"
        return "" if now < self.expires else "has expired"


class WatchedFiles:
    """Files that are taken again once they have changed."""

    def __init__(self, *names: str) -> None:
        self._names = [name for name in names if name]
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether they have changed since the last look. To be called before they are read: so the next look sees what
        changes meanwhile."""
        before, self._seen = self._seen, self._look()
        return self._seen != before

    def _look(self) -> Signature:
        return tuple(_signature(file) for file in self._names)


class TlsLinks:
    """Connections that this broker has opened with TLS."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[ssl.SSLContext, tuple[Authorities, WeakSet[TlsSocket]]] = WeakKeyDictionary()

    def note(self, context: ssl.SSLContext, known: Authorities) -> None:
        """From now on the connections that are made with this context are among these. `known`: the authorities that it
        trusts."""
        TlsSocket.made[context] = WeakSet()
        self._made[context] = known, TlsSocket.made[context]

    def end_distrusted(self, trusted: Authorities) -> None:
        """Ends the connections to peers that stand on an authority that is not among these."""
        for known, links in list(self._made.values()):
            for link in () if known <= trusted else list(links):
                try:
                    stands_on = _stands_on(link, known)
                except ValueError:  # the handshake is not done: it may stand on any
                    stands_on = known
                if not stands_on <= trusted:
                    with suppress(OSError):
                        link.shutdown(socket.SHUT_RDWR)


class ServerTls:
    """Raises ConfigError when the files are not good."""

    def __init__(self, settings: ServerConfig, report: Report) -> None:
        self._settings = settings
        self._report = report
        ca = settings.tls_client_ca
        trusted = _trusted_file(ca) if settings.zookeeper_connect else ca
        self._files = WatchedFiles(settings.tls_certificate, settings.tls_key, trusted)
        self._known: WeakKeyDictionary[ssl.SSLContext, Authorities] = WeakKeyDictionary()  # of each context
        self._links = TlsLinks()  # to other brokers
        # By the hash of a client's certificate: when its chain ends, if that is before the certificate does.
        self._ends: OrderedDict[bytes, float] = OrderedDict()
        self.rules = _rules(settings)
        self.contexts = self._load()
        self._failed = ""  # why the files were not taken when they were read last
        if self.contexts.expires < time.time():
            report("tls_certificate_expired", file=settings.tls_certificate)

    def for_clients(self) -> ssl.SSLContext:
        return self.contexts.clients

    def for_brokers(self) -> ssl.SSLContext:
        assert self.contexts.brokers is not None, "this broker is in no cluster"
        return self.contexts.brokers

    def for_browsers(self) -> ssl.SSLContext:
        return self.contexts.browsers

    def stands_on(self, sock: TlsSocket) -> Authorities:
        """The authorities that vouch for a peer's certificate; if several may, all of them. NOBODY: it has shown none.
        Raises ValueError during the handshake."""
        return _stands_on(sock, self._known.get(sock.context, NOBODY))  # the context may be of earlier files

    def certificate_of(self, sock: TlsSocket) -> PeerCertificate | None:
        """The certificate of a client that has shown one. It expires with the first of those that vouch for it, at the
        latest."""
        shown = PeerCertificate.of(sock)
        if shown is None:
            return None
        own, proof = _hash(sock.getpeercert(binary=True)), sock.proof()
        if proof:
            self._ends.pop(own, None)
            if (end := _end_of(proof)) < shown.expires:
                self._ends[own] = end
                if len(self._ends) > KEPT:
                    self._ends.popitem(last=False)
        return shown._replace(expires=min(shown.expires, self._ends.get(own, shown.expires)))

    def trusts(self, authorities: Authorities) -> bool:
        """Whether all of these are still in the file."""
        return authorities <= self.contexts.authorities

    async def watch(self) -> None:
        """Takes files that have changed. Until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            await trio.to_thread.run_sync(self.look)
            self._links.end_distrusted(self.contexts.for_brokers)

    def look(self) -> None:
        """Takes the files if they have changed since the last look. Files that were not good may be good now, though a
        look sees no change: who may read them may have changed, or their time have come."""
        changed = self._files.changed()
        if not changed and not self._failed:
            return
        was, self._failed = "" if changed else self._failed, ""
        try:
            contexts = self._load()
            if why := contexts.not_now(time.time()):
                raise ConfigError(f"tls_certificate: the certificate in {self._settings.tls_certificate} {why}")
        except ConfigError as error:
            self._failed = error.text
            if self._failed != was:
                self._report("tls_reload_failed", error=error.text)
            return
        self.contexts = contexts
        self._report("tls_reloaded", expires=_shown(contexts.expires))

    def _load(self) -> Contexts:
        settings = self._settings
        if not settings.tls_certificate:
            raise ConfigError(
                "a listener with TLS needs a certificate: set tls_certificate (ssl.keystore.location), and tls_key if "
                "the key is in a file of its own",
                setting="tls_certificate",
            )
        if settings.ssl_client_auth != "none" and not settings.tls_client_ca:
            raise ConfigError(
                f"ssl_client_auth = {settings.ssl_client_auth} needs tls_client_ca (ssl.truststore.location): the "
                "authorities whose certificates clients may show",
                setting="tls_client_ca",
            )
        begins, expires = _checked(settings.tls_certificate, settings.tls_key)
        clients, browsers = self._context(settings.ssl_client_auth), self._context("none")
        authorities = NOBODY if settings.ssl_client_auth == "none" else _authorities(settings.tls_client_ca, clients)
        self._known[clients] = authorities
        if not settings.zookeeper_connect:
            return Contexts(clients, browsers, None, begins, expires, authorities)
        brokers = self._outgoing()
        trusted = _trusted_file(settings.tls_client_ca)
        for_brokers = _authorities(trusted, brokers) if trusted else NOBODY
        self._links.note(brokers, for_brokers)
        return Contexts(clients, browsers, brokers, begins, expires, authorities, for_brokers)

    def _outgoing(self) -> ssl.SSLContext:
        """The context for links to other brokers. It trusts the authorities of clients' certificates, which are those
        of brokers, too; else the system's."""
        settings = self._settings
        try:
            context = client_context(
                settings.tls_client_ca or None, (settings.tls_certificate, settings.tls_key or settings.tls_certificate)
            )
        except (OSError, ValueError) as error:
            text = f"tls_certificate, tls_client_ca: they can't be used for links to other brokers: {reason(error)}"
            raise ConfigError(text, setting="tls_client_ca") from None
        context.check_hostname = bool(settings.ssl_endpoint_identification_algorithm)
        return context

    def _context(self, client_auth: str) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        context.set_ecdh_curve("prime256v1")
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        # The peer, or `_stop_reading`, may close one direction. That must not count as an error, after which nothing
        # could be written. Nobody can cut a message short in this way: every message has its length.
        context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
        try:
            load_own(context, settings.tls_certificate, settings.tls_key or None)
        except (OSError, ValueError) as error:
            key = settings.tls_key or settings.tls_certificate
            text = f"tls_certificate, tls_key: {settings.tls_certificate} and {key} are no certificate and its key"
            raise ConfigError(f"{text}: {reason(error)}", setting="tls_certificate") from None
        context.verify_mode = ssl.VerifyMode[DEMANDS[client_auth]]
        if context.verify_mode is not ssl.CERT_NONE:
            try:
                with readable_authorities():
                    context.load_verify_locations(settings.tls_client_ca)
            except (OSError, ValueError) as error:
                text = f"tls_client_ca: {settings.tls_client_ca}: {reason(error)}"
                raise ConfigError(text, setting="tls_client_ca") from None
        return context


class PeerCertificate(NamedTuple):
    """What a client's certificate tells. `subject`: as RFC 2253 writes it; `begins`, `expires`: from when until when
    it is valid, in seconds since the epoch."""

    subject: str
    begins: float
    expires: float

    @classmethod
    def of(cls, sock: TlsSocket) -> PeerCertificate | None:
        """The certificate of a client that has shown one."""
        found = sock.getpeercert()
        if not found:
            return None
        begins, expires = (ssl.cert_time_to_seconds(str(found[each])) for each in ("notBefore", "notAfter"))
        return cls(distinguished_name(found["subject"]), begins, expires)


class ZooKeeperTls:
    """Gives a context for each connection to ZooKeeper, for which the files are read: that raises OSError (ssl.SSLError
    is one)."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._settings = settings
        self._trusted = _trusted_file(settings.zookeeper_ssl_truststore_location)
        self._file = WatchedFiles(self._trusted)
        self._links = TlsLinks()
        self._unread = False  # whether the file was not good when it had changed last

    def __call__(self) -> ssl.SSLContext:
        settings = self._settings
        own, given = settings.zookeeper_ssl_keystore_location, settings.zookeeper_ssl_truststore_location
        context = client_context(given or None, own or None)
        context.check_hostname = bool(settings.zookeeper_ssl_endpoint_identification_algorithm)
        if self._trusted:
            self._links.note(context, _authorities(self._trusted, context))
        return context

    async def look(self) -> None:
        """Ends the connections that stand on authorities that have left the file since the last look. A file that is
        not good ends none."""
        trusted = await trio.to_thread.run_sync(self._changed)
        if trusted is not None:
            self._links.end_distrusted(trusted)

    def _changed(self) -> Authorities | None:
        """The authorities of a file that has changed since the last look, or was not good then."""
        if not self._file.changed() and not self._unread:
            return None
        self._unread = True
        try:
            trusted = _authorities(self._trusted, client_context(self._trusted))
        except (OSError, ValueError):
            return None
        self._unread = False
        return trusted


def to_zookeeper(settings: ZooKeeperSettings) -> dict[str, Any]:
    """Parameters of a client of ZooKeeper."""
    if not settings.zookeeper_ssl_client_enable:
        return {}
    tls = ZooKeeperTls(settings)
    return {"tls": tls, "look": tls.look}


def _stands_on(sock: TlsSocket, known: Authorities) -> Authorities:
    if not known or not sock.getpeercert(binary=True):
        return NOBODY
    return known.intersection(map(_hash, sock.proof())) or known


def _end_of(chain: list[bytes]) -> float:
    """When the first of these certificates expires."""
    end = math.inf
    for each in chain:
        with suppress(ValueError):
            end = min(end, period(each)[1])
    return end


def _rules(settings: SecuritySettings) -> NameRules:
    try:
        return NameRules(settings.ssl_principal_mapping_rules)
    except ValueError as error:
        text = f"ssl_principal_mapping_rules: {error}"
        raise ConfigError(text, setting="ssl_principal_mapping_rules") from None


def _checked(certificate: str, key: str) -> tuple[float, float]:
    """From when until when the certificate is valid. Raises ConfigError when the files can't be used, or others may
    read the key."""
    try:
        with open(certificate, "rb") as file:
            pem = file.read()
        mode = os.stat(key or certificate).st_mode
    except OSError as error:
        text = f"tls_certificate, tls_key: {error.filename} can't be read: {error.strerror}"
        raise ConfigError(text, setting="tls_certificate") from None
    if stat.S_IMODE(mode) & stat.S_IROTH:
        raise ConfigError(f"everybody may read the private key: chmod o-r {key or certificate}", setting="tls_key")
    kind = OTHER_FORMATS.get(pem[:4]) or ("PKCS12" if PKCS12 in pem[:9] else "")
    if not kind and pem[:1] == DER:
        text = f"{certificate} is DER, and PEM is needed: openssl x509 -inform DER -in {certificate} -out F.pem"
        raise ConfigError(f"tls_certificate: {text}", setting="tls_certificate")
    if kind:
        raise ConfigError(
            f"tls_certificate: {certificate} is {kind}, and PEM is needed: {CONVERT} -in F.p12 -nodes -out F.pem",
            setting="tls_certificate",
        )
    try:
        return validity(pem)
    except ValueError as error:
        raise ConfigError(f"tls_certificate: {certificate}: {error}", setting="tls_certificate") from None


def _trusted_file(given: str) -> str:
    """The file with the trusted authorities: the given one, else the system's. Empty: the system has them only in a
    folder, and nobody is told when one of them goes."""
    return given or ssl.get_default_verify_paths().cafile or ""


def _authorities(file: str, context: ssl.SSLContext) -> Authorities:
    """The authorities that a context made of the file trusts. The context does not tell all of them: it leaves out
    certificates that may sign no others, but may vouch for themselves. So the file is read as well."""
    told = context.get_ca_certs(binary_form=True)
    try:
        with open(file, "rb") as opened:
            return frozenset(map(_hash, [*told, *certificates(opened.read())]))
    except OSError:
        return frozenset(map(_hash, told))


def _hash(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()


def _signature(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not good: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _shown(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
