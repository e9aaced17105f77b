"""Which test files a worker of `make test` takes, and in which order (pytest-xdist, `--dist loadfile`)."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

# All files of such a folder go to one worker, which starts what they share once: a Java and a Spark session.
TOGETHER = ("tests/spark",)
# They take longest, by minutes or by tens of seconds, and begin first: a worker that began with one of them last would
# work alone at the end. The others follow by their number of tests.
FIRST = (
    "tests/spark",
    "tests/power/test_power_loss.py",
    "tests/crash/test_damage_fuzz.py",
)


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return next((folder for folder in TOGETHER if file.startswith(f"{folder}/")), file)

    def _assign_work_unit(self, node: WorkerController) -> None:
        following = next((unit for unit in FIRST if unit in self.workqueue), None)
        if following is not None:
            self.workqueue.move_to_end(following, last=False)
        super()._assign_work_unit(node)
