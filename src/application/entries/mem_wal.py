"""LSM writes: which tables permit them, and which rows no version contains.

An LSM writer acknowledges rows without a commit, so no commit store decides their order, and no reader of versions
sees them before another process merges them. A table whose versions a commit store manages therefore refuses the
commit that sets LSM writes up, unless a property of the table permits it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pyarrow as pa

from lancekeep.application.concurrency import alongside, is_remote
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.domain.dropped import owner_id
from lancekeep.domain.errors import LsmRefused, ObjectNotFound, Refused
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES, DatasetRoot
from lancekeep.domain.mem_wal import LSM, MEM_WAL_DIRECTORY, ShardState, WalFile, permits_lsm
from lancekeep.domain.table import Table, find_table
from lancekeep.format.mem_wal import merged_generations, shard_state


class MemWal:
    """Finds the LSM writes to the tables of one catalog."""

    def __init__(self, ledger: Ledger, places: Places) -> None:
        self._ledger = ledger
        self._places = places

    def require_permitted(self, root: DatasetRoot, content: bytes) -> None:
        """Refuse a manifest that sets LSM writes up, unless its table permits them.

        Args:
            root: The dataset or branch.
            content: The staged manifest.

        Raises:
            LsmRefused: A commit store manages the table, and the table does not permit LSM writes.
        """
        if not self._ledger.managed or merged_generations(content, root.base_uri) is None:
            return
        location = self._places.location(root).partition(f"/{BRANCHES}/")[0]
        entry = self._ledger.view().owner_of(location)
        if (entry is not None and permits_lsm(entry.properties)) or self._is_set_up(root):
            return
        name = location if entry is None else str(owner_id(entry))
        raise LsmRefused(
            f"{name}: the commit sets up LSM writes (MemWAL). Rows of LSM writes are acknowledged without a commit, so "
            "they would bypass the catalog, and no version has them before another process merges them. Write by "
            f"append or a plain merge_insert instead, or permit LSM writes: alter_table({name!r}, {{{LSM!r}: "
            "'allowed'}). The page \"LSM writes\" of the documentation says what that means. Nothing was committed"
        )

    def unmerged(self, root: DatasetRoot) -> int | None:
        """Return how many generations of LSM writes the latest version lacks.

        Args:
            root: The table or branch.

        Returns:
            None if there never were LSM writes.

        Raises:
            Damaged: A manifest cannot be read.
        """
        return self._unmerged_among(root, self._files(root))

    def stranded(self, root: DatasetRoot) -> int:
        """Return how many generations no version has and no LSM reader finds.

        These are the unmerged generations of a table or branch that is not set up for LSM writes.

        Raises:
            Damaged: A manifest cannot be read.
        """
        lacking = self.unmerged(root)
        return 0 if not lacking or self._is_set_up(root) else lacking

    def ask(self, table: ObjectId, branch: str | None) -> Callable[[], int | None]:
        """Begin to look for LSM writes to a table or branch.

        Returns:
            Returns the result of `unmerged`.
        """
        root = self._places.dataset_root(find_table(self._ledger.view(), table)).branch(branch)
        if not is_remote(self._places.objects):
            return partial(self.unmerged, root)
        listed = alongside(partial(self._files, root))
        return lambda: self._unmerged_among(root, listed.result())

    def _unmerged_among(self, root: DatasetRoot, files: Sequence[WalFile]) -> int | None:
        if not files:
            return None
        merged = self._merged(root) or {}
        shards: dict[str, list[WalFile]] = {}
        for file in files:
            shards.setdefault(file.shard, []).append(file)
        return sum(self._unmerged(root, shard, own, merged.get(shard, 0)) for shard, own in shards.items())

    def refuse_unmerged(self, table: Table, action: str) -> None:
        """Raise `Refused` if the latest version of a table lacks rows of LSM writes."""
        if lacking := self.unmerged(self._places.dataset_root(table)):
            raise Refused(
                f"the table {table.id} has {lacking} generations of LSM writes that are in no version, and cannot be "
                f'{action} without them. Merge them first; the page "LSM writes" of the documentation shows how. '
                "Nothing was changed"
            )

    def refuse_writers(self, table: Table, action: str) -> None:
        """Raise `Refused` if a table or branch has LSM writers or unmerged rows."""
        root = self._places.dataset_root(table)
        self.refuse_unmerged(table, action)
        for history in self._ledger.commits.histories(root):
            if self._is_set_up(history) or self.unmerged(history):
                raise Refused(
                    f"the table {table.id} has LSM writes (at {history.base_uri}), and cannot be {action}: their "
                    "writers do not ask the catalog, and would continue at the old place. Merge their rows and end "
                    'LSM writes; the page "LSM writes" of the documentation shows how. Nothing was changed'
                )

    def _is_set_up(self, root: DatasetRoot) -> bool:
        return self._merged(root) is not None

    def _merged(self, root: DatasetRoot) -> dict[str, int] | None:
        """Return what the latest version of a history has merged; None if LSM writes are not set up."""
        gone = None
        while (latest := self._ledger.commits.latest(root)) is not None and latest != gone:
            try:
                return merged_generations(self._read(latest.path), latest.path)
            except ObjectNotFound:  # the table was dropped or moved, or the version was cleaned up
                gone = latest
        return None

    def _files(self, root: DatasetRoot) -> list[WalFile]:
        prefix = f"{root.key}/{MEM_WAL_DIRECTORY}/"
        infos = self._ledger.commits.retry.call(lambda: list(self._places.objects.list(prefix)))
        found = (WalFile.of(info.key[len(root.key) + 1 :]) for info in infos)
        return [file for file in found if file is not None]

    def _unmerged(self, root: DatasetRoot, shard: str, files: Iterable[WalFile], merged: int) -> int:
        above = f"{root.key}/{MEM_WAL_DIRECTORY}/{shard}"
        manifests = {number: file for file in files if (number := file.manifest) is not None}
        state = ShardState((), 0)
        if manifests:
            key = f"{above}/{manifests[max(manifests)].rest}"
            state = shard_state(self._read(key), key)
        entries = (file for file in files if (position := file.log_entry) is not None and position > state.flushed)
        logged = any(_has_rows(self._read(f"{above}/{file.rest}")) for file in entries)
        return state.unmerged(merged, logged)

    def _read(self, key: str) -> bytes:
        return self._ledger.commits.retry.call(partial(self._places.objects.get, key))


def _has_rows(entry: bytes) -> bool:
    """Return whether an entry of a log has rows; a damaged entry counts."""
    try:
        with pa.ipc.open_stream(entry) as batches:
            return any(batch.num_rows for batch in batches)
    except (pa.ArrowException, OSError, ValueError):
        return True
