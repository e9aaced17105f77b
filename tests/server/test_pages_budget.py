"""HTTP's part of the memory budget: who holds much of it keeps nobody else from a little."""

from __future__ import annotations

from types import SimpleNamespace

from krappy.server.pages import ANSWER, Pages

UNIT = ANSWER


def test_who_holds_little_has_room_although_another_holds_all() -> None:
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
    pages.credit_to("bob", 8 * UNIT - 1)
    assert pages.has_room("bob"), "he holds nothing any more"
    pages.credit_to("carl", 7 * UNIT)
    assert all(pages.has_room(who) for who in ("ada", "bob", "carl"))
    pages.credit_to("ada", UNIT)
    assert pages.used == 0
    assert not pages._of


def test_who_waits_is_told_when_there_is_room_for_him() -> None:
    pages, told = Pages(8 * UNIT), list[int]()
    pages.charge_to("bob", 15 * UNIT)
    pages.charge_to("ada", UNIT)
    pages.waiting = 1
    pages.freed = SimpleNamespace(fire=lambda: told.append(pages.used))  # type: ignore[assignment]
    pages.credit_to("ada", 1)  # neither is the end reached any more, nor does she hold much
    pages.credit_to("bob", 8 * UNIT - 1)
    pages.credit_to("bob", 1)
    assert told == [16 * UNIT - 1, 8 * UNIT - 1]
