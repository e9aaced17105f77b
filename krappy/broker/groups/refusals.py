"""What native groups refuse, whatever they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from krappy.broker.groups.dead_letters import check_target
from krappy.errors import GroupNotEmpty, InvalidRequest, InvalidTopic
from krappy.settings.topic import check_topic_name
from krappy.types import dead_letter_topic

if TYPE_CHECKING:
    from krappy.broker.groups.group import Group

LONGEST_NAME = 249  # characters of a group's name, as of a topic's


def check_group_name(name: str) -> None:
    """Raises InvalidRequest."""
    if not 1 <= len(name) <= LONGEST_NAME:
        raise InvalidRequest(f"a group's name has 1 to {LONGEST_NAME} characters, not {len(name)}", field="group")


def check_empty(group: Group) -> None:
    if group.members:
        raise GroupNotEmpty(
            f"the group '{group.name}' has {len(group.members)} members; they must leave first",
            group=group.name,
            members=len(group.members),
        )


def check_dead_letter(
    topic: str, group: str, topics: Sequence[str], dead_letter: str | None, is_internal: Callable[[str], bool]
) -> None:
    name = dead_letter_topic(topic, group, dead_letter)
    if name in topics:
        raise InvalidRequest("the dead-letter topic is one that the group reads", field="dead_letter")
    try:
        check_topic_name(name)
        check_target(name, is_internal)
    except InvalidTopic as error:
        raise InvalidTopic(
            f"the dead-letter topic '{name}' can't be used: {error}; name another in dead_letter"
        ) from None
