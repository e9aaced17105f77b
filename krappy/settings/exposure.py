"""Listeners that would let everybody in: a broker with one does not start, unless it is told to
(`insecure_listeners = "allow"`)."""

from __future__ import annotations

from collections.abc import Sequence

from krappy.errors import ConfigError
from krappy.settings.listeners import HTTP, NATIVE, ListenerSetting, on_loopback, parse_address
from krappy.settings.security import SecuritySettings

SETTINGS = {NATIVE: "listen_native", HTTP: "listen_http"}  # of the listeners that are not Kafka's


def check(listeners: Sequence[ListenerSetting], settings: SecuritySettings) -> None:
    """Raises ConfigError for a listener that other machines reach and where nobody has to show who they are, or where
    passwords can be read on their way. HTTP without users is not among them: without a console_token it answers only
    probes there."""
    if settings.insecure_listeners == "refuse":
        for each in listeners:
            if not on_loopback(parse_address(each.address)[0]):
                _check(each, settings)


def _check(listener: ListenerSetting, settings: SecuritySettings) -> None:
    setting, address = SETTINGS.get(listener.name, "listen_kafka"), listener.address
    known = listener.has_users or (listener.has_tls and settings.ssl_client_auth == "required")
    if not known and listener.name != HTTP:
        raise ConfigError(
            f"{setting}: other machines reach {address}, and everybody there could read and write everything. "
            f"Have users log in ({setting} = SASL_SSL://{address}, with tls_certificate; `krappy user add` makes the "
            "first), or clients show certificates (SSL://, ssl_client_auth = required); or say insecure_listeners = "
            "allow, if the network itself keeps others out",
            setting=setting,
        )
    secret = settings.has_mechanism("PLAIN", "OAUTHBEARER")
    if listener.has_users and not listener.has_tls and (secret or listener.name == HTTP):
        raise ConfigError(
            f"{setting}: passwords or tokens would be sent to {address} without TLS: make it SASL_SSL, with "
            "tls_certificate; for other protocols than HTTP taking PLAIN and OAUTHBEARER out of "
            "sasl_enabled_mechanisms will do, too; or say insecure_listeners = allow",
            setting=setting,
        )
