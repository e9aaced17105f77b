"""Where a share group begins to read a partition: Kafka's share.auto.offset.reset."""

from __future__ import annotations

import re

from krappy.settings.topic_table import Given

_DURATION = "by_duration:"
# ISO 8601, as Java's Duration.parse reads it, without signs.
_ISO = re.compile(
    r"P(?:(\d{1,9})D)?(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,12})(?:\.(\d{0,9}))?S)?)?", re.IGNORECASE
)


def share_start(given: Given) -> str:
    """The setting's text. Raises ValueError for an invalid one."""
    text = given.strip() if isinstance(given, str) else ""
    start_of(text)
    return text


def start_of(text: str) -> str | int:
    """ "earliest", "latest", or the milliseconds before the present. Raises ValueError."""
    if text in ("earliest", "latest"):
        return text
    found = _ISO.fullmatch(text.removeprefix(_DURATION)) if text.startswith(_DURATION) else None
    if found is None or not any(found.groups()):
        raise ValueError("earliest, latest or by_duration:PnDTnHnMn.nS is needed")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    fraction = (found[5] or "").ljust(3, "0")[:3]
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + int(fraction or 0)
