"""The regular expressions that choose topics (KIP-848) or transactional ids (KIP-1152): RE2's, as in Kafka, matched by
RE2 itself.

So matching takes time linear in the name, whatever the pattern. The whole name must match. The syntax is
https://github.com/google/re2/wiki/Syntax; other patterns (look-around, back-references) are refused.
"""

from __future__ import annotations

from krappy.core.kafka.faults import Fault, Refused

LONGEST = 4096  # characters of a pattern; librdkafka joins several into one
MEMORY = 256 << 10  # bytes that a compiled pattern may take: it also bounds how long compiling takes
MAX_KNOWN = 20_000  # names whose result is cached


class NameRegex:
    def __init__(self, pattern: str) -> None:
        """Raises Refused: INVALID_REGULAR_EXPRESSION."""
        import re2  # here, since few requests have a pattern, and clients that import `core` do without re2

        self.pattern = pattern
        self._known: dict[str, bool] = {}
        options = re2.Options()
        options.log_errors, options.max_mem = False, MEMORY
        if len(pattern) > LONGEST:
            raise _invalid(pattern, f"it has more than {LONGEST} characters")
        try:
            self._regex = re2.compile(pattern, options)
        except re2.error as error:
            why = error.args[0] if error.args else "it is not one"
            raise _invalid(pattern, why.decode(errors="replace") if isinstance(why, bytes) else str(why)) from error

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
