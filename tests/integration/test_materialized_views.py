"""Materialized views: every row of the source is in the view once."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from lance_namespace import errors as api_errors

import lancekeep
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.domain.properties import OwnProperties
from lancekeep.domain.view import VIEW_PROPERTY, Effect, Refresh, SourceVersion, ViewDefinition, plan_refresh

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "s": ["x", "y", "z"]})
Open = Callable[[], lancekeep.DirectoryNamespace]


@pytest.fixture(params=["commit store", "storage"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    managed = {"commit_store": f"sqlite://{tmp_path}/commits.db"} if request.param == "commit store" else {}
    return lambda: lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"), **{"storage.fsync": "false"}, **managed)


def create(namespace: lancekeep.DirectoryNamespace, name: str = "v", **fields: Any) -> Any:
    query = {"table": ["t"], "columns": {"a": "a", "twice": "a * 2"}, "filter": "a > 1"}
    schema = pa.schema([("a", pa.int64()), ("twice", pa.int64())])
    given: dict[str, Any] = {
        "id": [name],
        "kind": "query",
        "source_query": json.dumps(query),
        "output_schema": b64encode(schema.serialize()).decode(),
        **fields,
    }
    return namespace.create_materialized_view(given)  # type: ignore[arg-type]  # as callers give a dict


def refresh(namespace: lancekeep.DirectoryNamespace, name: str = "v", **fields: Any) -> str:
    request = api.RefreshMaterializedViewRequest(id=[name], **fields)
    return str(namespace.refresh_materialized_view(request).job_id)


def rows(namespace: lancekeep.DirectoryNamespace, name: str = "v") -> list[tuple[int, int]]:
    """Return the rows of a view, as plain pylance reads them."""
    location = namespace.describe_table(api.DescribeTableRequest(id=[name])).location
    table = lance.dataset(str(location)).to_table()
    return sorted(zip(table["a"].to_pylist(), table["twice"].to_pylist(), strict=True))


def more(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64()), "s": [str(value) for value in values]})


def test_a_view_is_created_without_rows_and_refreshed(here: Open) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    created = create(namespace)
    assert (created.version, created.job_id, rows(namespace)) == (1, None, [])
    job = refresh(namespace)
    assert rows(namespace) == [(2, 4), (3, 6)]
    described = namespace.describe_transaction(api.DescribeTransactionRequest(id=["v", job]))
    assert described.status == "SUCCEEDED"
    assert described.properties is not None
    assert described.properties["version"] == "2"


def test_a_view_with_data_is_refreshed_at_once(here: Open) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    assert create(namespace, with_no_data=False).job_id
    assert rows(namespace) == [(2, 4), (3, 6)]


def test_appended_rows_are_appended_to_the_view(here: Open) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    create(namespace, with_no_data=False)
    namespace.catalog.write("t", more(0, 5), "append")
    namespace.catalog.commit_change("t", lambda dataset: (dataset.create_scalar_index("a", "BTREE"), dataset)[1])
    namespace.catalog.write("t", more(6), "append")
    refreshed = namespace.catalog.views.refresh(lancekeep.ObjectId.of("v"))
    assert refreshed.how is Refresh.APPEND
    assert rows(namespace) == [(2, 4), (3, 6), (5, 10), (6, 12)]
    operations = [entry.operation for entry in namespace.catalog.versions.history("v")]
    assert operations[0] == "Append"


def test_a_compaction_of_the_view_keeps_refreshes_incremental(here: Open) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    create(namespace, with_no_data=False)
    namespace.catalog.write("t", more(5), "append")
    refresh(namespace)

    def compact(dataset: Any) -> Any:
        dataset.optimize.compact_files()
        return dataset

    before = namespace.catalog.describe_table("v").version
    assert namespace.catalog.commit_change("v", compact).version > int(before or 0)
    namespace.catalog.write("t", more(6), "append")
    assert namespace.catalog.views.refresh(lancekeep.ObjectId.of("v")).how is Refresh.APPEND
    assert rows(namespace) == [(2, 4), (3, 6), (5, 10), (6, 12)]


def test_a_view_without_its_earlier_versions_is_refreshed(here: Open) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    create(namespace, with_no_data=False)
    namespace.catalog.commit_change("v", lambda dataset: (dataset.update_metadata({"k": "v"}), dataset)[1])
    root = directory_of(namespace.catalog).places.dataset_root(namespace.catalog.find_table("v"))
    directory_of(namespace.catalog).versions.delete_versions(root, [1, 2])
    namespace.catalog.write("t", more(5), "append")
    refresh(namespace)
    assert rows(namespace) == [(2, 4), (3, 6), (5, 10)]


def test_a_refresh_without_a_new_version_commits_nothing(here: Open) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    create(namespace)
    job = refresh(namespace)
    assert refresh(namespace) == job
    assert namespace.catalog.describe_table("v").version == 2


def test_appended_rows_that_the_filter_drops_are_recorded(here: Open) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    create(namespace, with_no_data=False)
    namespace.catalog.write("t", more(0), "append")
    refresh(namespace)
    assert namespace.catalog.views.refresh(lancekeep.ObjectId.of("v")).how is Refresh.NOTHING
    assert rows(namespace) == [(2, 4), (3, 6)]


def _overwrite(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", more(7, 8), "overwrite")


def _delete(catalog: lancekeep.Catalog) -> None:
    def act(dataset: Any) -> Any:
        dataset.delete("a = 2")
        return dataset

    catalog.commit_change("t", act)


def _recreate(catalog: lancekeep.Catalog) -> None:
    catalog.drop_table("t")
    catalog.write("t", more(9))
    catalog.write("t", more(10), "append")


def _write_into_the_view(catalog: lancekeep.Catalog) -> None:
    catalog.write("v", pa.table({"a": pa.array([99], pa.int64()), "twice": pa.array([0], pa.int64())}), "append")
    catalog.write("t", more(4), "append")


@pytest.mark.parametrize("change", [_overwrite, _delete, _recreate, _write_into_the_view])
def test_other_changes_refresh_the_whole_view(here: Open, change: Callable[[lancekeep.Catalog], None]) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    create(namespace, with_no_data=False)
    change(namespace.catalog)
    assert namespace.catalog.views.refresh(lancekeep.ObjectId.of("v")).how is Refresh.FULL
    source = namespace.catalog.open("t").to_table(filter="a > 1")["a"].to_pylist()
    assert rows(namespace) == sorted((value, value * 2) for value in source)


def test_a_view_is_refreshed_from_an_earlier_version(here: Open) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    namespace.catalog.write("t", more(5), "append")
    create(namespace, with_no_data=False)
    refresh(namespace, src_version=1)
    assert rows(namespace) == [(2, 4), (3, 6)]
    refresh(namespace)
    assert rows(namespace) == [(2, 4), (3, 6), (5, 10)]


def test_concurrent_refreshes_apply_each_version_once(here: Open) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    create(namespace, with_no_data=False)
    for number in range(4):
        namespace.catalog.write("t", more(10 + number), "append")
        barrier = Barrier(4)
        failures: list[Exception] = []

        def run(barrier: Barrier = barrier, failures: list[Exception] = failures) -> None:
            other = here()
            barrier.wait()
            try:
                refresh(other)
            except Exception as error:
                failures.append(error)

        threads = [Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
    assert rows(namespace) == [(2, 4), (3, 6), *((10 + number, 20 + 2 * number) for number in range(4))]
    assert namespace.catalog.describe_table("v").version == 6


def test_a_refresh_that_stops_before_its_commit_changes_nothing(here: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    create(namespace, with_no_data=False)
    namespace.catalog.write("t", more(5), "append")

    def stop(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(services_of(namespace.catalog).writes, "commit_fragments", stop)
        with pytest.raises(KeyboardInterrupt):
            refresh(namespace)
    assert rows(namespace) == [(2, 4), (3, 6)]
    refresh(here())
    assert rows(namespace) == [(2, 4), (3, 6), (5, 10)]


def test_due_views_are_refreshed(here: Open) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    create(namespace, "due", auto_refresh=True)
    create(namespace, "manual")
    namespace.catalog.write("broken", ROWS, properties=OwnProperties({VIEW_PROPERTY: "{}"}))
    outcomes = namespace.catalog.views.refresh_due()
    assert {str(each) for each in outcomes} == {"due", "broken"}
    assert isinstance(outcomes[lancekeep.ObjectId.of("broken")], lancekeep.InvalidInput)
    assert rows(namespace, "due") == [(2, 4), (3, 6)]
    assert rows(namespace, "manual") == []
    assert {str(each) for each in namespace.catalog.views.refresh_due()} == {"broken"}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"kind": "udtf"}, api_errors.UnsupportedOperationError),
        ({"kind": "chunker"}, api_errors.UnsupportedOperationError),
        ({"kind": "other"}, api_errors.InvalidInputError),
        ({"source_query": "no JSON"}, api_errors.InvalidInputError),
        ({"source_query": '{"table": ["t"], "group_by": ["a"]}'}, api_errors.InvalidInputError),
        ({"source_query": '{"table": ["t"], "limit": 3}'}, api_errors.UnsupportedOperationError),
        ({"source_query": '{"table": ["t"], "vector": [1.0]}'}, api_errors.UnsupportedOperationError),
        ({"source_query": '{"table": ["t"], "version": 1}'}, api_errors.UnsupportedOperationError),
        ({"source_query": '{"table": ["t"], "with_row_id": true}'}, api_errors.UnsupportedOperationError),
        ({"source_query": '{"table": ["t"], "filter": "a < random() * 3"}'}, api_errors.UnsupportedOperationError),
        (
            {"source_query": '{"table": ["t"], "columns": {"a": "a", "at": "current_date"}}'},
            api_errors.UnsupportedOperationError,
        ),
        ({"source_query": '{"table": ["t"], "branch": "missing"}'}, api_errors.TableBranchNotFoundError),
        ({"source_query": '{"table": ["t"], "branch": 3}'}, api_errors.InvalidInputError),
        ({"source_query": '{"table": ["t"], "columns": ["p.x"]}'}, api_errors.InvalidInputError),
        ({"source_query": '{"table": ["t"], "columns": {"total": "sum(a)"}}'}, api_errors.InvalidInputError),
        ({"source_query": '{"table": ["t"], "columns": ["a", "a"]}'}, api_errors.InvalidInputError),
        ({"source_query": '{"table": "t"}'}, api_errors.InvalidInputError),
        ({"source_query": '{"table": ["missing"]}'}, api_errors.TableNotFoundError),
        ({"source_query": '{"table": ["t"], "columns": ["missing"]}'}, api_errors.InvalidInputError),
        ({"source_query": '{"table": ["t"], "filter": "a >"}'}, api_errors.InvalidInputError),
        ({"source_query": '{"table": ["t"]}'}, api_errors.TableSchemaValidationError),
        ({"output_schema": "no schema"}, api_errors.InvalidInputError),
    ],
)
def test_an_invalid_view_is_refused_before_any_effect(
    here: Open, fields: dict[str, str], error: type[Exception]
) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    with pytest.raises(error):
        create(namespace, **fields)
    assert namespace.catalog.list_tables() == ["t"]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"concurrency": 4}, api_errors.UnsupportedOperationError),
        ({"output_limit": 4}, api_errors.InvalidInputError),
        ({"src_version": 9}, api_errors.TableVersionNotFoundError),
    ],
)
def test_an_invalid_refresh_changes_nothing(here: Open, fields: dict[str, Any], error: type[Exception]) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    create(namespace)
    with pytest.raises(error):
        refresh(namespace, **fields)
    with pytest.raises(api_errors.InvalidInputError, match="no materialized view"):
        refresh(namespace, "t")
    assert namespace.catalog.describe_table("v").version == 1


def test_a_column_that_is_gone_from_the_source_fails_the_refresh(here: Open) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    create(namespace, with_no_data=False)
    namespace.catalog.write("t", pa.table({"a": pa.array([1.5, 2.5])}), "overwrite")
    with pytest.raises(api_errors.TableSchemaValidationError, match="the query has a double"):
        refresh(namespace)
    assert rows(namespace) == [(2, 4), (3, 6)]


V1, V2 = SourceVersion("t.lance", 1, "0-a.txn"), SourceVersion("t.lance", 3, "2-b.txn")


@pytest.mark.parametrize(
    ("last", "continues", "effects", "expected"),
    [
        (V2, True, [], Refresh.NOTHING),
        (None, False, [], Refresh.FULL),
        (V1, True, [Effect.APPENDED, Effect.KEPT], Refresh.APPEND),
        (V1, False, [Effect.APPENDED, Effect.KEPT], Refresh.FULL),
        (V1, True, [Effect.APPENDED, Effect.REWROTE], Refresh.FULL),
        (V1, True, [Effect.CHANGED], Refresh.FULL),
        (SourceVersion("u.lance", 1, "0-a.txn"), True, [Effect.APPENDED], Refresh.FULL),
        (SourceVersion("t.lance", 4, "3-c.txn"), True, [], Refresh.FULL),
    ],
)
def test_only_appends_to_the_same_table_are_incremental(
    last: SourceVersion | None, continues: bool, effects: list[Effect], expected: Refresh
) -> None:
    assert plan_refresh(last, V2, continues=continues, effects=effects) is expected


def test_definitions_survive_their_property() -> None:
    query = '{"table": ["n", "t"], "branch": "b/c", "columns": ["é"], "filter": "é > 1"}'
    definition = ViewDefinition.parse(query, auto_refresh=True)
    assert ViewDefinition.of_properties(definition.properties, "v") == definition
    assert ViewDefinition.of_properties({"other": "1"}, "v") is None
    assert SourceVersion.parse(V1.text) == V1
    for text in ("", "[]", '{"location": "t", "version": "1", "transaction": ""}'):
        assert SourceVersion.parse(text) is None


def test_columns_may_have_the_form_of_a_query_request() -> None:
    def columns(given: object) -> object:
        return ViewDefinition.parse(json.dumps({"table": ["t"], "columns": given}), auto_refresh=False).columns

    assert columns({"column_names": ["a"]}) == columns(["a"]) == ["a"]
    assert columns({"column_aliases": {"b": "a + 1"}}) == columns({"b": "a + 1"}) == {"b": "a + 1"}
    assert columns({"column_names": "a"}) == {"column_names": "a"}


@pytest.mark.parametrize("expression", ["'now()'", '"random()"', "`now()`", "know(a)", "uuid", "'it''s ' || 'now()'"])
def test_text_and_names_that_resemble_changing_functions_are_accepted(expression: str) -> None:
    query = json.dumps({"table": ["t"], "columns": {"a": expression}})
    assert ViewDefinition.parse(query, auto_refresh=False).columns == {"a": expression}


def test_a_view_of_a_branch_has_its_rows_only(here: Open) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    namespace.catalog.write("t", more(4), "append")
    branch = api.CreateTableBranchRequest(id=["t"], name="b", from_version=1)
    namespace.create_table_branch(branch)

    def insert(*values: int) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, ROWS.schema) as writer:
            writer.write_table(more(*values))
        request = api.InsertIntoTableRequest(id=["t"], branch="b", mode="append")
        namespace.insert_into_table(request, sink.getvalue().to_pybytes())

    query = {"table": ["t"], "branch": "b", "columns": {"a": "a", "twice": "a * 2"}, "filter": "a > 1"}
    create(namespace, with_no_data=False, source_query=json.dumps(query))
    assert rows(namespace) == [(2, 4), (3, 6)]
    insert(5)
    namespace.catalog.write("t", more(6), "overwrite")
    insert(7)
    assert namespace.catalog.views.refresh(lancekeep.ObjectId.of("v")).how is Refresh.APPEND
    assert rows(namespace) == [(2, 4), (3, 6), (5, 10), (7, 14)]
    namespace.catalog.commit_change("t", lambda dataset: (dataset.delete("a = 5"), dataset)[1], branch="b")
    assert namespace.catalog.views.refresh(lancekeep.ObjectId.of("v")).how is Refresh.FULL
    assert rows(namespace) == [(2, 4), (3, 6), (7, 14)]


def test_fields_and_row_ids_are_columns_of_a_view(here: Open) -> None:
    namespace = here()
    nested = pa.table({"p": pa.array([{"x": 1}, {"x": 2}], pa.struct([("x", pa.int64())]))})
    namespace.catalog.write("t", nested)
    query = {"table": ["t"], "columns": {"a": "p.x", "twice": "_rowoffset"}}
    schema = pa.schema([("a", pa.int64()), ("twice", pa.uint64())])
    create(
        namespace,
        with_no_data=False,
        source_query=json.dumps(query),
        output_schema=b64encode(schema.serialize()).decode(),
    )
    assert rows(namespace) == [(1, 0), (2, 1)]
    namespace.catalog.write("t", nested, "append")
    assert namespace.catalog.views.refresh(lancekeep.ObjectId.of("v")).how is Refresh.APPEND
    assert rows(namespace) == [(1, 0), (1, 2), (2, 1), (2, 3)]


def test_a_view_under_the_former_property_is_refreshed(here: Open) -> None:
    namespace = here()
    namespace.catalog.write("t", ROWS)
    query = json.dumps({"table": ["t"], "columns": {"a": "a", "twice": "a * 2"}, "filter": "a > 1"})
    former = {"materialized_view": json.dumps({"kind": "query", "source_query": query, "auto_refresh": True})}
    empty = pa.table({"a": pa.array([], pa.int64()), "twice": pa.array([], pa.int64())})
    namespace.catalog.write("v", empty, properties=OwnProperties(former))
    assert {str(each) for each in namespace.catalog.views.refresh_due()} == {"v"}
    namespace.catalog.write("v", empty, "overwrite", properties={"owner": "me"})
    assert namespace.catalog.find_table("v").properties == {**former, "owner": "me"}
    refresh(namespace)
    assert rows(namespace) == [(2, 4), (3, 6)]


@pytest.mark.parametrize("name", ["lancekeep.materialized_view", "materialized_view"])
def test_the_property_of_a_view_is_the_catalogs_own(here: Open, name: str) -> None:
    catalog = here().catalog
    catalog.write("t", ROWS)
    create(here())
    for act in (
        lambda: catalog.write("u", ROWS, properties={name: "{}"}),
        lambda: catalog.write("t", ROWS, "overwrite", properties={name: "{}"}),
        lambda: catalog.declare_table("u", {name: "{}"}),
        lambda: catalog.alter_table("t", {name: "{}"}),
        lambda: catalog.alter_table("v", remove=[name]),
        lambda: catalog.register_table("u", "u.lance", {name: "{}"}),
    ):
        with pytest.raises(lancekeep.InvalidInput, match="the catalog's own"):
            act()
    assert catalog.list_tables() == ["t", "v"]


def test_a_v1_directory_has_no_views(tmp_path: Path) -> None:
    namespace = lancekeep.DirectoryNamespace(
        root=str(tmp_path / "lake"), manifest_enabled="false", **{"storage.fsync": "false"}
    )
    namespace.catalog.write("t", ROWS)
    with pytest.raises(api_errors.UnsupportedOperationError, match="cannot store the properties"):
        create(namespace)
    assert namespace.catalog.list_tables() == ["t"]
