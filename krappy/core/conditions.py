"""Conditional writes over Kafka's protocol: a record's header names the condition for its key.

    krappy-expect-offset: 42        the key's latest event stands at offset 42
    krappy-expect-offset: absent    the key has no value: it never had one, or was deleted

The header stays with the record, since a producer's batch is stored as it came.
"""

from __future__ import annotations

from collections.abc import Sequence

from krappy.errors import InvalidRecord
from krappy.records.batch import Columns
from krappy.types import ABSENT, Headers

HEADER = "krappy-expect-offset"
MENTION = HEADER.encode()
_ABSENT = b"absent"
_MOST_DIGITS = 19  # of an offset
_MAX_OFFSET = 2**63 - 1

Conditions = Sequence[tuple[int, int]]


def conditions(columns: Columns) -> Conditions:
    """(index of the record, the expected offset of its key's latest event, or ABSENT) of each record with a condition.

    Costs nothing if no record has headers. Raises InvalidRecord, with `index`.
    """
    if columns.headers is None:
        return ()
    found: list[tuple[int, int]] = []
    for index, headers in enumerate(columns.headers):
        for name, _ in headers:
            if name == HEADER:
                found.append((index, _expected(index, headers)))
                break
    for index, _ in found:
        if columns.keys[index] is None:
            raise InvalidRecord(f"record {index} has the header {HEADER}, and no key", index=index)
    return found


def _expected(index: int, headers: Headers) -> int:
    values = [value for name, value in headers if name == HEADER]
    value = values[0]
    if len(values) == 1 and value is not None:
        if value == _ABSENT:
            return ABSENT
        if value.isdigit() and len(value) <= _MOST_DIGITS and int(value) <= _MAX_OFFSET:
            return int(value)
    what = "comes more than once" if len(values) > 1 else f"is {value!r:.60}"
    raise InvalidRecord(f"record {index}: the header {HEADER} {what}: one offset is needed, or 'absent'", index=index)
