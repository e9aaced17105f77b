"""HTTP's part of the memory budget: who holds much of it keeps nobody else from a little."""

from __future__ import annotations

import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from krappy.server.pages import ANSWER, Pages

UNIT = ANSWER


def test_one_user_has_half_of_it_and_others_have_theirs() -> None:
    pages, had = Pages(8 * UNIT), list[str]()
    for who in ("bob",) * 20 + ("ada",) * 20 + ("2001:db8::1", "2001:db8::2", "2001:db8::3"):
        if pages.has_room(who):
            pages.charge_to(who, UNIT)
            had.append(who)
    assert had == ["bob"] * 4 + ["ada"] * 2 + ["2001:db8::1"]
    for who, count in (("bob", 4), ("ada", 2), ("2001:db8::3", 1)):
        pages.credit_to(who, count * UNIT)
    assert pages.used == 0
    assert not pages._of


def test_who_holds_little_has_room_although_others_hold_all() -> None:
    pages = Pages(8 * UNIT)
    pages.charge_to("bob", 8 * UNIT)
    assert not pages.has_room("bob")
    assert pages.has_room("ada")
    pages.charge_to("ada", UNIT)
    assert not pages.has_room("ada"), "an eighth is not little any more"
    pages.charge_to("carl", 7 * UNIT)
    assert not pages.has_room("zoe"), "there is an end"
    pages.credit_to("bob", 1)
    assert pages.has_room("zoe")


@trio_test
async def test_who_waits_gets_room_by_user_in_turn() -> None:
    pages, had = Pages(2 * UNIT), list[str]()

    async def ask(who: str) -> None:
        assert await pages.take_room(who, 60)
        had.append(who)

    async with trio.open_nursery() as nursery:
        for who in ("bob", "ada", "carl", "dave") + ("bob",) * 5 + ("ada", "zoe"):
            nursery.start_soon(ask, who)
            await wait_all_tasks_blocked()
        assert had == ["bob", "ada", "carl", "dave"], "the last two hold little, and these four hold all that there is"
        assert pages.waiting == 7
        assert pages.short
        for who in ("ada", "carl", "dave"):
            pages.credit_to(who, UNIT)
            await wait_all_tasks_blocked()
        assert had[4:] == ["ada", "zoe"], "he has half of it"
        nursery.cancel_scope.cancel()
    for who in ("bob", "ada", "zoe"):
        pages.credit_to(who, UNIT)
    assert (pages.used, pages.waiting) == (0, 0)


def test_who_waits_in_vain_holds_nothing() -> None:
    async def main() -> bool:
        pages = Pages(UNIT)
        pages.charge_to("bob", 3 * UNIT)
        found = await pages.take_room("bob", 10)
        pages.credit_to("bob", 3 * UNIT)
        assert (pages.used, pages.waiting) == (0, 0)
        return found

    assert not trio.run(main, clock=MockClock(autojump_threshold=0))
