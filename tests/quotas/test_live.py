"""Live views of one user, for simulated hours. Together they send what consumer_byte_rate allows, and they end when
they have to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from krappy.broker.client_quotas import ClientQuotas
from krappy.console.live import EventStream
from krappy.console.pacer import Pacer, PaidPacer
from krappy.console.paying import HttpPayer
from krappy.console.problems import HttpError
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.core.security.quota import Payer, QuotaSet
from krappy.core.security.quota_entities import QuotaEntity, QuotaKey, Rates
from krappy.errors import AuthorizationFailed, UnknownTopic
from krappy.waiting import Signal

RATE, PART, SECONDS = 1000.0, 16 << 10, 900.0


class Views:
    """Live views that always have more to show. `sent`: bytes. `problems`: how many views have said why they end.
    `stand`: whether what a view shows is still there. `allowed`: whether the session of the views still lasts."""

    def __init__(self) -> None:
        runtime: Any = SimpleNamespace(
            image=SimpleNamespace(configs={}), store=SimpleNamespace(changed=Signal()), audit=SimpleNamespace(on=False)
        )
        self.quotas = ClientQuotas(runtime)
        self.sent = self.problems = 0
        self.stand = self.allowed = True
        self.revoked: list[Any] = []

    def allow(self, rate: float, key: QuotaKey = QuotaKey.CONSUME) -> None:
        self.force({QuotaEntity("ada"): {key: rate}})

    def force(self, quotas: Mapping[QuotaEntity, Rates]) -> None:
        self.quotas._use.take(QuotaSet(quotas))
        self.quotas.on = True
        self.quotas.version += 1
        self.quotas.changed.fire()

    async def run(self, send: Any) -> None:
        while await send("events", "x" * PART, None, lambda: self.stand):
            pass
        raise UnknownTopic("deleted")

    async def show(self) -> None:
        payer = HttpPayer(self.quotas, "ada", needs=needs.topic(Op.READ))
        stream = EventStream(self, PaidPacer(Pacer(), payer), lambda: self.allowed, self._hold, payer, binary=False)
        await stream({}, trio.sleep_forever, self._send)

    def _hold(self, take: Any) -> Any:
        self.revoked.append(take)
        return None

    async def _send(self, message: Any) -> None:
        body = message.get("body", b"")
        self.sent += len(body) if body.startswith(b"event: events") else 0
        self.problems += body.startswith(b"event: problem")
        await trio.lowlevel.checkpoint()


def simulate(main: Any) -> None:
    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("count", [1, 20])
def test_large_parts_of_many_views_keep_to_a_low_rate(count: int) -> None:
    """One part is as large as what 16 seconds allow."""
    views = Views()

    async def main() -> None:
        views.allow(RATE)
        with trio.move_on_after(SECONDS):
            async with trio.open_nursery() as nursery:
                for _ in range(count):
                    nursery.start_soon(views.show)

    simulate(main)
    assert abs(views.sent - RATE * SECONDS) < (count + 1) * (PART + 100)
    assert views.sent <= RATE * SECONDS + PART


def seconds_to_end(end: Callable[[Views], None]) -> float:
    """Ends a view by `end` while it waits for its quota; returns how many seconds its end took. Checks that the view
    sends nothing more."""
    views, seconds = Views(), math.inf

    async def main() -> None:
        nonlocal seconds
        views.allow(1.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(views.show)
            await trio.sleep(60)
            sent, began = views.sent, trio.current_time()
            end(views)
        seconds = trio.current_time() - began
        assert (views.sent, views.problems) == (sent, 1)

    simulate(main)
    return seconds


def test_no_quota_delays_the_end_of_a_view_and_nothing_follows_on_it() -> None:
    assert seconds_to_end(lambda views: views.revoked[0](AuthorizationFailed("not any more"))) == 0


def test_a_view_that_waits_for_its_quota_ends_with_what_it_shows() -> None:
    def ends(views: Views) -> None:
        views.stand = False

    assert seconds_to_end(ends) < 1


def log_out(views: Views) -> None:
    views.allowed = False


def test_a_view_ends_with_its_session() -> None:
    """Once the session was looked at only every 15 seconds, and parts were still sent meanwhile."""
    assert seconds_to_end(log_out) <= 1


def test_nothing_is_shown_after_the_end_of_a_session() -> None:
    views = Views()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(views.show)
            while not views.sent:
                await trio.lowlevel.checkpoint()
            log_out(views)
            sent = views.sent
        assert (views.sent, views.problems) == (sent, 1)

    simulate(main)


def test_a_part_that_waits_until_its_reader_reads_on_is_not_shown_after_its_right_has_ended() -> None:
    class Slow(Views):
        reads_on = trio.Event()

        async def run(self, send: Any) -> None:
            await trio.sleep(20)
            await super().run(send)

        async def _send(self, message: Any) -> None:
            if message.get("body") == b":\n\n":  # after 15 seconds
                await self.reads_on.wait()
            await super()._send(message)

    views = Slow()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(views.show)
            await trio.sleep(30)
            views.revoked[0](AuthorizationFailed("not any more"))
            views.reads_on.set()

    simulate(main)
    assert (views.sent, views.problems) == (0, 1)


def test_a_quota_that_changes_counts_at_once() -> None:
    views = Views()

    async def main() -> None:
        views.allow(1.0)
        with trio.move_on_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(views.show)
                await trio.sleep(1)
                assert not views.sent
                views.allow(1e6)

    simulate(main)
    assert views.sent > 50e6


def test_views_with_much_to_show_leave_some_to_clients_that_ask_again() -> None:
    """Such a client is a consumer, for example, that is told how long to wait, as Kafka's consumers are."""
    views, answered = Views(), 0
    payer = Payer("ada", "consumer")

    async def main() -> None:
        nonlocal answered
        views.allow(RATE)
        with trio.move_on_after(600):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(views.show)
                while True:
                    if views.quotas.share(QuotaKey.CONSUME, payer):
                        views.quotas.spend(QuotaKey.CONSUME, payer, RATE)
                        answered += 1
                    await trio.sleep(views.quotas.wait(QuotaKey.CONSUME, payer) + 0.01)

    simulate(main)
    assert answered > 200
    assert views.sent + answered * RATE <= RATE * 600 + 5 * (PART + 100)


def test_views_are_sent_something_beside_clients_that_ask_all_the_time() -> None:
    """Such clients are pages, for example. Each answer is as large as what three seconds allow."""
    views, answered = Views(), 0
    payer = Payer("ada")

    async def ask() -> None:
        nonlocal answered
        while True:
            await views.quotas.within(QuotaKey.CONSUME, payer)
            views.quotas.spend(QuotaKey.CONSUME, payer, 3 * RATE)
            answered += 1

    async def main() -> None:
        views.allow(RATE)
        with trio.move_on_after(SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(views.show)
                for _ in range(3):
                    nursery.start_soon(ask)

    simulate(main)
    assert views.sent > RATE * SECONDS / 10
    assert answered > SECONDS / 6
    assert views.sent + answered * 3 * RATE <= RATE * SECONDS + PART + 10 * RATE


@pytest.mark.parametrize(("writers", "seconds"), [(2, 0.25), (3, 2.5)])
def test_a_write_by_http_has_its_turn_beside_clients_that_write_all_the_time(writers: int, seconds: float) -> None:
    views, wait = Views(), 0.0
    payer = HttpPayer(views.quotas, "ada", needs=needs.topic(Op.WRITE))

    async def write() -> None:
        nonlocal wait
        while True:
            place = views.quotas.place(QuotaKey.PRODUCE, Payer("ada"), RATE * seconds, 10.0)
            assert place is not None
            wait = place.wait
            await trio.sleep(place.wait + place.silence)

    async def main() -> None:
        views.allow(RATE, QuotaKey.PRODUCE)
        async with trio.open_nursery() as nursery:
            for _ in range(writers):
                nursery.start_soon(write)
            await trio.sleep(9.5)
            assert wait > 0
            for _ in range(5):
                payer.check()
                await payer.wrote(100)
            nursery.cancel_scope.cancel()

    simulate(main)


def test_a_write_by_http_stops_waiting_when_its_quota_is_raised() -> None:
    views = Views()
    payer = HttpPayer(views.quotas, "ada", needs=needs.topic(Op.WRITE))

    async def main() -> None:
        views.allow(RATE, QuotaKey.PRODUCE)
        await payer.wrote(int(9 * RATE))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(payer.wrote, 100)
            await trio.sleep(1)
            views.allow(RATE * 1000, QuotaKey.PRODUCE)
        assert trio.current_time() < 2

    simulate(main)


def test_a_write_by_http_keeps_its_place_when_a_quota_of_others_changes() -> None:
    views = Views()
    payer = HttpPayer(views.quotas, "ada", needs=needs.topic(Op.WRITE))
    ada = {QuotaEntity("ada"): {QuotaKey.PRODUCE: RATE}}

    async def main() -> None:
        views.allow(RATE, QuotaKey.PRODUCE)
        await payer.wrote(int(9 * RATE))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(payer.wrote, 100)
            await trio.sleep(1)
            views.force({**ada, QuotaEntity("bob"): {QuotaKey.PRODUCE: RATE}})
        assert trio.current_time() == pytest.approx(8)

    simulate(main)


def test_topics_are_made_by_http_beside_clients_that_ask_again_at_once() -> None:
    views, made = Views(), 0

    async def ask_again() -> None:
        while True:
            while wait := views.quotas.wait(QuotaKey.MUTATION, Payer("ada")):
                await trio.sleep(wait)
            views.quotas.mutate(Payer("ada"), 1, strict=False)
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        nonlocal made
        views.allow(1.0, QuotaKey.MUTATION)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask_again)
            await trio.sleep(20)  # the burst is used up
            while made < 5:
                payer = HttpPayer(views.quotas, "ada")
                await payer.begin(mutates=True)
                payer.mutate(1)
                payer.end()
                made += 1
            assert trio.current_time() < 20 + 5 * 6
            nursery.cancel_scope.cancel()

    simulate(main)


def test_a_change_by_http_that_fails_gives_its_place_back() -> None:
    views = Views()

    async def main() -> None:
        views.allow(1.0, QuotaKey.MUTATION)
        for _ in range(100):
            payer = HttpPayer(views.quotas, "ada")
            await payer.begin(mutates=True)
            payer.end()
        assert trio.current_time() < 1
        views.quotas.mutate(Payer("ada"), 30, strict=True)
        payer = HttpPayer(views.quotas, "ada")
        with pytest.raises(HttpError, match="controller_mutation_rate"):
            await payer.begin(mutates=True)

    simulate(main)
