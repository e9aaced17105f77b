"""A leader takes only brokers into its ISRs that have renewed their leases lately, as far as the leader itself has
seen."""

from __future__ import annotations

from krappy.core.cluster.image import Image, Registration
from krappy.core.cluster.presence import HEARD_MS, SILENCE_MS, Renewals


def image(*epochs: int) -> Image:
    """Brokers 1, 2, … in these epochs."""
    return Image(brokers={id: Registration(id, epoch, {}) for id, epoch in enumerate(epochs, 1)})


def test_the_first_look_tells_nothing() -> None:
    renewals = Renewals()
    renewals.look(image(1), {1: 7}, 0)
    assert not renewals.heard(1)
    renewals.look(image(1), {1: 7}, 100)
    assert not renewals.heard(1)
    renewals.look(image(1), {1: 8}, 200)
    assert renewals.heard(1)


def test_who_renews_no_more_is_not_heard_before_the_controller_takes_it_out() -> None:
    renewals = Renewals()
    for now, version in ((0, 1), (100, 2)):
        renewals.look(image(1), {1: version}, now)
    renewals.look(image(1), {1: 2}, 100 + HEARD_MS)
    assert renewals.heard(1)
    renewals.look(image(1), {1: 2}, 101 + HEARD_MS)
    assert not renewals.heard(1)
    assert HEARD_MS < SILENCE_MS
    renewals.look(image(1), {1: 3}, 200 + HEARD_MS)
    assert renewals.heard(1)


def test_who_is_registered_anew_is_heard_and_who_is_gone_is_not() -> None:
    renewals = Renewals()
    renewals.look(image(1, 1), {1: 5, 2: 5}, 0)
    renewals.look(image(2), {1: 5}, 100)
    assert renewals.heard(1)
    assert not renewals.heard(2)
    renewals.look(image(2, 1), {1: 5, 2: 9}, 200)
    assert not renewals.heard(2)  # it came while this leader looked, and has not renewed its lease yet
