"""Which names a new topic may have: no internal topic's, no table's, and none that collides with another topic's.

Kafka's tools and metrics write a dot as an underscore, so `a.b` and `a_b` would be one topic to them. Kafka refuses the
second of the two, and so does this broker.
"""

from __future__ import annotations

from collections.abc import Callable

from krappy.core.latest import table_of
from krappy.errors import InvalidTopic
from krappy.settings.topic import check_topic_name


class TopicNames:
    def __init__(self, is_internal: Callable[[str], bool], alias: str = "") -> None:
        """`is_internal`: as in `Topics`. `alias`: the ending of names by which tables are read (the setting
        latest_alias)."""
        self._is_internal = is_internal
        self._alias = alias
        self._alike: dict[str, set[str]] = {}  # by the name with its dots as underscores

    def add(self, name: str) -> None:
        if "." in name or "_" in name:
            self._alike.setdefault(_folded(name), set()).add(name)

    def remove(self, name: str) -> None:
        held = self._alike.get(_folded(name))
        if held is not None:
            held.discard(name)
            if not held:
                del self._alike[_folded(name)]

    def check(
        self, name: str, *, alike: bool = False, own: bool = False, sees: Callable[[str], bool] = lambda name: False
    ) -> None:
        """Raises InvalidTopic for a name that a new topic can't have.

        `alike`: it may collide with another's. Dead-letter topics are named after their groups, so they may. `own`: the
        broker makes it for itself. `sees`: whether the error may name a topic.
        """
        check_topic_name(name)
        if not own and self._is_internal(name):
            raise InvalidTopic(f"'{name}' is an internal topic: it is there by itself, and can only be read")
        if (base := table_of(name, self._alias)) is not None:
            raise InvalidTopic(f"'{name}' is how the table of '{base}' is read (latest_alias): take another name")
        others = self._alike.get(_folded(name), set()) - {name}
        if others and not alike:
            which = f"existing topic: {min(seen)}" if (seen := [*filter(sees, others)]) else "an existing topic"
            raise InvalidTopic(f"Topic '{name}' collides with {which} (as '.' and '_' are taken for the same)")


def _folded(name: str) -> str:
    return name.replace(".", "_")
