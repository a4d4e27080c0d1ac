"""The compaction engine: pylance chooses and rewrites fragments."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from lancekeep.adapters.lance.panics import without_panics
from lancekeep.adapters.lance.sorted_rewrite import execute
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.manifest import DataFile, DeletionFile, DeletionFileType, Fragment
from lancekeep.domain.operations import Rewrite, RewriteGroup, Transaction
from lancekeep.native import lance

_FLAVOURS = {"array": DeletionFileType.ARROW_ARRAY, "bitmap": DeletionFileType.BITMAP}


@without_panics
class LanceCompaction:
    """A `CompactionEngine` that uses pylance."""

    def rewrite(
        self,
        dataset: Any,
        target_rows: int,
        *,
        columns: Sequence[str] = (),
        excluded: Collection[int] = (),
        threads: int | None = None,
        proceed: Callable[[], bool] = lambda: True,
    ) -> Sequence[Any]:
        options = lance.optimize.CompactionOptions(target_rows_per_fragment=target_rows)
        if excluded:
            options["excluded_fragment_ids"] = sorted(excluded)
        if threads is not None:
            options["num_threads"] = threads
        rewritten = []
        for task in lance.optimize.Compaction.plan(dataset, options).tasks:
            rewritten.append(execute(dataset, task, columns, target_rows))
            if not proceed():
                break
        return rewritten

    def transaction(self, rewritten: Sequence[Any]) -> Transaction:
        found = [json.loads(result.json()) for result in rewritten]
        versions = {result["read_version"] for result in found}
        if len(versions) != 1:
            raise InvalidInput(f"expected the results of the tasks of one plan; found results of {len(versions)} plans")
        if any(result["row_addrs"] is not None for result in found):
            raise Unsupported("an index covers rewritten fragments, and the engine has to rewrite it")
        return Transaction(versions.pop(), operation=Rewrite(groups=tuple(map(_group, found))))

    def new_files(self, rewritten: Sequence[Any]) -> Sequence[str]:
        fragments = [fragment for result in rewritten for fragment in json.loads(result.json())["new_fragments"]]
        return [file["path"] for fragment in fragments for file in fragment["files"] if file["base_id"] is None]

    def commit(self, dataset: Any, rewritten: Sequence[Any]) -> Any:
        lance.optimize.Compaction.commit(dataset, list(rewritten))
        return dataset


def _group(result: Mapping[str, Any]) -> RewriteGroup:
    old, new = result["original_fragments"], result["new_fragments"]
    return RewriteGroup(tuple(map(_fragment, old)), tuple(map(_fragment, new)))


def _fragment(described: Mapping[str, Any]) -> Fragment:
    """Return a fragment that the engine describes as JSON."""
    found = _known(described, _OF_FRAGMENT)
    return Fragment(
        id=found["id"],
        files=tuple(_data_file(file) for file in found["files"]),
        deletion_file=_deletion_file(found["deletion_file"]),
        physical_rows=found["physical_rows"],
        inline_row_ids=_inline(found["row_id_meta"], "Inline"),
        inline_last_updated_at_versions=_inline(found["last_updated_at_version_meta"], "inline"),
        inline_created_at_versions=_inline(found["created_at_version_meta"], "inline"),
    )


_OF_FRAGMENT = (
    *("id", "files", "deletion_file", "physical_rows"),
    *("row_id_meta", "last_updated_at_version_meta", "created_at_version_meta"),
)
_OF_DATA_FILE = (
    *("path", "fields", "column_indices", "base_id"),
    *("file_major_version", "file_minor_version", "file_size_bytes"),
)
_OF_DELETION_FILE = ("file_type", "read_version", "id", "num_deleted_rows", "base_id")


def _data_file(described: Mapping[str, Any]) -> DataFile:
    found = _known(described, _OF_DATA_FILE)
    size = found["file_size_bytes"] or 0
    fields, columns = tuple(found["fields"]), tuple(found["column_indices"] or ())
    return DataFile(**{**found, "fields": fields, "column_indices": columns, "file_size_bytes": size})


def _deletion_file(described: Mapping[str, Any] | None) -> DeletionFile | None:
    if described is None:
        return None
    found = _known(described, _OF_DELETION_FILE)
    return DeletionFile(**{**found, "file_type": _FLAVOURS[found["file_type"]]})


def _inline(described: Mapping[str, Any] | None, kind: str) -> bytes | None:
    return None if described is None else bytes(_known(described, (kind,))[kind])


def _known(described: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return the values of the keys; None for missing keys.

    Raises:
        Unsupported: there is another key.
    """
    more = {key for key, value in described.items() if key not in keys and value not in (None, [], {})}
    if more:
        raise Unsupported(f"the engine describes a fragment with {min(more)!r}, which is not known here")
    return {key: described.get(key) for key in keys}
