"""The public keys of an identity provider (JWK set, RFC 7517), which tell a token that it has signed from others.

Rules, kept here:

- The type of a key, and its own `alg`, say for which algorithms it is used. None of these has a shared secret, for
  which a public key could be taken. RSA keys have at least `LEAST_BITS`.
- The keys are read at the start, each `oauth_jwks_refresh_ms`, and when a token names an unknown key; the last at most
  once in `PAUSE` seconds, however many such tokens come. Such tokens wait for the next reading, which many share: for
  Java's clients a refusal is final. Tokens of known keys wait for nothing.
- When the keys can't be read, those that were read last stay, and the reading is tried again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import trio
from jwt import PyJWK

from krappy.hosts import network
from krappy.ports.tokens import ProviderTrouble
from krappy.server.provider import as_object
from krappy.waiting import Signal, wait_any

LEAST_BITS = 2048
MOST = 100  # keys
PAUSE = 5.0  # seconds between two readings for unknown keys
MOST_WAITING = 1_000  # tokens of unknown keys that wait for a reading; more are refused at once
MOST_OF_ONE = 100  # such tokens of one address, for anybody can make them; never more than are left for all others
FIRST_RETRY, LAST_RETRY = 1.0, 60.0  # seconds after a reading that has failed
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ALGORITHMS: dict[tuple[str, str], tuple[str, ...]] = {  # by type and curve
    ("RSA", ""): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}


class TokenKey(NamedTuple):
    """`id`: its kid, if it has one. `public`: as the library has it."""

    id: str | None
    algorithms: Sequence[str]
    public: Any


def read_keys(data: bytes) -> list[TokenKey]:
    """The keys of a JWK set that verify tokens. Raises ProviderTrouble when there is none."""
    listed = as_object(data).get("keys")
    found = [key for each in (listed if isinstance(listed, list) else [])[:MOST] if (key := _read(each)) is not None]
    if not found:
        raise ProviderTrouble(
            "it has no key that signatures can be verified with: RSA (2048 bits or more), EC or Ed25519"
        )
    return found


def _read(given: Any) -> TokenKey | None:
    if not isinstance(given, dict) or given.get("use", "sig") != "sig":
        return None
    curve = "" if given.get("kty") == "RSA" else str(given.get("crv"))
    of_type = ALGORITHMS.get((str(given.get("kty")), curve), ())
    algorithms = [each for each in of_type if given.get("alg", each) == each]
    if not algorithms:
        return None
    public = {name: value for name, value in given.items() if name not in ("d", "p", "q", "dp", "dq", "qi", "oth")}
    try:
        key = PyJWK(public, algorithms[0]).key
    except Exception:  # of whatever kind: one bad key must not stop the others
        return None
    if curve == "" and key.key_size < LEAST_BITS:
        return None
    id = given.get("kid")
    return TokenKey(id if isinstance(id, str) else None, algorithms, key)


class TokenKeys:
    """`read`: gives a JWK set, or raises ProviderTrouble. `refresh`: seconds."""

    def __init__(self, read: Callable[[], Awaitable[bytes]], refresh: float, report: Callable[..., None]) -> None:
        self._read = read
        self._refresh = refresh
        self._report = report
        self._keys: Sequence[TokenKey] = ()
        self._waiting: Counter[str] = Counter()  # for a reading, by address
        self._asked = Signal()  # somebody began to wait
        self._asked_at = -math.inf  # when
        self._ended = Signal()  # a reading did
        self._began = -math.inf  # when that reading began
        self._read_at = -math.inf  # when they were read last

    @property
    def age(self) -> float:
        """Seconds since they were read; infinite: they never were."""
        return trio.current_time() - self._read_at

    async def find(self, id: str | None, algorithm: str, host: str = "") -> TokenKey | None:
        """The key of this id; without one, the only key for the algorithm. `host`: the address of who asks. A key that
        is not there may be newer than what was read: waits until `follow` has read again."""
        found, came, address = self._find(id, algorithm), trio.current_time(), network(host)
        if found is not None or self._waiting[address] >= min(MOST_OF_ONE, MOST_WAITING - self._waiting.total()):
            return found
        self._waiting[address] += 1
        try:
            self._asked_at = came
            self._asked.fire()
            await wait_any([self._ended], lambda: self._began >= came or self._find(id, algorithm) is not None)
        finally:
            self._waiting -= Counter((address,))
        return self._find(id, algorithm)

    def _find(self, id: str | None, algorithm: str) -> TokenKey | None:
        found = [each for each in self._keys if algorithm in each.algorithms and id in (None, each.id)]
        return found[0] if found and (id is not None or len(found) == 1) else None

    async def follow(self) -> None:
        """Reads them now, and again and again. Until cancelled."""
        pause = FIRST_RETRY
        while True:
            began = trio.current_time()
            done = await self._read_again()
            self._began, ended = began, trio.current_time()
            self._ended.fire()
            wait = self._refresh if done else pause
            pause = FIRST_RETRY if done else min(2 * pause, LAST_RETRY)
            if await wait_any([self._asked], lambda: self._asked_at > self._began, wait):
                await trio.sleep_until(ended + min(wait, PAUSE))

    async def _read_again(self) -> bool:
        """Reads the keys. Returns whether that succeeded."""
        try:
            self._keys = read_keys(await self._read())
        except ProviderTrouble as error:
            self._report("oauth_keys_not_read", error=str(error), kept=len(self._keys))
            return False
        self._read_at = trio.current_time()
        return True
