"""HoldBackup."""

from __future__ import annotations

from krappy.ports import SessionPort
from krappy.wire import messages


async def hold(session: SessionPort, request: messages.HoldBackup) -> messages.BackupHeld:
    held = await session.broker.hold_backup()
    return messages.BackupHeld(session.add(held), str(held.folder), held.files, held.size)
