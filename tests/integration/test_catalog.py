"""The catalog and its namespace interface, together with native processes, and the errors that they raise."""

from __future__ import annotations

import pickle
import socket
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from deployments import CREDENTIALS, bucket, s3_options
from lance.namespace import DirectoryNamespace as NativeNamespace
from lance_namespace import errors as api_errors
from lance_namespace_urllib3_client.models.version_range import VersionRange
from writers import stream

import lancekeep
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.application.commits.managed_rows import ManagedRows
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.upkeep.commit_store_move import move_history
from lancekeep.domain.commit import Committed
from lancekeep.domain.layout import DatasetRoot

TABLE = pa.table({"a": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/commits.db"


@pytest.fixture
def catalog(tmp_path: Path, url: str) -> lancekeep.Catalog:
    return lancekeep.connect(str(tmp_path / "lake"), commit_store=url)


@pytest.fixture
def namespace(tmp_path: Path, url: str) -> lancekeep.DirectoryNamespace:
    return lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"), commit_store=url)


def test_opening_and_reading_write_nothing(tmp_path: Path, catalog: lancekeep.Catalog) -> None:
    assert catalog.list_namespaces() == catalog.list_tables() == []
    assert not catalog.table_exists("a.b")
    assert not (tmp_path / "lake").exists()


def test_namespaces_nest_and_carry_properties(catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("a", {"owner": "Zoë"})
    catalog.create_namespace("a.b")
    catalog.create_namespace(["a", "dotted.name"])
    assert catalog.list_namespaces() == ["a"]
    assert catalog.list_namespaces("a") == ["b", "dotted.name"]
    assert catalog.describe_namespace("a").properties == {"owner": "Zoë"}
    with pytest.raises(lancekeep.NamespaceAlreadyExists, match="the name a is taken"):
        catalog.create_namespace("a")
    assert catalog.create_namespace("a", exist_ok=True).properties == {"owner": "Zoë"}
    with pytest.raises(lancekeep.NamespaceNotFound, match="the namespace x does not exist; create it first"):
        catalog.create_namespace("x.y")
    with pytest.raises(lancekeep.NamespaceNotEmpty, match="the namespace a is not empty"):
        catalog.drop_namespace("a")
    catalog.write("a.b.t", TABLE)
    catalog.drop_namespace("a", cascade=True)
    assert catalog.list_namespaces() == []
    with pytest.raises(lancekeep.NamespaceNotFound):
        catalog.list_tables("a.b")


@pytest.mark.parametrize(
    "frame",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_reader(),
        pd.DataFrame({"a": [1, 2, 3]}),
        pl.DataFrame({"a": [1, 2, 3]}),
        pl.LazyFrame({"a": [1, 2, 3]}),
    ],
    ids=lambda frame: f"{type(frame).__module__}.{type(frame).__name__}",
)
def test_every_frame_type_is_accepted(catalog: lancekeep.Catalog, frame: object) -> None:
    assert catalog.write("t", frame).version == 1
    assert catalog.open("t").to_table() == TABLE


def test_write_modes(catalog: lancekeep.Catalog) -> None:
    with pytest.raises(lancekeep.TableNotFound):
        catalog.write("t", TABLE, "append")
    assert catalog.write("t", TABLE, "overwrite").version == 1
    assert catalog.write("t", TABLE, "append").version == 2
    assert catalog.write("t", TABLE.slice(0, 1), "overwrite").version == 3
    with pytest.raises(lancekeep.TableAlreadyExists):
        catalog.write("t", TABLE)
    with pytest.raises(lancekeep.InvalidInput, match="choose create, append or overwrite"):
        catalog.write("t", TABLE, "upsert")
    with pytest.raises(lancekeep.InvalidInput, match=r"pyarrow Table, RecordBatch or RecordBatchReader"):
        catalog.write("new", {"a": [1]})
    with pytest.raises(lancekeep.InvalidInput):
        catalog.write("t", pa.table({"other": ["x"]}), "append")
    assert [(entry.version, entry.operation, entry.rows) for entry in catalog.versions.history("t")] == [
        (3, "Overwrite", 1),
        (2, "Append", 6),
        (1, "Overwrite", 3),
    ]
    assert [entry.version for entry in catalog.versions.history("t", limit=2)] == [3, 2]
    assert "@" in catalog.versions.history("t")[0].committer
    assert catalog.list_tables() == ["t"]
    catalog.write("p", TABLE, "overwrite", properties={"k": "v"})
    assert catalog.describe_table("p").properties == {"k": "v"}
    with pytest.raises(lancekeep.InvalidInput, match="properties are given when a table is created"):
        catalog.write("p", TABLE, "append", properties={"k": "w"})


def test_write_returns_the_version_that_its_callback_committed(catalog: lancekeep.Catalog) -> None:
    """An error in a callback behind the commit goes unnoticed: the engine finds its version committed all the same."""
    catalog.write("t", pa.table({"x": [1]}))
    committed = catalog.write("t", pa.table({"x": [2]}), "append")
    if directory_of(catalog).ledger.managed:
        manifest = lance.dataset(catalog.describe_table("t").uri)._ds.serialized_manifest()
        assert committed.version == 2
        assert committed.path.endswith(".manifest")
        assert committed.size >= len(manifest)


def test_failed_create_leaves_no_table(catalog: lancekeep.Catalog, tmp_path: Path) -> None:
    def broken() -> object:
        yield TABLE.to_batches()[0]
        raise RuntimeError("the source broke")

    reader = pa.RecordBatchReader.from_batches(TABLE.schema, broken())
    with pytest.raises(Exception, match="the source broke"):
        catalog.write("t", reader)
    assert not catalog.table_exists("t")
    assert catalog.write("t", TABLE).version == 1


@pytest.mark.parametrize(
    ("mode", "moment"), [("compatible", "ledger.apply"), ("v2", "ledger.apply"), ("v2", "places.contents")]
)
def test_declaration_with_a_commit_of_another_writer_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, moment: str
) -> None:
    """The other writer commits before the entry is removed, or after it, with a handle from before."""
    url = f"sqlite://{tmp_path}/commits.db"
    catalog, other = (lancekeep.connect(str(tmp_path / "lake"), mode=mode, commit_store=url) for _ in range(2))
    plan, theirs = catalog.begin_write("t", TABLE.schema), other.begin_write("t", TABLE.schema, "overwrite")
    fragments = lance.fragment.write_fragments(TABLE, theirs.uri, schema=theirs.schema)
    table, staged = other.find_table("t"), directory_of(other).engine.stage(theirs, fragments)
    part, _, method = moment.partition(".")
    act = getattr(getattr(catalog, part), method)

    def behind_another(argument: Any, **options: Any) -> Any:
        monkeypatch.undo()
        outcome = directory_of(other).versions.commit_version(table, None, staged.version, staged.path, staged.size)
        assert isinstance(outcome, Committed)
        return act(argument, **options)

    monkeypatch.setattr(getattr(catalog, part), method, behind_another)
    catalog.abandon_write(plan)
    assert catalog.open("t").to_table() == TABLE
    assert other.write("t", TABLE, "append").version == 2
    assert not catalog.upkeep.fsck(grace=0, deep=True).findings


def test_distributed_fragments_become_one_version(catalog: lancekeep.Catalog) -> None:
    for mode, version, rows in (("create", 1, 6), ("append", 2, 12), ("overwrite", 3, 6)):
        plan = pickle.loads(pickle.dumps(catalog.begin_write("t", TABLE.schema, mode)))
        fragments = [
            fragment
            for _ in range(2)
            for fragment in lance.fragment.write_fragments(TABLE, plan.uri, schema=plan.schema, mode=mode)
        ]
        assert catalog.commit_fragments(plan, fragments).version == version
        assert catalog.open("t").count_rows() == rows
        assert len(catalog.open("t").get_fragments()) == rows // 3
    plan = catalog.begin_write("new", TABLE.schema)
    catalog.abandon_write(plan)
    catalog.abandon_write(plan)
    assert not catalog.table_exists("new")
    with pytest.raises(lancekeep.InvalidInput, match="not the metadata of a fragment"):
        catalog.commit_fragments(catalog.begin_write("t", TABLE.schema, "append"), ["{}"])


def test_open_at_a_version_a_tag_or_a_branch(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", TABLE)
    catalog.write("t", TABLE, "append")
    catalog.open("t").tags.create("first", 1)
    assert catalog.open("t", 1).count_rows() == catalog.open("t", tag="first").count_rows() == 3
    with pytest.raises(lancekeep.VersionNotFound):
        catalog.open("t", 9)
    with pytest.raises(lancekeep.InvalidInput, match="a tag selects a version"):
        catalog.open("t", 1, tag="first")
    with pytest.raises(lancekeep.InvalidInput, match="select a tag by tag='first'"):
        catalog.open("t", "first")  # type: ignore[arg-type] # what a caller may try
    catalog.declare_table("declared")
    with pytest.raises(lancekeep.VersionNotFound, match="only declared"):
        catalog.open("declared")


def test_change_of_another_process_is_visible_to_the_next_operation(tmp_path: Path, url: str) -> None:
    first = lancekeep.connect(str(tmp_path / "lake"), commit_store=url)
    second = lancekeep.connect(str(tmp_path / "lake"), commit_store=url)
    first.create_namespace("a")
    assert second.list_namespaces() == ["a"]
    second.write("a.t", TABLE)
    assert first.open("a.t").count_rows() == 3
    first.drop_table("a.t")
    with pytest.raises(lancekeep.TableNotFound):
        second.open("a.t")


def test_native_processes_share_the_directory(tmp_path: Path, catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("ours", {"k": "v"})
    catalog.write("ours.t", TABLE)
    native = NativeNamespace(root=str(tmp_path / "lake"))
    assert native.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces == ["ours"]
    assert native.list_tables(api.ListTablesRequest(id=["ours"])).tables == ["t"]
    assert native.describe_namespace(api.DescribeNamespaceRequest(id=["ours"])).properties == {"k": "v"}
    location = native.describe_table(api.DescribeTableRequest(id=["ours", "t"])).location
    assert lance.dataset(location).count_rows() == 3
    native.create_namespace(api.CreateNamespaceRequest(id=["theirs"], properties={"x": "y"}))
    native.create_namespace(api.CreateNamespaceRequest(id=["theirs", "deep"]))
    assert catalog.list_namespaces() == ["ours", "theirs"]
    assert catalog.list_namespaces("theirs") == ["deep"]
    assert catalog.describe_namespace("theirs").properties == {"x": "y"}
    catalog.write("theirs.deep.t", TABLE)  # after a rewrite by native: what the catalog remembers is still there
    assert native.list_tables(api.ListTablesRequest(id=["theirs", "deep"])).tables == ["t"]
    native.deregister_table(api.DeregisterTableRequest(id=["ours", "t"]))
    assert catalog.list_tables("ours") == []


def test_unknown_rows_and_columns_survive_writes(tmp_path: Path, catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("a")
    uri = str(tmp_path / "lake" / "__manifest")
    lance.dataset(uri).add_columns(pa.field("extra", pa.string()))
    lance.dataset(uri).update({"extra": "'kept'"})
    row = pa.table(
        {
            "object_id": ["a$view"],
            "object_type": ["view"],
            "location": pa.nulls(1, pa.string()),
            "metadata": pa.nulls(1, pa.string()),
            "base_objects": pa.array([["a$t"]], pa.list_(pa.field("object_id", pa.string()))),
            "extra": ["view"],
        },
        schema=lance.dataset(uri).schema,
    )
    lance.write_dataset(row, uri, mode="append")
    for number in range(40):  # past the number of fragments at which all is rewritten
        catalog.create_namespace(f"n{number}")
    catalog.drop_namespace("n0")
    rows = {row["object_id"]: row for row in lance.dataset(uri).to_table().to_pylist()}
    assert rows["a"]["extra"] == "kept"
    assert (rows["a$view"]["object_type"], rows["a$view"]["extra"], rows["a$view"]["base_objects"]) == (
        "view",
        "view",
        ["a$t"],
    )
    assert rows["n1"]["extra"] is None
    with pytest.raises(lancekeep.Refused, match="of the unknown type 'view'"):
        catalog.drop_namespace("a", cascade=True)


def test_unknown_feature_bits_are_refused(tmp_path: Path, catalog: lancekeep.Catalog, url: str) -> None:
    catalog.create_namespace("a")
    dataset = lance.dataset(str(tmp_path / "lake" / "__manifest"))
    dataset.update_metadata({"lance.namespace.manifest.writer_feature_flags": "2"})
    assert catalog.list_namespaces() == ["a"]
    with pytest.raises(lancekeep.Refused, match=r"features that this version .*writer_feature_flags = 2"):
        catalog.create_namespace("b")
    dataset.update_metadata({"lance.namespace.manifest.reader_feature_flags": "1"})
    with pytest.raises(lancekeep.Refused, match="use a newer version"):
        lancekeep.connect(str(tmp_path / "lake"), commit_store=url)


def test_deregister_and_register(tmp_path: Path, catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("a")
    catalog.write("a.t", TABLE)
    table = catalog.deregister_table("a.t")
    assert catalog.list_tables("a") == []
    catalog.register_table("a.again", services_of(catalog).uri(table))
    assert catalog.open("a.again").count_rows() == 3
    catalog.write("a.again", TABLE, "append")
    lance.write_dataset(TABLE, str(tmp_path / "lake" / "plain.lance"))
    lance.write_dataset(TABLE, str(tmp_path / "lake" / "plain.lance"), mode="append")
    catalog.register_table("plain", "plain.lance")  # a history that never had rows is adopted
    catalog.write("plain", TABLE, "append")
    assert [entry.version for entry in catalog.versions.history("plain")] == [3, 2, 1]
    with pytest.raises(lancekeep.InvalidInput, match="overlaps the directory of the table plain"):
        catalog.register_table("twice", "plain.lance")
    with pytest.raises(lancekeep.TableNotFound, match="no Lance table lies at"):
        catalog.register_table("ghost", "ghost.lance")
    for location in ("../out", "/etc", "s3://bucket/t", "__manifest"):
        with pytest.raises(lancekeep.InvalidInput):
            catalog.register_table("x", location)


def test_opening_with_another_commit_store_is_refused(tmp_path: Path, catalog: lancekeep.Catalog, url: str) -> None:
    catalog.write("t", TABLE)
    for other in (None, f"sqlite://{tmp_path}/other.db"):
        with pytest.raises(lancekeep.CommitStoreMismatch, match="are managed by the commit store sqlite://"):
            lancekeep.connect(str(tmp_path / "lake"), commit_store=other)
    plain = lancekeep.connect(str(tmp_path / "plain"))
    assert plain.write("t", TABLE).version == 1
    with pytest.raises(lancekeep.CommitStoreMismatch, match="no commit store manages"):
        lancekeep.connect(str(tmp_path / "plain"), commit_store=url)


def test_changing_the_commit_store_moves_and_fences_every_history(
    tmp_path: Path, catalog: lancekeep.Catalog, redis_url: str
) -> None:
    catalog.create_namespace("a")
    catalog.write("a.t", TABLE)
    catalog.open("a.t").create_branch("b").insert(TABLE)
    catalog.declare_table("a.declared")
    held = catalog.open("a.t")
    stale = lancekeep.connect(str(tmp_path / "lake"), commit_store=directory_of(catalog).commits.rows.url)
    rows = directory_of(stale).commits.rows
    assert catalog.upkeep.change_commit_store(redis_url) == 3
    assert catalog.upkeep.change_commit_store(redis_url) == 0
    with pytest.raises(lancekeep.CommitStoreMismatch):
        stale.write("a.t", TABLE, "append")
    latest = rows.latest(directory_of(catalog).places.dataset_root(catalog.find_table("a.t")).base_uri)
    assert latest is not None
    assert latest.moved_to == directory_of(catalog).commits.rows.url
    held.insert(TABLE)  # its namespace is this catalog's, which commits through the new store now
    again = lancekeep.connect(str(tmp_path / "lake"), commit_store=redis_url)
    assert [entry.version for entry in again.versions.history("a.t")] == [2, 1]
    assert again.open("a.t", branch="b").count_rows() == 6
    again.write("a.t", TABLE, "append")
    assert again.open("a.t").count_rows() == 9


def test_unmanaged_catalog_moves_to_a_commit_store(tmp_path: Path, url: str) -> None:
    native = NativeNamespace(root=str(tmp_path / "lake"))
    native.create_table(api.CreateTableRequest(id=["t"]), stream(TABLE))
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    assert catalog.write("t", TABLE, "append").version == 2
    assert catalog.upkeep.change_commit_store(url) == 2
    assert catalog.write("t", TABLE, "append").version == 3
    managed = lancekeep.connect(str(tmp_path / "lake"), commit_store=url)
    assert [entry.rows for entry in managed.versions.history("t")] == [9, 6, 3]


@pytest.mark.parametrize("step", range(4))
def test_interrupted_change_of_commit_store_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, step: int
) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=url)
    for number in range(4):
        catalog.write(f"t{number}", TABLE)
    target = f"sqlite://{tmp_path}/new.db"
    done: list[int] = []

    def stop(source: TableCommits, root: DatasetRoot, target: ManagedRows) -> int:
        if len(done) == step:
            raise KeyboardInterrupt
        done.append(1)
        return move_history(source, root, target)

    with monkeypatch.context() as patch:
        patch.setattr("lancekeep.application.upkeep.commit_store_move.move_history", stop)
        with pytest.raises(KeyboardInterrupt):
            catalog.upkeep.change_commit_store(target)
    with pytest.raises(lancekeep.CommitStoreMismatch, match="are moving to the commit store"):
        lancekeep.connect(str(tmp_path / "lake"), commit_store=target)
    catalog.upkeep.change_commit_store(target)
    again = lancekeep.connect(str(tmp_path / "lake"), commit_store=target)
    for number in range(4):
        assert again.write(f"t{number}", TABLE, "append").version == 2


def test_move_to_an_unreachable_commit_store_changes_nothing(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", TABLE)
    with pytest.raises(lancekeep.StoreUnavailable):
        catalog.upkeep.change_commit_store("redis://127.0.0.1:9/0")
    assert catalog.write("t", TABLE, "append").version == 2


# -- the namespace interface -------------------------------------------------------------------------------------


def test_namespace_interface_runs_over_the_catalog(namespace: lancekeep.DirectoryNamespace) -> None:
    namespace.create_namespace(api.CreateNamespaceRequest(id=["n"], properties={"a": "b"}))
    assert namespace.describe_namespace(api.DescribeNamespaceRequest(id=["n"])).properties == {"a": "b"}
    created = namespace.create_table(api.CreateTableRequest(id=["n", "t"]), stream(TABLE))
    assert created.version == 1
    assert lance.dataset(created.location).count_rows() == 3
    namespace.create_table(api.CreateTableRequest(id=["n", "t"], mode="ExistOk"), stream(TABLE))
    assert namespace.create_table(api.CreateTableRequest(id=["n", "t"], mode="overwrite"), stream(TABLE)).version == 2
    described = namespace.describe_table(
        api.DescribeTableRequest(id=["n", "t"], with_table_uri=True, check_declared=True)
    )
    assert described.managed_versioning is True
    assert described.is_only_declared is False
    assert described.table_uri == described.location
    declared = namespace.declare_table(api.DeclareTableRequest(id=["n", "d"]))
    assert declared.managed_versioning is True
    assert namespace.describe_table(api.DescribeTableRequest(id=["n", "d"], check_declared=True)).is_only_declared
    assert namespace.list_tables(api.ListTablesRequest(id=["n"])).tables == ["d", "t"]
    assert namespace.list_tables(api.ListTablesRequest(id=["n"], include_declared=False)).tables == ["t"]
    page = namespace.list_tables(api.ListTablesRequest(id=["n"], limit=1))
    assert (page.tables, page.page_token) == (["d"], "d")
    page = namespace.list_tables(api.ListTablesRequest(id=["n"], limit=1, page_token="d"))
    assert (page.tables, page.page_token) == (["t"], None)
    namespace.table_exists(api.TableExistsRequest(id=["n", "t"]))
    namespace.drop_table(api.DropTableRequest(id=["n", "t"]))
    for act, error in (
        (lambda: namespace.table_exists(api.TableExistsRequest(id=["n", "t"])), api_errors.TableNotFoundError),
        (lambda: namespace.drop_table(api.DropTableRequest(id=["n", "t"])), api_errors.TableNotFoundError),
        (
            lambda: namespace.describe_namespace(api.DescribeNamespaceRequest(id=["x"])),
            api_errors.NamespaceNotFoundError,
        ),
        (
            lambda: namespace.create_namespace(api.CreateNamespaceRequest(id=["n"])),
            api_errors.NamespaceAlreadyExistsError,
        ),
        (lambda: namespace.drop_namespace(api.DropNamespaceRequest(id=["n"])), api_errors.NamespaceNotEmptyError),
        (
            lambda: namespace.create_table(api.CreateTableRequest(id=["n", "d"]), stream(TABLE)),
            api_errors.TableAlreadyExistsError,
        ),
        (
            lambda: namespace.create_table(api.CreateTableRequest(id=["n", "z"]), b"not arrow"),
            api_errors.InvalidInputError,
        ),
        (
            lambda: namespace.create_namespace(api.CreateNamespaceRequest(id=["n"], mode="Overwrite")),
            api_errors.NamespaceNotEmptyError,
        ),
        (
            lambda: namespace.create_namespace(api.CreateNamespaceRequest(id=["n"], mode="Replace")),
            api_errors.InvalidInputError,
        ),
        (lambda: namespace.list_tables(api.ListTablesRequest(id=["n"], limit=0)), api_errors.InvalidInputError),
    ):
        with pytest.raises(error):
            act()
    namespace.drop_namespace(api.DropNamespaceRequest(id=["n"], behavior="Cascade"))
    namespace.drop_namespace(api.DropNamespaceRequest(id=["n"], mode="Skip"))


def test_versions_are_paged_through_models(namespace: lancekeep.DirectoryNamespace) -> None:
    for mode in ("create", "append", "append", "append", "append"):
        namespace.catalog.write("t", TABLE, mode)
    for descending, expected in ((True, [5, 4, 3, 2, 1]), (False, [1, 2, 3, 4, 5])):
        seen: list[int] = []
        token = None
        while True:
            page = namespace.list_table_versions(
                api.ListTableVersionsRequest(id=["t"], limit=2, page_token=token, descending=descending)
            )
            seen += [version.version for version in page.versions]
            token = page.page_token
            if token is None:
                break
        assert seen == expected
    described = namespace.describe_table_version(api.DescribeTableVersionRequest(id=["t"], version=3)).version
    assert described.version == 3
    assert "manifest-" not in described.manifest_path
    with pytest.raises(api_errors.TableVersionNotFoundError):
        namespace.describe_table_version(api.DescribeTableVersionRequest(id=["t"], version=9))
    namespace.catalog.open("t").tags.create("kept", 2)

    def delete(start: int, end: int) -> int | None:
        ranges = [VersionRange(start_version=start, end_version=end)]
        return namespace.batch_delete_table_versions(
            api.BatchDeleteTableVersionsRequest(id=["t"], ranges=ranges)
        ).deleted_count

    with pytest.raises(api_errors.InvalidTableStateError, match="is the latest"):
        delete(3, -1)
    with pytest.raises(api_errors.InvalidTableStateError, match="a tag points at version 2"):
        delete(1, 4)
    assert delete(3, 5) == 2
    assert delete(3, 5) == 0
    assert [entry.version for entry in namespace.catalog.versions.history("t")] == [5, 2, 1]


def test_lance_namespace_connects_by_name_and_pickles(tmp_path: Path, url: str) -> None:
    properties = {"root": str(tmp_path / "lake"), "commit_store": url}
    namespace = api.connect("lancekeep.DirectoryNamespace", properties)
    lance.write_dataset(TABLE, namespace_client=namespace, table_id=["t"], mode="create")
    copy = pickle.loads(pickle.dumps(namespace))
    lance.write_dataset(TABLE, namespace_client=copy, table_id=["t"], mode="append")
    assert lance.dataset(namespace_client=namespace, table_id=["t"]).count_rows() == 6


# -- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"comit_store": "x"}, "did you mean 'commit_store'"),
        ({"storage_region": "x"}, "did you mean 'storage.'"),
        ({"storage.fsink": "x"}, "fsync"),
        ({"commit_store": "sqlite:///x.db?synchronus=full"}, "synchronous"),
        ({"commit_store": "redi://h"}, "redis"),
        ({"commit_store": "nonsense"}, "scheme"),
        ({"commit_retry": "3"}, "did you mean 'commit_"),
        ({"root": "memory:///lake", "commit_store": "sqlite:///x.db"}, "cannot read the memory"),
        ({"manifest_enabled": "false", "dir_listing_enabled": "false"}, "nothing would find a table"),
        ({"dir_listing_to_manifest_migration_enabled": "false"}, "in the manifest first"),
        ({"dir_listing_enabled": "perhaps"}, "give 'true' or 'false'"),
        ({"root": "nope://x"}, "nope"),
    ],
)
def test_invalid_properties_are_refused_before_any_write(
    tmp_path: Path, properties: dict[str, str], message: str
) -> None:
    with pytest.raises(api_errors.InvalidInputError, match=message):
        lancekeep.DirectoryNamespace(**{"root": str(tmp_path / "lake"), **properties})
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("name", ["a/b", "a\\b", "a\0b", "..", "a$b", "", "x" * 300])
def test_invalid_names_write_nothing(catalog: lancekeep.Catalog, tmp_path: Path, name: str) -> None:
    for act in (
        lambda: catalog.create_namespace([name]),
        lambda: catalog.write([name], TABLE),
        lambda: catalog.declare_table(["ok", name]),
    ):
        with pytest.raises(lancekeep.InvalidInput):
            act()
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("scheme", ["redis", "dynamodb", "s3"])
def test_unreachable_store_is_named_without_its_password(tmp_path: Path, scheme: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    secret = "hunter2secret"
    options = {**s3_options(endpoint), "aws_secret_access_key": secret} if scheme == "s3" else None
    with pytest.raises(lancekeep.StoreUnavailable) as raised:
        lancekeep.connect(
            "s3://bucket/lake" if scheme == "s3" else str(tmp_path / "lake"),
            commit_store={
                "redis": f"redis://user:{secret}@127.0.0.1:{port}/0",
                "dynamodb": f"dynamodb://Commits?region=us-east-1&endpoint_url={endpoint}",
                "s3": "conditional-put://",
            }[scheme],
            storage_options=options,
            commit_store_options={**CREDENTIALS, "aws_secret_access_key": secret} if scheme == "dynamodb" else None,
        )
    assert f"127.0.0.1:{port}" in str(raised.value)
    assert secret not in str(raised.value) + repr(raised.value)


def test_options_of_the_commit_store_reach_no_other_store(tmp_path: Path) -> None:
    store, options = f"sqlite://{tmp_path}/commits.db", {"timeout": "3"}
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=store, commit_store_options=options) as catalog:
        assert catalog.write("t", TABLE).version == 1


# -- DynamoDB beside native s3+ddb:// writers ----------------------------------------------------------------------


def test_dynamodb_table_is_shared_with_native_writers(moto_endpoint: str) -> None:
    options = s3_options(moto_endpoint)
    name = bucket(moto_endpoint)
    store = f"dynamodb://shared-{name}?region=us-east-1&endpoint_url={moto_endpoint}&shared_with_native=true"
    catalog = lancekeep.connect(f"s3://{name}/lake", commit_store=store, storage_options=options)
    catalog.write("t", TABLE)
    key = directory_of(catalog).places.dataset_root(catalog.find_table("t")).key
    native_uri = f"s3+ddb://{name}/{key}?ddbTableName=shared-{name}"
    native_options = {**options, "dynamodb_endpoint": moto_endpoint}
    for turn in range(3):
        lance.write_dataset(TABLE, native_uri, mode="append", storage_options=native_options)
        assert catalog.open("t").count_rows() == 3 + turn * 6 + 3
        catalog.write("t", TABLE, "append")
        assert lance.dataset(native_uri, storage_options=native_options).count_rows() == 3 + turn * 6 + 6
    assert [entry.version for entry in catalog.versions.history("t")] == [7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(("tagged", "branch"), [(None, "b"), ("b", None)])
def test_a_tag_keeps_the_version_of_its_own_history_only(
    tmp_path: Path, tagged: str | None, branch: str | None
) -> None:
    """A branch goes on with the numbers of the main history, and plain pylance sets the tag."""
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db")
    for mode in ("create", "append"):
        catalog.write("t", TABLE, mode)
    catalog.open("t").create_branch("b")
    for history in (None, "b"):
        for _ in range(2):
            catalog.open("t", branch=history).insert(TABLE)
    lance.dataset(catalog.describe_table("t").uri).tags.create("kept", (tagged, 3))
    own = directory_of(catalog)
    root = own.places.dataset_root(catalog.find_table("t"))
    with pytest.raises(lancekeep.Refused, match="a tag points at version 3"):
        own.versions.delete_versions(root.branch(tagged), [3])
    assert own.versions.delete_versions(root.branch(branch), [3]) == 1


def test_rows_of_every_kind_are_merged(catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("merged")
    catalog.write("merged.t", pa.table({"id": [0], "n": [0]}))
    rule, batch = lancekeep.MergeRule(on=["id"], update=True, insert=True), pa.record_batch({"id": [0, 1], "n": [1, 1]})
    table = pa.Table.from_batches([batch])
    for rows in (batch, table, table.to_reader(), table.to_pandas()):
        catalog.data.merge("merged.t", rows, rule)
    stored = lance.dataset(catalog.describe_table("merged.t").uri).to_table()
    assert stored.sort_by("id").to_pylist() == [{"id": 0, "n": 1}, {"id": 1, "n": 1}]
