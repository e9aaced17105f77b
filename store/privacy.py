"""A data folder is its owner's: it holds all events, and whoever reads it needs no permission of the broker's."""

from __future__ import annotations

import stat
from pathlib import Path

OTHERS = stat.S_IRWXO


def close_to_others(folder: Path) -> int | None:
    """Takes away what others may do in a folder; what it had before, or None when they could do nothing.

    They mostly can because of the umask of whoever made it, which let the group in as well, so that goes too. But a
    group that was given on purpose stays: where others have nothing, or where the folder's group is handed down
    (setgid, as Kubernetes does for fsGroup). Raises OSError, as when the folder is not ours.
    """
    before = stat.S_IMODE(folder.stat().st_mode)
    if not before & OTHERS:
        return None
    folder.chmod(before & ~OTHERS if before & stat.S_ISGID else before & ~(OTHERS | stat.S_IRWXG))
    return before
