"""The judge of versions.

Table format, "Manifest", "Data Fragments" and "Conflict Resolution". The judge reports what the Lance engine would
refuse or could not read. Every manifest that Lancekeep builds passes `approve` before it is published; `problems`
judges the versions of any writer. `lancekeep.format.judged_fragments` judges single fragments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np

from lancekeep.domain import operations
from lancekeep.domain.errors import CommitRefused, Damaged
from lancekeep.domain.features import FENCE, KNOWN, Feature, feature_names
from lancekeep.domain.manifest import BasePath, Fragment, IndexMetadata, Manifest, SchemaField
from lancekeep.domain.naming import DETACHED
from lancekeep.domain.operations import RewriteGroup, Transaction
from lancekeep.format.deletions import decode_bitmap
from lancekeep.format.effects import MOST_FRAGMENTS
from lancekeep.format.file_facts import Facts
from lancekeep.format.judged_fragments import (
    MOST_ID,
    Frame,
    Problem,
    path_problem,
    problem_of_id,
    problems_of_fragment,
)
from lancekeep.format.row_ids import decode_row_ids
from lancekeep.format.schema import arrow_schema
from lancekeep.format.table_version import TableVersion

_SHOWN = 3


@attrs.frozen
class Approved:
    """A version that is built, and in which the judge has found no problem.

    Attributes:
        number: its number.
        transaction: the name of its transaction file.
        content: its manifest file.
        follows: the name of the transaction file of the version that it follows.
    """

    number: int
    transaction: str
    content: bytes = attrs.field(repr=False)
    follows: str


def approve(name: str, after: TableVersion, before: TableVersion, facts: Facts | None = None) -> Approved:
    """Return a version to publish.

    Args:
        name: the table, for messages.
        after: the version.
        before: the version that it follows.
        facts: what is known of its files.

    Raises:
        CommitRefused: the judge has found problems, or an attribute does not fit into its field. The message names the
            first problems.
    """
    refuse(name, problems(after, before, facts))
    try:
        content = after.serialize()
    except ValueError as error:
        raise CommitRefused(f"{name}: the new version does not fit into the table format: {error}") from error
    return _approved(after, content, before)


def approve_file(name: str, content: bytes, before: bytes) -> Approved:
    """Return a version to publish, as `approve`.

    Args:
        name: the table, for messages.
        content: its manifest file.
        before: the manifest file of the version that it follows.
    """
    after, previous = TableVersion.parse(content, name), TableVersion.parse(before, name)
    refuse(name, problems(after, previous))
    return _approved(after, content, previous)


def _approved(after: TableVersion, content: bytes, before: TableVersion) -> Approved:
    return Approved(after.manifest.version, after.manifest.transaction_file, content, before.manifest.transaction_file)


def approve_append(name: str, built: Approved, new: Fragment, frame: Frame) -> Approved:
    """Return the version of an append to publish, as `approve`.

    The rest of the version equals the version before, and is not judged again.

    Args:
        name: the table, for messages.
        built: the version, if there is no problem.
        new: its new fragment.
        frame: the version, as fragments need it.
    """
    refuse(name, [*problem_of_id(new, MOST_ID), *problems_of_fragment(new, frame, {})])
    return built


def refuse(name: str, found: Sequence[Problem]) -> None:
    """Raise `CommitRefused`, which names the first problems, if there are any."""
    if found:
        rest = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise CommitRefused(
            f"{name}: Lance could not read the new version, or refuses it: {'; '.join(map(str, found[:_SHOWN]))}"
            f"{rest}. Nothing was committed"
        )


def problems(after: TableVersion, before: TableVersion | None = None, facts: Facts | None = None) -> list[Problem]:
    """Return what is wrong with a version.

    Args:
        after: the version, with its transaction if it has one.
        before: the version that it follows. Only fragments and indexes that differ are judged. None: the version is
            judged alone.
        facts: what is known of files. Other files are not judged.
    """
    manifest, changed = after.manifest, list[Fragment]()
    replaces_all = after.transaction is not None and isinstance(after.transaction.operation, operations.Overwrite)
    return [
        *_of_numbers(manifest),
        *_of_transaction(after),
        *_of_schema(manifest.fields, before),
        *_of_dictionaries(after),
        *_of_bases(manifest.base_paths),
        *_of_fragments(manifest, before, facts or {}, changed, replaces_all=replaces_all),
        *_of_flags(manifest, changed),
        *_of_indexes(after, before),
        *([] if before is None else _of_step(after, before, changed)),
    ]


# -- the version alone ------------------------------------------------------------------------------------------


def _of_numbers(manifest: Manifest) -> Iterator[Problem]:
    if manifest.version < 1:
        yield Problem("the version", "a number of at least 1", str(manifest.version))
    if manifest.timestamp is not None and not 0 <= manifest.timestamp.nanos < 10**9:
        yield Problem("the time of the version", "nanoseconds below a second", str(manifest.timestamp.nanos))


def _of_transaction(version: TableVersion) -> Iterator[Problem]:
    transaction, recorded = version.transaction, version.manifest.transaction_file
    if transaction is not None and recorded:
        expected = f"{transaction.read_version}-{transaction.uuid}.txn"
        if recorded != expected:
            yield Problem("the transaction file", repr(expected), repr(recorded))


def _of_schema(fields: Sequence[SchemaField], before: TableVersion | None) -> Iterator[Problem]:
    if before is not None and fields == before.manifest.fields:
        return
    known: dict[int, SchemaField] = {}
    names: set[tuple[int, str]] = set()
    for field in fields:
        at = f"the field {field.name!r} with the id {field.id}"
        if field.id < 0 or field.id in known:
            yield Problem(at, "an id of its own", str(field.id))
        if field.parent_id != -1 and field.parent_id not in known:
            yield Problem(at, "a parent that precedes it", str(field.parent_id))
        if not field.name or (field.parent_id == -1 and "." in field.name):
            yield Problem(at, "a name without dots", repr(field.name))
        if (field.parent_id, field.name) in names:
            yield Problem(at, "a name of its own", repr(field.name))
        names.add((field.parent_id, field.name))
        known[field.id] = field
    yield from _of_key(known)
    if before is not None:
        try:
            arrow_schema(fields, {})
        except ValueError as error:
            yield Problem("the schema", "types of Arrow", str(error))


def _of_dictionaries(version: TableVersion) -> Iterator[Problem]:
    for field in version.manifest.fields:
        values = field.dictionary
        if values is None or not values.length:
            continue
        if not (values.length > 0 and 0 <= values.offset <= len(version.dictionaries) - values.length):
            found = f"{values.length} at {values.offset} of {len(version.dictionaries)} bytes"
            yield Problem(f"the field {field.name!r}", "values of its dictionary in the manifest file", found)


def _of_key(fields: dict[int, SchemaField]) -> Iterator[Problem]:
    parents = {field.parent_id for field in fields.values()}
    for field in fields.values():
        if not (field.unenforced_primary_key or field.unenforced_primary_key_position):
            continue
        nullable: SchemaField | None = field
        while nullable is not None and not nullable.nullable:
            nullable = fields.get(nullable.parent_id)
        if field.id in parents or nullable is not None:
            found = "one with children" if field.id in parents else "a nullable one"
            yield Problem(f"the field {field.name!r} of the primary key", "a column that is never null", found)


def _of_bases(bases: Iterable[BasePath]) -> Iterator[Problem]:
    for number, count in Counter(base.id for base in bases).items():
        if count > 1:
            yield Problem(f"the base path {number}", "an id of its own", f"{count} base paths with it")
    for base in bases:
        if not base.path:
            yield Problem(f"the base path {base.id}", "a path", "none")


def _of_fragments(
    manifest: Manifest, before: TableVersion | None, facts: Facts, changed: list[Fragment], *, replaces_all: bool
) -> Iterator[Problem]:
    """Judge the fragments; with a version before, add the fragments that differ to ``changed``.

    If the transaction ``replaces_all`` fragments, earlier fragments do not matter.
    """
    earlier: Sequence[Fragment] | None = None
    if before is not None:
        earlier = () if replaces_all else before.manifest.fragments
    if manifest.fragments is earlier:
        return
    frame = Frame.of(manifest, earlier)
    known = {fragment.id: fragment for fragment in earlier or ()}
    ids: set[int] = set()
    most = MOST_ID if manifest.max_fragment_id is None else min(manifest.max_fragment_id, MOST_ID)
    last = -1
    for fragment in manifest.fragments:
        at = f"fragment {fragment.id}"
        if fragment.id in ids:
            yield Problem(at, "an id of its own", "two fragments with it")
        yield from problem_of_id(fragment, most)
        other = known.get(fragment.id)
        if other is fragment or other == fragment:
            yield from frame.problems_of_versions(fragment)
        else:
            if earlier is not None:
                changed.append(fragment)
                if fragment.id < last:
                    yield Problem(at, "fragments in the order of their ids", f"it after {last}")
            yield from problems_of_fragment(fragment, frame, facts)
        ids.add(fragment.id)
        last = fragment.id


def _of_flags(manifest: Manifest, changed: Iterable[Fragment]) -> Iterator[Problem]:
    every = manifest.reader_feature_flags | manifest.writer_feature_flags
    if unknown := every & ~(KNOWN | FENCE):
        yield Problem("the features", "known ones", ", ".join(feature_names(unknown)))
    needed = 0
    if manifest.base_paths:
        needed |= Feature.BASE_PATHS
    if any(fragment.deletion_file for fragment in changed):
        needed |= Feature.DELETION_FILES
    if any(fragment.overlays for fragment in changed):
        needed |= Feature.DATA_OVERLAY_FILES
    for kind, flags in (("readers", manifest.reader_feature_flags), ("writers", manifest.writer_feature_flags)):
        if missing := needed & ~flags:
            yield Problem(f"the features for {kind}", ", ".join(feature_names(missing)), "none of them")


def _of_indexes(after: TableVersion, before: TableVersion | None) -> Iterator[Problem]:
    known = {} if before is None else {index.uuid: index for index in before.indices}
    fields = {field.id for field in after.manifest.fields}
    bases = {base.id for base in after.manifest.base_paths}
    ids = Counter(index.uuid for index in after.indices)
    for index in after.indices:
        if ids[index.uuid] > 1 or not index.uuid:
            yield Problem(f"the index {index.name!r}", "a UUID of its own", str(index.uuid))
        elif known.get(index.uuid) != index:
            yield from _of_index(index, fields, bases, after.manifest.max_fragment_id)


def _of_index(index: IndexMetadata, fields: set[int], bases: set[int], most: int | None) -> Iterator[Problem]:
    at = f"the index {index.name!r} {index.uuid}"
    if unknown := set(index.fields) - fields:
        yield Problem(at, "fields of the schema", str(min(unknown)))
    if index.base_id is not None and index.base_id not in bases:
        yield Problem(at, "a base path of the version", str(index.base_id))
    for file in index.files:
        yield from path_problem(f"a file of {at}", file.path)
    if not index.fragment_bitmap:
        return
    try:
        covered = decode_bitmap(index.fragment_bitmap, MOST_FRAGMENTS)
    except ValueError as error:
        yield Problem(at, "a bitmap of fragments", str(error))
        return
    if most is not None and len(covered) and int(covered[-1]) > most:
        yield Problem(at, f"fragments up to {most}", str(covered[-1]))


# -- the step from the version before ---------------------------------------------------------------------------


def _of_step(after: TableVersion, before: TableVersion, changed: Sequence[Fragment]) -> Iterator[Problem]:
    new, old = after.manifest, before.manifest
    is_clone = after.transaction is not None and isinstance(after.transaction.operation, operations.Clone)
    expected = old.version if is_clone else old.version + 1
    if new.version != expected and not new.version & DETACHED:
        yield Problem("the version", str(expected), str(new.version))
    if (old.max_fragment_id or 0) > (new.max_fragment_id or 0):
        yield Problem("the highest fragment id", f"{old.max_fragment_id} or more", str(new.max_fragment_id))
    if (old.max_fragment_id or 0) < (new.max_fragment_id or 0) > MOST_ID:
        yield Problem("the highest fragment id", f"at most {MOST_ID}", str(new.max_fragment_id))
    if old.next_row_id > new.next_row_id:
        yield Problem("the next row id", f"{old.next_row_id} or more", str(new.next_row_id))
    if (old.reader_feature_flags ^ new.reader_feature_flags) & Feature.STABLE_ROW_IDS:
        yield Problem("the feature of stable row ids", "no change", "a change")
    yield from _of_changed_bases(after, before)
    if after.transaction is not None:
        yield from _of_operation(after.transaction, after, before, changed)


def _of_changed_bases(after: TableVersion, before: TableVersion) -> Iterator[Problem]:
    """Judge the base paths that both versions have; a restore returns to earlier paths."""
    operation = None if after.transaction is None else after.transaction.operation
    if isinstance(operation, operations.Restore):
        return
    expected = {base.id: base.path for base in before.manifest.base_paths}
    if isinstance(operation, operations.UpdateBases):
        expected |= {base.id: base.path for base in operation.new_bases if base.id in expected}
    for base in after.manifest.base_paths:
        if expected.get(base.id, base.path) != base.path:
            yield Problem(f"the base path {base.id}", repr(expected[base.id]), repr(base.path))


def _of_operation(
    transaction: Transaction, after: TableVersion, before: TableVersion, changed: Sequence[Fragment]
) -> Iterator[Problem]:
    match transaction.operation:
        case operations.Append() | operations.Overwrite() as added:
            for fragment in added.fragments:
                if fragment.inline_row_ids is not None or fragment.external_row_ids is not None:
                    yield Problem("a new fragment", "no row ids, which the commit gives", "row ids")
                yield from _without_deletions(fragment)
        case operations.Delete() as delete:
            yield from _once(delete.updated_fragments, delete.deleted_fragment_ids)
            yield from _without_count(delete.updated_fragments, before)
        case operations.Update() as update:
            yield from _once(update.updated_fragments, update.removed_fragment_ids)
            yield from _without_count(update.updated_fragments, before)
            for fragment in update.new_fragments:
                yield from _without_deletions(fragment)
            if after.manifest.reader_feature_flags & Feature.STABLE_ROW_IDS:
                known = {fragment.id for fragment in before.manifest.fragments}
                yield from _of_repeated_ids([fragment for fragment in changed if fragment.id not in known])
        case operations.Rewrite() as rewrite:
            yield from _of_rewrite(rewrite, after, before)
        case operations.UpdateConfig() | operations.ReserveFragments() | operations.UpdateBases():
            if changed or len(after.manifest.fragments) != len(before.manifest.fragments):
                yield Problem("the fragments", "no change", f"{len(changed)} that differ")


def _once(updated: Iterable[Fragment], removed: Iterable[int]) -> Iterator[Problem]:
    for number, times in Counter([*(fragment.id for fragment in updated), *removed]).items():
        if times > 1:
            yield Problem(f"fragment {number}", "one change of it", str(times))


def _of_repeated_ids(new: Sequence[Fragment]) -> Iterator[Problem]:
    try:
        ids = [decode_row_ids(each.inline_row_ids or b"", each.physical_rows, "") for each in new]
    except Damaged:  # the fragments are judged alone
        return
    values, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *ids]), return_counts=True)
    if len(repeated := values[counts > 1]):
        yield Problem("the new fragments", "each row id once", str(repeated[0]))


def _without_deletions(fragment: Fragment) -> Iterator[Problem]:
    if fragment.deletion_file is not None:
        yield Problem("a new fragment", "no deletion file", "one")


def _without_count(updated: Iterable[Fragment], before: TableVersion) -> Iterator[Problem]:
    """Yield a problem for each changed deletion file without a number of rows: the engine can plan no filter then."""
    known = {fragment.id: fragment.deletion_file for fragment in before.manifest.fragments}
    for fragment in updated:
        file = fragment.deletion_file
        if file is not None and not file.num_deleted_rows and file != known.get(fragment.id):
            yield Problem(f"the deletion file of fragment {fragment.id}", "the number of deleted rows", "0")


def _of_rewrite(rewrite: operations.Rewrite, after: TableVersion, before: TableVersion) -> Iterator[Problem]:
    if not rewrite.groups or not all(group.old_fragments for group in rewrite.groups):
        yield Problem("the rewrite", "groups of fragments", "none")
    for group in rewrite.groups:
        for fragment in group.new_fragments:
            yield from _without_deletions(fragment)  # the path of a deletion file has the id of its fragment
    for number, count in Counter(each.id for group in rewrite.groups for each in group.old_fragments).items():
        if count > 1:
            yield Problem(f"fragment {number}", "one rewrite of it", f"{count}")
    for index, count in Counter(index.old_id for index in rewrite.rewritten_indices).items():
        if count > 1 or index not in {each.uuid for each in before.indices}:
            yield Problem(f"the rewritten index {index}", "an index of the table, once", f"{count} rewrites")
    known = {fragment.id: fragment for fragment in before.manifest.fragments}
    old = [known.get(each.id, each) for group in rewrite.groups for each in group.old_fragments]
    if all(fragment.physical_rows for fragment in old):  # releases before 0.8 did not count them
        rows = [sum(fragment.live_rows for fragment in each.manifest.fragments) for each in (before, after)]
        if rows[0] != rows[1]:
            yield Problem("the rows of the version", f"{rows[0]}, as before the rewrite", str(rows[1]))
    if before.manifest.reader_feature_flags & Feature.STABLE_ROW_IDS:
        for group in rewrite.groups:
            yield from _of_rewritten_ids(group)


def _of_rewritten_ids(group: RewriteGroup) -> Iterator[Problem]:
    try:
        old, new = (
            np.concatenate([decode_row_ids(each.inline_row_ids or b"", each.physical_rows, "") for each in part])
            for part in (group.old_fragments, group.new_fragments)
            if all(each.inline_row_ids is not None for each in part)
        )
    except (Damaged, ValueError):  # the fragments are judged alone
        return
    if not np.isin(new, old).all():
        yield Problem("a rewritten fragment", "row ids of the old ones", str(new[~np.isin(new, old)][0]))
