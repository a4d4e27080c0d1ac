"""Deliberate faults, each with a short walk that finds it.

A fault switches one protection off where the product has it. Each walk begins with the tables ``a`` and ``b``, and a
handle of each in the pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planted.fault import Fault, nothing
from readers.walk import Walk

from lancekeep.application.rows.predecessors import Predecessors
from lancekeep.domain.dataset_files import TRANSACTIONS


def _by_position(stored: Any, written: Any) -> Any:
    """As ``StoredColumns.file_of``, but columns are numbered in the order in which they were written."""
    file = type(written.fragments[0].files[0])()
    file.CopyFrom(written.fragments[0].files[0])
    return file


_PUT = Predecessors.put


def _all_but_transactions(self: Predecessors, key: str, content: bytes) -> None:
    if f"/{TRANSACTIONS}/" not in key:
        _PUT(self, key, content)


_ADOPTION = "lancekeep.application.commits.adoption.Adoption"
_CLONES = "lancekeep.application.entries.clones.Clones"
_CLONE_IN_ROOT, _CLONE_BELOW = "clone(at=0, into=0, place=0, version=0)", "clone(at=0, into=0, place=1, version=0)"

FAULTS: Mapping[str, Fault[Walk]] = {
    "commits need not descend from the version they follow": Fault(
        Walk(
            "v1",
            "sqlite",
            ("recreate(at=0, value=0, native=False)", "change_by_handle(at=0, change='append', value=0)"),
        ),
        {"lancekeep.application.commits.lineage.Lineage._compare": nothing},
    ),
    "an old plan is not asked which version it has read": Fault(
        Walk(
            "compatible",
            "file",
            ("plan_write(at=0, mode='append', value=0)", "recreate(at=0, value=0, native=False)", "finish(at=0)"),
        ),
        {"lancekeep.application.commits.lineage.Lineage._compare": nothing},
    ),
    "readers do not see versions beyond the last row": Fault(
        Walk("v2", "sqlite", ("write_past_the_store(at=0, value=0, branch=0)",)),
        {f"{_ADOPTION}.following": lambda *_: None},
    ),
    "rows that the commit store lost stay lost": Fault(
        Walk("v1", "memory", ("write(at=0, mode='append', value=0)", "lose_rows(at=0, rows=1, branch=0)")),
        {f"{_ADOPTION}.following": lambda *_: None},
    ),
    "drop does not look for clones": Fault(
        Walk("v2", "sqlite", (_CLONE_IN_ROOT, "drop(at=0)")),
        {f"{_CLONES}.recorded_readers": nothing},
    ),
    "purge does not look for clones": Fault(
        Walk("v2", "sqlite", (_CLONE_IN_ROOT, "drop_kept(at=0)", "purge(at=0)")),
        {f"{_CLONES}.recorded_readers": nothing},
    ),
    "clean-up does not look for dropped clones": Fault(
        Walk(
            "v2",
            "memory",
            (
                _CLONE_BELOW,
                "drop_kept(at=2)",
                "write(at=0, mode='overwrite', value=0)",
                "upkeep(what='cleanup', at=0, flag=False)",
            ),
        ),
        {f"{_CLONES}.unowned_datasets": nothing},
    ),
    "rename does not look for clones": Fault(
        Walk("compatible", "file", (_CLONE_IN_ROOT, "rename(at=0, into=1)")),
        {f"{_CLONES}.recorded_readers": nothing},
    ),
    "clean-up does not look for deregistered clones below other directories": Fault(
        Walk(
            "v2",
            "memory",
            (
                _CLONE_BELOW,
                "deregister(at=2)",
                "write(at=0, mode='overwrite', value=0)",
                "upkeep(what='cleanup', at=0, flag=False)",
            ),
        ),
        {f"{_CLONES}.unowned_datasets": nothing},
    ),
    "repair removes what a clone reads": Fault(
        Walk("v2", "none", (_CLONE_IN_ROOT, "deregister(at=0)", "upkeep(what='repair', at=1, flag=True)")),
        {f"{_CLONES}.protected": lambda *_: {}, f"{_CLONES}.recorded_readers": nothing},
    ),
    "repair removes foreign files": Fault(
        Walk(
            "v2",
            "sqlite",
            ("upkeep(what='put_foreign_file', at=2, flag=False)", "upkeep(what='repair', at=0, flag=False)"),
        ),
        {
            "lancekeep.application.upkeep.fsck.foreign_files": nothing,
            "lancekeep.application.entries.places.foreign_files": nothing,
            "lancekeep.application.upkeep.fsck.is_mark": lambda name: True,
        },
    ),
    "versions that pylance has removed stay listed": Fault(
        Walk(
            "v2",
            "sqlite",
            ("write(at=0, mode='append', value=0)", "write(at=0, mode='append', value=1)", "clean_up_natively(at=0)"),
        ),
        {
            "lancekeep.application.commits.histories.Histories.dated": lambda self, root, rows: [
                (row, None) for row in rows
            ]
        },
    ),
    "a managed table takes LSM writes": Fault(
        Walk("v2", "sqlite", ("refuse_lsm_writes(at=0)",)),
        {"lancekeep.application.entries.mem_wal.MemWal.require_permitted": nothing},
    ),
    "a catalog compacts a clone that has an index of its source": Fault(
        Walk(
            "v2",
            "conditional-put",
            (
                "write(at=0, mode='append', value=1)",
                "index_column(at=0, kind='BTREE', column=1)",
                "clone_by_name(at=0, into=0, version=5, deep=False)",
                "compact(at=2, branch=0)",
            ),
        ),
        {"lancekeep.application.rows.table_transactions.TableTransactions.require_own_indexes": nothing},
    ),
    "transaction files of built versions are left out": Fault(
        Walk("v2", "sqlite", ("clone_by_name(at=0, into=0, version=0, deep=True)",)),
        {"lancekeep.application.commits.table_commits.TableCommits.record_transaction": nothing},
    ),
    "transaction files of appends are left out": Fault(
        Walk("v1", "none", ("write(at=0, mode='append', value=0)",)),
        {"lancekeep.application.rows.predecessors.Predecessors.put": _all_but_transactions},
    ),
    "clean-up removes what other catalogs have moved to a base": Fault(
        Walk(
            "v2",
            "none",
            (
                "act_beside(rows=0, tier=True, clean_up=False)",
                "tier(at=0, until=0)",
                "upkeep(what='cleanup', at=0, flag=False)",
            ),
        ),
        {"lancekeep.application.upkeep.bases.Bases._refusal": lambda *_: ""},
    ),
    "a hint below a tagged version hides later versions": Fault(
        Walk(
            "v2",
            "conditional-put",
            (
                "tag(at=1, tag=0, branch=0, version=0, request=True)",
                "write(at=1, mode='append', value=0)",
                "write(at=1, mode='append', value=0)",
                "clean_up_natively(at=1)",
            ),
        ),
        {
            "lancekeep.adapters.commit_stores.conditional_put.ConditionalPutCommitStore._has_references": (
                lambda *_: False
            )
        },
    ),
    "columns of the manifest table are mapped by position": Fault(
        Walk("v2", "conditional-put", ("create(at=3, value=0, native=False)",), foreign=True),
        {"lancekeep.adapters.manifest_stores.table_data.StoredColumns.file_of": _by_position},
    ),
}
