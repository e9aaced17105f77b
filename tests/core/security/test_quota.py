"""Client quotas: which one counts for whom, and what they allow, compared with a naive model."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from krappy.core.security.quota import BURST, DEBT, WINDOW, Bucket, Payer, QuotaSet, QuotaUse
from krappy.core.security.quota_entities import (
    DEFAULT,
    OF_CLIENTS,
    QuotaEntity,
    QuotaFilter,
    QuotaKey,
    check_rate,
    entity_of,
    key_of,
    read_name,
    stored_name,
)
from krappy.errors import InvalidRequest

PRODUCE, CONSUME = QuotaKey.PRODUCE, QuotaKey.CONSUME
ADA = Payer("ada", "web")
NAMES = st.sampled_from([None, DEFAULT, "ada", "bob"])
ENTITIES = st.builds(QuotaEntity, NAMES, NAMES, st.none()).filter(lambda entity: entity != QuotaEntity())


def use_of(*quotas: tuple[QuotaEntity, float], key: QuotaKey = PRODUCE, most: int = 100) -> QuotaUse:
    found = QuotaUse(most)
    found.take(QuotaSet({entity: {key: rate} for entity, rate in quotas}))
    return found


# --- whose counts: as the table in Kafka's documents ("Quotas: Quota configuration") has it


KAFKAS_ORDER = [
    ("/config/users/<user>/clients/<client-id>", QuotaEntity("ada", "web"), ("ada", "web")),
    ("/config/users/<user>/clients/<default>", QuotaEntity("ada", DEFAULT), ("ada", "web")),
    ("/config/users/<user>", QuotaEntity("ada"), ("ada", None)),
    ("/config/users/<default>/clients/<client-id>", QuotaEntity(DEFAULT, "web"), ("ada", "web")),
    ("/config/users/<default>/clients/<default>", QuotaEntity(DEFAULT, DEFAULT), ("ada", "web")),
    ("/config/users/<default>", QuotaEntity(DEFAULT), ("ada", None)),
    ("/config/clients/<client-id>", QuotaEntity(None, "web"), (None, "web")),
    ("/config/clients/<default>", QuotaEntity(None, DEFAULT), (None, "web")),
]


@pytest.mark.parametrize("rank", range(len(KAFKAS_ORDER)), ids=[name for name, _, _ in KAFKAS_ORDER])
def test_the_most_precise_quota_counts(rank: int) -> None:
    some = list(enumerate(KAFKAS_ORDER))[rank:]
    quotas = QuotaSet({entity: {PRODUCE: float(at + 1)} for at, (_, entity, _) in some})
    found = quotas.find(PRODUCE, "ada", "web")
    assert found is not None
    assert (found.entity, found.rate, found.shared) == (KAFKAS_ORDER[rank][1], rank + 1, KAFKAS_ORDER[rank][2])


@given(st.dictionaries(ENTITIES, st.floats(1, 9), max_size=12), st.sampled_from(["ada", "bob", "eve"]), NAMES)
def test_it_is_the_first_of_kafkas_order(quotas: dict[QuotaEntity, float], user: str, client: str | None) -> None:
    client = client or "web"
    order = [(user, client), (user, ""), (user, None), ("", client), ("", ""), ("", None), (None, client), (None, "")]
    wanted = next((quotas[QuotaEntity(*each)] for each in order if QuotaEntity(*each) in quotas), None)
    found = QuotaSet({entity: {PRODUCE: rate} for entity, rate in quotas.items()}).find(PRODUCE, user, client)
    assert (None if found is None else found.rate) == wanted


def test_each_key_is_looked_for_by_itself() -> None:
    quotas = QuotaSet({QuotaEntity("ada", "web"): {PRODUCE: 1.0}, QuotaEntity("ada"): {PRODUCE: 2.0, CONSUME: 3.0}})
    assert [found and found.rate for key in (PRODUCE, CONSUME) for found in [quotas.find(key, "ada", "web")]] == [1, 3]
    assert quotas.find(QuotaKey.MUTATION, "ada", "web") is None
    assert quotas.keys == {PRODUCE, CONSUME}


def test_a_name_that_is_missing_has_the_default() -> None:
    use = use_of((QuotaEntity(None, DEFAULT), 10.0))
    assert use.spend(PRODUCE, Payer("ada", ""), 20, 0.0) == pytest.approx(1.0)


# --- what it allows


class Naive:
    """Credit in units, filled up with time. `debt`: seconds that are counted of what was used before."""

    def __init__(self, rate: float, burst: float, debt: float = math.inf) -> None:
        self.rate, self.most, self.debt = rate, rate * burst, debt
        self.credit, self.now = self.most, 0.0

    def at(self, now: float) -> float:
        self.credit = min(self.most, self.credit + (now - self.now) * self.rate)
        self.now = now
        return max(0.0, -self.credit / self.rate)

    def spend(self, amount: float, now: float) -> float:
        self.at(now)
        self.credit -= amount
        wait = self.at(now)
        self.credit = max(self.credit, -self.debt * self.rate)
        return wait


@given(
    st.floats(0.5, 1e6),
    st.sampled_from([1.0, 11.0]),
    st.lists(st.tuples(st.floats(0, 30), st.floats(0, 1e6)), max_size=40),
)
def test_a_bucket_is_as_the_naive_one(rate: float, burst: float, work: list[tuple[float, float]]) -> None:
    bucket, naive, now = Bucket(rate, burst, 0.0), Naive(rate, burst), 0.0
    for pause, amount in work:
        now += pause
        assert bucket.wait(now) == pytest.approx(naive.at(now), rel=1e-6, abs=2e-3)
        assert bucket.spend(amount, now) == pytest.approx(naive.spend(amount, now), rel=1e-6, abs=2e-3)


@given(st.floats(1, 1e6), st.lists(st.floats(0.001, WINDOW), min_size=1, max_size=40))
def test_who_waits_as_told_keeps_to_the_rate(rate: float, seconds: list[float]) -> None:
    use, now, done = use_of((QuotaEntity("ada"), rate)), 0.0, 0.0
    for each in seconds:
        wait = use.spend(PRODUCE, ADA, each * rate, now)
        done += each * rate
        now += wait
        assert done <= rate * (now + BURST[PRODUCE]) * 1.0001 + rate * 0.002


@pytest.mark.parametrize("key", [PRODUCE, CONSUME, QuotaKey.REQUEST])
def test_what_others_did_is_owed_for_a_bounded_time(key: QuotaKey) -> None:
    use = use_of((QuotaEntity("ada"), 10.0), key=key)
    assert use.spend(key, ADA, 10_000, 0.0) == pytest.approx(999.0)  # one's own use counts as a whole
    assert use.wait(key, ADA, 0.0) == WINDOW
    assert use.spend(key, ADA, 10, 0.0) == pytest.approx(WINDOW + 1)
    assert use.wait(key, ADA, 0.0) == WINDOW


def test_who_comes_while_others_are_over_it_takes_his_place_behind_them() -> None:
    use = use_of((QuotaEntity("ada"), 10.0))
    others = Payer("ada", "another")
    places = [(ADA, 40, 0.0), (others, 10, 0.0), (others, 20, 1.0)]
    found = [use.place(PRODUCE, payer, amount, 5.0, now) for payer, amount, now in places]
    waits = [(0.0, 3.0), (3.0, 1.0), (3.0, 2.0)]  # of the first, 10 may be used at once
    assert [value for each in found if each is not None for value in each] == pytest.approx(sum(waits, ()))
    assert use.place(PRODUCE, others, 1, 4.9, 1.0) is None  # this wait would be too long, and nothing is noted
    assert use.wait(PRODUCE, ADA, 1.0) == pytest.approx(5.0)
    assert use.place(PRODUCE, Payer("bob"), 1e9, 0.0, 1.0) == (0.0, 0.0)


@given(st.floats(1, 1e6), st.lists(st.tuples(st.floats(0, 3), st.floats(0.001, 2 * WINDOW)), min_size=1, max_size=60))
def test_places_keep_to_the_rate_and_are_bounded(rate: float, asked: list[tuple[float, float]]) -> None:
    """However requests come, and whoever does not wait: what begins keeps to the rate. Of a request that takes more
    than the window, only the window counts for the others."""
    use, now, done, most = use_of((QuotaEntity("ada"), rate)), 0.0, 0.0, 10.0
    for pause, seconds in asked:
        now += pause
        found = use.place(PRODUCE, ADA, seconds * rate, most, now)
        assert use.wait(PRODUCE, ADA, now) <= most + WINDOW + 0.001
        if found is not None:
            assert found.wait <= most
            assert done <= rate * (now + found.wait + BURST[PRODUCE]) * 1.0001 + rate * 0.002 * len(asked)
            done += min(seconds, WINDOW) * rate


def test_a_turn_has_about_as_much_as_the_largest_in_line() -> None:
    use = use_of((QuotaEntity("ada"), 10.0))
    assert use.turn(PRODUCE, ADA, 0.0) == use.turn(PRODUCE, Payer("bob"), 0.0) == 0.0  # nobody waits
    use.place(PRODUCE, ADA, 100, math.inf, 0.0)
    turns = []
    for _ in range(50):
        turns.append(use.turn(PRODUCE, ADA, 0.0))
        use.place(PRODUCE, ADA, 1, math.inf, 0.0)
    assert turns[:2] == pytest.approx([90.0, 81.0])
    assert turns[-1] == pytest.approx(0.9)  # what came long ago does not count any more
    assert use.turn(PRODUCE, ADA, 1000.0) == 0.0


def test_partitions_are_owed_for_as_long_as_it_takes() -> None:
    use = use_of((QuotaEntity("ada"), 1.0), key=QuotaKey.MUTATION)
    use.spend(QuotaKey.MUTATION, ADA, 1011, 0.0)
    assert use.wait(QuotaKey.MUTATION, ADA, 0.0) == pytest.approx(1000.0)


def test_while_somebody_is_lent_all_that_there_is_nobody_else_begins() -> None:
    use = use_of((QuotaEntity("ada"), 10.0), key=CONSUME)
    assert use.lend(CONSUME, Payer("bob"), 1e9, 0.0) == 0.0
    assert use.lend(CONSUME, ADA, 4.0, 0.0) == 4.0
    assert use.wait(CONSUME, ADA, 0.0) == 0.0  # there is enough left for somebody else
    lent = use.lend(CONSUME, ADA, 1e9, 0.0)
    assert lent == 20.0
    assert use.wait(CONSUME, ADA, 0.0) == pytest.approx(1.4)
    use.spend(CONSUME, ADA, -lent, 0.0)
    use.spend(CONSUME, ADA, -4.0, 0.0)
    assert use.spend(CONSUME, ADA, 20.0, 0.0) == pytest.approx(1.0)


def test_a_quota_that_was_away_begins_anew_and_others_do_not() -> None:
    use = use_of((QuotaEntity("ada"), 10.0), (QuotaEntity("bob"), 10.0))
    kept = use.quotas
    use.spend(PRODUCE, ADA, 100, 0.0)
    use.spend(PRODUCE, Payer("bob"), 100, 0.0)
    use.take(QuotaSet({QuotaEntity("bob"): {PRODUCE: 10.0}}))
    use.take(kept)
    assert use.wait(PRODUCE, ADA, 0.0) == 0.0
    assert use.wait(PRODUCE, Payer("bob"), 0.0) > 0.0


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(0.01, 1), st.floats(1, 50)), max_size=200))
@example([("a", 1.0, 22.0), ("a", 0.125, 50.0), ("a", 0.0625, 50.0), ("a", 1.0, 1.0)])  # more than DEBT
def test_a_bound_of_memory_lets_nobody_have_more(work: list[tuple[str, float, float]]) -> None:
    """There is room for three of eight payers. Each still keeps to his rate, and memory is bounded. Those who share a
    place may each have less, but not more."""
    use = use_of((QuotaEntity(None, DEFAULT), 10.0), most=3)
    models, now = {name: Naive(10.0, 1.0, DEBT[PRODUCE]) for name in "abcdefgh"}, 0.0
    for name, pause, amount in work:
        now += pause
        wait = use.spend(PRODUCE, Payer("x", name), amount, now)
        assert wait >= models[name].spend(amount, now) - 0.01
        assert use.size <= 4


def test_one_of_many_client_ids_is_charged_with_the_user() -> None:
    use = use_of((QuotaEntity("ada"), 100.0))
    waits = [use.spend(PRODUCE, Payer("ada", f"client-{number}"), 100, 0.0) for number in range(10)]
    assert waits == pytest.approx([float(number) for number in range(10)])


def test_a_changed_rate_begins_anew_and_the_same_does_not() -> None:
    use = use_of((QuotaEntity("ada"), 10.0))
    assert use.spend(PRODUCE, ADA, 110, 0.0) == pytest.approx(10.0)
    use.take(QuotaSet({QuotaEntity("ada"): {PRODUCE: 10.0}, QuotaEntity("bob"): {PRODUCE: 1.0}}))
    assert use.wait(PRODUCE, ADA, 0.0) == pytest.approx(10.0)
    use.take(QuotaSet({QuotaEntity("ada"): {PRODUCE: 20.0}}))
    assert use.wait(PRODUCE, ADA, 0.0) == 0
    use.take(QuotaSet())
    assert use.spend(PRODUCE, ADA, 10**9, 0.0) == 0


def test_a_share_is_that_of_a_second() -> None:
    use = use_of((QuotaEntity("ada"), 100.0), key=CONSUME)
    assert use.share(CONSUME, ADA, 0.0) == 100
    use.spend(CONSUME, ADA, 150, 0.0)
    assert use.share(CONSUME, ADA, 0.0) == 0
    assert use.share(CONSUME, ADA, 0.6) == 100
    assert use.share(CONSUME, Payer("bob"), 0.0) is None


def test_who_has_not_logged_in_pays_by_his_address() -> None:
    use = use_of((QuotaEntity(DEFAULT), 1.0), key=QuotaKey.REQUEST)
    assert use.spend(QuotaKey.REQUEST, Payer(host="10.0.0.1"), 3, 0.0) == pytest.approx(2.0)
    assert use.wait(QuotaKey.REQUEST, Payer(host="10.0.0.2"), 0.0) == 0
    assert use.wait(QuotaKey.REQUEST, Payer("ada"), 0.0) == 0


def test_connections_of_an_address() -> None:
    use = QuotaUse()
    use.take(QuotaSet({QuotaEntity(ip="10.0.0.1"): {QuotaKey.CONNECTION: 2.0}}))
    assert [use.connect("10.0.0.1", 100.0, 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert [use.connect("10.0.0.1", 100.0, 0.6), use.connect("10.0.0.1", 100.0, 0.6)] == [True, False]
    assert all(use.connect("10.0.0.2", None, 0.0) for _ in range(1000))
    assert sum(use.connect("10.0.0.3", 5.0, 0.0) for _ in range(100)) == 6
    assert sum(use.connect("127.0.0.1", 5.0, 0.0, exempt=True) for _ in range(100)) == 100
    assert sum(use.connect("10.0.0.1", 5.0, 100.0, exempt=True) for _ in range(100)) == 3
    assert sum(use.connect("10.0.0.1", 5.0, 100.0, apart="http", exempt=True) for _ in range(100)) == 3


# --- which there can be


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"planet": "mars"},
        {"ip": "1.2.3.4", "user": "ada"},
        {"ip": "not.an.address"},
        {"user": "a" * 256},
        {"client-id": "a" * 250},
    ],
)
def test_entities_that_there_are_not(parts: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        entity_of(parts)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 1e300, 0.5])
def test_rates_that_there_are_not(rate: float) -> None:
    with pytest.raises(InvalidRequest):
        check_rate(PRODUCE, rate)


def test_what_has_a_fraction_and_what_is_for_whom() -> None:
    assert check_rate(QuotaKey.REQUEST, 0.5) == 0.5
    ip, client = entity_of({"ip": "::FFFF"}), entity_of({"client-id": ""})
    assert ip == QuotaEntity(ip="::ffff")
    assert [key_of(client, name) for name in OF_CLIENTS] == list(OF_CLIENTS)
    assert key_of(ip, "connection_creation_rate") is QuotaKey.CONNECTION
    for entity, name in ((ip, PRODUCE), (client, QuotaKey.CONNECTION), (client, "x")):
        with pytest.raises(InvalidRequest):
            key_of(entity, name)


@given(st.builds(QuotaEntity, st.none() | st.text(max_size=9), st.none() | st.text(max_size=9), st.none()))
def test_the_stored_name_is_the_entity(entity: QuotaEntity) -> None:
    if entity.parts():
        assert read_name(stored_name(entity)) == entity


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (QuotaFilter({}), [0, 1, 2, 3]),
        (QuotaFilter({"user": "ada"}), [0, 1]),
        (QuotaFilter({"user": "ada"}, strict=True), [0]),
        (QuotaFilter({}, ["user"]), [0, 1, 2]),
        (QuotaFilter({"user": DEFAULT}, ["client-id"], strict=True), []),
        (QuotaFilter({"ip": "10.0.0.1"}), [3]),
    ],
)
def test_filters(wanted: QuotaFilter, found: list[int]) -> None:
    entities = [QuotaEntity("ada"), QuotaEntity("ada", "web"), QuotaEntity(DEFAULT), QuotaEntity(ip="10.0.0.1")]
    assert [at for at, entity in enumerate(entities) if wanted.matches(entity)] == found
