"""The blocking client is what `make generate` writes from the async one."""

from __future__ import annotations

import inspect
from pathlib import Path

from krappy import blocking, client
from tests.clients import mirror


def test_what_is_committed_is_what_is_written() -> None:
    for name, source in mirror.written().items():
        assert (mirror.ROOT / name).read_text("utf-8") == source, f"run `make generate`: {name} is not current"


def test_both_have_the_same_names() -> None:
    assert blocking.__all__ == client.__all__
    for name in client.__all__:
        async_one, blocking_one = getattr(client, name), getattr(blocking, name)
        if inspect.isclass(async_one) and name != "Delivery":
            missing = {each for each in vars(async_one) if not each.startswith("_")} - set(dir(blocking_one))
            assert not missing, f"{name} of the blocking client lacks {missing}: run `make generate`"


def test_an_await_becomes_a_call_that_blocks() -> None:
    source = (
        "from __future__ import annotations\n"
        "class One:\n"
        "    async def ask(self) -> int:\n"
        "        await self.other()\n"
        "        delivery = await core.add(1)\n"
        "        return await delivery\n"
    )
    written = mirror.formatted(mirror.mirrored(source, "one.py", None))
    assert "    def ask(self) -> int:\n        self.other()\n        delivery = run(core.add(1))\n" in written
    assert written.endswith("return delivery.result()\n")
    assert "from krappy.clients.runtime import run\n" in written
    assert Path(mirror.__file__).name in written.splitlines()[0]
