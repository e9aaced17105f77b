"""A broker for each test file of the clients, a topic for each test, a proxy that loses connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.proxy import Proxy, proxy
from tests.served import BROKERS, serving


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.address


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of the test's own."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return name[:200]


@pytest.fixture
def lossy(address: str) -> Iterator[Proxy]:
    if BROKERS > 1:
        pytest.skip("clients learn several addresses, and pass a proxy by; tests/clients/several.py has one for each")
    with proxy(address) as found:
        yield found
