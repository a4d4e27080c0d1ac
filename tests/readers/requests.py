"""The changes of tables, made by requests to the namespace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pyarrow as pa
from readers.model import Given, State


@attrs.frozen
class Request:
    """A change to make.

    Attributes:
        at: The fields that name the table and the branch.
        version: The version whose state is ``seen``.
    """

    namespace: Any
    at: Mapping[str, Any]
    version: int
    seen: State
    given: Given

    def rows(self, *more: int, columns: tuple[str, ...] | None = None) -> bytes:
        """Return the given rows as an Arrow stream."""
        rows = self.given.rows(self.seen.columns if columns is None else columns, *more)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    @property
    def filter(self) -> str:
        return f"id = {self.given.chosen}"


def _append(request: Request) -> None:
    request.namespace.insert_into_table({**request.at, "mode": "append"}, request.rows())


def _overwrite(request: Request) -> None:
    request.namespace.insert_into_table({**request.at, "mode": "overwrite"}, request.rows(columns=("id", "value")))


def _delete(request: Request) -> None:
    request.namespace.delete_from_table({**request.at, "predicate": request.filter})


def _update(request: Request) -> None:
    updates = [["value", str(request.given.value)]]
    request.namespace.update_table({**request.at, "predicate": request.filter, "updates": updates})


def _merge(request: Request) -> None:
    rule = {"on": ["id"], "when_matched_update_all": True, "when_not_matched_insert_all": True}
    request.namespace.merge_insert_into_table({**request.at, **rule}, request.rows(request.given.chosen))


def _add_column(request: Request) -> None:
    column = {"name": f"c{request.given.ids[0]}", "expression": "value + 1"}
    request.namespace.alter_table_add_columns({**request.at, "new_columns": [column]})


def _drop_column(request: Request) -> None:
    if len(request.seen.columns) > 2:
        request.namespace.alter_table_drop_columns({**request.at, "columns": [request.seen.columns[-1]]})


def _rename_column(request: Request) -> None:
    column = request.seen.columns[-1]
    if len(request.seen.columns) > 2:
        alteration = {"path": column, "rename": f"{column.partition('_')[0]}_{request.given.ids[0]}"}
        request.namespace.alter_table_alter_columns({**request.at, "alterations": [alteration]})


def _index(request: Request) -> None:
    index = {"column": "id", "index_type": "BTREE", "name": f"i{request.given.ids[0]}"}
    request.namespace.create_table_scalar_index({**request.at, **index})


def _restore(request: Request) -> None:
    request.namespace.restore_table({**request.at, "version": request.version})


REQUESTS: Mapping[str, Callable[[Request], None]] = {
    "append": _append,
    "overwrite": _overwrite,
    "delete": _delete,
    "update": _update,
    "merge": _merge,
    "add column": _add_column,
    "drop column": _drop_column,
    "rename column": _rename_column,
    "index": _index,
    "restore": _restore,
}
