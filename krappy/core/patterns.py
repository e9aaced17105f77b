"""Regular expressions that are matched by RE2: in time linear in the text, whatever the pattern.

The syntax is https://github.com/google/re2/wiki/Syntax; other patterns (look-around, back-references) are refused.
"""

from __future__ import annotations

from typing import Any

MEMORY = 256 << 10  # bytes that a compiled pattern may take: it also bounds how long compiling takes


def compiled(pattern: str, *, groups: bool = True) -> Any:
    """An object with the methods of `re.Pattern`. `groups` False: it does not tell what its groups match; to find that
    for a thousand groups takes RE2 half a second. Raises ValueError, which says why it is no pattern."""
    import re2  # here, since few brokers have a pattern, and clients that import `core` do without re2

    options = re2.Options()
    options.log_errors, options.max_mem, options.never_capture = False, MEMORY, not groups
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0] if error.args else "it is not one"
        raise ValueError(why.decode(errors="replace") if isinstance(why, bytes) else str(why)) from error
