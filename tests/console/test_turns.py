"""Turns of requests: of one user never more than are left for all others."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from krappy.console.turns import UserTurns


async def hold(turns: UserTurns, who: str, had: list[str]) -> None:
    async with turns.one(who):
        had.append(who)
        await trio.sleep_forever()


@trio_test
async def test_one_user_has_half_of_them_and_others_have_theirs() -> None:
    turns, had = UserTurns(8), list[str]()
    async with trio.open_nursery() as nursery:
        for who in ("bob",) * 20 + ("carl",) * 20 + ("2001:db8::1", "2001:db8::2") + ("ada",):
            nursery.start_soon(hold, turns, who, had)
            await wait_all_tasks_blocked()
        assert had == ["bob"] * 4 + ["carl"] * 2 + ["2001:db8::1", "ada"]
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(hold, turns, "zoe", had)
        await wait_all_tasks_blocked()
        assert had.count("zoe") == 4, "those who have left hold none"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("together", [1, 4])
def test_who_waits_is_served_by_user(together: int) -> None:
    turns, had = UserTurns(together), list[str]()

    async def ask(who: str) -> None:
        async with turns.one(who):
            had.append(who)
            await trio.sleep(1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for who in ("bob",) * 20 + ("ada",):
                nursery.start_soon(ask, who)
                await wait_all_tasks_blocked()

    trio.run(main, clock=MockClock(autojump_threshold=0.01))
    assert len(had) == 21
    assert "ada" in had[:3]
