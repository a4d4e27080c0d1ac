"""Bodies of requests: any JSON under the fields of the interface, as a model and as native callbacks bring it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance_namespace as api
import pyarrow as pa
import pytest
from fuzz.foreign import SLOW, read_api
from hypothesis import given
from hypothesis import strategies as st

import lancekeep

REQUESTS: dict[str, Any] = {
    "create_namespace": api.CreateNamespaceRequest,
    "describe_namespace": api.DescribeNamespaceRequest,
    "namespace_exists": api.NamespaceExistsRequest,
    "list_namespaces": api.ListNamespacesRequest,
    "drop_namespace": api.DropNamespaceRequest,
    "declare_table": api.DeclareTableRequest,
    "register_table": api.RegisterTableRequest,
    "rename_table": api.RenameTableRequest,
    "table_exists": api.TableExistsRequest,
    "list_tables": api.ListTablesRequest,
    "list_all_tables": api.ListTablesRequest,
    "describe_table": api.DescribeTableRequest,
    "deregister_table": api.DeregisterTableRequest,
    "drop_table": api.DropTableRequest,
    "create_table_version": api.CreateTableVersionRequest,
    "describe_table_version": api.DescribeTableVersionRequest,
    "list_table_versions": api.ListTableVersionsRequest,
    "batch_delete_table_versions": api.BatchDeleteTableVersionsRequest,
}
CALLBACKS = ("describe_table", "create_table_version", "describe_table_version", "list_table_versions")
"""What the native engine calls, with a dict that nothing has validated."""

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=6), st.just("t")
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "id": st.lists(st.sampled_from(["t", "n", "x", ""]), max_size=2),
    "version": st.integers(-1, 3),
    "mode": st.sampled_from(["create", "Overwrite", "exist_ok", "skip"]),
    "properties": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
}


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory: Path = tmp_path_factory.mktemp("bodies")
    opened = lancekeep.DirectoryNamespace(
        root=str(directory / "lake"), commit_store=f"sqlite://{directory}/commits.db", **{"storage.fsync": "false"}
    )
    opened.catalog.write("t", pa.table({"a": [1]}))
    return opened


def body_of(data: st.DataObject, model: Any) -> dict[str, Any]:
    names = data.draw(st.sets(st.sampled_from([*model.model_fields, "unheard_of"])))
    return {name: data.draw(LIKELY.get(name, JSON) | JSON, label=name) for name in sorted(names)}


@pytest.mark.parametrize("operation", REQUESTS)
@SLOW
@given(data=st.data())
def test_any_request_body_is_accepted_or_refused(namespace: Any, operation: str, data: st.DataObject) -> None:
    model = REQUESTS[operation]
    body = body_of(data, model)
    try:
        request = model.from_json(json.dumps(body))
    except (TypeError, ValueError):
        return  # refused where bodies are parsed
    read_api(lambda: getattr(namespace, operation)(request))


@pytest.mark.parametrize("operation", CALLBACKS)
@SLOW
@given(data=st.data())
def test_any_callback_dict_is_accepted_or_refused(namespace: Any, operation: str, data: st.DataObject) -> None:
    body = body_of(data, REQUESTS[operation])
    read_api(lambda: getattr(namespace, operation)(body))
