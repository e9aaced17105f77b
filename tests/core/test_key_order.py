"""The order of keys, compared with its definition: an event that comes behind an unsettled event of its key waits,
unless both were leased together."""

from __future__ import annotations

from time import process_time

from hypothesis import given
from hypothesis import strategies as st

from krappy.core.key_order import KeyOrder

KEYS = st.sampled_from(["a", "b", "c", "d", None])
# A step: fresh events come, with gaps between their offsets; or a run of offsets is settled: (from, to) as parts of all
# so far.
STEPS = st.one_of(
    st.lists(st.tuples(KEYS, st.integers(0, 2)), min_size=1, max_size=6),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
)


class Definition:
    def __init__(self) -> None:
        self.leased: dict[int, str | None] = {}
        self.waiting: dict[int, str | None] = {}

    def arrive(self, events: list[tuple[int, str | None]]) -> list[int]:
        held = {key for key in (*self.leased.values(), *self.waiting.values()) if key is not None}
        waits = [offset for offset, key in events if key in held]
        for offset, key in events:
            (self.waiting if key in held else self.leased)[offset] = key
        return waits

    def settle(self, first: int, last: int) -> None:
        for some in (self.leased, self.waiting):
            for offset in [offset for offset in some if first <= offset <= last]:
                del some[offset]

    @property
    def open(self) -> set[int]:
        held = set(self.leased.values())
        heads: dict[str | None, int] = {}
        for offset, key in sorted(self.waiting.items()):
            heads.setdefault(key, offset)
        return {offset for key, offset in heads.items() if key not in held}


@given(st.lists(STEPS, max_size=14))
def test_events_wait_as_they_should_whatever_is_settled(steps: list[list[tuple[str | None, int]]]) -> None:
    order, meant, end = KeyOrder(0), Definition(), 0
    for step in steps:
        if isinstance(step, tuple):
            first, last = sorted(int(part * end) for part in step)
            order.settle(first, last)
            meant.settle(first, last)
        else:
            events = []
            for key, gap in step:
                events.append((end + gap, key))
                end += gap + 1
            spans = [(offset, offset) for offset, _ in events]
            found, stop = order.arrive(spans, [key for _, key in events], 100, 100, set())
            assert (found, stop) == (meant.arrive(events), None)
        assert order.open == meant.open


def test_acks_in_their_order_cost_no_more_where_a_log_has_gaps_between_all_events() -> None:
    order, count = KeyOrder(0), 10_000
    began = process_time()
    order.arrive([(2 * each, 2 * each) for each in range(count)], range(count), count, count, set())
    for each in range(count):
        order.settle(2 * each, 2 * each)
    assert process_time() - began < 1, "each ack looks at all events of its lease"  # it took 18 s
    assert order.arrive([(2 * count, 2 * count)], [0], 1, 1, set()) == ([], None)
