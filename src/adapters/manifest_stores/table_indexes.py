"""The indexes of the manifest table, for native readers.

Directory namespace V2, "Manifest Table Indexes".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from lancekeep.domain.errors import ConcurrentModification, StoreUnavailable
from lancekeep.native import lance

_INDEXES: Final[tuple[tuple[str, str, Literal["BTREE", "BITMAP", "LABEL_LIST"]], ...]] = (
    ("object_id_btree", "object_id", "BTREE"),
    ("object_type_bitmap", "object_type", "BITMAP"),
    ("base_objects_label_list", "base_objects", "LABEL_LIST"),
)


def refresh_indexes(uri: str, storage_options: Mapping[str, str]) -> None:
    """Build the missing specified indexes and update all existing ones.

    The Lance engine builds and commits them, also next to concurrent commits. The indexes have the native names.

    Raises:
        ConcurrentModification: concurrent commits conflict with the update.
        StoreUnavailable: the engine could not build the indexes.
    """
    try:
        dataset = lance.dataset(uri, storage_options=dict(storage_options) or None)
        indexed = {tuple(index["fields"]) for index in dataset.list_indices()}
        for name, column, kind in _INDEXES:
            if column in dataset.schema.names and (column,) not in indexed:
                dataset.create_scalar_index(column, kind, name=name)
        dataset.optimize.optimize_indices()
    except lance.commit.CommitConflictError as error:
        raise ConcurrentModification(f"{uri}: concurrent commits changed the catalog; call again: {error}") from error
    except OSError as error:
        raise StoreUnavailable(f"{uri}: the indexes could not be built: {error}") from error
