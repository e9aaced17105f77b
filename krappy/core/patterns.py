"""Regular expressions that are matched by RE2: in time linear in the text, whatever the pattern.

The syntax is https://github.com/google/re2/wiki/Syntax; other patterns (look-around, back-references) are refused. So
are patterns that mean something else in Java, for which many were written: there `[a-z&&[^b]]` is the letters but b,
and `[a-d[x-z]]` the letters of both classes. RE2 takes `&&` and the inner `[` for characters.
"""

from __future__ import annotations

import re
from typing import Any

MEMORY = 256 << 10  # bytes that a compiled pattern may take: it also bounds how long compiling takes
_UNIT = r"\\.|\[:\^?\w+:\]"  # in a class of characters: an escaped one, or the name of a class, as [:alpha:]
# A class, with what it holds behind its ^ and its first ]; before that what has a [ that begins none.
_CLASS = re.compile(rf"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?((?:{_UNIT}|[^\]\\])*)", re.DOTALL)


def compiled(pattern: str, *, groups: bool = True) -> Any:
    """An object with the methods of `re.Pattern`. `groups` False: it does not tell what its groups match; to find that
    for a thousand groups takes RE2 half a second. Raises ValueError, which says why it is no pattern."""
    import re2  # here, since few brokers have a pattern, and clients that import `core` do without re2

    options = re2.Options()
    options.log_errors, options.max_mem, options.never_capture = False, MEMORY, not groups
    try:
        found = re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0] if error.args else "it is not one"
        raise ValueError(why.decode(errors="replace") if isinstance(why, bytes) else str(why)) from error
    for each in _CLASS.finditer(pattern):
        if java := re.search(r"&&|\[", re.sub(_UNIT, " ", each[1] or "", flags=re.DOTALL)):
            raise ValueError(f"{java[0]} in a class of characters is Java's; for the character write \\{java[0][0]}")
    return found
