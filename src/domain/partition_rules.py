"""What the partitioning specification forbids to change by name.

The levels and tables below ``v{N}`` get their names and values from writes of the partitioned namespace; their columns
are the columns of its schema. Partitions can be dropped by name, and their rows can be deleted, compacted and indexed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.errors import Refused
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.partitioning import SCHEMA_PROPERTY, is_record, is_spec_property

DATASET = "dataset"
"""The name of the table of every partition."""

_SPEC_NAMESPACE = re.compile(r"v[1-9][0-9]{0,8}")
_DERIVED = ("partition_spec", "partition.")


def is_partition(view: CatalogView, table: ObjectId) -> bool:
    """Return whether a name is the name of a partition's table."""
    return len(table.names) > 1 and table.name == DATASET and _is_below_spec(view, table)


def require_enterable(view: CatalogView, object_id: ObjectId) -> None:
    """Check that a namespace or table may be created, renamed or replaced by name.

    Raises:
        Refused: the name belongs to the partitioned namespace.
    """
    if _is_below_spec(view, object_id):
        raise Refused(
            f"{object_id} belongs to the partitioned namespace, whose writes choose the names below v1, v2, … and the "
            "partition values; nothing was changed. Write rows with catalog.partitions.open().write, and add a "
            "specification with its evolve."
        )
    if object_id.names == (DATASET,) and _is_partitioned(view):
        raise Refused(f"the name {DATASET!r} in the root stands for all partitions of the catalog; choose another name")


def require_no_spec(view: CatalogView, namespace: ObjectId) -> None:
    """Check that a namespace to drop belongs to no specification.

    Raises:
        Refused: the namespace belongs to a specification.
    """
    if len(namespace.names) == 1 and _is_below_spec(view, namespace):
        raise Refused(
            f"the namespace {namespace} belongs to the property partition_spec_{namespace} of the root, and later "
            f"writes need it; nothing was dropped. Drop the namespaces below {namespace} to remove its partitions."
        )


def require_unpartitioned_properties(view: CatalogView, namespace: ObjectId, changes: Mapping[str, str | None]) -> None:
    """Check that properties to change do not define partitions.

    Raises:
        Refused: a property does.
    """
    if namespace.is_root:
        changed = [name for name, value in changes.items() if value != view.properties.get(name)]
        defining = [
            name
            for name in changed
            if is_spec_property(name) or is_record(name) or (name == SCHEMA_PROPERTY and _is_partitioned(view))
        ]
        if defining:
            raise Refused(
                f"the property {defining[0]!r} of the root defines the partitioned namespace, and partitions depend on "
                "it; nothing was changed. Partition a catalog with catalog.partitions.create, and change how later "
                "writes are partitioned with catalog.partitions.open().evolve."
            )
    elif _is_below_spec(view, namespace):
        derived = [name for name, value in changes.items() if value is not None and name.startswith(_DERIVED)]
        if derived:
            raise Refused(
                f"the property {derived[0]!r} of {namespace} is derived from the partitions; nothing was changed"
            )


def _is_below_spec(view: CatalogView, object_id: ObjectId) -> bool:
    """Return whether an object is, or is in, a namespace whose name belongs to a specification."""
    return bool(object_id.names) and bool(_SPEC_NAMESPACE.fullmatch(object_id.names[0])) and _is_partitioned(view)


def _is_partitioned(view: CatalogView) -> bool:
    return any(map(is_spec_property, view.properties))
