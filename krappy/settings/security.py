"""The settings of who may connect, and how: TLS."""

from __future__ import annotations

from dataclasses import dataclass

from krappy.settings.spec import setting

# Kafka's names of them.
SECURITY_NAMES = {
    "listener.security.protocol.map": "listener_security_protocol_map",
    "ssl.client.auth": "ssl_client_auth",
    "ssl.keystore.location": "tls_certificate",
    "ssl.keystore.type": "ssl_keystore_type",
    "ssl.principal.mapping.rules": "ssl_principal_mapping_rules",
    "ssl.truststore.location": "tls_client_ca",
    "ssl.truststore.type": "ssl_truststore_type",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
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
