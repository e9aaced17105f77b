"""The regular expressions that choose topics (KIP-848) or transactional ids (KIP-1152): RE2's, as in Kafka, matched by
RE2 itself (krappy/core/patterns.py). The whole name must match."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from weakref import WeakValueDictionary

from krappy.core.kafka.faults import Fault, Refused
from krappy.core.patterns import compiled

LONGEST = 4096  # characters of a pattern; librdkafka joins several into one
EACH_NAME = 100  # bytes of memory to remember whether a name matches


class NameRegex:
    def __init__(self, pattern: str) -> None:
        """Raises Refused: INVALID_REGULAR_EXPRESSION."""
        self.pattern = pattern
        if len(pattern) > LONGEST:
            raise _invalid(pattern, f"it has more than {LONGEST} characters")
        try:
            self._regex = compiled(pattern, groups=False)
        except ValueError as error:
            raise _invalid(pattern, str(error)) from error

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        return self._regex.fullmatch(name) is not None


class TopicRegex(NameRegex):
    """It remembers which topics match: to find that takes RE2 some ms for each name, with some patterns. All who
    subscribe by one pattern share the object (`topic_regex`), and what it remembers. `owner`: whose memory it takes:
    of who was the first to bring it; "": it was loaded; None: no member has it yet."""

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self.owner: str | None = None
        self._known: dict[str, bool] = {}
        self._matched: Collection[str] | None = None  # the topics that it was matched with last

    def matches(self, name: str) -> bool:
        """Whether it is a topic that a pattern chooses. The name of a table, with an @, is chosen only by itself."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = "@" not in name and super().matches(name)
        return known

    def is_behind(self, topics: Collection[str]) -> bool:
        """Whether `match` has to be called with these topics: an object that is new whenever topics have changed."""
        return topics is not self._matched

    def match(self, topics: Collection[str]) -> Iterator[None]:
        """Matches the names that it does not know yet, one in each step. Forgets the names of topics that are gone."""
        for name in topics:
            if name not in self._known:
                self.matches(name)
                yield
        if len(self._known) > 2 * len(topics):
            self._known = {name: self.matches(name) for name in topics}
        self._matched = topics
        yield

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes to remember the names."""
        return EACH_NAME * len(self._known)


_in_use: WeakValueDictionary[str, TopicRegex] = WeakValueDictionary()


def topic_regex(pattern: str) -> TopicRegex:
    """The object of this pattern that is in use, else a new one. Raises Refused: INVALID_REGULAR_EXPRESSION."""
    regex = _in_use.get(pattern)
    if regex is None:
        regex = _in_use[pattern] = TopicRegex(pattern)
    return regex


def in_use() -> list[TopicRegex]:
    return [regex for each in _in_use.valuerefs() if (regex := each()) is not None]


def _invalid(pattern: str, why: str) -> Refused:
    return Refused(Fault.INVALID_REGULAR_EXPRESSION, f"the regular expression '{pattern:.100}' can't be used: {why}")
