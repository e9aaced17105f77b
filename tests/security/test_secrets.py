"""The repr of an object that holds a secret does not show it, because a repr may get into logs and tracebacks."""

from __future__ import annotations

from typing import Any

import pytest

from krappy.console.login import Login
from krappy.core.security.oauthbearer import BearerToken
from krappy.core.security.sasl import PasswordGiven
from krappy.core.security.scram import ScramCredential
from krappy.wire import messages as m

SECRET = "battery-staple"
HELD = [
    m.Authenticate("PLAIN", f"\0ada\0{SECRET}".encode()),
    m.AlterUser("ada", {"SCRAM-SHA-512": SECRET}),
    Login(user="ada", password=SECRET, token=SECRET, code=SECRET, state=SECRET),
    BearerToken(SECRET),
    PasswordGiven("ada", SECRET),
    ScramCredential("SCRAM-SHA-512", b"salt", 4096, SECRET.encode(), SECRET.encode()),
]


@pytest.mark.parametrize("held", HELD, ids=lambda held: type(held).__name__)
def test_a_repr_shows_no_secret(held: Any) -> None:
    assert SECRET not in repr(held)
