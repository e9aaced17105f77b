"""HoldBackup."""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.registry import serves
from krappy.ports import SessionPort
from krappy.wire import messages


@serves(messages.HoldBackup, needs=needs.cluster(Op.CLUSTER_ACTION))
async def hold(session: SessionPort, request: messages.HoldBackup) -> messages.BackupHeld:
    held = await session.access.cluster(Op.CLUSTER_ACTION).hold_backup()
    return messages.BackupHeld(session.add(held), str(held.folder), held.files, held.size)
