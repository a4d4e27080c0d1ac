"""Merge and rebuild indexes that keep entries of replaced values.

pylance 14 takes fragments whose values were replaced out of the bitmap of an index segment, and keeps the entries in
its files. If another segment covers the fragments again, as after ``optimize_indices(num_indices_to_merge=0)``, the old
entries count. Under stable row ids, moved rows have the same effect. A merge of all segments removes the entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs

from lancekeep.domain.indexes import RowNames, index_kind
from lancekeep.native import lance


@attrs.frozen
class Coverage:
    """What the segments of trusted indexes cover in a version.

    Attributes:
        segments: the name and kind of the index, and the covered fragments, by the id of the segment.
        rows: the number of rows of each fragment, if moved rows can matter.
        files: the files of each index of nested values in each fragment. pylance 14 leaves a fragment in the bitmap if
            only fields below the indexed field were replaced.
    """

    segments: Mapping[str, tuple[str, RowNames, frozenset[int]]]
    rows: Mapping[int, int]
    files: Mapping[str, Mapping[int, Sequence[str]]]


def coverage(dataset: Any) -> Coverage:
    """Return what the segments of trusted indexes cover."""
    segments = {
        str(segment.uuid): (index.name, index_kind(index.name, index.type_url).rows, frozenset(segment.fragment_ids))
        for index in _trusted(dataset)
        for segment in index.segments
    }
    moves = dataset.has_stable_row_ids and any(rows is RowNames.ROW_IDS for _, rows, _ in segments.values())
    below = {index.name: found for index in _trusted(dataset) if (found := _fields_below(dataset, index.fields))}
    fragments = [each.metadata for each in dataset.get_fragments()] if moves or below else []
    return Coverage(
        segments,
        {each.id: each.physical_rows - (each.num_deletions or 0) for each in fragments if moves},
        {
            name: {
                each.id: [file.path for file in each.files if not fields.isdisjoint(file.fields)] for each in fragments
            }
            for name, fields in below.items()
        },
    )


def _fields_below(dataset: Any, ids: Collection[int]) -> set[int]:
    """Return the ids of the fields below some fields."""
    found, left = set[int](), [(each, each.id() in ids) for each in dataset.lance_schema.fields()]
    while left:
        field, is_below = left.pop()
        for child in field.children():
            if is_below:
                found.add(child.id())
            left.append((child, is_below or child.id() in ids))
    return found


def outdated(before: Coverage, dataset: Any) -> list[str]:
    """Return the names of indexes with entries of values replaced since."""
    if not before.segments:
        return []
    after = coverage(dataset)
    live = frozenset(dataset.fragment_ids())
    found = set()
    for uuid, (name, rows, covered) in before.segments.items():
        if uuid not in after.segments:
            continue  # another segment replaces it
        kept = after.segments[uuid][2]
        old, new = before.files.get(name, {}), after.files.get(name, {})
        replaced = not live.isdisjoint(covered - kept) or any(
            new.get(each, files) != files for each, files in old.items() if each in covered
        )
        lost = rows is RowNames.ROW_IDS and any(
            after.rows.get(each, 0) < before.rows.get(each, 0) for each in covered - (live - kept)
        )
        if replaced or (lost and after.rows.keys() - before.rows.keys() - kept):
            found.add(name)
    return sorted(found)


def trusted_indexes(dataset: Any, fields: Collection[int] | None = None) -> list[str]:
    """Return the names of the indexes of fields whose entries pylance trusts.

    By default, the indexes of all fields.
    """
    return sorted(
        index.name for index in _trusted(dataset) if fields is None or not set(fields).isdisjoint(index.fields)
    )


def is_extendable(dataset: Any, name: str, missing: Collection[int]) -> bool:
    """Return whether no segment of an index can have old entries of fragments.

    Then another segment may cover the fragments. The decision is by the ids of fragments and their deletions, so that
    an index may be rebuilt without need.
    """
    live = {fragment.fragment_id: fragment.metadata.num_deletions for fragment in dataset.get_fragments()}
    for index, rows, covered in coverage(dataset).segments.values():
        if index != name or not covered:
            continue
        moved = dataset.has_stable_row_ids and rows is RowNames.ROW_IDS and any(live.get(each, 1) for each in covered)
        if moved or min(missing) < max(covered):
            return False
    return True


def merge_indexes(dataset: Any, names: Sequence[str]) -> Any:
    """Add missing rows to indexes, and merge all segments of trusted indexes."""
    found = [index for index in dataset.describe_indices() if index.name in names]
    trusted = [index for index in found if index_kind(index.name, index.type_url).trusted]
    others = [index.name for index in found if index not in trusted]
    if trusted:
        dataset.optimize.optimize_indices(
            index_names=[index.name for index in trusted],
            num_indices_to_merge=max(len(index.segments) for index in trusted),
        )
    if others:
        dataset.optimize.optimize_indices(index_names=others)
    return dataset


def emptied_indexes(dataset: Any) -> list[str]:
    """Return the names of the indexes with a segment that covers nothing."""
    return [
        index.name for index in _trusted(dataset) if any(not len(segment.fragment_ids) for segment in index.segments)
    ]


def rebuild_indexes(dataset: Any, names: Sequence[str]) -> Any:
    """Build indexes again with the same parameters.

    In the first version the indexes cover no fragment, so that readers compare values; the second version has the new
    indexes.
    """
    indexes = dataset.describe_indices()
    fields = {field for index in indexes if index.name in names for field in index.fields}
    every = [fragment.metadata for fragment in dataset.get_fragments()]
    uncover = lance.LanceOperation.Update(
        updated_fragments=every, fields_modified=sorted(fields), update_mode="rewrite_rows"
    )
    dataset = lance.LanceDataset.commit(dataset, uncover, read_version=dataset.version)
    return merge_indexes(dataset, [index.name for index in indexes if not fields.isdisjoint(index.fields)])


def _trusted(dataset: Any) -> Iterator[Any]:
    return (each for each in dataset.describe_indices() if index_kind(each.name, each.type_url).trusted)
