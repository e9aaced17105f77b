"""Error codes: Kafka's numbers, and the code of each of our errors."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from krappy import errors
from krappy.errors import BY_NAME, KrappyError
from krappy.wire.kafka import Code, code_for


def test_names_and_numbers_are_kafkas() -> None:
    theirs = {code.name.upper(): code.value for code in ErrorCode}
    assert {code.name: code.value for code in Code}.items() <= theirs.items()


@pytest.mark.parametrize("error", BY_NAME.values(), ids=BY_NAME)
def test_an_error_that_has_kafkas_code_keeps_it(error: type[KrappyError]) -> None:
    code = code_for(error())
    assert isinstance(code, Code)
    assert code is not Code.NONE
    if error.code < 1000:
        assert code == error.code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UnknownTopic(), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (errors.UnknownPartition(), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (errors.OffsetMismatch(current=7), Code.INVALID_RECORD),
        (errors.ShuttingDown(), Code.NOT_LEADER_OR_FOLLOWER),
        (errors.CorruptBatch("a bad checksum"), Code.CORRUPT_MESSAGE),
        (errors.StorageError(), Code.KAFKA_STORAGE_ERROR),
        (errors.ProtocolError(), Code.INVALID_REQUEST),
        (errors.BrokerError(), Code.UNKNOWN_SERVER_ERROR),
        (errors.KrappyError(), Code.UNKNOWN_SERVER_ERROR),
    ],
)
def test_codes(error: KrappyError, code: Code) -> None:
    assert code_for(error) is code


def test_a_code_that_nobody_knows() -> None:
    class Odd(KrappyError):
        code, name = 999, "ODD"

    assert code_for(Odd()) is Code.UNKNOWN_SERVER_ERROR
