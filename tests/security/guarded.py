"""A broker with an authorizer, and clients: one that may do everything, and one that may do nothing.

Nobody logs in here. All are User:ANONYMOUS, and ACLs tell them apart by the address that they come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from krappy.core.security.acl import Pattern, Permission
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire.kafka import ApiKey
from tests.console.web import Web
from tests.handlers.raw import Raw as Native
from tests.kafka.raw import Raw as Kafka

# The clients' addresses. ADMIN may do everything, NOBODY nothing, and USER what the test allows.
ADMIN, NOBODY, USER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
KINDS = (Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID)


def rule(
    resource: Resource,
    name: str,
    op: Op,
    host: str = USER,
    *,
    principal: str = "User:ANONYMOUS",
    deny: bool = False,
    prefixed: bool = False,
) -> dict[str, Any]:
    """An ACL for CreateAcls."""
    return {
        "resource_type": resource,
        "resource_name": name,
        "resource_pattern_type": Pattern.PREFIXED if prefixed else Pattern.LITERAL,
        "principal": principal,
        "host": host,
        "operation": op,
        "permission_type": Permission.DENY if deny else Permission.ALLOW,
    }


def filtered(**fields: Any) -> dict[str, Any]:
    """A filter for DescribeAcls and DeleteAcls that matches all ACLs with these fields."""
    anything = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    return {**anything, **fields}


class Guarded(NamedTuple):
    broker: RunningBroker
    admin: Kafka

    def allow(self, *rules: dict[str, Any]) -> None:
        results = self.admin.ask(ApiKey.CREATE_ACLS, {"creations": list(rules)})["results"]
        assert all(each["error_code"] == 0 for each in results), results

    def take_away(self, host: str = USER) -> None:
        """Deletes all ACLs of this address."""
        [result] = self.admin.ask(ApiKey.DELETE_ACLS, {"filters": [filtered(host_filter=host)]})["filter_results"]
        assert result["error_code"] == 0, result

    @contextmanager
    def kafka(self, source: str = USER) -> Iterator[Kafka]:
        with Kafka(self.broker.kafka_address, source=source) as raw:
            yield raw

    @contextmanager
    def native(self, source: str = USER) -> Iterator[Native]:
        with Native(self.broker.address, source=source) as raw:
            yield raw

    @contextmanager
    def web(self, source: str = USER) -> Iterator[Web]:
        transport = httpx.HTTPTransport(local_address=source)
        url = f"http://{self.broker.http_address}"
        with httpx.Client(base_url=url, timeout=60.0, trust_env=False, transport=transport) as client:
            yield Web(client)


@contextmanager
def guarded_broker(data: Path, **more: Any) -> Iterator[Guarded]:
    settings = {"authorizer": "acl", "durability": "os", "group_initial_rebalance_delay_ms": 0, **more}
    with run_broker(data, **settings, super_users="User:ANONYMOUS") as broker, Kafka(broker.kafka_address) as raw:
        everything = [rule(kind, CLUSTER_NAME if kind is Resource.CLUSTER else "*", Op.ALL, ADMIN) for kind in KINDS]
        Guarded(broker, raw).allow(*everything)
    with run_broker(data, listen_http="127.0.0.1:0", **settings) as broker, Kafka(broker.kafka_address) as raw:
        yield Guarded(broker, raw)
