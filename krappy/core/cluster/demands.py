"""What the settings of topics demand of the controller and of elections: those of the topic, else of all brokers, else
those that the deciding broker was started with."""

from __future__ import annotations

from collections.abc import Mapping

from krappy.core.cluster import paths
from krappy.core.cluster.image import NOTHING, Image, PartitionImage

MIN_INSYNC = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
FROM_REPLICAS = 3  # by default two replicas must be in sync where there are so many or more, else one


def min_insync(image: Image, topic: str, partition: PartitionImage, given: Mapping[str, str] = NOTHING) -> int:
    """How many replicas must be in sync for a write: by default 2 of three or more, else 1; never more than there are.
    During a reassignment it is what it was before. So a topic that gets more replicas takes writes meanwhile, and one
    that gets fewer loses no candidate before that is done."""
    found = _setting(image, topic, MIN_INSYNC, given)
    if found is None:
        return default_min_insync(partition)
    return min(int(found), len(partition.replicas) - len(partition.adding))


def default_min_insync(partition: PartitionImage) -> int:
    """The same, if nobody has set it."""
    return 2 if len(partition.replicas) - len(partition.adding) >= FROM_REPLICAS else 1


def is_unclean(image: Image, topic: str, given: Mapping[str, str] = NOTHING) -> bool:
    """Whether a replica that may lack acknowledged events may lead, if no other is alive."""
    return _setting(image, topic, UNCLEAN, given) == "true"


def _setting(image: Image, topic: str, name: str, given: Mapping[str, str]) -> str | None:
    """The value in force; None: nobody has set it. A broker's setting has the same name as the topic's."""
    for settings in (
        image.config(paths.TOPIC_CONFIG, topic),
        image.config(paths.BROKER_CONFIG, paths.DEFAULT),
        given,
    ):
        if name in settings:
            return settings[name]
    return None
