from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.guarded import Guarded, guarded_broker


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
