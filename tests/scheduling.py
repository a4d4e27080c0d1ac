"""The distribution of tests over the processes of pytest-xdist."""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController


class TogetherOrAlone(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Schedules tests with an expensive fixture in one process, first, and all others anywhere.

    By the names of files, as the marks of ``--dist loadgroup`` mean nothing under pytest 9.2 (pytest-xdist #1386).
    """

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget a unit that is complete: the scheduler counts all units of a process after each test."""
        super().mark_test_complete(node, item_index, duration)
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]

    def _split_scope(self, nodeid: str) -> str:
        file = PurePath(nodeid.partition("::")[0]).stem
        if file == "test_spark_jar":
            return "jar"  # built once; its sessions are processes of their own
        if file == "test_stream_soak" or (file.startswith("test_spark") and file != "test_spark_writers"):
            return "spark"  # one session
        if file.startswith("test_hive") or "hive" in nodeid.lower() or "metastore" in nodeid:
            return "hive"  # one Metastore
        if file == "test_lance_ray":
            return "ray"  # one instance
        if file == "test_model":
            return "model"  # each setting is explored once
        if file == "test_packaging":
            return "wheel"  # built once
        return nodeid
