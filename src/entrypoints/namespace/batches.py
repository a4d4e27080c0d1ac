"""Batches of table operations (``BatchCommitTables``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lance_namespace as api

from lancekeep.domain.errors import InvalidInput, Unsupported

CREATE = "create_table_version"


def commit_batch(
    operations: Sequence[api.CommitTableOperation],
    create_versions: Callable[[Sequence[Any]], Sequence[api.TableVersion]],
    alone: Mapping[str, Callable[[Any], Any]],
) -> list[api.CommitTableResult]:
    """Perform a batch; return the results in the order of its operations.

    Args:
        operations: The operations of the batch.
        create_versions: Creates several versions together, all or none.
        alone: The functions that perform a single operation, by its field.

    Raises:
        Unsupported: Several operations are not all new versions; nothing was done.
    """
    chosen = [_only(operation, alone) for operation in operations]
    kinds = sorted({kind for kind, _ in chosen})
    if not chosen:
        raise InvalidInput("the batch has no operation; give at least one")
    if kinds == [CREATE]:
        versions = create_versions([request for _, request in chosen])
        return [_result(CREATE, api.CreateTableVersionResponse(version=version)) for version in versions]
    if len(chosen) == 1:
        [(kind, request)] = chosen
        return [_result(kind, alone[kind](request))]
    raise Unsupported(
        f"a batch of {', '.join(kinds)} cannot be atomic here: only new versions of several tables ({CREATE}) are made "
        "in one step, by the commit store. A declaration takes a directory and a name in the catalog, which are "
        "elsewhere, and versions are deleted one by one. Nothing was done; send these operations one at a time."
    )


def _only(operation: api.CommitTableOperation, kinds: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the kind of an operation and its request."""
    given = [(kind, request) for kind in kinds if (request := getattr(operation, kind)) is not None]
    if len(given) != 1:
        raise InvalidInput(
            f"an operation of a batch is exactly one of {', '.join(kinds)}; found {len(given)} of them in one"
        )
    return given[0]


def _result(kind: str, response: Any) -> api.CommitTableResult:
    fields: dict[str, Any] = {kind: response}
    return api.CommitTableResult(**fields)
