"""The regular expressions that a KIP-848 consumer may subscribe with, matched in time linear in the topic's name.

Kafka takes RE2's syntax; here the part of it that topics' names need: literals and escapes (`\\.`, `\\d`, `\\w`), `.`,
classes `[a-z0-9_-]` and `[^…]`, groups `(…)` and `(?:…)`, `|`, `*`, `+`, `?`, `{m,n}` (up to 50), and `^` and `$`, in
groups too (librdkafka joins patterns). The whole name must match. Anything else is INVALID_REGULAR_EXPRESSION.

Thompson's construction: an automaton whose states are all followed at once (so no pattern makes it slow).
"""

from __future__ import annotations

from collections.abc import Iterable

from krappy.core.kafka.faults import Fault, Refused

LONGEST = 500  # characters of a pattern
MAX_STATES = 500
MAX_REPEATS = 50
DEEPEST = 50
MAX_KNOWN = 20_000  # names whose answer is remembered

Chars = tuple[bool, tuple[tuple[str, str], ...]]  # negated?, ranges
ANY: Chars = (True, ())
START, END = "^", "$"  # what goes on without a character, but there only
CLASSES: dict[str, Chars] = {
    "d": (False, (("0", "9"),)),
    "w": (False, (("0", "9"), ("a", "z"), ("A", "Z"), ("_", "_"))),
    "D": (True, (("0", "9"),)),
    "W": (True, (("0", "9"), ("a", "z"), ("A", "Z"), ("_", "_"))),
}


class TopicRegex:
    def __init__(self, pattern: str) -> None:
        """Raises Refused, INVALID_REGULAR_EXPRESSION."""
        self.pattern = pattern
        self._known: dict[str, bool] = {}
        self._steps: list[tuple[Chars | str | None, list[int]]] = []  # None: goes on without a character, anywhere
        parser = _Parser(pattern)
        tree = parser.parse()
        self._end = self._state(None, [])
        self._start = self._build(tree, self._end)

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[name] = self._run(name)
        return known

    def _run(self, name: str) -> bool:
        now = self._closure([self._start], (None, START) if name else (None, START, END))
        for at, char in enumerate(name, 1):
            now = self._closure(
                (target for state in now if _takes(self._steps[state][0], char) for target in self._steps[state][1]),
                (None,) if at < len(name) else (None, END),
            )
            if not now:
                return False
        return self._end in now

    def _closure(self, states: Iterable[int], free: tuple[str | None, ...]) -> set[int]:
        """What is reached from `states` by way of steps that are `free` here: that take no character."""
        seen: set[int] = set()
        todo = list(states)
        while todo:
            state = todo.pop()
            if state not in seen:
                seen.add(state)
                chars, targets = self._steps[state]
                if chars in free:
                    todo += targets
        return seen

    def _state(self, chars: Chars | str | None, targets: list[int]) -> int:
        if len(self._steps) >= MAX_STATES:
            raise _invalid(self.pattern, "it is too large")
        self._steps.append((chars, targets))
        return len(self._steps) - 1

    def _build(self, node: tuple, following: int) -> int:  # type: ignore[type-arg]
        kind = node[0]
        if kind == "chars":
            return self._state(node[1], [following])
        if kind == "sequence":
            for part in reversed(node[1]):
                following = self._build(part, following)
            return following
        if kind == "either":
            return self._state(None, [self._build(part, following) for part in node[1]])
        _, part, least, most = node
        if most is None:
            loop = self._state(None, [following])
            self._steps[loop][1].append(self._build(part, loop))
            start = loop
        else:
            start = following
            for _ in range(most - least):
                start = self._state(None, [self._build(part, start), following])
        for _ in range(least):
            start = self._build(part, start)
        return start


def _takes(chars: Chars | str | None, char: str) -> bool:
    if chars is None or isinstance(chars, str):
        return False
    negated, ranges = chars
    return any(low <= char <= high for low, high in ranges) != negated


def _invalid(pattern: str, why: str) -> Refused:
    return Refused(Fault.INVALID_REGULAR_EXPRESSION, f"the regular expression '{pattern:.100}' can't be used: {why}")


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        if len(pattern) > LONGEST:
            raise _invalid(pattern, f"it has more than {LONGEST} characters")
        self._text = pattern
        self._at = 0
        self._depth = 0

    def parse(self) -> tuple:  # type: ignore[type-arg]
        node = self._either()
        if self._at != len(self._text):
            raise self._wrong("a ')' without its '('")
        return node

    def _wrong(self, why: str) -> Refused:
        return _invalid(self._pattern, why)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise self._wrong("it ends too early")
        self._at += 1
        return char

    def _either(self) -> tuple:  # type: ignore[type-arg]
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._wrong("its groups are too deep")
        parts = [self._sequence()]
        while self._peek() == "|":
            self._take()
            parts.append(self._sequence())
        self._depth -= 1
        return ("either", parts)

    def _sequence(self) -> tuple:  # type: ignore[type-arg]
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        return ("sequence", parts)

    def _repeated(self, node: tuple) -> tuple:  # type: ignore[type-arg]
        sign = self._peek()
        bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign)
        if bounds is None and sign != "{":
            return node
        if node in (("chars", START), ("chars", END)):
            raise self._wrong(f"a '{node[1]}' can't be repeated")
        self._take()
        if sign == "{":
            bounds = self._bounds()
        assert bounds is not None
        if self._peek() and self._peek() in "*+{":
            raise self._wrong("two repetitions follow each other")
        if self._peek() == "?":
            self._take()  # lazy: of no account for whether something matches
        return ("repeat", node, *bounds)

    def _bounds(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        least, comma, most = self._text[self._at : max(end, self._at)].partition(",")
        numbers = [each for each in (least, most) if each]
        if end < 0 or not least or not all(each.isascii() and each.isdigit() and len(each) < 4 for each in numbers):
            raise self._wrong("a '{' without its numbers")
        self._at = end + 1
        low = int(least)
        high = (int(most) if most else None) if comma else low
        if low > MAX_REPEATS or (high is not None and not low <= high <= MAX_REPEATS):
            raise self._wrong(f"more than {MAX_REPEATS} repetitions, or the larger number first")
        return low, high

    def _atom(self) -> tuple:  # type: ignore[type-arg]
        char = self._take()
        if char == ".":
            return ("chars", ANY)
        if char == "[":
            return ("chars", self._class())
        if char == "\\":
            return ("chars", self._escape())
        if char == "(":
            if self._peek() == "?":
                self._take()
                if self._take() != ":":
                    raise self._wrong("of groups with '?' only '(?:' is known")
            node = self._either()
            if self._take() != ")":
                raise self._wrong("a '(' without its ')'")
            return node
        if char in (START, END):
            return ("chars", char)
        if char in "*+?{":
            raise self._wrong(f"'{char}' in a place where it means nothing")
        return ("chars", (False, ((char, char),)))

    def _escape(self) -> Chars:
        char = self._take()
        if char in CLASSES:
            return CLASSES[char]
        if char.isalnum():
            raise self._wrong(f"the escape '\\{char}' is not known")
        return (False, ((char, char),))

    def _class(self) -> Chars:
        negated = self._peek() == "^"
        if negated:
            self._take()
        ranges: list[tuple[str, str]] = []
        while not ranges or self._peek() != "]":
            char = self._take()
            if char == "\\":
                inner, known = self._escape()
                if inner:
                    raise self._wrong("a negated escape in a class")
                ranges += known
                continue
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._take()
                high = self._take()
                if high == "\\" or high < char:
                    raise self._wrong("a range in a class the wrong way round")
                ranges.append((char, high))
            else:
                ranges.append((char, char))
        self._take()
        return (negated, tuple(ranges))
