"""What is served: all there is, and each with what it needs."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from typing import Any

import pytest

from krappy.console.app import OPERATIONS
from krappy.core.security import needs
from krappy.core.security.operations import Need, Op
from krappy.handlers import kafka, native
from krappy.handlers.kafka.registry import KafkaRegistry
from krappy.handlers.registry import Registry
from krappy.wire import messages
from krappy.wire.kafka import ApiKey

SERVED = {**{each.__name__: served for each, served in native.registry().served.items()}}
SERVED |= {ApiKey(key).name: served for key, served in kafka.registry().served.items()}  # type: ignore[misc]
SERVED |= {f"{each.method} {each.path}": each for each in OPERATIONS}  # type: ignore[misc]
NAMELESS = {  # whose requests name nothing, and whose answers tell of nothing that has a name
    *("GET /healthz", "GET /readyz", "POST /api/v1/login", "POST /api/v1/logout"),
    *("Ping", "Unregister", "API_VERSIONS", "SASL_HANDSHAKE", "SASL_AUTHENTICATE"),
    *("CREATE_DELEGATION_TOKEN", "RENEW_DELEGATION_TOKEN", "EXPIRE_DELEGATION_TOKEN", "DESCRIBE_DELEGATION_TOKEN"),
}


def test_every_message_of_the_native_protocol_is_served() -> None:
    without = {each.__name__ for each in set(messages.REQUESTS.values()) - set(native.registry().served)}
    assert not without, f"no function of handlers/native/ has @serves(messages.…) for {without}"


def test_every_api_that_the_codec_speaks_is_served() -> None:
    assert set(kafka.registry().served) == set(ApiKey)


@pytest.mark.parametrize("name", sorted(SERVED))
def test_it_says_what_it_needs(name: str) -> None:
    assert bool(SERVED[name].needs) == (name not in NAMELESS)


def operations(tree: ast.AST) -> set[str]:
    """Those that a module names, but for what its decorators declare."""
    declared = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in function.decorator_list
        for node in ast.walk(decorator)
    }
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Op"
        and id(node) not in declared
    }


def by_module(served: Iterable[Any]) -> dict[Any, set[str]]:
    found: dict[Any, set[str]] = {}
    for each in served:
        module = inspect.getmodule(each.handler)
        found.setdefault(module, set()).update(need.op.name for need in each.needs)
    return found


@pytest.mark.parametrize(
    ("module", "declared"), by_module(SERVED.values()).items(), ids=lambda each: getattr(each, "__name__", "")
)
def test_what_it_asks_of_the_door_is_what_it_says(module: Any, declared: set[str]) -> None:
    assert operations(ast.parse(inspect.getsource(module))) <= declared


def test_a_second_handler_is_refused() -> None:
    for registry, key, more in ((Registry(), messages.Ping, ()), (KafkaRegistry(), ApiKey.FETCH, (4, 17))):
        register: Any = registry.serves
        register(key, *more, needs=needs.NOTHING)(print)
        with pytest.raises(ValueError, match="has a handler already"):
            register(key, *more, needs=needs.NOTHING)(print)


def test_needs() -> None:
    wanted = needs.topic(Op.READ, Op.WRITE) + needs.group(Op.READ)
    assert all(isinstance(each, Need) for each in wanted)
    assert [(each.resource.name, each.op.name) for each in wanted] == [
        ("TOPIC", "READ"),
        ("TOPIC", "WRITE"),
        ("GROUP", "READ"),
    ]
