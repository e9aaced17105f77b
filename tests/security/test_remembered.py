"""What a broker remembers of names that peers send: the decisions that were made, and who was denied what. It keeps
little, even if the names have megabytes, and takes no client for another one."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from krappy.core.security.operations import Op, Resource
from krappy.errors import AuthorizationFailed
from krappy.partitioner import partition_for
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from tests.kafka.raw import Raw as Kafka
from tests.process import json_lines, wait_until
from tests.security.guarded import NOBODY, USER, Guarded, guarded_broker, rule

MEGABYTE = 1 << 20
TIMES, SIZE = 50, MEGABYTE
LITTLE = 20 * MEGABYTE
KEYS, KEY = 250, 160_000  # the number and the length of keys; it would take long to hash more
# This address has no lines in the audit log yet. Of each address, only a limited number of lines is told one by one.
OTHER = "127.0.0.77"


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "log"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, audit: Path) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("remembered"), audit_log=f"file:{audit}") as found:
        yield found


SIZES = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]


class Allocated(ctypes.Structure):
    """The result of the C library's mallinfo2: sizes in bytes, over all its arenas."""

    _fields_ = [(name, ctypes.c_size_t) for name in SIZES]


def in_use() -> int:
    """Bytes that this process allocated and did not free. Its resident memory would also count memory that other tests
    have freed, and tracemalloc may crash beside other threads (CPython's issue 128679)."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Allocated
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)


@contextmanager
def little_is_kept() -> Iterator[None]:
    """Checks that little of the memory which is allocated meanwhile is kept."""
    before = in_use()
    yield
    assert in_use() - before < LITTLE


REQUESTS: dict[str, Callable[[str], m.Request]] = {
    "topics": lambda name: m.Offsets(name, "latest"),
    "groups": m.Groups,
    "jobs": m.AbortStaged,
}


@pytest.mark.parametrize("what", REQUESTS)
def test_long_names_of_one_who_may_do_nothing(guarded: Guarded, what: str) -> None:
    with little_is_kept(), guarded.native(NOBODY) as raw:
        for number in range(TIMES):
            with pytest.raises(AuthorizationFailed):
                raw.call(REQUESTS[what](f"{number}-{'x' * SIZE}"))


def test_long_names_in_kafkas_protocol(guarded: Guarded) -> None:
    """The names of topics are long, and so are those of programs (client ids)."""
    with little_is_kept():
        for number in range(TIMES):
            with Kafka(guarded.broker.kafka_address, f"{number}-{'x' * 32_000}", source=NOBODY) as raw:
                names = [{"name": f"{number}-{other}-{'x' * 32_000}"} for other in range(30)]
                raw.ask(ApiKey.METADATA, {"topics": names, "allow_auto_topic_creation": False})


def test_long_keys(guarded: Guarded) -> None:
    """The table has several partitions, so the broker remembers the partition of a key."""
    wanted = {"name": "several", "num_partitions": 3, "replication_factor": 1}
    guarded.admin.ask(ApiKey.CREATE_TOPICS, {"topics": [wanted], "timeout_ms": 10_000})
    guarded.allow(rule(Resource.TOPIC, "several", Op.READ))
    with guarded.native(USER) as raw, little_is_kept():
        for number in range(KEYS):
            assert raw.call(m.Get("several", b"%d-" % number + bytes(KEY))).entry == [None]


def test_long_keys_of_a_client() -> None:
    with little_is_kept():
        for number in range(KEYS):
            partition_for(b"%d-" % number + bytes(KEY), 3)


def test_a_denial_from_each_address_is_told(guarded: Guarded, audit: Path) -> None:
    """Both clients are User:ANONYMOUS. If their lines were counted together, a client that is denied often would hide
    the other one."""

    def lines() -> list[Any]:
        found = json_lines(audit)
        return [each for each in found if each.get("resource") == "of-nobody"]

    for source in (USER, USER, OTHER, USER):
        with guarded.kafka(source) as raw:
            raw.ask(ApiKey.METADATA, {"topics": [{"name": "of-nobody"}], "allow_auto_topic_creation": False})
    wait_until(lambda: len(lines()) >= 2, "both are told")
    assert [each["host"] for each in lines()] == [USER, OTHER]
