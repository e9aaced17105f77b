"""What logins cost while there are very many users: a login pays for one credential, whether there is one or not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from trio.testing import trio_test

from krappy.broker import users
from krappy.core.security.scram import ScramCredential
from tests.broker.engine import running

MANY = 50
MECHANISM = "SCRAM-SHA-512"


def credential(password: str, salt: int = 24) -> ScramCredential:
    return ScramCredential.of(MECHANISM, password, bytes(salt), 4096)


@trio_test
async def test_a_login_does_not_go_through_all_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, gone_through = list[Mapping[str, str]](), list[int]()
    parse, all_of = users._credentials, users.Users.all

    def parsed(texts: Mapping[str, str]) -> Any:
        read.append(texts)
        return parse(texts)

    def every(self: users.Users) -> Any:
        gone_through.append(1)
        return all_of.__get__(self)

    async with running(tmp_path) as broker:
        for number in range(MANY):
            await broker.users.alter(f"u{number}", {MECHANISM: credential("a")})
        monkeypatch.setattr(users, "_credentials", parsed)
        monkeypatch.setattr(users.Users, "all", property(every))
        before = broker.users.credential("u7", MECHANISM)
        for number in range(MANY):
            assert len(broker.users.credential(f"nobody-{number}", MECHANISM).salt) == 24
        assert len(gone_through) <= 1
        read.clear()
        await broker.users.alter("u3", {MECHANISM: credential("b", salt=20)})
        assert broker.users.credential("u3", MECHANISM) == credential("b", salt=20)
        assert broker.users.credential("u7", MECHANISM) == before
        assert len(read) <= 2  # once to tell what was before, and once what is
        shapes = {len(broker.users.credential(f"nobody-{number}", MECHANISM).salt) for number in range(MANY)}
        assert shapes == {20, 24}
        assert len(gone_through) <= 2
