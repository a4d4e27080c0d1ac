"""Full-text queries over some rows of a dataset, with scores of these rows alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

import attrs
import pyarrow as pa

from lancekeep.adapters.lance.queries import is_hybrid, streamed, translated
from lancekeep.native import compute as pc
from lancekeep.native import fts, lance
from lancekeep.ports.rows import Query

_SCORE, _ROW_ID = "_score", "_rowid"
_INVERTED: Final = "Inverted"


def searched_apart(dataset: Any, rows: pa.Table, query: Query) -> pa.Table:
    """Return the answer of a full-text query over rows; see `RowEngine.search_apart`."""
    with translated(dataset):
        copy = lance.write_dataset(rows, f"memory://{uuid4().hex}", data_storage_version=dataset.data_storage_version)
        for column, parameters in _indexes(dataset, rows).items():
            copy.create_scalar_index(column, "INVERTED", **parameters)
    if is_hybrid(query):
        return streamed(copy, query).read_all()
    found = streamed(copy, _all_of(query)).read_all()
    # Rows of the same score have the order of the rows, so that an answer depends on them alone.
    ordered = found.take(pc.sort_indices(found, sort_keys=[(_SCORE, "descending"), (_ROW_ID, "ascending")]))
    page = ordered.slice(query.offset or 0, query.limit)
    return page if query.row_ids else page.drop_columns([_ROW_ID])


def _all_of(query: Query) -> Query:
    return attrs.evolve(query, limit=None, offset=None, row_ids=True, prefilter=True)


def _indexes(dataset: Any, rows: pa.Table) -> Mapping[str, Mapping[str, Any]]:
    """Return the parameters of the full-text indexes of a dataset on columns of rows, by their columns."""
    found: dict[str, Mapping[str, Any]] = {}
    for index in dataset.describe_indices():
        for path in index.field_names if index.index_type == _INVERTED else ():
            if path.split(".")[0].strip("`") in rows.column_names and path not in found:
                given = {name: value for name, value in _parameters(dataset, index).items() if value is not None}
                if "document_granularity" in given:
                    given["document_granularity"] = fts.DocumentGranularity(given["document_granularity"])
                found[path] = given
    return found


def _parameters(dataset: Any, index: Any) -> dict[str, Any]:
    """Return the parameters of a full-text index; its description lacks some, such as its own stop words."""
    built = dataset.stats.index_stats(index.name).get("indices") or [{}]
    found = {**(index.details or {}), **built[0].get("params", {})}
    found.pop("lance_tokenizer", None)  # the engine takes it from the type of the column, and refuses it
    return found
