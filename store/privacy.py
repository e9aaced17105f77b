"""Permissions of the data folder: only its owner may use it, for it holds all events, without the broker's access
rules."""

from __future__ import annotations

import stat
from pathlib import Path

OTHERS = stat.S_IRWXO


def close_to_others(folder: Path) -> int | None:
    """Removes other users' permissions on a folder. Returns its mode before, or None when others had none.

    Others mostly have some because of a lax umask, which gave the group some too; so the group's are removed as well.
    They stay if they were given on purpose: when others have none, or when the folder has setgid (as Kubernetes sets it
    for fsGroup). Raises OSError, as when the folder belongs to another user.
    """
    before = stat.S_IMODE(folder.stat().st_mode)
    if not before & OTHERS:
        return None
    folder.chmod(before & ~OTHERS if before & stat.S_ISGID else before & ~(OTHERS | stat.S_IRWXG))
    return before
