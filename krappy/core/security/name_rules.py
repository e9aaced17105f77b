r"""Which user a client's certificate stands for: `ssl.principal.mapping.rules` (KIP-371).

The rules are separated by commas; the first that matches the whole name of the subject (RFC 2253) counts:

    RULE:^CN=([^,]+),OU=pay.*$/$1@pay/L     the pattern, what takes its place ($1: its first group), L or U: in lower or
                                            upper case
    DEFAULT                                 the name as it is

In what takes the pattern's place, `\/` is a slash, and `\$` a dollar sign; the number of a group has as many digits as
there are groups for: with three of them, $12 is $1 and a 2. A group that there is not is refused at the start.

Patterns are RE2's (krappy/core/patterns.py): a name is matched on the event loop, and whoever has it signed may choose
it. Patterns with several `.*?`, as Kafka's documents have them, take other engines minutes for some names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from krappy.core.patterns import compiled

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\Z)")
_PART = re.compile(r"\\(?P<escaped>.)|\$(?:(?P<number>[0-9]+)|{(?P<name>[a-zA-Z][a-zA-Z0-9]*)})|(?P<text>[^\\$]+)")
LONGEST = 1000  # characters of a name
_CASES: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}


class NameRules:
    """`text`: the rules. Raises ValueError."""

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[Any, list[int | str], Callable[[str], str]] | None] = []
        at = 0
        while at < len(text) or not self._rules:
            found = _RULE.match(text, at)
            if found is None:
                raise ValueError(f"'{text[at:]:.80}' is not DEFAULT or RULE:pattern/replacement/[LU]")
            self._rules.append(None if found[1] else (*_compiled(found[2], found[3]), _CASES[found[4]]))
            at = found.end()

    def name_of(self, subject: str) -> str | None:
        """The user's name; None when no rule matches."""
        if len(subject) > LONGEST:
            return None
        for rule in self._rules:
            if rule is None:
                return subject
            pattern, parts, cased = rule
            found = pattern.fullmatch(subject)
            if found is not None:
                return cased("".join(each if isinstance(each, str) else found[each] or "" for each in parts))
        return None


def _compiled(pattern: str, replacement: str) -> tuple[Any, list[int | str]]:
    """The pattern, and the parts of what takes its place: texts, and numbers of groups. Raises ValueError."""
    try:
        found = compiled(pattern)
    except ValueError as error:
        raise ValueError(f"'{pattern:.80}' is no pattern: {error}") from None
    parts: list[int | str] = []
    at = 0
    while at < len(replacement):
        part = _PART.match(replacement, at)
        if part is None:
            raise ValueError(f"'{replacement:.80}' has a $ that names no group; \\$ is a dollar sign")
        at = part.end()
        if part["number"]:
            number = part["number"]
            while len(number) > 1 and int(number) > found.groups:
                number, at = number[:-1], at - 1
            parts.append(int(number))
        elif part["name"]:
            parts.append(found.groupindex.get(part["name"], found.groups + 1))
        else:
            parts.append(part["escaped"] or part["text"])
    if any(isinstance(each, int) and each > found.groups for each in parts):
        raise ValueError(f"'{replacement:.80}' names a group that '{pattern:.80}' does not have")
    return found, parts
