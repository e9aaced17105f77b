"""Which test files a worker of `make test` takes, and in which order (pytest-xdist, `--dist loadfile`)."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

# All files of such a folder go to one worker, which starts what they share once: a Java and a Spark session.
TOGETHER = ("tests/spark",)
# Tests in these folders, and in the files below, wait for more than half of their time: for elections, ends of
# sessions, processes. The others compute, and as many workers take these as a small machine has cores.
WAITING = ("tests/clients/", "tests/cluster/", "tests/compat/", "tests/crash/", "tests/kafka/", "tests/quotas/")
COMPUTING = 2  # workers
# They take longest, by minutes or by tens of seconds, and begin first, in this order: a worker that began with one of
# them last would work alone at the end.
FIRST = (
    "tests/spark",
    "tests/cluster/test_transaction_steps.py",
    "tests/core/cluster/test_simulation.py",
    "tests/nix/test_image.py",
    "tests/cluster/test_rolling_security.py",
    "tests/cluster/test_staged_jobs.py",
    "tests/cluster/test_damaged_replicas.py",
    "tests/power/test_power_loss.py",
    "tests/chaos/test_chaos.py",
    "tests/crash/test_damage_fuzz.py",
    "tests/cluster/test_transactions.py",
    "tests/kafka/test_turns.py",
    "tests/cluster/test_secured.py",
    "tests/cluster/test_cluster.py",
    "tests/console/test_pages.py",
    "tests/cluster/test_moves.py",
    "tests/console/test_pages_data.py",
    "tests/cluster/test_native_groups.py",
    "tests/cli/test_process.py",
    "tests/cluster/test_groups.py",
    "tests/cli/test_backup_trouble.py",
    "tests/cluster/test_groups_kept.py",
    "tests/cluster/test_lost_answers.py",
    "tests/cluster/test_conditional_writes.py",
    "tests/cluster/test_expired_sessions.py",
    "tests/cluster/test_share_steps.py",
    "tests/cluster/test_share_groups.py",
    "tests/cluster/test_session_reads.py",
    "tests/cluster/test_lost_folders.py",
    "tests/cluster/test_counts.py",
    "tests/cluster/test_backup.py",
    "tests/cluster/test_unclean.py",
    "tests/cli/test_backup.py",
    "tests/cluster/test_replicas.py",
    "tests/cli/test_backup_incremental.py",
    "tests/cluster/test_http.py",
    "tests/broker/test_hung_up.py",
    "tests/cluster/test_native.py",
    "tests/console/test_pages_admin.py",
    "tests/console/test_pages_cluster.py",
    "tests/console/test_pages_live.py",
    "tests/handlers/test_turns.py",
    "tests/console/test_large.py",
    "tests/clients/test_several.py",
    "tests/test_demos.py",
    "tests/test_documents.py",
    "tests/power/test_syncs.py",
    "tests/crash/test_damage.py",
    "tests/cluster/test_backup_states.py",
    "tests/cluster/test_staged_waits.py",
    "tests/cluster/test_older_zookeeper.py",
    "tests/crash/test_sigkill.py",
    "tests/cluster/test_share_logs.py",
    "tests/cluster/test_balance.py",
    "tests/cluster/test_woken_leaders.py",
    "tests/cluster/test_offset_records.py",
    "tests/crash/test_transactions_sigkill.py",
    "tests/crash/test_staging_sigkill.py",
    "tests/cluster/test_left_out_records.py",
    "tests/cluster/test_wrong_cluster.py",
    "tests/store/test_sums.py",
    "tests/store/test_cleaner.py",
)


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return next((folder for folder in TOGETHER if file.startswith(f"{folder}/")), file)

    def _assign_work_unit(self, node: WorkerController) -> None:
        nodes = list(self.assigned_work)
        waits = nodes.index(node) < max(1, len(nodes) - COMPUTING)
        following = next((unit for unit in (*FIRST, *self.workqueue) if self._suits(unit, waits)), None)
        if following is not None:
            self.workqueue.move_to_end(following, last=False)
        super()._assign_work_unit(node)

    def _suits(self, unit: str, waits: bool) -> bool:
        """Whether it is still to be done, and is of this kind."""
        return unit in self.workqueue and waits == (unit in FIRST or unit.startswith(WAITING))
