"""BeginBackup, NoteEnds, HoldBackup, ReadBackup."""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import CLUSTER_NAME, Grant, Op, Resource
from krappy.handlers.handles import BackupFiles, BackupStart
from krappy.handlers.registry import serves
from krappy.ports import SessionPort
from krappy.wire import messages

GRANTS = [Grant(Resource.CLUSTER, CLUSTER_NAME, Op.CLUSTER_ACTION)]
MAX_BYTES = 4 << 20  # of one answer
# Seconds of silence after which a client that holds files is taken for gone: held files take disk, and when a few
# clients hold some, nobody else can make a backup. Clients ping every 30 seconds.
PATIENCE = 90.0


@serves(messages.BeginBackup, needs=needs.cluster(Op.CLUSTER_ACTION))
async def begin(session: SessionPort, request: messages.BeginBackup) -> messages.BackupBegun:
    begun = session.access.cluster(Op.CLUSTER_ACTION).new_backup()
    if begun is None:
        return messages.BackupBegun(None, session.broker.id, [])
    handle = session.add(BackupStart(begun), GRANTS)
    try:
        await begun.begin()
    except BaseException:
        session.forget(handle)
        raise
    return messages.BackupBegun(handle, session.broker.id, begun.brokers())


@serves(messages.NoteEnds, needs=needs.cluster(Op.CLUSTER_ACTION))
async def note(session: SessionPort, request: messages.NoteEnds) -> messages.EndsNoted:
    begun = session.find(request.handle, BackupStart).begun
    ends = await begun.note(request.topics)
    return messages.EndsNoted(list(ends), begun.brokers())


@serves(messages.HoldBackup, needs=needs.cluster(Op.CLUSTER_ACTION))
async def hold(session: SessionPort, request: messages.HoldBackup) -> messages.BackupHeld:
    cluster = session.access.cluster(Op.CLUSTER_ACTION)
    if request.begun is None:
        held = await cluster.hold_backup()
    else:
        held = await session.find(request.begun, BackupStart).begun.hold(tree=request.tree)
    session.patience = PATIENCE
    return messages.BackupHeld(session.add(BackupFiles(held), GRANTS), str(held.folder), held.files, held.size)


@serves(messages.ReadBackup, needs=needs.cluster(Op.CLUSTER_ACTION))
async def read(session: SessionPort, request: messages.ReadBackup) -> messages.BackupRead:
    held = session.find(request.handle, BackupFiles).held
    async with session.answering(min(request.size, MAX_BYTES)) as room:
        return messages.BackupRead(await held.read(request.name, request.offset, max(room, 1)))
