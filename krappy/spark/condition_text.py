"""Reads a condition that is given as text, as far as it is about keys: Spark's own parser is not always within reach.

It knows comparisons of a column with literals, joined by AND and OR. Whatever else stands between these is None, and
left to Spark. Text whose meaning depends on a setting of the session is None as a whole, and so is text with
a subquery or a CASE: an AND within these joins no conditions.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
    (?P<text>'[^'\\]*')  # what a backslash means depends on a setting, and what " means
    | (?P<bytes>[xX]'(?:[0-9A-Fa-f]{2})*')
    | (?P<name>`[^`]*`)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*|[0-9]+(?![A-Za-z0-9_]))
    | (?P<sign><=>|<=|>=|<>|!=|==|->|-(?!-)|/(?!\*)|[(),.=<>!+*%&|^~\[\]])  # and no comment begins
    )""",
    re.VERBOSE,
)
INNER = {"case", "from", "select", "table", "values", "where"}
DEEPEST = 100  # brackets within each other
COMPARED = ("=", "==", "<=>", "<", "<=", ">", ">=")


class Function(NamedTuple):
    """An operator or a function. An argument is a Function, a Name, a Literal, or None for anything else."""

    name: str
    arguments: list[Any]


class Name(NamedTuple):
    """A column's name."""

    name: str


class Literal(NamedTuple):
    value: Any


class _Token(NamedTuple):
    """`word`: a word or a sign, in lower case; empty for a name in backquotes and for a literal. `operand`: what the
    token is as an operand."""

    word: str
    operand: Any = None


def read(condition: str) -> Any:
    """The condition as calls; None if it is not understood."""
    tokens = _tokens(condition)
    if not tokens or INNER & {each.word for each in tokens}:
        return None
    depths = _depths(tokens)
    return None if min(depths) < 0 or max(depths) > DEEPEST or depths[-1] else _read(tokens)


def _tokens(condition: str) -> list[_Token] | None:
    found, at, condition = [], 0, condition.strip(" \t\r\n")
    while at < len(condition):
        match = TOKEN.match(condition, at)
        if match is None:
            return None
        at, kind, text = match.end(), match.lastgroup, match[match.lastgroup or 0]
        if kind == "text":
            if "${" in text:  # Spark may put the value of a variable there
                return None
            found.append(_Token("", Literal(text[1:-1])))
        elif kind == "bytes":
            found.append(_Token("", Literal(bytes.fromhex(text[2:-1]))))
        elif kind == "name":
            found.append(_Token("", Name(text[1:-1].lower())))
        else:
            word = text.lower()
            null = word == "null"
            found.append(
                _Token("", Literal(None)) if null else _Token(word, Name(word) if word.isidentifier() else None)
            )
    return found


def _read(tokens: list[_Token]) -> Any:
    for joint in ("or", "and"):
        parts = _parts(tokens, joint)
        if len(parts) > 1:
            return Function(joint, [_read(part) for part in parts])
    if tokens and tokens[0].word == "(" and _depths(tokens).index(0) == len(tokens) - 1:
        return _read(tokens[1:-1])
    return _comparison([each.word for each in tokens], [each.operand for each in tokens])


def _comparison(words: list[str], operands: list[Any]) -> Any:
    """One condition of the kinds that are known, else None."""
    if len(words) == 3 and words[1] in (*COMPARED, "like"):
        return Function(words[1], [operands[0], operands[2]])
    if words[1:] == ["is", ""] and operands[2] == Literal(None):
        return Function("isnull", operands[:1])
    if len(words) == 5 and (words[1], words[3]) == ("between", "and"):
        return Function("and", [Function(">=", operands[:3:2]), Function("<=", operands[::4])])
    if words[1:3] == ["in", "("] and words[4:] == [",", ""] * ((len(words) - 5) // 2) + [")"]:
        return Function("in", [operands[0], *operands[3::2]])
    if [*words[:2], *words[3:4], *words[5:]] == ["startswith", "(", ",", ")"]:
        return Function("startswith", operands[2:5:2])
    return None


def _parts(tokens: list[_Token], joint: str) -> list[list[_Token]]:
    """The tokens, split at a word that is not within brackets. The AND of a BETWEEN splits nothing."""
    found: list[list[_Token]] = [[]]
    between = False
    for each, depth in zip(tokens, _depths(tokens), strict=True):
        if depth or each.word != joint or (joint == "and" and between):
            found[-1].append(each)
        else:
            found.append([])
        if not depth and each.word in ("between", "and"):
            between = each.word == "between"
    return found


def _depths(tokens: list[_Token]) -> list[int]:
    """For each token, within how many brackets the next one is."""
    depth, found = 0, []
    for each in tokens:
        depth += (each.word in ("(", "[")) - (each.word in (")", "]"))
        found.append(depth)
    return found
