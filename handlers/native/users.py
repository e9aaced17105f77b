"""Authenticate, AlterUser, Users."""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.core.security.scram import HASHES, LEAST, MOST, ScramCredential
from krappy.errors import IllegalLogin, InvalidRequest
from krappy.handlers.registry import serves
from krappy.ports import SessionPort
from krappy.wire import messages


@serves(messages.Authenticate, needs=needs.NOTHING)
async def authenticate(session: SessionPort, request: messages.Authenticate) -> messages.Authenticated:
    login = session.login
    if login is None:
        raise IllegalLogin("this listener has no users: connect to it without a user")
    if request.mechanism:
        login.begin(request.mechanism)
    data, done = await login.step(request.data)
    return messages.Authenticated(data, done, login.lifetime_ms if done else 0)


@serves(messages.AlterUser, needs=needs.cluster(Op.ALTER))
async def alter_user(session: SessionPort, request: messages.AlterUser) -> messages.UserAltered:
    changes = {mechanism: _credential(mechanism, text) for mechanism, text in request.credentials.items()}
    if not changes:
        raise InvalidRequest("no credential to set or to remove")
    await session.access.cluster(Op.ALTER).users.alter(request.user, changes)
    return messages.UserAltered()


def _credential(mechanism: str, text: str | None) -> ScramCredential | None:
    if mechanism not in HASHES:
        raise InvalidRequest(f"'{mechanism:.40}' is not a SCRAM mechanism; there are {', '.join(HASHES)}")
    if text is None:
        return None
    try:
        found = ScramCredential.read(mechanism, str(text))
    except ValueError:
        raise InvalidRequest(f"the credential for {mechanism} can't be read") from None
    if not LEAST <= found.iterations <= MOST:
        raise InvalidRequest(f"from {LEAST} to {MOST} iterations are allowed")
    return found


@serves(messages.Users, needs=needs.cluster(Op.DESCRIBE))
def users(session: SessionPort, request: messages.Users) -> messages.UsersFound:
    found = session.access.cluster(Op.DESCRIBE).users.all
    rows = [
        {"user": name, "credentials": {each: credential.iterations for each, credential in credentials.items()}}
        for name, credentials in sorted(found.items())
    ]
    return messages.UsersFound(rows)
