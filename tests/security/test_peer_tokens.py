"""Links between brokers that log in with tokens of an identity provider. The brokers are real."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.cluster import peers
from krappy.cluster.inter_broker import InterBroker, PeerLogin
from krappy.cluster.peers import PeerLink
from krappy.core.security.oauthbearer import OAUTHBEARER
from krappy.errors import KrappyError
from krappy.settings.inter_broker import InterBrokerSettings, read_token
from tests.security.authority import Authority
from tests.security.identity import IdentityProvider
from tests.security.test_peer_links import ask, linked


@asynccontextmanager
async def linked_by_token(
    folder: Path, provider: IdentityProvider, file: Path, **settings: Any
) -> AsyncIterator[PeerLink]:
    authority = Authority(folder)
    read = partial(read_token, InterBrokerSettings(inter_broker_token_file=str(file)))
    way = InterBroker("SASL_SSL", lambda: authority.context(), PeerLogin(OAUTHBEARER, "", read))
    settings = {
        **provider.settings,
        "tls_certificate": authority.issue("127.0.0.1"),
        "sasl_enabled_mechanisms": "OAUTHBEARER",
        **settings,
    }
    async with linked(folder, way, "SASL_SSL", **settings) as link:
        yield link


def test_each_login_reads_the_file(provider: IdentityProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is renewed on the same connection, while requests wait, with the token that is in the file then."""
    monkeypatch.setattr(peers, "RENEWED", 0.3)  # early, so that no session ends if the machine stalls for some seconds
    file = tmp_path / "token"

    async def main() -> None:
        file.write_text(provider.token("broker", seconds=5) + "\n")
        async with linked_by_token(tmp_path, provider, file) as link:
            assert await ask(link) == 1
            connection = link._connection
            assert connection is not None
            file.write_text(provider.token("broker", seconds=60))
            renewed_at = connection.renewed_at
            while connection.renewed_at < renewed_at + 10:
                async with trio.open_nursery() as nursery:
                    for _ in range(5):
                        nursery.start_soon(ask, link)
                await trio.sleep(0.01)
            assert link._connection is connection

    trio.run(main)


def test_who_is_not_let_in_says_why_and_not_the_token(provider: IdentityProvider, tmp_path: Path) -> None:
    file = tmp_path / "token"
    expired, of_another = provider.token("broker", seconds=-60), provider.token("broker", aud="x")

    async def main() -> None:
        file.touch()
        async with linked_by_token(tmp_path, provider, file) as link:
            for held, why in (
                (expired, "it does not let this broker's token in"),
                (of_another, "it does not let this broker's token in"),
                ("two words", "this broker has no token: "),
                ("", "this broker has no token: "),
                (None, "inter_broker_token_file: .* can't be read"),
            ):
                if held is None:
                    file.unlink()
                else:
                    file.write_text(held)
                with pytest.raises(KrappyError, match=why) as error:
                    await ask(link)
                assert not held or held not in str(error.value)
            file.write_text(provider.token("broker"))
            assert await ask(link) == 1

    trio.run(main)


def test_a_broker_that_takes_no_tokens_is_told(provider: IdentityProvider, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(provider.token("broker"))

    async def main() -> None:
        async with linked_by_token(tmp_path, provider, file, sasl_enabled_mechanisms="SCRAM-SHA-512") as link:
            with pytest.raises(KrappyError, match="users log in by OAUTHBEARER, but by SCRAM-SHA-512"):
                await ask(link)

    trio.run(main)
