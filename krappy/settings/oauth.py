"""The settings of the identity provider whose tokens users log in with (OAUTHBEARER)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from krappy.errors import ConfigError
from krappy.settings.listeners import on_loopback
from krappy.settings.spec import number, setting

# Kafka's names of these settings (KIP-768, KIP-1139).
OAUTH_NAMES = {
    "sasl.oauthbearer.clock.skew.seconds": "oauth_clock_skew_seconds",
    "sasl.oauthbearer.expected.audience": "oauth_audience",
    "sasl.oauthbearer.expected.issuer": "oauth_issuer",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": "oauth_jwks_refresh_ms",
    "sasl.oauthbearer.jwks.endpoint.url": "oauth_jwks_url",
    "sasl.oauthbearer.sub.claim.name": "oauth_subject_claim",
}
_URL = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?(?:/[!-~]*)?")


@dataclass(frozen=True, kw_only=True)  # no slots: only one base of ServerConfig may have them
class OauthSettings:
    """The part of a broker's settings that concerns the identity provider."""

    oauth_issuer: str = setting("", "the identity provider, as its tokens name it in `iss`: a URL")
    oauth_audience: str = setting("", "whom a token has to be for (`aud`); with commas: any of these")
    oauth_jwks_url: str = setting(
        "",
        "where the provider's public keys are (a JWK set): https://…, or file:///…; empty: where the issuer's "
        "discovery document (OpenID Connect) says",
    )
    oauth_jwks_refresh_ms: int = number(
        3_600_000, "ms between two readings of the keys; a token of an unknown key has them read sooner", 1000, 2**53
    )
    oauth_subject_claim: str = setting("sub", "the claim of a token that has the user's name")
    oauth_groups_claim: str = setting(
        "groups", "the claim that has the user's groups, which ACLs name as Group:NAME; dots lead into claims in claims"
    )
    oauth_clock_skew_seconds: int = number(30, "seconds by which the provider's clock and this one may differ", 0, 3600)
    oauth_ca: str = setting(
        "", "PEM file of the authorities that vouch for the provider's certificate; empty: the system's"
    )

    console_oidc_client_id: str = setting(
        "", "the console's client id at the provider; if set, browsers log in there (OpenID Connect, with PKCE)"
    )
    console_oidc_secret_file: str = setting(
        "", "file that holds the console's secret at the provider; empty: it has none (a public client)"
    )
    console_oidc_redirect: str = setting(
        "", "URL of the console's first page, as browsers and the provider know it: https://HOST:PORT/"
    )
    console_oidc_scopes: str = setting("openid profile email", "what the console asks the provider for")

    @property
    def oauth_audiences(self) -> list[str]:
        return [each for each in map(str.strip, self.oauth_audience.split(",")) if each]


def check(settings: OauthSettings, *, tokens: bool, console_has_users: bool) -> None:
    """Raises ConfigError when tokens could not be checked. `tokens`: users may log in with tokens (`takes_tokens`)."""
    if settings.console_oidc_client_id:
        if not console_has_users:
            raise ConfigError(
                "console_oidc_client_id: nobody logs in at listen_http: make it SASL_SSL://HOST:PORT",
                setting="console_oidc_client_id",
            )
        check_url("console_oidc_redirect", settings.console_oidc_redirect)
    needed = {"oauth_issuer": settings.oauth_issuer} if tokens or settings.console_oidc_client_id else {}
    if tokens:
        needed["oauth_audience"] = ",".join(settings.oauth_audiences)
    for name, value in needed.items():
        if not value:
            raise ConfigError(
                f"{name}: it has to be set where users log in with tokens (OAUTHBEARER among the "
                "sasl_enabled_mechanisms, or console_oidc_client_id): without it, tokens that were made for another "
                "service would be taken",
                setting=name,
            )
    if needed:
        name = "oauth_jwks_url" if settings.oauth_jwks_url else "oauth_issuer"
        check_url(name, getattr(settings, name))
    if settings.console_oidc_client_id:
        check_url("oauth_issuer", settings.oauth_issuer)


def check_url(name: str, url: str) -> None:
    """Raises ConfigError for a URL whose answers others could change on their way, as with http. `name`: the
    setting's."""
    found = _URL.fullmatch(url)
    if name == "oauth_jwks_url" and url.startswith("file:///"):
        return
    if found is None or (found[1] == "http" and not on_loopback(found[2].strip("[]"))):
        raise ConfigError(f"{name}: '{url:.200}' is not https://HOST/…", setting=name)
