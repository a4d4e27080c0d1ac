"""Offer row addresses and row versions as metadata columns.

A metadata column is selected by name; ``SELECT *`` leaves it out. A column of the table with the same name hides it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lancekeep.entrypoints.spark.internals.classes import CATALOG, TYPE
from lancekeep.entrypoints.spark.reading import FragmentReader
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy

ROW_ADDRESS = "_rowaddr"
_FRAGMENT = "_fragment"
_COMMENTS = {
    "_rowid": "the id of the row; it survives compaction and updates if the table has stable row ids",
    ROW_ADDRESS: "the address of the row: its fragment * 2^32 + its position in the fragment",
    _FRAGMENT: "the id of the fragment that holds the row",
}
_WITH_STABLE_IDS = {
    "_row_created_at_version": "the version that inserted the row",
    "_row_last_updated_at_version": "the version that last inserted or updated the row",
}
POSITION_BITS = 32


def metadata_columns(dataset: Any) -> Mapping[str, str]:
    """Return the metadata columns of a ``lance.LanceDataset`` with their comments."""
    offered = _COMMENTS | _WITH_STABLE_IDS if dataset.has_stable_row_ids else _COMMENTS
    stored = frozenset(dataset.schema.names)
    return {name: comment for name, comment in offered.items() if name not in stored}


def stored_metadata(dataset: Any) -> pa.Schema:
    """Return the metadata columns that the engine itself can filter by."""
    return pa.schema([(name, pa.uint64()) for name in metadata_columns(dataset) if name != _FRAGMENT])


class MetadataColumn(Proxy):
    """A metadata column of a table."""

    class Java:
        implements = (CATALOG + "MetadataColumn",)

    def __init__(self, jvm: Jvm, name: str, comment: str, kind: str = "long") -> None:
        self._jvm = jvm
        self._kind = kind
        self._name = name
        self._comment = comment

    def name(self) -> str:
        return self._name

    def dataType(self) -> Any:
        return self._jvm.java(TYPE).fromJson(f'"{self._kind}"')

    def isNullable(self) -> bool:
        return False

    def comment(self) -> str:
        return self._comment

    def transform(self) -> None:
        return None

    def metadataInJSON(self) -> None:
        return None


@attrs.frozen
class MetadataReader:
    """Read fragments with metadata columns after the stored ones; can be pickled.

    Attributes:
        stored: Reads the stored columns.
        schema: The exact schema of the batches.
        names: The metadata columns to read.
    """

    stored: FragmentReader
    schema: pa.Schema
    names: tuple[str, ...]

    def read(self, runs: Sequence[range], limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the fragments in order, at most ``limit``."""
        asked = tuple(dict.fromkeys(ROW_ADDRESS if name == _FRAGMENT else name for name in self.names))
        for batch, extra in self.stored.read_with(runs, limit, asked):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns |= {name: _values(extra, name) for name in self.names}
            yield pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def restricted(self, condition: str) -> MetadataReader:
        """Return a reader of the rows that satisfy one condition alone."""
        return attrs.evolve(self, stored=self.stored.restricted(condition))


def _values(extra: pa.RecordBatch, name: str) -> pa.Array:
    if name == _FRAGMENT:
        return pc.shift_right(extra.column(ROW_ADDRESS).cast(pa.int64()), POSITION_BITS)
    return extra.column(name).cast(pa.int64())
