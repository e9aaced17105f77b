"""Which topics and partitions a read reads: exactly one of the options subscribe, subscribePattern and assign."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from krappy.errors import ConfigError, UnknownPartition, UnknownTopic
from krappy.spark.option_table import NO_CATALOG
from krappy.types import TopicPartition


class TopicChoice(NamedTuple):
    """One of the three is given. `pattern`: found anywhere in a topic's name; `assigned`: partitions by topic."""

    names: tuple[str, ...] | None = None
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None

    def among(self, found: Mapping[str, int], missing: bool = False) -> list[TopicPartition]:
        """The chosen partitions, sorted. `found`: the topics that exist, and how many partitions each has.

        Raises UnknownTopic (unless `missing`) and UnknownPartition for a named one that does not exist; a pattern may
        match nothing.
        """
        if self.pattern is not None:
            wanted = re.compile(self.pattern)
            return _all({name: count for name, count in found.items() if wanted.search(name)})
        there = [name for name in self.named() if name in found]
        for name in self.named():
            if name not in found and not missing:
                raise UnknownTopic(f"there is no topic '{name}'", topic=name)
        if self.assigned is None:
            return _all({name: found[name] for name in there})
        assigned = {name: self.assigned[name] for name in there}
        for name, partitions in assigned.items():
            for partition in partitions:
                if partition >= found[name]:
                    raise UnknownPartition(f"'{name}' has {found[name]} partitions, there is no {partition}")
        return [TopicPartition(name, each) for name, some in sorted(assigned.items()) for each in some]

    def mean(self, each: TopicPartition) -> bool:
        """Whether the choice includes a partition, whether or not it exists."""
        if self.pattern is not None:
            return re.search(self.pattern, each.topic) is not None
        if self.assigned is not None:
            return each.partition in self.assigned.get(each.topic, ())
        return each.topic in self.named()

    def named(self) -> Iterable[str]:
        """Topics that are given by name; none for a pattern."""
        return self.names or self.assigned or ()


def _all(topics: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(name, each) for name, count in sorted(topics.items()) for each in range(count)]


def topics(texts: Mapping[str, str]) -> TopicChoice:
    """Reads the three options (names in lower case). Raises ConfigError."""
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in texts]
    if len(given) != 1:
        which = " and ".join(given) or "none of them" + ("" if texts else f". {NO_CATALOG}")
        raise ConfigError(
            "which topics? Give exactly one of the options subscribe='a,b', subscribePattern='a.*' and "
            f"assign='{{\"a\":[0]}}'; there is {which}"
        )
    [name] = given
    text = texts[name.lower()]
    if name == "subscribe":
        names = tuple(dict.fromkeys(each for each in (part.strip() for part in text.split(",")) if each))
        if not names:
            raise ConfigError("option subscribe: topics are needed, separated by commas")
        return TopicChoice(names=names)
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"option subscribePattern={text!r:.80}: not a regular expression: {error}") from None
        if not text:
            raise ConfigError("option subscribePattern: a regular expression is needed")
        return TopicChoice(pattern=text)
    return TopicChoice(assigned=_assigned(text))


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    wrong = ConfigError(f'option assign={text!r:.80}: partitions by topic are needed, such as {{"orders":[0,2]}}')
    found = by_topic(text, wrong)
    for partitions in found.values():
        if type(partitions) is not list or not partitions:
            raise wrong
        if not all(type(each) is int and each >= 0 for each in partitions):
            raise wrong
    return {name: tuple(sorted(set(partitions))) for name, partitions in found.items()}


def by_topic(text: str, wrong: ConfigError) -> dict[str, Any]:
    """The value of an option that is a JSON object, by topic. Raises `wrong` for any other text, or an empty object."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        raise wrong from None
    if type(found) is not dict or not found:
        raise wrong
    return found
