"""Which keys of a table are wanted, and the intersection and union of two such wishes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Keys:
    """Exact keys, or keys with a prefix, or keys from `start` (inclusive) to before `end`; nothing given: all keys."""

    exact: tuple[bytes, ...] | None = None
    prefix: bytes | None = None
    start: bytes | None = None
    end: bytes | None = None

    def as_range(self) -> Keys:
        """The same keys, with `start` and `end` instead of a prefix."""
        if self.prefix is None:
            return self
        return Keys(start=self.prefix, end=after_prefix(self.prefix))

    def __and__(self, other: Keys) -> Keys:
        """The keys that are in both."""
        one, other = self.as_range(), other.as_range()
        if one.exact is None and other.exact is not None:
            one, other = other, one
        if one.exact is not None:
            found = frozenset(one.exact if other.exact is None else other.exact)
            return Keys(exact=tuple(key for key in one.exact if key in found and other.spans(key)))
        start = max((at for at in (one.start, other.start) if at is not None), default=None)
        end = min((at for at in (one.end, other.end) if at is not None), default=None)
        return NONE if start is not None and end is not None and start >= end else Keys(start=start, end=end)

    def __or__(self, other: Keys) -> Keys:
        """The keys that are in either; and those between two ranges, or between a range and a key."""
        some = [each.as_range() for each in (self, other) if each != NONE]
        if not some:
            return NONE
        if all(each.exact is not None for each in some):
            return Keys(exact=tuple(dict.fromkeys(key for each in some for key in each.exact or ())))
        if len(some) == 1:
            return some[0]
        starts = [each.start if each.exact is None else min(each.exact) for each in some]
        ends = [each.end if each.exact is None else max(each.exact) + b"\0" for each in some]
        return Keys(
            start=None if None in starts else min(at for at in starts if at is not None),
            end=None if None in ends else max(at for at in ends if at is not None),
        )

    def spans(self, key: bytes) -> bool:
        """Whether a key lies between `start` (inclusive) and `end` (exclusive)."""
        return (self.start is None or self.start <= key) and (self.end is None or key < self.end)


NONE = Keys(exact=())


def after_prefix(prefix: bytes) -> bytes | None:
    """The first key after all that begin with a prefix; None: there is none."""
    rest = prefix.rstrip(b"\xff")
    return rest[:-1] + bytes([rest[-1] + 1]) if rest else None
