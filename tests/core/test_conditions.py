"""What the header krappy-expect-offset may say."""

from __future__ import annotations

import pytest

from krappy.core.admission import admit
from krappy.core.conditions import HEADER, conditions
from krappy.errors import InvalidRecord
from krappy.records import batch
from krappy.settings.topic import TopicConfig
from krappy.types import ABSENT, Headers


def one(*headers: tuple[str, bytes | None], key: bytes | None = b"k", codec: int = 0) -> bytes:
    return batch.encode([b"first", key], [b"0", b"1"], timestamps=1, headers=[(), headers], codec=codec)


@pytest.mark.parametrize(
    ("value", "wanted"), [(b"absent", ABSENT), (b"0", 0), (b"007", 7), (b"9223372036854775807", 2**63 - 1)]
)
def test_it_names_an_offset_or_absence(value: bytes, wanted: int) -> None:
    assert conditions(batch.decode(one((HEADER, value)))) == [(1, wanted)]


@pytest.mark.parametrize(
    "value", [None, b"", b"-1", b"+1", b"1_0", b" 1", b"1.0", b"Absent", b"9223372036854775808", b"1" * 100, b"\xb2"]
)
def test_anything_else_is_refused(value: bytes | None) -> None:
    with pytest.raises(InvalidRecord) as refused:
        conditions(batch.decode(one((HEADER, value))))
    assert refused.value.index == 1


def test_it_is_refused_twice_and_without_a_key() -> None:
    with pytest.raises(InvalidRecord, match="more than once"):
        conditions(batch.decode(one((HEADER, b"1"), ("x", b""), (HEADER, b"1"))))
    with pytest.raises(InvalidRecord, match="no key") as refused:
        conditions(batch.decode(one((HEADER, b"1"), key=None)))
    assert refused.value.index == 1


@pytest.mark.parametrize("headers", [(), (("other", b"1"),), ((HEADER + "s", b"1"), ("x", HEADER.encode()))])
def test_other_headers_are_none_of_its_business(headers: Headers) -> None:
    assert not conditions(batch.decode(one(*headers)))


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("view", ["true", "false"])
def test_it_is_found_in_every_batch_when_it_is_looked_for(codec: int, view: str) -> None:
    config = TopicConfig.parse({"view.enable": view})
    data = one((HEADER, b"5"), codec=codec)
    assert list(admit(data, config, None, by_header=True).expect) == [(1, 5)]
    assert not admit(data, config, None).expect
    assert not admit(one(("x", HEADER.encode()), codec=codec), config, None, by_header=True).expect
