"""Which user a client's certificate stands for: `ssl.principal.mapping.rules` (KIP-371).

The rules are separated by commas; the first that matches the whole name of the subject (RFC 2253) counts:

    RULE:^CN=([^,]+),OU=pay.*$/$1@pay/L     the pattern, what takes its place ($1: its first group), L or U: in lower or
                                            upper case
    DEFAULT                                 the name as it is

Patterns are RE2's (krappy/core/patterns.py): a name is matched on the event loop, and whoever has it signed may choose
it. Patterns with several `.*?`, as Kafka's documents have them, take other engines minutes for some names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from krappy.core.patterns import compiled

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\Z)")
_GROUP = re.compile(r"\$(\d)")
LONGEST = 1000  # characters of a name
_CASES: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}


class NameRules:
    """`text`: the rules. Raises ValueError."""

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[Any, str, Callable[[str], str]] | None] = []
        at = 0
        while at < len(text) or not self._rules:
            found = _RULE.match(text, at)
            if found is None:
                raise ValueError(f"'{text[at:]:.80}' is not DEFAULT or RULE:pattern/replacement/[LU]")
            self._rules.append(None if found[1] else (_compiled(found[2], found[3]), found[3], _CASES[found[4]]))
            at = found.end()

    def name_of(self, subject: str) -> str | None:
        """The user's name; None when no rule matches."""
        if len(subject) > LONGEST:
            return None
        for rule in self._rules:
            if rule is None:
                return subject
            pattern, replacement, cased = rule
            found = pattern.fullmatch(subject)
            if found is not None:
                return cased(_GROUP.sub(lambda group, found=found: found[int(group[1])] or "", replacement))  # type: ignore[misc]
        return None


def _compiled(pattern: str, replacement: str) -> Any:
    try:
        found = compiled(pattern)
    except ValueError as error:
        raise ValueError(f"'{pattern:.80}' is no pattern: {error}") from None
    if any(int(number) > found.groups for number in _GROUP.findall(replacement)):
        raise ValueError(f"'{replacement:.80}' names a group that '{pattern:.80}' does not have")
    return found
