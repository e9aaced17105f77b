from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.authority import Authority
from tests.security.guarded import Guarded, guarded_broker
from tests.security.identity import IdentityProvider, identity_provider


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """One broker for all tests of a module. Each test uses names of its own."""
    faults = []

    def report(event: str, **facts: object) -> None:
        if event == "internal_error":
            faults.append(facts)

    with guarded_broker(tmp_path_factory.mktemp("guarded") / "data", report=report) as found:
        yield found
    assert not faults


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as found:
        yield found


@pytest.fixture(scope="module")
def reported() -> list[str]:
    """What a module's broker reports."""
    return []
