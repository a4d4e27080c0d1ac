"""Keep the entries of replaced values out of the indexes of new versions.

pylance takes a fragment whose values are replaced out of the bitmap of a segment, and keeps the entries in the files
of the segment. They count once another segment of the index covers the fragment. pylance never reads the files of a
segment whose bitmap is empty, except segments of INVERTED indexes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from lancekeep.domain.indexes import FRAGMENT_REUSE, RowNames, is_system_index
from lancekeep.domain.lineage import Operation
from lancekeep.domain.manifest import Fragment, IndexFile, IndexMetadata, SchemaField
from lancekeep.domain.operations import CreateIndex, Rewrite
from lancekeep.format import lineage
from lancekeep.format.deletions import encode_bitmap
from lancekeep.format.index_coverage import covered_fragments, kind_of
from lancekeep.format.manifest import with_index_section
from lancekeep.format.messages import DataFragment, parse
from lancekeep.format.row_ids import Ids, decode_row_ids
from lancekeep.format.table_version import TableVersion
from lancekeep.format.values import decoded, encoded

TEXT_METADATA = "metadata.lance"
"""The file of an INVERTED index that lists its partitions."""

_STABLE_ROW_IDS = 2
_EMPTY = encode_bitmap(np.empty(0, np.uint64))
_PARTITIONS = re.compile(rb"partitions\x12[\x00-\xff]{1,3}?(\[[0-9, ]*\])")
_REPLACES_INDEXES = frozenset((Operation.OVERWRITE, Operation.RESTORE, Operation.CLONE))
_KEEPS_VALUES = frozenset(
    (Operation.APPEND, Operation.DELETE, Operation.PROJECT, Operation.UPDATE_CONFIG, Operation.RESERVE_FRAGMENTS)
)


@attrs.frozen
class Settled:
    """A version without entries of replaced values.

    Attributes:
        version: the version.
        files: the content of the index files that it needs, by the path in the directory of indexes.
    """

    version: TableVersion
    files: Mapping[str, bytes]


@attrs.frozen
class Sources:
    """What a decision reads.

    Attributes:
        version: returns an earlier version; None if it was removed.
        file: returns an index file, by its path in the directory of indexes and the dataset that has the file, if that
            is another dataset; None if the file does not exist.
        id_of: returns the id of a new segment, which is the same for the same text.
    """

    version: Callable[[int], TableVersion | None]
    file: Callable[[str, str | None], bytes | None]
    id_of: Callable[[str], str]


def settled_file(
    staged: lineage.Manifest, previous: lineage.Manifest, sources: Sources, name: str
) -> tuple[bytes, Mapping[str, bytes]] | None:
    """Return a manifest file without entries of replaced values.

    The positions of the other sections stay, because the engine that has staged the manifest remembers them.

    Args:
        staged: a manifest that the engine has staged.
        previous: the manifest of the version before.
        sources: what the decision reads.
        name: the table, for messages.

    Returns:
        The manifest file, and the index files that it needs. None if the staged manifest can stay.

    Raises:
        Damaged, ValueError: a manifest, a bitmap or the row ids of a fragment are damaged.
        Unsupported: the table needs a feature that is not known here.
    """
    section = staged.index_section()
    operation = staged.change().operation
    if section is None or operation in _REPLACES_INDEXES:
        return None
    if operation in _KEEPS_VALUES and section == previous.index_section():
        return None
    before, after = (TableVersion.parse(each.content, name) for each in (previous, staged))
    settled = settle(before, after, _changed_fragments(previous, staged), sources, name)
    if settled is None:
        return None
    return with_index_section(staged.content, encoded(settled.version.index_section).SerializeToString()), settled.files


@attrs.frozen
class Changes:
    """The fragments that differ between two versions, by their ids."""

    before: Mapping[int, Fragment]
    after: Mapping[int, Fragment]

    @staticmethod
    def between(before: TableVersion, after: TableVersion) -> Changes:
        """Compare the fragments of two versions."""
        old, new = ({each.id: each for each in version.manifest.fragments} for version in (before, after))
        return Changes(
            {key: each for key, each in old.items() if new.get(key) != each},
            {key: each for key, each in new.items() if old.get(key) != each},
        )


def settle(before: TableVersion, after: TableVersion, changes: Changes, sources: Sources, name: str) -> Settled | None:
    """Return a version without entries of replaced values; None if it has none.

    Args:
        before: the version before.
        after: the version to commit.
        changes: the fragments that differ.
        sources: what the decision reads.
        name: the table, for messages.
    """
    judge = _Judge(before, after, changes, sources, name)
    kept = [(index, judge.kept(index)) for index in after.indices]
    files: dict[str, bytes] = {}
    indices, changed = list[IndexMetadata](), False
    for index, covered in kept:
        if covered is None:
            indices.append(index)
            continue
        changed = True
        if not kind_of(index).trusted:
            indices.append(attrs.evolve(index, fragment_bitmap=encode_bitmap(np.array(sorted(covered), np.uint64))))
        elif kind_of(index).name != "INVERTED":
            indices.append(attrs.evolve(index, fragment_bitmap=_EMPTY))
        elif not any(other.name == index.name and each is None for other, each in kept):
            indices.extend(_without_text(index, after, sources, files))
    if not changed or after.index_section is None:
        return None
    section = attrs.evolve(after.index_section, indices=tuple(indices))
    return Settled(attrs.evolve(after, index_section=section), files)


class _Judge:
    """Decides what the segments of a version may cover."""

    def __init__(
        self, before: TableVersion, after: TableVersion, changes: Changes, sources: Sources, name: str
    ) -> None:
        self._after = after
        self._changes = changes
        self._sources = sources
        self._name = name
        self._number = before.manifest.version
        self._stable = bool(after.manifest.reader_feature_flags & _STABLE_ROW_IDS)
        self._earlier = {index.uuid: index for index in before.indices}
        self._operation = after.transaction.operation if after.transaction else None
        if isinstance(self._operation, Rewrite):
            for each in self._operation.rewritten_indices:
                if each.old_id in self._earlier:
                    self._earlier[each.new_id] = self._earlier[each.old_id]

    def kept(self, index: IndexMetadata) -> set[int] | None:
        """Return the fragments that a segment may cover, none if it is trusted; None if it stays."""
        kind = kind_of(index)
        if is_system_index(index.name) or not index.fragment_bitmap:
            return None
        covered = covered_fragments(index, self._name)
        earlier = self._earlier.get(index.uuid)
        if earlier is None:
            return None if not kind.trusted or self._is_true(index, covered) else set()
        if not earlier.fragment_bitmap:
            return None
        was = covered_fragments(earlier, self._name)
        replaced = self._replaced(index, was, self._changes)
        if not kind.trusted:
            return covered - replaced if covered & replaced else None
        if not was:
            return set() if covered else None
        if replaced or self._has_regained(covered - was) or self._has_lost(was - covered):
            return set()
        return set() if self._moved(index, was, covered, self._changes) else None

    def _is_true(self, index: IndexMetadata, covered: set[int]) -> bool:
        """Return whether a new segment has only entries of current values."""
        if not isinstance(self._operation, CreateIndex) or all(
            index.uuid != each.uuid for each in self._operation.new_indices
        ):
            return False
        read = self._after.transaction.read_version if self._after.transaction else 0
        merged = any(each.name == index.name for each in self._operation.removed_indices)
        built = read if merged else min(read, index.dataset_version or read)  # a merge keeps the version of its parts
        if built >= self._number:
            return True
        origin = self._sources.version(built)
        if origin is None:
            return False
        changes = Changes.between(origin, self._after)
        was = {each.id for each in origin.manifest.fragments}
        return not self._replaced(index, was, changes) and not self._moved(index, was, covered, changes)

    def _replaced(self, index: IndexMetadata, was: set[int], changes: Changes) -> set[int]:
        """Return the fragments that a segment covered, and whose values were replaced in place."""
        common = was & changes.before.keys() & changes.after.keys()
        if not common:
            return common
        fields = with_children(self._after.manifest.fields, index.fields)
        return {
            each for each in common if files_of(changes.before[each], fields) != files_of(changes.after[each], fields)
        }

    def _has_regained(self, more: set[int]) -> bool:
        """Return whether a segment covers more fragments, which were there before.

        The engine writes what it remembers of a version that it has staged. With a fragment reuse index, it replaces
        the fragments of an earlier compaction.
        """
        added = self._changes.after.keys() - self._changes.before.keys()
        return bool(more - added) and all(index.name != FRAGMENT_REUSE for index in self._after.indices)

    def _has_lost(self, fewer: set[int]) -> bool:
        """Return whether the version has fragments that a segment no longer covers."""
        return bool(fewer) and not fewer.isdisjoint(each.id for each in self._after.manifest.fragments)

    def _moved(self, index: IndexMetadata, was: set[int], covered: set[int], changes: Changes) -> bool:
        """Return whether rows that a segment names have moved to fragments that it does not cover."""
        if not self._stable or kind_of(index).rows is not RowNames.ROW_IDS or isinstance(self._operation, Rewrite):
            return False
        left = [each for key, each in changes.before.items() if key in was]
        new = [each for key, each in changes.after.items() if key not in changes.before and key not in covered]
        if not left or not new:
            return False
        if any(each.inline_row_ids is None for each in (*left, *new)):
            return True  # they lie in other files
        return bool(len(np.intersect1d(row_ids(left, self._name), row_ids(new, self._name))))


def _changed_fragments(previous: lineage.Manifest, staged: lineage.Manifest) -> Changes:
    """Return the fragments that differ. Equal fragments, which may be many, are not decoded."""
    if staged.continues(previous):
        return Changes({}, dict(_decoded(staged.fragments_after(previous))))
    old, new = previous.fragments(), staged.fragments()
    known, kept = set(old), set(new)
    return Changes(
        dict(_decoded([each for each in old if each not in kept])),
        dict(_decoded([each for each in new if each not in known])),
    )


def _decoded(entries: Sequence[bytes]) -> Iterator[tuple[int, Fragment]]:
    for entry in entries:
        fragment = decoded(Fragment, parse(DataFragment, entry))
        yield fragment.id, fragment


def with_children(fields: Sequence[SchemaField], ids: Sequence[int]) -> set[int]:
    """Return the ids of fields, and of the fields below them.

    A parent precedes its children.
    """
    found = set(ids)
    for field in fields:
        if field.parent_id in found:
            found.add(field.id)
    return found


def files_of(fragment: Fragment, fields: set[int]) -> list[str]:
    """Return the files that hold the values of fields in a fragment."""
    overlays = [overlay.data_file for overlay in fragment.overlays if overlay.data_file is not None]
    return [file.path for file in (*fragment.files, *overlays) if not fields.isdisjoint(file.fields)]


def row_ids(fragments: Iterable[Fragment], name: str) -> Ids:
    """Return the row ids of fragments that are in the manifest."""
    found = [
        decode_row_ids(each.inline_row_ids, each.physical_rows, f"{name}: fragment {each.id}")
        for each in fragments
        if each.inline_row_ids is not None
    ]
    return np.concatenate([np.empty(0, np.uint64), *found])


def _without_text(
    index: IndexMetadata, after: TableVersion, sources: Sources, files: dict[str, bytes]
) -> Iterator[IndexMetadata]:
    """Yield the segment of an INVERTED index without its partitions.

    It keeps the parameters of the index. Its file is added to ``files``. If that is not possible, the segment stays
    unchanged: its entries do not count in this version.
    """
    path = f"{sources.id_of(f'{index.name}/{after.manifest.transaction_file}')}/{TEXT_METADATA}"
    if path in files:
        return
    base = next((base.path for base in after.manifest.base_paths if base.id == index.base_id), None)
    found = sources.file(f"{index.uuid}/{TEXT_METADATA}", base)
    blank = None if found is None else _without_partitions(found)
    if blank is None:
        yield index
        return
    files[path] = blank
    listed = (IndexFile(TEXT_METADATA, len(blank)),) if index.files else ()
    yield attrs.evolve(index, uuid=path.partition("/")[0], fragment_bitmap=_EMPTY, files=listed, base_id=None)


def _without_partitions(metadata: bytes) -> bytes | None:
    """Return the metadata file of an INVERTED index with an empty list of partitions, of the same size."""
    found = list(_PARTITIONS.finditer(metadata))
    if len(found) != 1:
        return None
    begin, end = found[0].span(1)
    return metadata[: begin + 1] + b" " * (end - begin - 2) + metadata[end - 1 :]
