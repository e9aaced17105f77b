"""Who a peer is: how far its connection is with logging in, and what it may do until then.

Rules, kept here:

- A connection to a listener with users is locked until its peer has logged in, which must happen within
  `authentication_timeout_ms`. A locked connection takes only small frames, and only the requests of a login.
- A wrong password and an unknown user are answered alike: the same text, after `failed_authentication_delay_ms`. Then
  the connection ends.
- A session may have an end (`connections_max_reauth_ms`), and one by a token ends when the token does, at the latest:
  after as long as the token had left, or when the wall clock, which may have been set since, says that it is over.
  The connection is then locked again, until its peer has logged in anew (KIP-368). It must be the same user, whose
  groups may have changed. A waiting read of Kafka's protocol is answered then, without events (`proved_for`), so that a
  login behind it can begin; other waits go on. Requests of the native protocol may last for ever (watches): there the
  peer has `authentication_timeout_ms`, as at first.
- A certificate that is not valid now lets nobody in. A connection ends when the certificate of its peer expires, or one
  that vouches for it, whoever has logged in on the connection. TLS does not check that when a peer resumes an earlier
  session of TLS.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from krappy.core.security.name_rules import NameRules
from krappy.core.security.oauthbearer import OAUTHBEARER, REFUSAL, BearerToken, TokenRefused
from krappy.core.security.sasl import Challenge, PasswordGiven, Proved, SaslExchange, SaslRefused, read_mechanisms
from krappy.errors import AuthenticationFailed, BrokerError, ConfigError, IllegalLogin, UnsupportedMechanism
from krappy.hosts import host_of, network
from krappy.ports.audit import AuditPort
from krappy.ports.tokens import TokensPort
from krappy.ports.users import Took, UsersPort, untold
from krappy.server.session import Identified
from krappy.server.strangers import StrangerSteps
from krappy.server.tls import NOBODY
from krappy.settings.security import SecuritySettings
from krappy.tls import TlsSocket

if TYPE_CHECKING:
    from krappy.server.server import Server

LOCKED_FRAME = 8 << 10  # bytes of a request before its peer has logged in
LOCKED_TOKEN = 64 << 10  # where users log in with tokens
LONGEST_NAME = 255  # characters of a user's name, or a mechanism's, that are noted
MAX_STEPS = 8  # messages of one attempt
HOUR_MS = 3_600_000  # after which a user with a token must log in again, unless the settings say something else
LONGEST_MS = 2**53  # of a session
DISTRUSTED = "the authority of the certificate is trusted no more"
EXPIRED = "the certificate has expired"
Report = Callable[..., None]


class Authenticator:
    """Shared by all listeners. `tokens` None: nobody logs in with a token. Raises ConfigError."""

    def __init__(
        self,
        users: Callable[[], UsersPort],
        audit: Callable[[], AuditPort],
        settings: SecuritySettings,
        report: Report,
        tokens: TokensPort | None = None,
    ) -> None:
        try:
            self.mechanisms: Sequence[str] = read_mechanisms(settings.sasl_enabled_mechanisms)
        except ValueError as error:
            raise ConfigError(f"sasl_enabled_mechanisms: {error}", setting="sasl_enabled_mechanisms") from None
        self.longest = LOCKED_TOKEN if OAUTHBEARER in self.mechanisms else LOCKED_FRAME
        self._users = users
        self._audit = audit
        self._report = report
        self._tokens = tokens
        self._delay = settings.failed_authentication_delay_ms / 1000
        self.timeout = settings.authentication_timeout_ms / 1000
        self._longest_ms = settings.connections_max_reauth_ms

    def lifetime_ms(self, mechanism: str, proved: Proved) -> int:
        """After how many ms the user has to log in again; 0: never."""
        longest = self._longest_ms
        if longest < 0:
            longest = HOUR_MS if mechanism == OAUTHBEARER else 0
        if proved.expires is None:
            return longest
        return max(1, min(int(1000 * (proved.expires - time.time())), longest or LONGEST_MS))

    def exchange(self, mechanism: str, client: str) -> SaslExchange:
        """Raises UnsupportedMechanism."""
        if mechanism not in self.mechanisms:
            self.note(mechanism[:LONGEST_NAME], "", "a mechanism that is not enabled here", client)
            raise UnsupportedMechanism(f"the mechanisms here are {', '.join(self.mechanisms)}")
        return SaslExchange(mechanism, self._users().credential, secrets.token_urlsafe(24))

    async def step(
        self, exchange: SaslExchange, data: bytes, client: str, steps: StrangerSteps, took: Took = untold
    ) -> Challenge | Proved:
        """What the peer is sent, or who it has proved to be. Raises AuthenticationFailed, Overloaded."""
        try:
            found = await steps.make(host_of(client), partial(exchange.step, data), took)
        except SaslRefused as error:
            if not exchange.refused:  # else it was noted already
                self.note(exchange.mechanism, exchange.user, str(error), client)
            raise await self._failure(exchange.mechanism) from None
        if isinstance(found, PasswordGiven):
            await self.check(found.user, found.password, client, exchange.mechanism, took)
            return Proved(found.user)
        if isinstance(found, BearerToken):
            try:
                return await self._bearer(found, host_of(client))
            except TokenRefused as error:
                self.note(exchange.mechanism, "", str(error), client)
                return exchange.refuse()
        return found

    async def _bearer(self, given: BearerToken, host: str) -> Proved:
        """Raises TokenRefused."""
        assert self._tokens is not None
        said = await self._tokens.verify(given.token, host)
        if not given.is_of(said.user):
            raise TokenRefused("another authorization identity")
        return Proved(said.user, groups=said.groups, expires=said.expires)

    async def check(self, user: str, password: str, client: str, mechanism: str, took: Took = untold) -> None:
        """Raises AuthenticationFailed if it is not the user's password; Overloaded."""
        if not await self._users().check(user, password, host_of(client), took):
            self.note(mechanism, user, "a wrong password", client)
            raise await self._failure(mechanism)

    def note(self, mechanism: str, user: str, why: str, client: str) -> None:
        """Notes that somebody did not prove to be `user`, or may not log in as that user here."""
        self._report("authentication_failed", client=client, mechanism=mechanism, user=user[:LONGEST_NAME], reason=why)
        self._audit().failed(mechanism, host_of(client), user, why)

    async def _failure(self, mechanism: str) -> AuthenticationFailed:
        await trio.sleep(self._delay)
        if mechanism == OAUTHBEARER:  # as Kafka
            return AuthenticationFailed(REFUSAL.decode())
        return AuthenticationFailed(
            f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
        )


class ServerLogin:
    """How far one connection is with logging in (`LoginPort`). `proved` is called with the proof, the mechanism, and
    the ms after which the peer has to log in again; `ended` is called when the connection has to end."""

    def __init__(
        self,
        shared: Authenticator,
        client: str,
        proved: Callable[[Proved, str, int], None],
        ended: Callable[[], None],
        steps: StrangerSteps,
        took: Took = untold,
    ) -> None:
        """`steps`: does the work that its messages cause. `took`: is told how long that takes, and how long checks of
        passwords take."""
        self._strangers = steps
        self._took = took
        self._shared = shared
        self._client = client
        self._proved = proved
        self._ended = ended
        self._exchange: SaslExchange | None = None
        self._steps = 0
        self._stepping = False
        self.user: str | None = None
        self.lifetime_ms = 0

    @property
    def mechanisms(self) -> Sequence[str]:
        return self._shared.mechanisms

    def begin(self, mechanism: str) -> None:
        try:
            if self._exchange is not None:
                raise IllegalLogin("a mechanism was named already")
            self._exchange = self._shared.exchange(mechanism, self._client)
        except BrokerError:
            self._ended()
            raise
        self._steps = 0

    async def step(self, data: bytes) -> tuple[bytes, bool]:
        exchange = self._exchange
        if exchange is None or self._stepping or self._steps == MAX_STEPS:
            self._ended()
            raise IllegalLogin("a mechanism has to be named first, and each answer to be waited for")
        self._steps += 1
        self._stepping = True
        try:
            found = await self._shared.step(exchange, data, self._client, self._strangers, self._took)
            if isinstance(found, Proved):
                self._exchange = None
                if self.user not in (None, found.user):
                    why = "a connection stays with the user who has logged in first"
                    self._shared.note(exchange.mechanism, found.user, why, self._client)
                    raise AuthenticationFailed(why)
                self.user = found.user
                self.lifetime_ms = self._shared.lifetime_ms(exchange.mechanism, found)
                self._proved(found, exchange.mechanism, self.lifetime_ms)
        except BrokerError:
            self._ended()
            raise
        finally:
            self._stepping = False
        return found.data, isinstance(found, Proved)


class Admission(NamedTuple):
    """How peers come in by a listener. `authenticator` None: nobody logs in. `rules`: which user a certificate stands
    for; None: certificates are not asked for."""

    listener: str
    authenticator: Authenticator | None = None
    rules: NameRules | None = None


class Entrance:
    """The part of a connection that knows who its peer is. `_locked`: it takes only the requests of a login."""

    client: str
    _server: Server
    _admission: Admission
    _peer: Identified
    session: Identified
    _locked = False
    _until = math.inf  # when it is locked, or ends, on trio's clock
    _expires = math.inf  # when its peer's certificate expires, in seconds since the epoch
    _token_ends = math.inf  # when the token expires with which its peer has logged in; likewise
    _barred = False  # no further request begins, whatever has come
    _endless = False  # its requests may last for ever
    _stands_on = NOBODY  # the authorities that vouch for its peer's certificate

    @property
    def proved_for(self) -> float:
        """See PacedPort."""
        left = min(self._until - trio.current_time(), self._token_ends - time.time())
        return 0.0 if self._locked else max(0.0, left)

    @property
    def whose(self) -> str:
        principal = self._peer.principal
        return network(principal.host) if self._locked else principal.owner

    def _stop_reading(self) -> None:
        raise NotImplementedError

    def _end_waiting(self, why: str) -> None:
        raise NotImplementedError

    def _leave(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def _checked(self, seconds: float) -> None:
        """Called when the peer's password was checked, or a step of its handshake made, which took so long."""

    def _part(self) -> None:
        """Called once the connection has ended. The connection and its session refer to each other: else both would
        stay until the garbage collector runs. The more of them there are, the longer that takes, while everybody waits.
        """
        del self.session, self._peer

    def _enter(self, admission: Admission, session: Identified) -> None:
        """Called once the session is there."""
        self._admission, self._peer = admission, session
        shared = admission.authenticator
        if shared is not None:
            self._locked = True
            self._until = trio.current_time() + shared.timeout
            self._peer.login = ServerLogin(
                shared, self.client, self._proved, self.finish, self._server.logins, self._checked
            )

    def _limit(self) -> int:
        """The size of the largest frame that it takes now."""
        shared = self._admission.authenticator
        return shared.longest if self._locked and shared is not None else self._server.max_frame

    def _proved(self, proved: Proved, mechanism: str, lifetime_ms: int) -> None:
        self._locked = False
        self._until = trio.current_time() + lifetime_ms / 1000 if lifetime_ms else math.inf
        self._token_ends = math.inf if proved.expires is None else proved.expires
        self._peer.principal = replace(
            self._peer.principal,
            name=proved.user,
            groups=proved.groups,
            mechanism=mechanism,
            expires_ms=None if proved.expires is None else int(proved.expires * 1000),
        )
        self._server.broker.audit.authenticated(self._peer.principal)

    def _take_certificate(self, sock: TlsSocket) -> bool:
        """Lets the peer be who its certificate says, unless it has to log in. False: it may not come in."""
        tls = self._server.tls
        if tls is not None:
            self._stands_on = tls.stands_on(sock)
            if not tls.trusts(self._stands_on):  # one was taken away during the handshake
                self._refused(DISTRUSTED)
                return False
        if tls is None or (shown := tls.certificate_of(sock)) is None:
            return True
        now = time.time()
        if not shown.begins <= now < shown.expires:
            self._refused(EXPIRED if now >= shown.expires else "the certificate is not yet valid")
            return False
        self._expires = shown.expires
        if self._admission.rules is None or self._locked:
            return True
        name = self._admission.rules.name_of(shown.subject)
        if not name:
            why = "no rule of ssl_principal_mapping_rules is for" if name is None else "there is no name of a user in"
            self._refused(f"{why} '{shown.subject:.300}'")
            return False
        self._peer.principal = replace(
            self._peer.principal, name=name, mechanism="SSL", expires_ms=int(shown.expires * 1000)
        )
        self._server.broker.audit.authenticated(self._peer.principal)
        return True

    def _look_at_certificate(self) -> None:
        """Ends the connection if the peer's certificate has expired, or its authority is not trusted any more. The wall
        clock may have been set since the connection began: it may have been far behind."""
        tls = self._server.tls
        if self._expires <= time.time():
            self._lose(EXPIRED)
        elif tls is not None and not tls.trusts(self._stands_on):
            self._lose(DISTRUSTED)

    def _lose(self, why: str) -> None:
        """Ends the connection, also while the peer waits for answers or goes on to send: nothing proves any more who it
        is."""
        self._until = self._expires = self._token_ends = math.inf
        self._stands_on = NOBODY
        self._tell_ended(why)
        self._barred = True
        self._end_waiting(f"the connection ends: {why}")
        self._leave()

    def _refused(self, why: str) -> None:
        """Notes that the peer's certificate does not let it in, or that it has shown none."""
        self._server.report("authentication_failed", client=self.client, mechanism="SSL", user="", reason=why)
        self._server.broker.audit.failed("SSL", self._peer.principal.host, "", why)

    def _time_is_over(self) -> None:
        """Called when `_until` or `_token_ends` has come."""
        self._token_ends = math.inf
        login, shared = self._peer.login, self._admission.authenticator
        if shared is not None and login is not None and login.user is not None and not self._locked:
            self._locked = True
            # A connection that is not endless may be idle as long as others.
            self._until = trio.current_time() + shared.timeout if self._endless else math.inf
        else:
            self._lose("nobody has logged in in time")

    def _tell_ended(self, why: str) -> None:
        """Notes the end in the audit log, if the peer had proved who it is."""
        login = self._peer.login
        if login is None or login.user is not None:
            self._server.broker.audit.ended(self._peer.principal, why)
