"""Which operations of a table add no rows."""

from __future__ import annotations

from collections.abc import Mapping

from lancekeep.domain.lineage import Operation as OperationKind
from lancekeep.domain.operations import (
    CreateIndex,
    Delete,
    Operation,
    ReserveFragments,
    Rewrite,
    UpdateBases,
    UpdateConfig,
)

_ADDS_NO_ROWS: Mapping[type[Operation], OperationKind] = {
    Delete: OperationKind.DELETE,
    CreateIndex: OperationKind.CREATE_INDEX,
    Rewrite: OperationKind.REWRITE,
    ReserveFragments: OperationKind.RESERVE_FRAGMENTS,
    UpdateConfig: OperationKind.UPDATE_CONFIG,
    UpdateBases: OperationKind.UPDATE_BASES,
}
ADDS_NO_ROWS = frozenset(_ADDS_NO_ROWS.values())
"""The operations after which a partition has only rows that it had before, with the same values."""


def adds_no_rows(operation: Operation | None) -> bool:
    """Return whether an operation leaves only rows of a partition, unchanged."""
    return type(operation) in _ADDS_NO_ROWS
