"""The error codes of the specification, and the older names of operations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import ErrorCode, LanceNamespaceError

import lancekeep
from lancekeep.adapters.lance.namespace_errors import namespace_error
from lancekeep.application.catalog import directory_of
from lancekeep.domain import errors
from lancekeep.testing.concurrency import race

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def namespace(tmp_path: Path) -> lancekeep.DirectoryNamespace:
    """Return a namespace with a table, an index, a tag, a branch and a namespace that is not empty."""
    given = {"root": str(tmp_path / "lake"), "commit_store": "conditional-put://", "storage.fsync": "false"}
    opened = lancekeep.DirectoryNamespace(**given)
    opened.catalog.create_namespace("n")
    opened.catalog.write("n.t", ROWS)
    opened.catalog.write("t", ROWS)
    for operation, fields in (
        ("create_table_scalar_index", {"column": "a", "index_type": "BTREE", "name": "i"}),
        ("create_table_tag", {"tag": "x", "version": 1}),
        ("create_table_branch", {"name": "b"}),
    ):
        getattr(opened, operation)({"id": ["t"], **fields})
    return opened


Calls = dict[ErrorCode, tuple[str, dict[str, Any]]]
CALLS: Calls = {
    ErrorCode.UNSUPPORTED: (
        "create_materialized_view",
        {"id": ["v"], "kind": "udtf", "source_query": "{}", "output_schema": ""},
    ),
    ErrorCode.NAMESPACE_NOT_FOUND: ("list_tables", {"id": ["missing"]}),
    ErrorCode.NAMESPACE_ALREADY_EXISTS: ("create_namespace", {"id": ["n"]}),
    ErrorCode.NAMESPACE_NOT_EMPTY: ("drop_namespace", {"id": ["n"]}),
    ErrorCode.TABLE_NOT_FOUND: ("list_table_indices", {"id": ["missing"]}),
    ErrorCode.TABLE_ALREADY_EXISTS: ("declare_table", {"id": ["t"]}),
    ErrorCode.TABLE_INDEX_NOT_FOUND: ("drop_table_index", {"id": ["t"], "index_name": "missing"}),
    ErrorCode.TABLE_INDEX_ALREADY_EXISTS: (
        "create_table_index",
        {"id": ["t"], "column": "a", "index_type": "BTREE", "name": "i"},
    ),
    ErrorCode.TABLE_TAG_NOT_FOUND: ("get_table_tag_version", {"id": ["t"], "tag": "missing"}),
    ErrorCode.TABLE_TAG_ALREADY_EXISTS: ("create_table_tag", {"id": ["t"], "tag": "x", "version": 1}),
    ErrorCode.TRANSACTION_NOT_FOUND: ("describe_transaction", {"id": ["t", "missing"]}),
    ErrorCode.TABLE_VERSION_NOT_FOUND: ("update_table_tag", {"id": ["t"], "tag": "x", "version": 99}),
    ErrorCode.TABLE_COLUMN_NOT_FOUND: ("alter_table_drop_columns", {"id": ["t"], "columns": ["missing"]}),
    ErrorCode.INVALID_INPUT: ("list_table_tags", {"id": ["t"], "limit": 0}),
    ErrorCode.CONCURRENT_MODIFICATION: (
        "create_table_version",
        {"id": ["t"], "version": 1, "manifest_path": ""},
    ),
    ErrorCode.INVALID_TABLE_STATE: (
        "batch_delete_table_versions",
        {"id": ["t"], "ranges": [{"start_version": 2, "end_version": -1}]},
    ),
    ErrorCode.TABLE_SCHEMA_VALIDATION_ERROR: (
        "alter_table_add_columns",
        {"id": ["t"], "new_columns": [{"name": "a", "expression": "1"}]},
    ),
    ErrorCode.TABLE_BRANCH_NOT_FOUND: ("delete_table_branch", {"id": ["t"], "name": "missing"}),
    ErrorCode.TABLE_BRANCH_ALREADY_EXISTS: ("create_table_branch", {"id": ["t"], "name": "b"}),
}


def staged(namespace: lancekeep.DirectoryNamespace) -> dict[str, Any]:
    """Return a request for a version that another writer takes first."""
    catalog = namespace.catalog
    plan = catalog.begin_write("t", ROWS.schema, "append")
    made = directory_of(catalog).engine.stage(
        plan, directory_of(catalog).engine.write_fragments(plan, ROWS.to_reader())
    )
    catalog.write("t", ROWS, "append")
    return {"id": ["t"], "version": made.version, "manifest_path": made.path}


@pytest.mark.parametrize("code", CALLS, ids=lambda code: code.name)
def test_each_code_is_raised_where_the_specification_says(
    namespace: lancekeep.DirectoryNamespace, code: ErrorCode
) -> None:
    operation, fields = CALLS[code]
    request = staged(namespace) if code is ErrorCode.CONCURRENT_MODIFICATION else fields
    with pytest.raises(LanceNamespaceError) as raised:
        getattr(namespace, operation)(request)
    assert raised.value.code is code
    assert isinstance(raised.value.__cause__, errors.LancekeepError)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.AccessDenied, ErrorCode.PERMISSION_DENIED),
        (errors.StoreUnavailable, ErrorCode.SERVICE_UNAVAILABLE),
        (errors.Damaged, ErrorCode.INTERNAL),
    ],
)
def test_errors_of_the_storage_have_codes(error: Callable[[str], errors.LancekeepError], code: ErrorCode) -> None:
    assert namespace_error(error("x")).code is code


def test_only_a_server_raises_the_remaining_codes() -> None:
    storage = {ErrorCode.PERMISSION_DENIED, ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.INTERNAL}
    assert set(ErrorCode) - set(CALLS) - storage == {ErrorCode.UNAUTHENTICATED, ErrorCode.THROTTLING}


# -- older names --------------------------------------------------------------------------------------------------


def test_older_names_describe_as_the_new_ones(namespace: lancekeep.DirectoryNamespace) -> None:
    table, child = {"id": ["t"]}, {"id": ["n"]}
    assert namespace.get_table(table) == namespace.describe_table(table)  # type: ignore[arg-type]  # dicts
    assert namespace.get_namespace(child) == namespace.describe_namespace(child)  # type: ignore[arg-type]  # dicts


def test_properties_are_altered_by_the_older_operations(namespace: lancekeep.DirectoryNamespace) -> None:
    for alter, object_id in ((namespace.alter_namespace, ["n"]), (namespace.alter_table, ["t"])):
        assert alter({"id": object_id, "properties": {"k": "v", "l": "w"}})["properties"] == {"k": "v", "l": "w"}
        assert alter({"id": object_id, "properties": {"k": None}}) == {"id": object_id, "properties": {"l": "w"}}


@pytest.mark.parametrize("request_", [{}, {"id": ["t"]}, {"id": ["t"], "properties": {}}, {"id": ["t"], "set": {}}])
def test_a_malformed_older_request_is_refused(
    namespace: lancekeep.DirectoryNamespace, request_: dict[str, Any]
) -> None:
    for alter in (namespace.alter_namespace, namespace.alter_table):
        with pytest.raises(LanceNamespaceError) as raised:
            alter(request_)
        assert raised.value.code is ErrorCode.INVALID_INPUT


def test_operations_are_listed(namespace: lancekeep.DirectoryNamespace) -> None:
    found = namespace.list_operations()["operations"]
    assert {"CreateTable", "QueryTable", "ListTableTags", "RefreshMaterializedView", "AlterTable"} <= set(found)
    assert found == sorted(found)


# -- tags ---------------------------------------------------------------------------------------------------------


def test_a_tag_that_native_code_wrote_is_moved_and_keeps_its_metadata(
    namespace: lancekeep.DirectoryNamespace,
) -> None:
    dataset = namespace.catalog.open("t")
    dataset.tags.create("native", 1)
    dataset.tags.replace_metadata("native", {"k": "v"})
    namespace.update_table_tag({"id": ["t"], "tag": "native", "version": 2})  # type: ignore[arg-type]  # a dict
    tag = namespace.catalog.open("t").tags.list()["native"]
    assert (tag["version"], tag["metadata"]) == (2, {"k": "v"})


def test_of_concurrent_creators_of_a_tag_one_wins(namespace: lancekeep.DirectoryNamespace) -> None:
    def create(number: int) -> int | str:
        try:
            namespace.catalog.tags.create(lancekeep.ObjectId.of("t"), "mine", 1 + number % 2, None)
        except lancekeep.TagAlreadyExists:
            return "taken"
        return number

    outcomes = race(8, create)
    winners = [each for each in outcomes if each != "taken"]
    assert len(winners) == 1
    assert namespace.catalog.tags.get(lancekeep.ObjectId.of("t"), "mine").version == 1 + int(winners[0]) % 2


# -- answers as clients of the native namespace read them ----------------------------------------------------------


def test_missing_namespace_has_its_own_code(
    namespace: Any,
) -> None:
    for operation in ("describe_table", "table_exists"):
        for name, code in (("missing", ErrorCode.NAMESPACE_NOT_FOUND), ("n", ErrorCode.TABLE_NOT_FOUND)):
            with pytest.raises(LanceNamespaceError) as raised:
                getattr(namespace, operation)({"id": [name, "x"]})
            assert raised.value.code is code


def test_registration_answers_the_relative_location(namespace: Any) -> None:
    uri = namespace.deregister_table({"id": ["n", "t"]}).location
    location = uri.rpartition("/")[2]
    for given in (uri, location):
        assert namespace.register_table({"id": ["r"], "location": given, "mode": "overwrite"}).location == location
    assert namespace.catalog.open("r").count_rows() == 3


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("s3://bucket/t", "Absolute URIs are not allowed"),
        ("file:///elsewhere/t", "Absolute URIs are not allowed"),
        ("/elsewhere/t", "Absolute paths are not allowed"),
        ("../t", "Path traversal is not allowed"),
        ("a/../../t", "Path traversal is not allowed"),
    ],
)
def test_location_outside_the_root_is_refused_in_native_words(namespace: Any, location: str, message: str) -> None:
    with pytest.raises(LanceNamespaceError, match=message) as raised:
        namespace.register_table({"id": ["r"], "location": location})
    assert raised.value.code is ErrorCode.INVALID_INPUT


def test_described_version_is_read_as_model_and_as_dict(namespace: Any) -> None:
    answer = namespace.describe_table_version({"id": ["t"], "version": 1})
    assert answer.version.version == answer.get("version")["version"] == answer["version"].get("version") == 1
    assert answer.get("missing", 7) == 7


def test_namespace_id_names_the_root(namespace: Any, tmp_path: Path) -> None:
    assert str(tmp_path / "lake") in namespace.namespace_id()


def test_directory_of_foreign_files_is_no_declared_table(namespace: Any, tmp_path: Path) -> None:
    (tmp_path / "lake" / "foreign.lance").mkdir()
    (tmp_path / "lake" / "foreign.lance" / "readme.txt").write_text("not a table")
    namespace.declare_table({"id": ["d"]})
    for name, declared in (("foreign", False), ("d", True), ("t", False)):
        answer = namespace.describe_table({"id": [name], "check_declared": True})
        assert answer.is_only_declared is declared
    with pytest.raises(lancekeep.VersionNotFound, match=r"'foreign\.lance' is not a Lance table"):
        namespace.catalog.open("foreign")


def test_relative_file_uri_is_refused_as_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for root in ("file:q", "FILE:q", "file:./q", "file:"):
        with pytest.raises(lancekeep.InvalidInput, match="a file URI is absolute"):
            lancekeep.connect(root)
    assert list(tmp_path.iterdir()) == []
