"""Partitions: their entries in the catalog, and their atomic publication.

Below ``v{N}`` each field of the specification has one level of namespaces with random names, above the table
``dataset``. Columns of the manifest table contain the partition values, and the version of each table to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import attrs

from lancekeep.domain.catalog import CatalogView, Put, require_free, require_namespace
from lancekeep.domain.dataset_files import Reference
from lancekeep.domain.errors import ConcurrentModification, Damaged, Refused
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.domain.partition_rules import DATASET
from lancekeep.domain.partitioning import COLUMN, READ_BRANCH, READ_TAG, READ_VERSION, PartitionSpec, specs_of
from lancekeep.domain.table import Table

NAME_LENGTH = 16
NAME_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"

PUBLISHED = {"lancekeep.published": "true"}
"""A property of a partition's table whose entry names the version to read. A writer that drops unknown columns keeps
the properties, so Lancekeep detects the loss."""

Values = tuple[Any, ...]
"""Partition values, outermost level first."""


@attrs.frozen
class Partition:
    """A partition, and the version of its table to read.

    The version belongs to a branch or to main, or a tag selects it. Without version and tag, the latest version of main
    is read.
    """

    spec: PartitionSpec
    values: Values
    table: Table
    version: int | None = None
    branch: str | None = None
    tag: str | None = None


@attrs.frozen
class Publication:
    """The version of one partition that a write publishes.

    Attributes:
        values: the partition values.
        table: the table of the partition.
        location: its directory.
        base: the partition as the write read it; None if the write creates it.
        version: the version to read from now on.
    """

    values: Values
    table: ObjectId
    location: str
    base: Partition | None
    version: int


class Overtaken(ConcurrentModification):
    """A concurrent write published partitions; ``values`` are theirs."""

    def __init__(self, message: str, values: frozenset[Values]) -> None:
        super().__init__(message, values)
        self.values = values

    def __str__(self) -> str:
        return str(self.args[0])


def key_of(values: Iterable[Any]) -> Values:
    """Return partition values as a key: NaN equals NaN, and -0.0 becomes 0.0."""
    return tuple(("NaN",) if value != value else value + 0.0 if isinstance(value, float) else value for value in values)


def partitions_of(view: CatalogView, spec: PartitionSpec) -> Iterator[Partition]:
    """Iterate over the partitions of a specification, in no particular order.

    Raises:
        Damaged: another writer dropped the columns of the partition values.
    """
    depth = len(spec.fields) + 2
    for entry in view.descendants(ObjectId((spec.namespace,))):
        object_id = ObjectId.from_key(entry.object_id)
        if entry.object_type == TABLE and object_id.name == DATASET and len(object_id.names) == depth:
            yield partition_of(spec, entry)


def partition_of(spec: PartitionSpec, entry: ManifestEntry) -> Partition:
    """Return the partition of a table's entry. Raises as `partitions_of` does."""
    extension = entry.extension
    version = extension.get(READ_VERSION)
    tag = extension.get(READ_TAG)
    if version is None and tag is None and PUBLISHED.items() <= entry.properties.items():
        raise Damaged(
            f"the catalog's entry of the partition {ObjectId.from_key(entry.object_id)} has lost its {READ_VERSION}: "
            "other software rewrote the manifest table without the columns that it does not know. Restore the previous "
            "version of __manifest with pylance, and prevent that software from changing this catalog."
        )
    values = tuple(extension.get(field.column) for field in spec.fields)
    table = Table.from_entry(entry)
    return Partition(spec, values, table, version, extension.get(READ_BRANCH), tag)


def published_version(entry: ManifestEntry) -> Reference | None:
    """Return the version that a partition's entry names, or None."""
    version = entry.extension.get(READ_VERSION)
    return None if version is None else Reference(entry.extension.get(READ_BRANCH) or "", version)


def require_main(table: ObjectId, branch: str | None, tag: str | None) -> None:
    """Check that readers of a partition use the main history.

    Raises:
        Refused: its entry names a branch or a tag, which other software has set.
    """
    if branch or tag is not None:
        raise Refused(
            f"the partition {table} is read from the branch or tag {branch or tag!r}; Lancekeep writes to main only. "
            "Clear read_branch and read_tag first."
        )


def by_values(view: CatalogView, spec: PartitionSpec) -> dict[Values, Partition]:
    """Return partitions by `key_of` their values; of duplicates, the first name wins."""
    found = sorted(partitions_of(view, spec), key=lambda partition: partition.table.id, reverse=True)
    return {key_of(partition.values): partition for partition in found}


def publish(
    view: CatalogView, spec: PartitionSpec, publications: Sequence[Publication], *, alone: bool = False
) -> list[Put]:
    """Publish versions of partitions in one change, and enter new partitions.

    Args:
        view: the catalog.
        spec: the specification of the partitions.
        publications: the versions to publish.
        alone: no other specification may have data.

    Raises:
        Overtaken: some partitions have changed since the write read them.
        ConcurrentModification: a partition was dropped.
        Refused: ``alone`` is set, and another specification has data.
    """
    require_namespace(view, ObjectId((spec.namespace,)))
    if alone:
        require_alone(view, spec)
    present, levels = by_values(view, spec), levels_of(view, spec)
    changes: list[Put] = []
    overtaken = set[Values]()
    for publication in publications:
        key, base = key_of(publication.values), publication.base
        found = present.get(key)
        if found is None and base is not None:
            raise ConcurrentModification(
                f"the partition {base.table.id} was dropped during the write; nothing was published"
            )
        if _state(found) != _state(base):
            overtaken.add(key)
        elif found is None:
            if table_of(levels, spec, publication.values, publication.table.names[1:-1]) != publication.table:
                overtaken.add(key)  # a concurrent write entered one of its levels under another name
                continue
            changes += _new_partition(view, levels, spec, publication)
        else:
            entry = view.find(found.table.id.key)
            assert entry is not None  # the view is immutable and has it
            changes.append(Put(pinned(entry, publication.version)))
    if overtaken:
        raise Overtaken(f"{len(overtaken)} partitions were changed by concurrent writes", frozenset(overtaken))
    return changes


def require_alone(view: CatalogView, spec: PartitionSpec) -> None:
    """Check that no other specification has data.

    Raises:
        Refused: a partition was written under another specification than ``spec``.
    """
    for other in specs_of(view.properties).values():
        if other.id != spec.id and next(partitions_of(view, other), None) is not None:
            raise Refused(
                f"partitions cannot be overwritten while v{other.id} has data, because those rows would remain. Move "
                "them to the latest specification first, or append."
            )


def require_unchanged(view: CatalogView, read: Sequence[Partition]) -> None:
    """Check that the partitions are those that were read, at their versions.

    Raises:
        ConcurrentModification: a partition was added, changed or dropped.
    """
    found = [partition for spec in specs_of(view.properties).values() for partition in partitions_of(view, spec)]
    if {each.table.id: _state(each) for each in found} != {each.table.id: _state(each) for each in read}:
        raise ConcurrentModification("partitions that were read have changed since; nothing was published")


def made_up_properties(view: CatalogView, object_id: ObjectId) -> dict[str, str]:
    """Return the derived properties of a namespace in a partitioned catalog.

    Implements "Runtime Namespace Properties": ``partition_spec`` on ``v{N}``, and ``partition.{field_id}`` on a level
    unless the value is null.
    """
    if object_id.is_root or not object_id.names[0].startswith("v"):
        return {}
    spec = next((spec for spec in specs_of(view.properties).values() if spec.namespace == object_id.names[0]), None)
    level = len(object_id.names) - 2
    if spec is None or level >= len(spec.fields):
        return {}
    if level < 0:
        return {"partition_spec": spec.to_json()}
    entry = view.find(object_id.key)
    field = spec.fields[level]
    value = None if entry is None else entry.extension.get(field.column)
    return {} if value is None else {f"partition.{field.field_id}": shown(value)}


def _state(partition: Partition | None) -> Any:
    if partition is None:
        return None
    return partition.table.location, partition.version, partition.branch, partition.tag


def table_of(levels: Mapping[Values, ObjectId], spec: PartitionSpec, values: Values, names: Sequence[str]) -> ObjectId:
    """Return the id of a partition's table; ``names`` are for its missing levels."""
    namespace, key = ObjectId((spec.namespace,)), key_of(values)
    for depth, name in enumerate(names, 1):
        namespace = levels.get(key[:depth]) or namespace.child(name)
    return namespace.child(DATASET)


def level_names(spec: PartitionSpec, values: Values, salt: str) -> list[str]:
    """Return a name for each level of a partition ("Partition Namespace Naming").

    Within one write, equal values give equal names in every process. ``salt`` is random, and so are the names.
    """
    return [_name(f"{spec.id} {key_of(values[:depth])!r} {salt}") for depth in range(1, len(spec.fields) + 1)]


def _name(text: str) -> str:
    number = int.from_bytes(sha256(text.encode()).digest())
    digits = []
    for _ in range(NAME_LENGTH):
        number, digit = divmod(number, len(NAME_ALPHABET))
        digits.append(NAME_ALPHABET[digit])
    return "".join(digits)


def levels_of(view: CatalogView, spec: PartitionSpec) -> dict[Values, ObjectId]:
    """Return the levels by their values; of duplicates, the first name wins."""
    root = ObjectId((spec.namespace,))
    levels: dict[Values, ObjectId] = {(): root}
    for entry in sorted(view.descendants(root), key=lambda entry: entry.object_id):
        object_id = ObjectId.from_key(entry.object_id)
        level = len(object_id.names) - 1
        if entry.object_type == NAMESPACE and level <= len(spec.fields):
            values = tuple(entry.extension.get(field.column) for field in spec.fields[:level])
            levels.setdefault(key_of(values), object_id)
    return levels


def _new_partition(
    view: CatalogView, levels: dict[Values, ObjectId], spec: PartitionSpec, publication: Publication
) -> Iterator[Put]:
    """Yield the missing levels, adding them to ``levels``, and the table."""
    key, names = key_of(publication.values), publication.table.names
    for depth in range(1, len(spec.fields) + 1):
        if key[:depth] not in levels:
            namespace = ObjectId(names[: depth + 1])
            require_free(view, namespace, NAMESPACE)
            levels[key[:depth]] = namespace
            yield Put(ManifestEntry(namespace.key, NAMESPACE, extension=_columns(spec, publication.values[:depth])))
    require_free(view, publication.table, TABLE)
    entry = ManifestEntry.table(publication.table, publication.location, PUBLISHED)
    yield Put(pinned(attrs.evolve(entry, extension=_columns(spec, publication.values)), publication.version))


def _columns(spec: PartitionSpec, values: Values) -> dict[str, Any]:
    pairs = zip(spec.fields, values, strict=False)  # upper levels have the values of the first fields only
    return {field.column: value for field, value in pairs if value is not None}


def without_partition(entry: ManifestEntry) -> ManifestEntry:
    """Return the entry of a former partition: readers use its latest version."""
    extension = {
        name: value
        for name, value in entry.extension.items()
        if name not in (READ_VERSION, READ_BRANCH, READ_TAG) and not name.startswith(COLUMN)
    }
    return attrs.evolve(entry.with_properties(dict.fromkeys(PUBLISHED)), extension=extension)


def pinned(entry: ManifestEntry, version: int) -> ManifestEntry:
    """Return the entry of a partition that publishes a version of main."""
    extension = {name: value for name, value in entry.extension.items() if name not in (READ_BRANCH, READ_TAG)}
    return attrs.evolve(entry.with_properties(PUBLISHED), extension={**extension, READ_VERSION: version})


def shown(value: Any) -> str:
    """Return a partition value as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
