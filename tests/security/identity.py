"""An identity provider for tests: discovery, a JWK set, authorization with PKCE, tokens. It signs with real keys.

It shares no code with what is tested. It follows RFC 6749, RFC 7636 and OpenID Connect Core.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

AUDIENCE = "krappy"
CLIENT, CLIENT_SECRET = "console", "the-secret-of-the-client"


class ProviderKey(NamedTuple):
    id: str
    algorithm: str
    private: Any

    @property
    def public(self) -> dict[str, Any]:
        made = jwt.get_algorithm_by_name(self.algorithm).to_jwk(self.private.public_key(), as_dict=True)
        return {**made, "kid": self.id, "alg": self.algorithm, "use": "sig"}


def new_key(algorithm: str = "RS256", id: str | None = None) -> ProviderKey:
    if algorithm.startswith("ES"):
        private: Any = ec.generate_private_key({"ES256": ec.SECP256R1, "ES384": ec.SECP384R1}[algorithm]())
    elif algorithm == "EdDSA":
        private = ed25519.Ed25519PrivateKey.generate()
    else:
        private = rsa.generate_private_key(65537, 2048)
    return ProviderKey(id or secrets.token_hex(8), algorithm, private)


class Granted(NamedTuple):
    """What an authorization code stands for."""

    asked: Mapping[str, str]
    user: str


class IdentityProvider:
    """`asked`: how often each path was requested. `visitor`: the user who logs in at `/authorize`. `groups`: the groups
    of every user. `audience`: the audience of access tokens. `certificate`: a PEM file of a certificate and its key,
    for https; None: http."""

    audience = AUDIENCE

    def __init__(self, certificate: str | None = None) -> None:
        self.certificate = certificate
        self.keys = [new_key()]
        self.asked: Counter[str] = Counter()
        self.visitor, self.groups = "ada", ["ops"]
        self.seconds = 3600.0  # how long tokens last
        self.answers: dict[str, bytes] = {}  # by path: an answer that a test sets in place of the provider's own
        self.hanging = threading.Event()  # once it is set, /hang ends
        self._codes: dict[str, Granted] = {}
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.start()

    @property
    def issuer(self) -> str:
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self._port}"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a broker that accepts its tokens."""
        return {"oauth_issuer": self.issuer, "oauth_audience": AUDIENCE, "oauth_jwks_url": f"{self.issuer}/keys"}

    # --- tokens

    def token(
        self, user: str = "ada", *, seconds: float | None = None, key: ProviderKey | None = None, **claims: Any
    ) -> str:
        """A signed token. Claims that are None are left out."""
        now = time.time()
        said = {
            "iss": self.issuer,
            "aud": self.audience,
            "sub": user,
            "iat": int(now),
            "exp": now + (self.seconds if seconds is None else seconds),
            **claims,
        }
        return self.sign({name: value for name, value in said.items() if value is not None}, key)

    def sign(self, claims: Mapping[str, Any], key: ProviderKey | None = None) -> str:
        key = key or self.keys[0]
        return jwt.encode(dict(claims), key.private, key.algorithm, {"kid": key.id})

    def rotate(self, algorithm: str = "RS256") -> None:
        self.keys = [new_key(algorithm)]

    # --- HTTP

    def start(self) -> None:
        provider = self

        class Handler(_Handler):
            its = provider

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        if self.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self.hanging.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, path: str) -> Any:
        """The answer to a GET, as a JSON value. None: there is nothing at this path."""
        if path == "/keys":
            return {"keys": [each.public for each in self.keys]}
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": self.issuer,
                "jwks_uri": f"{self.issuer}/keys",
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
            }
        return None

    def authorize(self, asked: Mapping[str, str]) -> str:
        """Lets the visitor log in; returns the URL to which the browser is sent back."""
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT
        assert "openid" in asked["scope"].split()
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = Granted(asked, self.visitor)
        return f"{asked['redirect_uri']}?" + urlencode({"code": code, "state": asked["state"], "iss": self.issuer})

    def grant(self, form: Mapping[str, str], user: str, secret: str) -> Any:
        """The answer of the token endpoint. None: the request is refused."""
        if form.get("grant_type") == "client_credentials":
            return self._tokens(self.token(user, groups=self.groups)) if secret else None
        granted = self._codes.pop(form.get("code", ""), None)
        if granted is None or (user, secret) != (CLIENT, CLIENT_SECRET):
            return None
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != granted.asked["code_challenge"]:
            return None
        if form.get("redirect_uri") != granted.asked["redirect_uri"]:
            return None
        id_token = self.token(granted.user, aud=CLIENT, nonce=granted.asked["nonce"], groups=self.groups)
        return {**self._tokens(self.token(granted.user, groups=self.groups)), "id_token": id_token}

    def _tokens(self, token: str) -> dict[str, Any]:
        return {"access_token": token, "token_type": "Bearer", "expires_in": int(self.seconds), "scope": "krappy"}


class _Handler(BaseHTTPRequestHandler):
    its: IdentityProvider

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.its.asked[parts.path] += 1
        if parts.path == "/hang":
            self.its.hanging.wait(60)
        elif parts.path == "/moved":
            self.send_response(302)
            self.send_header("Location", f"{self.its.issuer}/keys")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif parts.path == "/authorize":
            where = self.its.authorize({name: values[0] for name, values in parse_qs(parts.query).items()})
            self.send_response(302)
            self.send_header("Location", where)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._say(self.its.answer(parts.path), 404, parts.path)

    def do_POST(self) -> None:
        self.its.asked[self.path] += 1
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        pair = base64.b64decode(given).decode() if kind == "Basic" else ""
        user, _, secret = pair.partition(":")
        found = self.its.grant(form, user or form.get("client_id", ""), secret or form.get("client_secret", ""))
        self._say(found, 400, self.path)

    def _say(self, value: Any, otherwise: int, path: str) -> None:
        body = self.its.answers.get(path) or json.dumps({"error": "invalid_grant"} if value is None else value).encode()
        self.send_response(otherwise if value is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def identity_provider(certificate: str | None = None) -> Iterator[IdentityProvider]:
    made = IdentityProvider(certificate)
    try:
        yield made
    finally:
        made.stop()
