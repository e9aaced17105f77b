"""The content of the catalog's znodes. Fields that this version does not know stay when a znode is rewritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from krappy.core.cluster.document import Document
from krappy.core.cluster.tree import Znode
from krappy.core.security.acl import Acl, Pattern, Permission
from krappy.core.security.operations import Op, Resource
from krappy.types import id_of, text_id

# Features that all brokers of a cluster must know before one of them uses them, and their levels in this version.
OFFSET_RECORDS = "krappy.offset.records"  # 1: committed offsets are Kafka's records
STRAYS_MARKED = "krappy.strays.marked"  # 1: a topic is marked before its first stray, also while it has no view
FEATURES: Mapping[str, int] = MappingProxyType({OFFSET_RECORDS: 1, STRAYS_MARKED: 1})
RESTORED_FACTOR = "restored_replication_factor"  # of a topic from a cluster's backup, until it has so many replicas
PRODUCER_BLOCK = 1000  # ids reserved by one write, as Kafka's ProducerIdManager does


TOPIC_FIELDS = (
    *("version", "topic_id", "partitions", "adding_replicas", "removing_replicas", "generation"),
    "scattered",
)


_ACL_FIELDS = (
    *("resource_type", "pattern_type", "resource_name", "principal", "host", "operation", "permission_type"),
)


def topic(
    id: bytes,
    replicas: Sequence[Sequence[int]],
    generation: int,
    before: bytes = b"{}",
    adding: Mapping[int, Sequence[int]] = MappingProxyType({}),
    removing: Mapping[int, Sequence[int]] = MappingProxyType({}),
    scattered: bool | None = None,
) -> bytes:
    """`replicas`: the brokers of each partition. `generation`: which topic defaults it was created under. `adding`,
    `removing`: by partition, the replicas that a reassignment brings, and those that it takes away. `scattered`: as of
    TopicImage; once it is true, it stays. None removes a False: this writer may not have looked at all keys."""
    document = Document.of(before)
    fields: dict[str, Any] = {
        "version": 3,
        "topic_id": text_id(id),
        "partitions": {str(index): list(ids) for index, ids in enumerate(replicas)},
        "adding_replicas": {str(index): list(ids) for index, ids in adding.items() if ids},
        "removing_replicas": {str(index): list(ids) for index, ids in removing.items() if ids},
        "generation": generation,
    }
    if scattered or document.fields.get("scattered"):
        fields["scattered"] = True
    elif scattered is not None:
        fields["scattered"] = False
    else:
        document = Document.of(document.without("scattered"))
    return document.with_fields(fields)


def config(settings: Mapping[str, str], before: bytes = b"{}") -> bytes:
    return Document.of(before).with_fields({"version": 1, "config": dict(settings)})


def settings(data: bytes) -> Mapping[str, str]:
    """What `config` was given. Raises ValueError."""
    return Document.of(data).texts("config")


def deleted(name: str, replicas: Sequence[int]) -> bytes:
    """A topic whose files these brokers have still to remove."""
    return Document({}).with_fields({"version": 1, "topic": name, "replicas": list(replicas)})


def registration(
    epoch: int,
    endpoints: Mapping[str, tuple[str, int]],
    rack: str | None,
    directory: str = "",
    now_ms: int | None = None,
    *,
    old_folder: bool = False,
) -> bytes:
    """`epoch`: the broker's. `endpoints`: host and port by the listener's name. `directory`: the data folder's id.
    `now_ms`: the time of day (ms since the epoch). `old_folder`: whether the folder is an old copy. Only people read
    these two. The registration tells the levels of FEATURES as in KIP-584."""
    told = [f"{name}://{f'[{host}]' if ':' in host else host}:{port}" for name, (host, port) in endpoints.items()]
    fields: dict[str, Any] = {"version": 5, "endpoints": told, "rack": rack, "broker_epoch": epoch}
    fields["features"] = {name: {"min_version": 0, "max_version": level} for name, level in FEATURES.items()}
    if now_ms is not None:
        fields["timestamp"] = str(now_ms)  # as Kafka writes it
    if old_folder:
        fields["old_folder"] = True
    return Document({}).with_fields(fields | ({"directory_id": directory} if directory else {}))


def features_of(registration: Document) -> dict[str, int]:
    """The highest level of each feature that the broker knows. Brokers of earlier versions tell none; what can't be
    read counts as not known."""
    told = registration.fields.get("features")
    levels = told.items() if isinstance(told, dict) else ()
    known = {name: level.get("max_version") for name, level in levels if isinstance(level, dict)}
    return {name: level for name, level in known.items() if type(level) is int}


def draining(registered: bytes) -> bytes:
    """The registration of a broker that is about to stop. Raises ValueError."""
    return Document.of(registered).with_fields({"draining": True})


def spoiled(registered: bytes, replicas: Mapping[str, str]) -> bytes:
    """The registration of a broker whose replicas are in these troubles, by "topic-partition". Raises ValueError."""
    return Document.of(registered).with_fields({"spoiled": dict(replicas)})


def endpoints(data: bytes) -> dict[str, tuple[str, int]]:
    """Host and port of a registered broker, by the listener's name. Raises ValueError."""
    return endpoints_of(Document.of(data))


def endpoints_of(registration: Document) -> dict[str, tuple[str, int]]:
    """As `endpoints`."""
    found = {}
    for text in registration.fields.get("endpoints", []):
        listener, separator, address = str(text).partition("://")
        host, _, port = address.rpartition(":")
        if not separator or not port.isascii() or not port.isdigit():
            raise ValueError(f"{text!r} is no endpoint")
        found[listener] = (host.strip("[]"), int(port))
    return found


def registered_ms(registration: Document) -> int | None:
    """When the broker registered (ms since the epoch), as it has told it."""
    told = registration.text("timestamp", None)
    return int(told) if told is not None and told.isascii() and told.isdigit() else None


def home(directory: str, boot: str, start: str = "") -> bytes:
    """Where a broker was when it registered last: its data folder's id, the id of its machine's boot, and one that it
    made for this registration."""
    return Document({}).with_fields({"version": 1, "directory_id": directory, "boot_id": boot, "start_id": start})


def start(data: bytes) -> str:
    """The id that a broker made for its last registration; "" if it does not tell one. Raises ValueError."""
    return Document.of(data).text("start_id", "") or ""


def boot(data: bytes) -> str:
    """The id of the boot of a broker's machine; "" if it does not tell one. Raises ValueError."""
    return Document.of(data).text("boot_id", "") or ""


def directory(data: bytes) -> str:
    """The id of the data folder of a broker that has registered; "" if it does not tell one. Raises ValueError."""
    return Document.of(data).text("directory_id", "") or ""


def lease(pulse: int) -> bytes:
    """`pulse`: the count of the broker's data folder (`store.pulse`)."""
    return b"%d" % pulse


def pulse(lease: Znode | None) -> int:
    """The count that a broker's lease tells; 0 if it tells none."""
    return int(lease.data) if lease is not None and lease.data.isdigit() else 0


def controller(broker: int, epoch: int) -> bytes:
    return Document({}).with_fields({"version": 2, "brokerid": broker, "broker_epoch": epoch})


def controlled_by(data: bytes) -> int:
    """The id of the broker that is the controller. Raises ValueError."""
    return Document.of(data).number("brokerid")


def producer_ids(following: int) -> bytes:
    """The last block of producer ids that was reserved. `following`: the first id behind it."""
    start = max(0, following - PRODUCER_BLOCK)
    fields = {"version": 1, "broker": 0, "block_start": str(start), "block_end": str(following - 1)}
    return Document({}).with_fields(fields)


def producer_ids_following(data: bytes) -> int:
    """The first id behind the last block. Raises ValueError."""
    return int(Document.of(data).text("block_end") or "") + 1


def acl(acl: Acl) -> bytes:
    fields = {
        "version": 1,
        "resource_type": acl.resource.name,
        "pattern_type": acl.pattern.name,
        "resource_name": acl.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.op.name,
        "permission_type": acl.permission.name,
    }
    return Document({}).with_fields(fields)


def acl_of(data: bytes) -> Acl:
    """Raises ValueError, also for an ACL that this version does not know how to decide by."""
    found = Document.of(data)
    if found.number("version") != 1:
        raise ValueError("an ACL of another version")
    named = {name: found.text(name) or "" for name in _ACL_FIELDS}
    try:
        return Acl(
            Resource[named["resource_type"]],
            Pattern[named["pattern_type"]],
            named["resource_name"],
            named["principal"],
            named["host"],
            Op[named["operation"]],
            Permission[named["permission_type"]],
        )
    except KeyError as error:
        raise ValueError(f"{error} is unknown") from None


def users_secret(secret: bytes) -> bytes:
    """The secret from which the salts of users that do not exist are made."""
    return Document({}).with_fields({"version": 1, "secret": secret.hex()})


def users_secret_of(data: bytes) -> bytes:
    """Raises ValueError."""
    return bytes.fromhex(Document.of(data).text("secret") or "")


def cluster(id: bytes) -> bytes:
    return Document({}).with_fields({"version": "1", "id": text_id(id)})


def cluster_id(data: bytes) -> bytes:
    """Raises ValueError."""
    return id_of(Document.of(data).text("id") or "")
