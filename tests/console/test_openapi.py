"""The API's own description: it holds every route, and every answer to what a fuzzer makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance
from starlette.routing import Route

from krappy.console.app import OPERATIONS, App, application
from krappy.console.openapi import document
from krappy.settings.server import ServerConfig
from krappy.testing.running import RunningBroker
from tests.console.web import CHANGES, Web

LIVE = {operation.path for operation in OPERATIONS if operation.live}
EXAMPLES = 5
TOPIC = "fuzzed"
CHECKS = (not_a_server_error, response_schema_conformance, status_code_conformance)


def test_the_document_names_every_operation_once(web: Web) -> None:
    told = web.get("/openapi.json")
    assert told["openapi"].startswith("3.1")
    described = {(method.upper(), path) for path, methods in told["paths"].items() for method in methods}
    assert described == {(each.method, each.path) for each in OPERATIONS}
    names = [each["operationId"] for methods in told["paths"].values() for each in methods.values()]
    assert len(names) == len(set(names))


def test_every_route_but_the_document_and_metrics_is_described() -> None:
    app = application(Stub(), Stub(), Stub())  # type: ignore[arg-type]
    routes = {route.path for route in routes_of(app)}
    assert routes == {each.path for each in OPERATIONS} | {"/api/v1/openapi.json", "/metrics"}


def test_every_reference_leads_somewhere() -> None:
    told = document(OPERATIONS)

    def references(part: Any) -> Any:
        if isinstance(part, dict):
            if "$ref" in part:
                yield part["$ref"]
            for each in part.values():
                yield from references(each)
        elif isinstance(part, list):
            for each in part:
                yield from references(each)

    known = {f"#/components/schemas/{name}" for name in told["components"]["schemas"]}
    found = set(references(told))
    assert found
    assert found <= known


@pytest.fixture
def schema(console: RunningBroker, web: Web) -> Any:
    if web.client.get(f"/api/v1/topics/{TOPIC}").status_code == 404:
        path = web.topic(TOPIC, 2)
        for number in range(5):
            web.publish(path, f"k{number}", str(number))
    return schemathesis.openapi.from_dict(web.get("/openapi.json"))


@pytest.mark.parametrize("name", [each.name for each in OPERATIONS if not each.live])
def test_answers_are_as_the_document_says(schema: Any, console: RunningBroker, name: str) -> None:
    """The requests that schemathesis makes of each operation, over a real socket; they are the same each time."""
    operation = next(
        found.ok() for found in schema.get_all_operations() if found.ok().definition.raw["operationId"] == name
    )

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        if "topic" in case.path_parameters:
            case.path_parameters["topic"] = TOPIC
        if isinstance(case.body, dict) and isinstance(case.body.get("partitions"), int):
            case.body["partitions"] = min(case.body["partitions"], 3)  # 100,000 partitions would take their time
        case.call_and_validate(base_url=f"http://{console.http_address}", headers=CHANGES, checks=CHECKS, timeout=60.0)

    ask()


class Stub:
    """Enough of a broker for the application to be built."""

    version = "0"
    started_ms = 0

    config = ServerConfig()
    console_users = None
    console_tokens = None
    provider_login = None
    secret = b""

    def now_ms(self) -> int:
        return 0

    def times(self, protocol: str) -> None:
        return None

    def report(self, event: str, **facts: object) -> None:
        """Drops the event."""


def routes_of(app: App) -> list[Route]:
    return [route for route in app._router.routes if isinstance(route, Route)]


def test_live_views_are_described_as_such(web: Web) -> None:
    told = web.get("/openapi.json")["paths"]
    assert LIVE
    for path in LIVE:
        assert list(told[path]["get"]["responses"]["200"]["content"]) == ["text/event-stream", "application/msgpack"]
