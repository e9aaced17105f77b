"""Where things are in the tree: the paths of its znodes, by Kafka's names."""

from __future__ import annotations

import string
from typing import Literal

from krappy.types import text_id

CLUSTER_ID = "/cluster/id"
BROKERS = "/brokers/ids"
EPOCHS = "/brokers/epochs"
TOPICS = "/brokers/topics"
CONFIG = "/config"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
DELETED = "/admin/deleted"
PRODUCER_IDS = "/latest_producer_id_block"
Kind = Literal["topics", "brokers", "groups", "clients"]
BROKER_CONFIG: Kind = "brokers"
GROUP_CONFIG: Kind = "groups"
TOPIC_CONFIG: Kind = "topics"
DEFAULT = "<default>"  # Kafka's name for what is set for all brokers
KINDS: tuple[Kind, ...] = ("topics", "brokers", "groups", "clients")
ROOTS = [  # that always exist, each behind its parent
    *("/cluster", "/brokers", BROKERS, EPOCHS, TOPICS, CONFIG, *(f"{CONFIG}/{kind}" for kind in KINDS)),
    *("/admin", DELETED),
]
_PLAIN = frozenset(string.ascii_letters + string.digits + "._-")


def broker(id: int) -> str:
    return f"{BROKERS}/{id}"


def epoch(id: int) -> str:
    """Whose version is the broker's epoch (KIP-380)."""
    return f"{EPOCHS}/{id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}"


def state(name: str, index: int) -> str:
    """Whose version is the partition's epoch."""
    return f"{TOPICS}/{name}/partitions/{index}/state"


def deleted(id: bytes) -> str:
    """Of a deleted topic, by its id, until every broker has removed what it had of it."""
    return f"{DELETED}/{text_id(id)}"


def config(kind: Kind, name: str) -> str:
    return f"{CONFIG}/{kind}/{quoted(name)}"


def quoted(name: str) -> str:
    """A name as a part of a path, whatever is in it: what is no plain character is written as its bytes, %2F."""
    found = "".join(each if each in _PLAIN else "".join(f"%{byte:02X}" for byte in each.encode()) for each in name)
    return found.replace(".", "%2E") if set(found) == {"."} else found


def unquoted(part: str) -> str:
    """Raises ValueError for what `quoted` does not write."""
    first, *others = part.split("%")
    return b"".join([first.encode(), *(bytes.fromhex(each[:2]) + each[2:].encode() for each in others)]).decode()
