"""The paths of the tree's znodes, by Kafka's names."""

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
LEASES = "/leases"
ACLS = "/security/acls"
USERS_SECRET = "/security/users_secret"
Kind = Literal["topics", "brokers", "groups", "clients", "users", "quotas", "sessions"]
BROKER_CONFIG: Kind = "brokers"
GROUP_CONFIG: Kind = "groups"
TOPIC_CONFIG: Kind = "topics"
USER_CONFIG: Kind = "users"
QUOTA_CONFIG: Kind = "quotas"
SESSION_CONFIG: Kind = "sessions"  # which sessions of browsers have ended
DEFAULT = "<default>"  # Kafka's name for the settings of all brokers
KINDS: tuple[Kind, ...] = ("topics", "brokers", "groups", "clients", "users", "quotas", "sessions")
ROOTS = [  # znodes that always exist, each behind its parent
    *("/cluster", "/brokers", BROKERS, EPOCHS, TOPICS, CONFIG, *(f"{CONFIG}/{kind}" for kind in KINDS)),
    *("/admin", DELETED, "/security", ACLS),
]
# Brokers follow these znodes and all below them. Other znodes change often and concern few.
WATCHED = ["/admin", "/brokers", "/cluster", CONFIG, CONTROLLER, CONTROLLER_EPOCH, PRODUCER_IDS, "/security"]
_PLAIN = frozenset(string.ascii_letters + string.digits + "._-")


def broker(id: int) -> str:
    return f"{BROKERS}/{id}"


def epoch(id: int) -> str:
    """The znode whose version is the broker's epoch (KIP-380)."""
    return f"{EPOCHS}/{id}"


def lease(id: int) -> str:
    """The znode whose version rises each time that the broker renews its read lease."""
    return f"{LEASES}/{id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def identity(name: str, id: bytes) -> str:
    """The znode that exists as long as the topic of this id has this name. A write that demands it can't reach another
    topic, which was made later under the same name and has znodes of the same versions."""
    return f"{TOPICS}/{name}/{text_id(id)}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}"


def state(name: str, index: int) -> str:
    """The znode of the partition's state; its version is the partition epoch."""
    return f"{TOPICS}/{name}/partitions/{index}/state"


def deleted(id: bytes) -> str:
    """The znode of a deleted topic, by its id. It exists until every broker has removed the topic's files."""
    return f"{DELETED}/{text_id(id)}"


def config(kind: Kind, name: str) -> str:
    return f"{CONFIG}/{kind}/{quoted(name)}"


def acl(id: str) -> str:
    return f"{ACLS}/{id}"


def quoted(name: str) -> str:
    """Any name as a part of a path: other characters than a-z A-Z 0-9 . _ - become their UTF-8 bytes in hex, like
    %2F."""
    found = "".join(each if each in _PLAIN else "".join(f"%{byte:02X}" for byte in each.encode()) for each in name)
    return found.replace(".", "%2E") if set(found) == {"."} else found


def unquoted(part: str) -> str:
    """The name that `quoted` was given. Raises ValueError for text that `quoted` never returns."""
    first, *others = part.split("%")
    return b"".join([first.encode(), *(bytes.fromhex(each[:2]) + each[2:].encode() for each in others)]).decode()
