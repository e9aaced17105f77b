"""Which broker a process of Spark connects to, and as whom: the options `address`, `security.protocol`, `sasl.…` and
`ssl.…`. They have the names of librdkafka or of Kafka's client for Java, with or without `kafka.` before them.

A password or a token is in no text that people see: not in the repr of what holds it, nor in an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from krappy.blocking import Client, connect
from krappy.clients.security import SecurityOptions
from krappy.errors import ConfigError

PREFIX = "kafka."
SECURITY = (
    *("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "sasl.password.file"),
    *("sasl.jaas.config", "sasl.token", "sasl.token.file", "ssl.ca.location"),
)
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", OAUTHBEARER)
_JAAS = re.compile(r"""\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True)
class BrokerAt:
    """What is None is taken from the environment of the process that connects, as `krappy.connect` does."""

    address: str | None = None
    tls: bool | None = None
    ca: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    mechanism: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None

    def connect(self) -> Client:
        """Raises ConfigError; its `open` raises ConnectionLost, AuthenticationFailed."""
        security = SecurityOptions(tls=self.tls, ca=self.ca, user=self.user, mechanism=self.mechanism)
        if self.user is not None:
            security["password"] = Path(self.password_file) if self.password_file else self.password
        if self.token is not None or self.token_file is not None:
            security["token"] = Path(self.token_file) if self.token_file else self.token
        return connect(self.address, **security)


def plain_names(texts: Mapping[str, str]) -> dict[str, str]:
    """The options (names in lower case). Those that are read here are without `kafka.`. Raises ConfigError."""
    found: dict[str, str] = {}
    for name, text in texts.items():
        plain = name.removeprefix(PREFIX)
        if plain not in SECURITY:
            plain = name
        if found.setdefault(plain, text) != text:
            raise ConfigError(f"options {plain} and {PREFIX}{plain} differ: give one of them", option=plain)
    return found


def broker_at(texts: Mapping[str, str]) -> BrokerAt:
    """The broker that options name; they are as `plain_names` gives them. Raises ConfigError."""
    protocol = _choice(texts, "security.protocol", PROTOCOLS)
    user, password = texts.get("sasl.username"), texts.get("sasl.password")
    jaas, file, ca = texts.get("sasl.jaas.config"), texts.get("sasl.password.file"), texts.get("ssl.ca.location")
    if jaas is not None:
        if user is not None or password is not None or file is not None:
            raise ConfigError(
                "option sasl.jaas.config has user and password: leave out sasl.username and sasl.password"
            )
        user, password = _of_jaas(jaas)
    token, token_file = texts.get("sasl.token"), texts.get("sasl.token.file")
    mechanism = _choice(texts, "sasl.mechanism", MECHANISMS)
    has_token = token is not None or token_file is not None
    if has_token and (user is not None or password is not None or file is not None):
        raise ConfigError(
            "options sasl.token and sasl.token.file take the place of a user and a password: leave these out"
        )
    if token is not None and token_file is not None:
        raise ConfigError("options sasl.token and sasl.token.file: give one of them")
    if has_token and mechanism not in (None, OAUTHBEARER):
        raise ConfigError(f"option sasl.mechanism={mechanism}: with a token it is {OAUTHBEARER}")
    if mechanism == OAUTHBEARER and user is not None:
        raise ConfigError(f"option sasl.mechanism={OAUTHBEARER}: give sasl.token or sasl.token.file")
    if password is not None and file is not None:
        raise ConfigError("options sasl.password and sasl.password.file: give one of them")
    if (user is None) != (password is None and file is None):
        raise ConfigError("options sasl.username and sasl.password (or sasl.password.file): give both")
    if protocol is not None:
        if user is not None and not protocol.startswith("SASL_"):
            raise ConfigError(f"option security.protocol={protocol}: with a user it is SASL_SSL, or SASL_PLAINTEXT")
        if has_token and protocol != "SASL_SSL":
            raise ConfigError(f"option security.protocol={protocol}: with a token it is SASL_SSL")
        if ca is not None and not protocol.endswith("SSL"):
            raise ConfigError(f"option security.protocol={protocol}: with ssl.ca.location it is SSL or SASL_SSL")
    tls = None if protocol is None else protocol.endswith("SSL")
    return BrokerAt(texts.get("address") or None, tls, ca, user, password, file, mechanism, token, token_file)


def _choice(texts: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str | None:
    text = texts.get(name)
    if text is None:
        return None
    if text.upper() not in choices:
        raise ConfigError(f"option {name}={text!r:.80}: give {' or '.join(choices)}", option=name)
    return text.upper()


def _of_jaas(text: str) -> tuple[str, str]:
    """User and password of a JAAS configuration of Kafka's ScramLoginModule or PlainLoginModule."""
    found = {name: _ESCAPED.sub(r"\1", double or single) for name, double, single in _JAAS.findall(text)}
    if not found.get("username") or not found.get("password"):
        raise ConfigError(
            "option sasl.jaas.config: user and password are read from it, as in ScramLoginModule required "
            'username="…" password="…";',
            option="sasl.jaas.config",
        )
    return found["username"], found["password"]
