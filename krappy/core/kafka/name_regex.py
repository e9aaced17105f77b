"""The regular expressions that choose topics (KIP-848) or transactional ids (KIP-1152): RE2's, as in Kafka, matched by
RE2 itself (krappy/core/patterns.py). The whole name must match."""

from __future__ import annotations

from krappy.core.kafka.faults import Fault, Refused
from krappy.core.patterns import compiled

LONGEST = 4096  # characters of a pattern; librdkafka joins several into one
MAX_KNOWN = 20_000  # names whose result is cached


class NameRegex:
    def __init__(self, pattern: str) -> None:
        """Raises Refused: INVALID_REGULAR_EXPRESSION."""
        self.pattern = pattern
        self._known: dict[str, bool] = {}
        if len(pattern) > LONGEST:
            raise _invalid(pattern, f"it has more than {LONGEST} characters")
        try:
            self._regex = compiled(pattern, groups=False)
        except ValueError as error:
            raise _invalid(pattern, str(error)) from error

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[name] = self._regex.fullmatch(name) is not None
        return known


def _invalid(pattern: str, why: str) -> Refused:
    return Refused(Fault.INVALID_REGULAR_EXPRESSION, f"the regular expression '{pattern:.100}' can't be used: {why}")
