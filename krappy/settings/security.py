"""The settings of who may connect, and how: TLS, and users."""

from __future__ import annotations

import re
from dataclasses import dataclass

from krappy.settings.authorization import AuthorizationSettings
from krappy.settings.spec import number, setting
from krappy.settings.topic import JOBS, OFFSETS, SHARES, TRANSACTIONS

# Kafka's names of these settings.
SECURITY_NAMES = {
    "connection.failed.authentication.delay.ms": "failed_authentication_delay_ms",
    "connections.max.reauth.ms": "connections_max_reauth_ms",
    "listener.security.protocol.map": "listener_security_protocol_map",
    "sasl.enabled.mechanisms": "sasl_enabled_mechanisms",
    "ssl.client.auth": "ssl_client_auth",
    "ssl.keystore.location": "tls_certificate",
    "ssl.keystore.type": "ssl_keystore_type",
    "ssl.principal.mapping.rules": "ssl_principal_mapping_rules",
    "ssl.truststore.location": "tls_client_ca",
    "ssl.truststore.type": "ssl_truststore_type",
}


_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_audit_log(value: str) -> None:
    """Raises ValueError unless the audit log can be written there."""
    kind, colon, where = value.partition(":")
    topic = kind == "topic" and _TOPIC.fullmatch(where) is not None
    file = kind == "file" and where.startswith("/")
    if not (topic or file or (not colon and kind in ("auto", "stderr", "none"))):
        raise ValueError("stderr, file:/PATH, topic:NAME, none or auto is needed")
    if topic and where in (OFFSETS, TRANSACTIONS, SHARES, JOBS):
        raise ValueError(f"coordinators keep what is theirs in {where}; name another topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings(AuthorizationSettings):
    """The part of a broker's settings that concerns who may connect."""

    listener_security_protocol_map: str = setting(
        "",
        "NAME:PROTOCOL,NAME:PROTOCOL: the security protocol of Kafka listeners: PLAINTEXT, SSL, SASL_PLAINTEXT, "
        "SASL_SSL; a listener with such a name needs no entry",
    )
    tls_certificate: str = setting(
        "", "PEM file of the certificate that TLS shows, with its chain; may hold the key, too"
    )
    tls_key: str = setting(
        "", "PEM file of the certificate's private key, without a password; empty: in tls_certificate"
    )
    tls_client_ca: str = setting("", "PEM file of the authorities whose certificates clients may show")
    ssl_client_auth: str = setting(
        "none",
        "whether clients of Kafka's and the native protocol show a certificate over TLS",
        choices=("none", "requested", "required"),
    )
    ssl_principal_mapping_rules: str = setting(
        "DEFAULT",
        "rules that make a user's name of the subject of a client certificate: RULE:pattern/replacement/[LU],…,DEFAULT",
    )
    ssl_keystore_type: str = setting("PEM", "the format of tls_certificate; there is one", choices=("PEM",))
    ssl_truststore_type: str = setting("PEM", "the format of tls_client_ca; there is one", choices=("PEM",))
    sasl_enabled_mechanisms: str = setting(
        "SCRAM-SHA-512",
        "how users may log in at listeners of SASL_PLAINTEXT and SASL_SSL: SCRAM-SHA-512, SCRAM-SHA-256, PLAIN, "
        "OAUTHBEARER",
    )
    users_dir: str = setting(
        "",
        "folder of more users: the name of each file is a user's, and it holds the password",
    )
    connections_max_reauth_ms: int = number(
        -1,
        "ms after which a client has to log in again, on the same connection (KIP-368), at the latest when its token "
        "ends; 0: not before that; -1: an hour with a token, else 0",
        -1,
        2**53,
    )
    failed_authentication_delay_ms: int = number(100, "ms until a wrong password is answered", 0, 60_000)
    authentication_timeout_ms: int = number(10_000, "ms that a client may take to log in", 100, 600_000)
    max_connection_rate_per_ip: int = number(
        100,
        "most connections a second from one address (IPv6: from one /64); a burst may have a second's; this machine's "
        "own are not limited; 0: no limit",
        0,
        1_000_000,
    )
    audit_log: str = setting(
        "auto",
        "where it is written who logged in, was denied something or changed something: stderr (the broker's log), "
        "file:PATH, topic:NAME, none, or auto: stderr if a listener asks its clients who they are, or ACLs are asked",
    )
    audit_allowed: str = setting(
        "none",
        "whether the audit log also has what ACLs have allowed: none, writes (all but reads and descriptions) or all",
        choices=("none", "writes", "all"),
    )
    insecure_listeners: str = setting(
        "refuse",
        "what becomes of listeners that other machines reach and where nobody has to show who they are",
        choices=("refuse", "allow"),
    )

    def has_mechanism(self, *names: str) -> bool:
        """Whether users may log in by one of these."""
        return any(each.strip().upper() in names for each in self.sasl_enabled_mechanisms.split(","))

    @property
    def audit_sink(self) -> str:
        """As `audit_log`, without auto."""
        if self.audit_log != "auto":
            return self.audit_log
        return "stderr" if self.authenticates or self.authorizes else "none"

    @property
    def audit_topic(self) -> str:
        """The topic that the audit log is written to; empty: to none."""
        kind, _, where = self.audit_sink.partition(":")
        return where if kind == "topic" else ""
