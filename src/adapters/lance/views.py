"""The view engine that reads through pylance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from lancekeep.adapters.lance.panics import without_panics
from lancekeep.adapters.lance.structure import operation_of
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.expressions import require_bounded
from lancekeep.domain.view import Effect
from lancekeep.format.manifest import transaction_name

_EFFECTS = {
    "Append": Effect.APPENDED,
    "CreateIndex": Effect.KEPT,
    "UpdateConfig": Effect.KEPT,
    "Rewrite": Effect.REWROTE,
}


_UNNAMED = "BaseOperation"
"""What pylance 14 calls an operation that it has no class for, such as the first step of a compaction."""


@without_panics
class LanceViews:
    """A `ViewEngine` that uses pylance."""

    def transaction_name(self, dataset: Any) -> str:
        return transaction_name(dataset._ds.serialized_manifest())

    def effect(self, dataset: Any, version: int) -> tuple[Effect, Mapping[str, str]]:
        operation = operation_of(dataset, version)
        if operation == _UNNAMED:
            return (
                Effect.KEPT if _fragments(dataset, version) == _fragments(dataset, version - 1) else Effect.CHANGED
            ), {}
        effect = _EFFECTS.get(operation, Effect.CHANGED)
        if effect is Effect.REWROTE:  # pylance 14 cannot build some of these
            return effect, {}
        transaction = dataset.read_transaction(version)
        return effect, {} if transaction is None else transaction.transaction_properties or {}

    def output(self, dataset: Any, columns: Sequence[str] | Mapping[str, str] | None, condition: str | None) -> Any:
        _require_bounded(columns, condition)
        try:
            scanner = dataset.scanner(columns=_columns(columns), filter=condition, limit=1)
            scanner.explain_plan()  # the condition is only read now
            return scanner.projected_schema
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InvalidInput(f"the query of the view is invalid: {error}") from error

    def rows(
        self,
        dataset: Any,
        columns: Sequence[str] | Mapping[str, str] | None,
        condition: str | None,
        after: Any | None,
    ) -> Any:
        _require_bounded(columns, condition)
        fragments = None
        if after is not None:
            known = {fragment.fragment_id for fragment in after.get_fragments()}
            fragments = [each for each in dataset.get_fragments() if each.fragment_id not in known]
        scanner = dataset.scanner(columns=_columns(columns), filter=condition)
        if fragments is not None and not fragments:
            return pa.RecordBatchReader.from_batches(scanner.projected_schema, [])
        if fragments is not None:
            scanner = dataset.scanner(columns=_columns(columns), filter=condition, fragments=fragments)
        return scanner.to_reader()


def _fragments(dataset: Any, version: int) -> list[dict[str, Any]]:
    return [fragment.metadata.to_json() for fragment in dataset.checkout_version(version).get_fragments()]


def _require_bounded(columns: Sequence[str] | Mapping[str, str] | None, condition: str | None) -> None:
    require_bounded(condition, *(columns.values() if isinstance(columns, Mapping) else ()))


def _columns(columns: Sequence[str] | Mapping[str, str] | None) -> Any:
    return dict(columns) if isinstance(columns, Mapping) else None if columns is None else list(columns)
