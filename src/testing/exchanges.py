"""A well-formed request of each operation.

In this order, each finds what it needs. All work in one namespace. Its table ``t`` stays; tables that are renamed,
deregistered or dropped are others.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa

from lancekeep.testing.behaviours.behaviour import bytes_of, directory

ROWS = pa.table(
    {
        "a": pa.array([1, 2, 3], pa.int64()),
        "v": pa.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], pa.list_(pa.float32(), 2)),
    }
)
NO_TRANSACTION = "7c1b7c5e-2d5f-4a4c-9d0e-4f8f0a6f3f11"
ABSENT = "absent"
"""The name of objects that do not exist."""
INDEX = "i"
"""The name of every index."""
FRESH = "fresh"
"""The name of objects that malformed requests would create."""

At = Callable[..., list[str]]
"""Returns the identifier of an object by its names below the namespace."""
Answers = Mapping[str, Any]
"""The successful answers until now, by the `id` of the request."""
Body = Mapping[str, Any] | bytes | Callable[[At, Answers], Mapping[str, Any]] | None


@attrs.frozen
class Request:
    """A well-formed request.

    Attributes:
        operation: the operation.
        names: the names of its object below the namespace.
        body: the body: fields, an Arrow stream, or fields that depend on the namespace and on earlier answers.
        query: the query parameters.
        needs: the requests, by `id`, without whose success this one cannot be made.
        creates: whether it creates the object, so that the object is absent before.
        others: the statuses that answer it as well as a success.
        absent: the body that names an absent object, if the path names none.
        name: the name of the check, if it is not the first of its operation.
    """

    operation: str
    names: tuple[str, ...] = ()
    body: Body = None
    query: Mapping[str, str] = attrs.field(factory=dict)
    needs: tuple[str, ...] = ()
    creates: bool = False
    others: tuple[int, ...] = ()
    absent: Callable[[At], Mapping[str, Any]] | None = None
    name: str = "well-formed"

    @property
    def id(self) -> str:
        """The name in reports."""
        return f"{self.operation}/{self.name}"

    @property
    def is_first(self) -> bool:
        """Whether it is the first of its operation."""
        return self.name == "well-formed"

    def fields(self, at: At, answers: Answers) -> Mapping[str, Any] | bytes | None:
        """Return the body."""
        return self.body(at, answers) if callable(self.body) else self.body


_QUERY = {"vector": {"single_vector": [0.0, 1.0]}, "vector_column": "v", "k": 1}
_STAGED = {"version": 1, "manifest_path": "_versions/1.manifest-conformance"}
"""A version that exists, since only a writer of data can stage another; the answer may be a conflict."""


def _view(at: At, _: Answers) -> Mapping[str, Any]:
    source = json.dumps({"table": at("t"), "filter": "a > 1"})
    return {"kind": "query", "source_query": source, "output_schema": b64encode(ROWS.schema.serialize()).decode()}


def _location(_: At, answers: Answers) -> Mapping[str, Any]:
    return {"location": directory(answers["DeregisterTable/well-formed"]["location"])}


WELL_FORMED: Sequence[Request] = (
    Request("CreateNamespace", ("child",), {"properties": {"team": "a"}}, creates=True),
    Request("ListNamespaces", (), query={"limit": "10"}),
    Request("DescribeNamespace", ("child",), {}),
    Request("NamespaceExists", ("child",), {}),
    Request("CreateTable", ("t",), bytes_of(ROWS), creates=True),
    Request("DeclareTable", ("declared",), {}, creates=True),
    Request("ListTables", (), query={"include_declared": "false"}),
    Request("ListAllTables", query={"limit": "10"}),
    Request("DescribeTable", ("t",), {}, query={"load_detailed_metadata": "true"}),
    Request("TableExists", ("t",), {}),
    Request("InsertIntoTable", ("t",), bytes_of(ROWS), query={"mode": "append"}),
    Request("MergeInsertIntoTable", ("t",), bytes_of(ROWS), query={"on": "a", "when_not_matched_insert_all": "true"}),
    Request("UpdateTable", ("t",), {"predicate": "a = 3", "updates": [["a", "a + 1"]]}),
    Request("DeleteFromTable", ("t",), {"predicate": "a = 4"}),
    Request("CountTableRows", ("t",), {"predicate": "a > 1"}),
    Request("QueryTable", ("t",), _QUERY),
    Request("ExplainTableQueryPlan", ("t",), {"query": _QUERY}),
    Request("AnalyzeTableQueryPlan", ("t",), _QUERY),
    Request("GetTableStats", ("t",), {}),
    Request("ListTableVersions", ("t",), query={"descending": "true"}),
    Request("DescribeTableVersion", ("t",), {"version": 1}),
    Request("CreateTableVersion", ("t",), _STAGED, others=(409,)),
    Request(
        "BatchCreateTableVersions",
        body=lambda at, _: {"entries": [{"id": at("t"), **_STAGED}]},
        others=(409,),
        absent=lambda at: {"entries": [{"id": at(ABSENT), **_STAGED}]},
    ),
    Request(
        "BatchCommitTables",
        body=lambda at, _: {"operations": [{"declare_table": {"id": at("batch")}}]},
        absent=lambda at: {"operations": [{"deregister_table": {"id": at(ABSENT)}}]},
    ),
    Request("CreateTableTag", ("t",), {"tag": "first", "version": 1}),
    Request("ListTableTags", ("t",)),
    Request("GetTableTagVersion", ("t",), {"tag": "first"}, needs=("CreateTableTag/well-formed",)),
    Request("UpdateTableTag", ("t",), {"tag": "first", "version": 2}, needs=("CreateTableTag/well-formed",)),
    Request("DeleteTableTag", ("t",), {"tag": "first"}, needs=("CreateTableTag/well-formed",)),
    Request("CreateTableBranch", ("t",), {"name": "side"}),
    Request("ListTableBranches", ("t",)),
    Request("DeleteTableBranch", ("t",), {"name": "side"}, needs=("CreateTableBranch/well-formed",)),
    Request("CreateTableScalarIndex", ("t",), {"column": "a", "index_type": "BTREE", "name": INDEX}),
    Request("ListTableIndices", ("t",), {}),
    Request("DescribeTableIndexStats", ("t",), {}, needs=("CreateTableScalarIndex/well-formed",)),
    Request("DropTableIndex", ("t",), needs=("CreateTableScalarIndex/well-formed",)),
    Request(
        "CreateTableIndex",
        ("t",),
        {"column": "v", "index_type": "IVF_FLAT", "distance_type": "l2", "num_partitions": 1, "name": INDEX},
    ),
    Request("UpdateTableSchemaMetadata", ("t",), {"team": "a"}),
    Request("UpdateFieldMetadata", ("t",), {"updates": [{"path": "a", "metadata": {"unit": "m"}}]}),
    Request("AlterTableAddColumns", ("t",), {"new_columns": [{"name": "c", "expression": "a + 1"}]}),
    Request(
        "AlterTableAlterColumns",
        ("t",),
        {"alterations": [{"path": "c", "rename": "d"}]},
        needs=("AlterTableAddColumns/well-formed",),
    ),
    Request("AlterTableDropColumns", ("t",), {"columns": ["d"]}, needs=("AlterTableAlterColumns/well-formed",)),
    Request(
        "DescribeTransaction",
        ("t", "AlterTableDropColumns/well-formed"),
        {},
        needs=("AlterTableDropColumns/well-formed",),
    ),
    Request(
        "AlterTransaction",
        ("t", "AlterTableDropColumns/well-formed"),
        {"actions": [{"setStatusAction": {"status": "Succeeded"}}]},
        needs=("AlterTableDropColumns/well-formed",),
    ),
    Request("AlterTableAddColumns", ("t",), {"new_columns": [{"name": "e", "computed": "a + 1"}]}, name="computed"),
    Request("AlterTableBackfillColumns", ("t",), {"column": "e"}, needs=("AlterTableAddColumns/computed",)),
    Request("RestoreTable", ("t",), {"version": 1}),
    Request("BatchDeleteTableVersions", ("t",), {"ranges": [{"start_version": 1, "end_version": 2}]}),
    Request("CreateMaterializedView", ("view",), _view, creates=True),
    Request("RefreshMaterializedView", ("view",), {}, needs=("CreateMaterializedView/well-formed",)),
    Request("RenameTable", ("declared",), {"new_table_name": "renamed"}, needs=("DeclareTable/well-formed",)),
    Request("CreateTable", ("other",), bytes_of(ROWS), query={"mode": "Overwrite"}, name="overwrite"),
    Request("DropTable", ("other",), needs=("CreateTable/overwrite",)),
    Request("DropNamespace", ("child",), {}),
    Request("CreateTable", ("spare",), bytes_of(ROWS), query={"mode": "ExistOk"}, name="exist-ok"),
    Request("DeregisterTable", ("spare",), {}, needs=("CreateTable/exist-ok",)),
    Request("RegisterTable", ("spare",), _location, needs=("DeregisterTable/well-formed",), creates=True),
)
"""The requests. Removals are last, so that a server that carries out malformed requests spoils fewer checks."""
