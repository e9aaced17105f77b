"""HoldBackup."""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import CLUSTER_NAME, Grant, Op, Resource
from krappy.handlers.registry import serves
from krappy.ports import SessionPort
from krappy.wire import messages

GRANTS = [Grant(Resource.CLUSTER, CLUSTER_NAME, Op.CLUSTER_ACTION)]


@serves(messages.HoldBackup, needs=needs.cluster(Op.CLUSTER_ACTION))
async def hold(session: SessionPort, request: messages.HoldBackup) -> messages.BackupHeld:
    held = await session.access.cluster(Op.CLUSTER_ACTION).hold_backup()
    return messages.BackupHeld(session.add(held, GRANTS), str(held.folder), held.files, held.size)
