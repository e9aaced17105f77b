"""Modules that are loaded only when they are first used."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from krappy.deferred import defer

SLOW = """
import threading
loads.append(threading.get_ident())
half = 1
begun.set()
assert go_on.wait(60)
whole = 2
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where modules can be imported from; those named `late…` are forgotten at the end."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [each for each in sys.modules if each.startswith("late")]:
        del sys.modules[name]


def imported(name: str) -> ModuleType:
    return __import__(name)


def test_a_module_is_loaded_by_the_first_use_not_by_imports(folder: Path) -> None:
    (folder / "late_one.py").write_text("import sys; sys.late_loads = getattr(sys, 'late_loads', 0) + 1\nanswer = 42\n")
    loads: Any = sys
    defer("late_one")
    defer("late_one")
    module: Any = imported("late_one")
    assert imported("late_one") is module
    assert not hasattr(sys, "late_loads")
    assert module.answer == 42
    assert type(module) is ModuleType
    assert imported("late_one").answer == 42
    assert loads.late_loads == 1
    del loads.late_loads
    with pytest.raises(AttributeError, match="nothing"):
        module.nothing  # noqa: B018


def test_names_are_imported_from_it(folder: Path) -> None:
    (folder / "late_names.py").write_text("answer = 42\n")
    defer("late_names")
    found: dict[str, Any] = {}
    exec("from late_names import answer", found)
    assert found["answer"] == 42
    with pytest.raises(ImportError, match="nothing"):
        exec("from late_names import nothing")


def test_what_is_imported_already_stays() -> None:
    before = sys.modules["threading"]
    defer("threading", "no_such_module_anywhere")
    assert sys.modules["threading"] is before
    assert type(before) is ModuleType
    assert "no_such_module_anywhere" not in sys.modules


def test_a_thread_that_comes_meanwhile_waits_for_the_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "late_slow.py").write_text("from late_tools import begun, go_on, loads\n" + SLOW)
    tools: Any = ModuleType("late_tools")
    tools.begun, tools.go_on, tools.loads = threading.Event(), threading.Event(), []
    sys.modules["late_tools"] = tools
    defer("late_slow")
    module: Any = imported("late_slow")
    found: list[int] = []
    first = threading.Thread(target=lambda: found.append(module.whole))
    first.start()
    assert tools.begun.wait(60)
    second = threading.Thread(target=lambda: found.append(module.whole))
    second.start()
    tools.go_on.set()
    first.join(60)
    second.join(60)
    assert found == [2, 2]
    assert len(tools.loads) == 1


def test_a_load_that_failed_is_tried_again(folder: Path) -> None:
    """As an import: there may have been no descriptors."""
    (folder / "late_trouble.py").write_text("import late_missing\nanswer = late_missing.answer\n")
    defer("late_trouble")
    module: Any = imported("late_trouble")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="late_missing"):
            module.answer  # noqa: B018
    missing: Any = ModuleType("late_missing")
    missing.answer = 42
    sys.modules["late_missing"] = missing
    assert module.answer == 42


def test_the_command_line_puts_off_openssl() -> None:
    code = (
        "import sys, krappy.cli.main\n"
        "print({'_ssl', '_hashlib'} & set(sys.modules))\n"
        "import ssl, hashlib, hmac\n"
        "print(ssl.create_default_context().verify_mode, hashlib.sha256(b'').hexdigest()[:8],\n"
        "      hmac.digest(b'', b'', 'sha256').hex()[:8])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["set()", "2 e3b0c442 b613679a"]
