"""SCRAM (RFC 5802, and RFC 7677 for SHA-256): both halves, without IO or randomness. Kafka has SHA-512, too.

Rules, kept here:

- What is stored of a password is a salted hash, with which nobody can log in: `ScramCredential`.
- The server does not tell whether there is such a user: an unknown one gets a credential that no password fits.
- No channel binding, and no extensions: whoever asks for one is refused. As in Kafka, passwords are plain UTF-8
  (no SASLprep), and a user's name may have an authorization identity only if that is the same.
- A client's last message names the nonce of the server's first. librdkafka before 2.6.1 puts its own part before it
  once more. This server takes that, as Kafka did before 4.0: the client's proof still covers all of the server's part.
- A client takes no fewer than `LEAST` iterations and no more than `MOST`: fewer would help one who listens, more would
  keep it busy for hours.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from string import ascii_lowercase, digits
from typing import NamedTuple

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
LEAST, MOST = 4096, 1_000_000  # iterations
ITERATIONS = 8192  # of a credential that is made here: 3 ms
SALT = 24  # bytes of its salt
# What Kafka's tools take as a salt: the text of a random number of 130 bits, to the base 36.
KAFKAS_BITS, KAFKAS_DIGITS, KAFKAS_SALT = 130, digits + ascii_lowercase, re.compile(rb"[1-9a-z][0-9a-z]{15,25}")
LONGEST = 4096  # bytes of a message


class ScramRefused(Exception):
    """A malformed message, or a wrong proof. The text is not for the peer."""


class ScramCredential(NamedTuple):
    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> ScramCredential:
        """The credential of a password. It takes some ms."""
        return cls.of_salted(mechanism, salted(mechanism, password, salt, iterations), salt, iterations)

    @classmethod
    def of_salted(cls, mechanism: str, password: bytes, salt: bytes, iterations: int) -> ScramCredential:
        """The credential of a password that was salted already, as Kafka's tools send it (KIP-554)."""
        stored = _hash(mechanism, _hmac(mechanism, password, b"Client Key"))
        return cls(mechanism, salt, iterations, stored, _hmac(mechanism, password, b"Server Key"))

    def fits(self, password: str) -> bool:
        """Whether it is the credential of this password. It takes some ms."""
        made = self.of(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(made.stored_key, self.stored_key)

    def text(self) -> str:
        """As Kafka stores it: "salt=…,stored_key=…,server_key=…,iterations=8192"."""
        parts = {"salt": self.salt, "stored_key": self.stored_key, "server_key": self.server_key}
        return ",".join(f"{name}={_base64(value)}" for name, value in parts.items()) + f",iterations={self.iterations}"

    @classmethod
    def read(cls, mechanism: str, text: str) -> ScramCredential:
        """What `text` gave. Raises ValueError."""
        found = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            salt, stored, server = (
                b64decode(found[name], validate=True) for name in ("salt", "stored_key", "server_key")
            )
            return cls(mechanism, salt, int(found["iterations"]), stored, server)
        except KeyError as error:
            raise ValueError(f"a credential without {error}") from None

    def __repr__(self) -> str:
        return f"<ScramCredential {self.mechanism}, {self.iterations} iterations>"


class ScramServer:
    """The server's half. `find`: gives the credential of a user's name; it may be one that no password fits. `nonce`:
    printable, without commas, and never used before."""

    def __init__(self, mechanism: str, find: Callable[[str], ScramCredential], nonce: str) -> None:
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce
        self._said: tuple[str, str, str] | None = None  # GS2 header, client-first-bare, server-first
        self._credential: ScramCredential
        self._answers: tuple[str, str] = "", ""  # the nonces that the client may prove
        self.user = ""
        self.proved = False

    def step(self, data: bytes) -> bytes:
        """The answer to the client's next message. Raises ScramRefused."""
        message = _text(data)
        if self.proved:
            raise ScramRefused("a message behind the last one")
        if self._said is None:
            return self._first(message)
        return self._final(message, *self._said)

    def _first(self, message: str) -> bytes:
        binding, _, rest = message.partition(",")
        identity, _, bare = rest.partition(",")
        parts = bare.split(",")
        if binding not in ("n", "y") or len(parts) < 2:
            raise ScramRefused("no first message, or one that asks for channel binding")
        self.user, nonce = _name(_value("n", parts[0])), _value("r", parts[1])
        if not self.user or not nonce or (identity and _name(_value("a", identity)) != self.user):
            raise ScramRefused("no user, no nonce, or another authorization identity")
        if any(part for part in parts[2:]):  # tokenauth=true would be a delegation token (KIP-48)
            raise ScramRefused("extensions are not served")
        self._credential = self._find(self.user)
        whole = nonce + self._nonce
        self._answers = whole, nonce + whole
        told = f"r={whole},s={_base64(self._credential.salt)},i={self._credential.iterations}"
        self._said = f"{binding},{identity},", bare, told
        return told.encode()

    def _final(self, message: str, header: str, first: str, told: str) -> bytes:
        without, _, proof = message.rpartition(",")
        parts = without.split(",")
        bound = len(parts) >= 2 and _value("c", parts[0]) == _base64(header.encode())
        if not bound or _value("r", parts[1]) not in self._answers:
            raise ScramRefused("no final message, or that of another exchange")
        credential, signed = self._credential, f"{first},{told},{without}".encode()
        signature = _hmac(self._mechanism, credential.stored_key, signed)
        given = _bytes(_value("p", proof))
        if len(given) != len(signature) or not hmac.compare_digest(
            _hash(self._mechanism, _xor(given, signature)), credential.stored_key
        ):
            raise ScramRefused("a wrong proof")
        if self._find(self.user) != credential:  # a client may take its time
            raise ScramRefused("the credential has changed since the first message")
        self.proved = True
        return b"v=" + b64encode(_hmac(self._mechanism, credential.server_key, signed))


class ScramClient:
    """The client's half. `nonce`: as the server's. `done`: the server has proved that it knows the credential."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._expected: bytes | None = None
        self.done = False

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def step(self, data: bytes) -> bytes:
        """The answer to the server's next message; empty to the last one. Raises ScramRefused."""
        message = _text(data)
        if self._expected is not None:
            if not hmac.compare_digest(_bytes(_value("v", message)), self._expected):
                raise ScramRefused("the server does not know the password")
            self.done = True
            return b""
        parts = message.split(",")
        if len(parts) < 3:
            raise ScramRefused("no first message of a server")
        nonce, salt, iterations = _value("r", parts[0]), _bytes(_value("s", parts[1])), _value("i", parts[2])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramRefused("the server's nonce is not one")
        if not (iterations.isascii() and iterations.isdigit() and LEAST <= int(iterations[:9]) <= MOST):
            raise ScramRefused(f"the server asks for {iterations[:9]} iterations")
        key = salted(self._mechanism, self._password, salt, int(iterations[:9]))
        without = f"c=biws,r={nonce}"
        signed = f"{self._bare},{message},{without}".encode()
        own = _hmac(self._mechanism, key, b"Client Key")
        proof = _xor(own, _hmac(self._mechanism, _hash(self._mechanism, own), signed))
        self._expected = _hmac(self._mechanism, _hmac(self._mechanism, key, b"Server Key"), signed)
        return f"{without},p={_base64(proof)}".encode()


def salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """SaltedPassword of RFC 5802, section 3."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(errors="surrogateescape"), salt, iterations)


def kafkas_salt(random: bytes) -> bytes:
    """A salt as Kafka's tools make it, of random bytes."""
    number, text = int.from_bytes(random) % (1 << KAFKAS_BITS), ""
    while number:
        number, digit = divmod(number, len(KAFKAS_DIGITS))
        text = KAFKAS_DIGITS[digit] + text
    return text.encode()


def _hmac(mechanism: str, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, HASHES[mechanism])


def _hash(mechanism: str, data: bytes) -> bytes:
    return hashlib.new(HASHES[mechanism], data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ScramRefused("no base64") from None


def _text(data: bytes) -> str:
    if len(data) > LONGEST:
        raise ScramRefused("too long a message")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ScramRefused("no UTF-8") from None


def _value(name: str, part: str) -> str:
    """The value of "name=value"."""
    if not part.startswith(f"{name}="):
        raise ScramRefused(f"'{name}=' is missing")
    return part[len(name) + 1 :]


def _name(text: str) -> str:
    """A user's name, in which =2C and =3D stand for , and =."""
    pieces = text.split("=")
    if any(piece[:2] not in ("2C", "3D") for piece in pieces[1:]):
        raise ScramRefused("a name with a = that stands for nothing")
    return pieces[0] + "".join({"2C": ",", "3D": "="}[piece[:2]] + piece[2:] for piece in pieces[1:])
