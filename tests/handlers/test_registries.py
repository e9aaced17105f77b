"""What is served: everything that exists, and each with the operations that it needs."""

from __future__ import annotations

import ast
import inspect
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
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
NAMELESS = {  # their requests name nothing, and their answers tell of nothing that has a name
    *("GET /healthz", "GET /readyz", "GET /api/v1/login", "POST /api/v1/login", "POST /api/v1/login/provider"),
    *("Ping", "Unregister", "API_VERSIONS", "SASL_HANDSHAKE", "SASL_AUTHENTICATE", "Authenticate"),
}


def test_every_message_of_the_native_protocol_is_served() -> None:
    without = {each.__name__ for each in set(messages.REQUESTS.values()) - set(native.registry().served)}
    assert not without, f"no function of handlers/native/ has @serves(messages.…) for {without}"


def test_every_api_that_the_codec_speaks_is_served() -> None:
    assert set(kafka.registry().served) == set(ApiKey)


@pytest.mark.parametrize("name", sorted(SERVED))
def test_it_says_what_it_needs(name: str) -> None:
    said = "needs nothing" if name in NAMELESS else "needs some right: its `@serves(…, needs=…)` says which"
    assert bool(SERVED[name].needs) == (name not in NAMELESS), f"{name} {said}"


def operations(tree: ast.Module, name: str) -> set[str]:
    """The operations that a function or a class of a module names, and those of everything in the module that it uses;
    but not what decorators declare."""
    of = {node.name: node for node in tree.body if isinstance(node, FUNCTION | ast.ClassDef)}
    found, names = set(), [name]
    for name in names:
        for part in of[name].body:
            for node in ast.walk(part):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Op":
                    found.add(node.attr)
                elif isinstance(node, ast.Name) and node.id in of and node.id not in names:
                    names.append(node.id)
    return found


@pytest.mark.parametrize("name", sorted(SERVED))
def test_what_it_asks_of_the_door_is_what_it_says(name: str) -> None:
    handler = SERVED[name].handler
    tree = ast.parse(inspect.getsource(inspect.getmodule(handler)))  # type: ignore[arg-type]
    beyond = operations(tree, handler.__name__) - {need.op.name for need in SERVED[name].needs}
    assert not beyond, f"{handler.__name__} asks for {beyond}, which its `needs` does not say"


def test_what_it_asks_of_the_door_is_seen() -> None:
    source = "def a(): b(Op.READ)\nasync def b(op): C(op)\nclass C:\n    x = Op.WRITE\ndef d(): Op.ALTER"
    assert operations(ast.parse(source), "a") == {"READ", "WRITE"}


def test_a_second_handler_is_refused() -> None:
    for registry, key in ((Registry(), messages.Ping), (KafkaRegistry(), ApiKey.FETCH)):
        register: Any = registry.serves
        register(key, needs=needs.NOTHING)(print)
        with pytest.raises(ValueError, match="has a handler already"):
            register(key, needs=needs.NOTHING)(print)


def test_needs() -> None:
    wanted = needs.topic(Op.READ, Op.WRITE) + needs.group(Op.READ)
    assert all(isinstance(each, Need) for each in wanted)
    assert [(each.resource.name, each.op.name) for each in wanted] == [
        ("TOPIC", "READ"),
        ("TOPIC", "WRITE"),
        ("GROUP", "READ"),
    ]
