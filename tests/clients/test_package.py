"""What the package offers, and how little that costs."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import krappy
from krappy import errors
from krappy.wire import messages


def test_a_client_needs_nothing_of_the_broker() -> None:
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('rocksdict', 'trio'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import krappy\n"
        "assert not any(name.startswith(('anyio', 'msgpack', 'krappy.')) for name in sys.modules), 'heavy'\n"
        "krappy.connect, krappy.Producer, krappy.Consumer, krappy.KrappyError, krappy.blocking.connect\n"
        "assert not any(name.startswith(('krappy.store', 'krappy.broker')) for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_name_that_the_package_offers_is_there() -> None:
    for name in krappy.__all__:
        assert getattr(krappy, name) is not None
    assert set(dir(krappy)) == set(krappy.__all__)
    with pytest.raises(AttributeError):
        krappy.nothing  # noqa: B018


def test_every_error_is_offered() -> None:
    classes = {
        name for name, found in vars(errors).items() if inspect.isclass(found) and found.__module__ == errors.__name__
    }
    assert classes <= set(krappy.__all__)
    assert all(getattr(krappy, name) is getattr(errors, name) for name in classes)


def test_the_clients_make_every_request() -> None:
    """A request that is served, but that no client makes, is of use only to those who write bytes themselves."""
    made = set()
    root = Path(krappy.__file__).parent
    for path in [root / "client.py", *(root / "clients").glob("*.py"), *(root / "clients" / "aio").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Attribute(ast.Name("messages"), name) | ast.Name(name):
                    made.add(name)
    asked_as_batches = {"Message"}
    without = {each.__name__ for each in messages.REQUESTS.values()} - made - asked_as_batches
    assert not without, f"nothing in krappy/clients/ or krappy/client.py makes {without}"


def test_the_two_clients_have_the_same_names() -> None:
    from krappy import blocking, client

    for name in client.__all__:
        if name == "Delivery":
            continue
        ours, theirs = getattr(client, name), getattr(blocking, name)
        if not inspect.isclass(ours):
            assert inspect.signature(ours).parameters.keys() == inspect.signature(theirs).parameters.keys()
            continue
        public = {each for each in dir(ours) if not each.startswith("_")}
        # A REPL has no `with`; async code has a nursery around it in any case.
        by_hand = {"open", "close"} if hasattr(theirs, "open") else set()
        blocking_ones = {each for each in dir(theirs) if not each.startswith("_")}
        assert public | by_hand == blocking_ones, f"{name} differs in the two clients: run `make generate`"
        for each in public:
            if callable(getattr(ours, each)):
                one, other = inspect.signature(getattr(ours, each)), inspect.signature(getattr(theirs, each))
                assert one.parameters.keys() == other.parameters.keys(), f"{name}.{each}"
