"""Requests and errors of the namespace interface: models, dicts and subclasses of dict; malformed ones; error codes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lance.namespace
import lance_namespace as api
import pyarrow as pa
import pytest
from lance_namespace import errors as api_errors
from lance_namespace.errors import ErrorCode
from writers import stream

import lancekeep
from lancekeep.application.catalog import directory_of

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})


class NativeDict(dict[str, Any]):
    """What pylance and lancedb pass: a dict with ``model_dump`` and without attributes."""

    def model_dump(self) -> dict[str, Any]:
        return dict(self)


Ask = Callable[..., Any]


@pytest.fixture(params=["sqlite", "storage"])
def namespace(request: pytest.FixtureRequest, tmp_path: Path) -> lancekeep.DirectoryNamespace:
    store = {"commit_store": f"sqlite://{tmp_path}/commits.db"} if request.param == "sqlite" else {}
    return lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"), **store)


@pytest.fixture
def table(namespace: lancekeep.DirectoryNamespace) -> lancekeep.DirectoryNamespace:
    namespace.catalog.write("t", ROWS)
    namespace.catalog.write("t", ROWS, mode="append")
    return namespace


def model_of(operation: str) -> Any:
    name = "list_tables" if operation == "list_all_tables" else operation
    return getattr(api, "".join(word.capitalize() for word in name.split("_")) + "Request")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda model, fields: model(**fields), id="model"),
        pytest.param(lambda model, fields: fields, id="dict"),
        pytest.param(lambda model, fields: NativeDict(fields), id="subclass of dict"),
    ],
)
def test_every_operation_accepts_any_form_of_request(namespace: lancekeep.DirectoryNamespace, make: Ask) -> None:
    def ask(operation: str, *data: bytes, **fields: Any) -> Any:
        return getattr(namespace, operation)(make(model_of(operation), fields), *data)

    ask("create_namespace", id=["n"], mode="exist_ok", properties={"k": "v"})
    assert ask("describe_namespace", id=["n"]).properties == {"k": "v"}
    ask("namespace_exists", id=["n"])
    assert ask("list_namespaces", id=[], limit=5).namespaces == ["n"]
    ask("declare_table", id=["n", "d"])
    ask("create_table", stream(ROWS), id=["n", "t"], mode="Create")
    assert ask("list_tables", id=["n"], include_declared=False).tables == ["t"]
    assert ask("list_all_tables", limit=1).tables == ["n$d"]
    ask("table_exists", id=["n", "t"], version=1)
    location = ask("describe_table", id=["n", "t"], with_table_uri=True).location
    lance.write_dataset(ROWS, mode="append", namespace_client=namespace, table_id=["n", "t"])
    versions = api.ListTableVersionsResponse.model_validate(
        ask("list_table_versions", id=["n", "t"], limit=1, descending=True)
    )
    assert [found.version for found in versions.versions] == [2]
    described = api.DescribeTableVersionResponse.model_validate(ask("describe_table_version", id=["n", "t"], version=1))
    assert described.version.version == 1
    ranges = [{"start_version": 1, "end_version": 2}]
    assert ask("batch_delete_table_versions", id=["n", "t"], ranges=ranges).deleted_count == 1
    ask("rename_table", id=["n", "t"], new_table_name="u")
    ask("deregister_table", id=["n", "u"])
    ask("register_table", id=["n", "u"], location=location.rpartition("/")[2])
    assert lance.dataset(namespace_client=namespace, table_id=["n", "u"]).count_rows() == 6
    declared = ask("batch_commit_tables", operations=[{"declare_table": {"id": ["n", "e"]}}])
    assert declared.results[0].declare_table.location
    ask("drop_table", id=["n", "u"])
    ask("drop_namespace", id=["n"], behavior="Cascade")
    assert namespace.catalog.list_namespaces() == []


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("list_tables", None),
        ("list_tables", "t"),
        ("list_tables", ["t"]),
        ("list_tables", {"id": "t"}),
        ("list_tables", {"id": [], "limt": 3}),
        ("list_tables", {"id": [], "limit": "3"}),
        ("describe_table", {"id": [1]}),
        ("describe_table", {"id": ["t"], "version": "1"}),
        ("describe_table", {"id": ["t"], "tag": 7}),
        ("create_namespace", {"id": ["n"], "properties": {"k": 1}}),
        ("create_table_version", {"id": ["t"]}),
        ("create_table_version", {"id": ["t"], "version": 3, "manifest_path": None}),
        ("create_table_version", {"id": ["t"], "version": -3, "manifest_path": "x"}),
        ("batch_create_table_versions", {"entries": None}),
        ("batch_create_table_versions", {"entries": [{"id": ["t"]}]}),
        ("batch_commit_tables", {}),
        ("batch_commit_tables", {"operations": [None]}),
        ("batch_delete_table_versions", {"id": ["t"]}),
        ("batch_delete_table_versions", {"id": ["t"], "ranges": None}),
        ("batch_delete_table_versions", {"id": ["t"], "ranges": [None]}),
        ("batch_delete_table_versions", {"id": ["t"], "ranges": [{"start_version": 1}]}),
        ("batch_delete_table_versions", api.BatchDeleteTableVersionsRequest.model_construct(id=["t"])),
        ("batch_delete_table_versions", api.BatchDeleteTableVersionsRequest.model_construct(id=["t"], ranges=None)),
        ("rename_table", {"id": ["t"]}),
        ("register_table", {"id": ["r"]}),
        ("list_table_versions", api.ListTableVersionsRequest.model_construct(id=["t"], limit="x")),
    ],
)
def test_malformed_request_is_invalid_input(table: lancekeep.DirectoryNamespace, operation: str, request_: Any) -> None:
    with pytest.raises(api_errors.InvalidInputError):
        getattr(table, operation)(request_)
    if isinstance(request_, dict):
        with pytest.raises((api_errors.InvalidInputError, api_errors.InvalidTableStateError)):
            getattr(table, operation)(NativeDict(request_))
    assert len(table.catalog.versions.history("t")) == 2


def test_malformed_request_does_not_show_its_values(namespace: lancekeep.DirectoryNamespace) -> None:
    with pytest.raises(api_errors.InvalidInputError, match="storage_options") as caught:
        namespace.create_table({"id": ["t"], "storage_options": {"secret_access_key": ["hunter2"]}}, stream(ROWS))  # type: ignore[arg-type] # a dict is accepted, too
    assert "hunter2" not in str(caught.value)


def test_codes_of_missing_tags_branches_and_versions(table: lancekeep.DirectoryNamespace) -> None:
    table.catalog.open("t").create_branch("b")
    describe, one, listed = "describe_table", "describe_table_version", "list_table_versions"
    detailed = {"load_detailed_metadata": True}
    for operation, fields, code in (
        (describe, {"tag": "x"}, ErrorCode.TABLE_TAG_NOT_FOUND),
        (describe, {"tag": "x", **detailed}, ErrorCode.TABLE_TAG_NOT_FOUND),
        (describe, {"branch": "x"}, ErrorCode.TABLE_BRANCH_NOT_FOUND),
        (describe, {"branch": "x", **detailed}, ErrorCode.TABLE_BRANCH_NOT_FOUND),
        (describe, {"branch": "x", "version": 1, **detailed}, ErrorCode.TABLE_BRANCH_NOT_FOUND),
        (describe, {"branch": "b", "version": 9, **detailed}, ErrorCode.TABLE_VERSION_NOT_FOUND),
        (describe, {"version": 9}, ErrorCode.TABLE_VERSION_NOT_FOUND),
        (one, {"branch": "x"}, ErrorCode.TABLE_BRANCH_NOT_FOUND),
        (one, {"branch": "x", "version": 1}, ErrorCode.TABLE_BRANCH_NOT_FOUND),
        (one, {"branch": "b", "version": 9}, ErrorCode.TABLE_VERSION_NOT_FOUND),
        (listed, {"branch": "x"}, ErrorCode.TABLE_BRANCH_NOT_FOUND),
        (listed, {"branch": "x", "limit": 1, "descending": True}, ErrorCode.TABLE_BRANCH_NOT_FOUND),
    ):
        with pytest.raises(api_errors.LanceNamespaceError) as caught:
            getattr(table, operation)(model_of(operation)(id=["t"], **fields))
        assert caught.value.code == code, fields
    with pytest.raises(lancekeep.TagNotFound):
        table.catalog.open("t", tag="x")
    with pytest.raises(lancekeep.BranchNotFound):
        table.catalog.open("t", branch="x")


@pytest.mark.parametrize("content", [b"", b"no manifest at all"])
def test_damaged_table_manifest_is_an_internal_error(table: lancekeep.DirectoryNamespace, content: bytes) -> None:
    row = directory_of(table.catalog).commits.latest(
        directory_of(table.catalog).places.dataset_root(table.catalog.find_table("t"))
    )
    assert row is not None
    Path(f"/{row.path}").write_bytes(content)
    request = api.DescribeTableRequest(id=["t"], load_detailed_metadata=True)
    with pytest.raises(api_errors.InternalError):
        table.describe_table(request)
    with pytest.raises(lancekeep.Damaged):
        table.catalog.open("t")


def test_versions_say_when_they_were_created(table: lancekeep.DirectoryNamespace) -> None:
    table.catalog.open("t").create_branch("b")
    now = time.time() * 1000
    request = api.ListTableVersionsRequest(id=["t"])
    listed = table.list_table_versions(request).versions
    described = [
        table.describe_table_version(api.DescribeTableVersionRequest(id=["t"], version=found.version)).version
        for found in listed
    ]
    assert described == listed
    assert [found.version for found in listed] == [2, 1]
    branch = table.list_table_versions(api.ListTableVersionsRequest(id=["t"], branch="b", limit=1)).versions
    for found in (*listed, *branch):
        assert found.timestamp_millis is not None
        assert now - 60_000 < found.timestamp_millis <= now + 1000


@pytest.mark.parametrize(
    ("policy", "asked", "given"),
    [
        (None, None, False),
        (None, True, True),
        (None, False, False),
        ("true", None, True),
        ("true", True, True),
        ("true", False, False),
        ("false", None, False),
        ("false", True, False),
    ],
)
def test_credentials_are_vended_as_request_and_policy_say(
    tmp_path: Path, policy: str | None, asked: bool | None, given: bool
) -> None:
    properties = {"root": str(tmp_path), "storage.headers.x-key": "secret"}
    if policy is not None:
        properties["vend_input_storage_options"] = policy
    namespace = lancekeep.DirectoryNamespace(**properties)
    declared = namespace.declare_table(api.DeclareTableRequest(id=["t"], vend_credentials=asked))
    described = namespace.describe_table(api.DescribeTableRequest(id=["t"], vend_credentials=asked))
    expected = {"headers.x-key": "secret"} if given else None
    assert (declared.storage_options, described.storage_options) == (expected, expected)


def test_properties_of_the_native_namespace_are_accepted_with_a_warning(tmp_path: Path) -> None:
    """One configuration opens both namespaces."""
    properties = {
        "root": str(tmp_path / "lake"),
        "commit_retries": "3",
        "ops_metrics_enabled": "false",
        "table_version_storage_enabled": "false",
        "table_version_tracking_enabled": "false",
        "vend_input_storage_options_refresh_interval_millis": "1000",
        "storage.aws_region": "eu-west-1",
        "storage.google_service_account": "x",
    }
    with pytest.warns(UserWarning, match="has no effect") as warned:
        ours = lancekeep.DirectoryNamespace(**properties)
    texts = [str(warning.message) for warning in warned if warning.category is UserWarning]
    assert [text.split("'")[1] for text in texts] == list(properties)[1:6]
    native = lance.namespace.DirectoryNamespace(**properties)
    lance.write_dataset(ROWS, namespace_client=native, table_id=["t"])
    assert ours.catalog.open("t").to_table() == ROWS
    assert ours.retrieve_ops_metrics() == native.retrieve_ops_metrics() == {}
    ours.reset_ops_metrics()
