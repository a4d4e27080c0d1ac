"""Batches of declarations, and the ids of transactions."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from lance_namespace import errors as api_errors

import lancekeep
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.domain.commit_token import CommitToken, StagedManifest

ROWS = pa.table({"a": [1]})
MODES = {"compatible": {}, "V2": {"dir_listing_enabled": "false"}}


@pytest.fixture(params=MODES)
def namespace(request: pytest.FixtureRequest, tmp_path: Path) -> lancekeep.DirectoryNamespace:
    given = {"root": str(tmp_path / "lake"), "commit_store": f"sqlite://{tmp_path}/commits.db"}
    return lancekeep.DirectoryNamespace(**given, **MODES[request.param], **{"storage.fsync": "false"})


def batch(namespace: lancekeep.DirectoryNamespace, *operations: dict[str, Any]) -> Any:
    return namespace.batch_commit_tables({"operations": list(operations)})  # type: ignore[arg-type]  # a dict


def declare(*names: str, **fields: Any) -> dict[str, Any]:
    return {"declare_table": {"id": list(names), **fields}}


def deregister(*names: str) -> dict[str, Any]:
    return {"deregister_table": {"id": list(names)}}


# -- batches of declarations and deregistrations ------------------------------------------------------------------


def test_declarations_and_deregistrations_are_one_change(namespace: lancekeep.DirectoryNamespace) -> None:
    catalog = namespace.catalog
    catalog.create_namespace("n")
    catalog.write("old", ROWS)
    before = directory_of(catalog).ledger.view().version
    results = batch(namespace, declare("n", "a"), deregister("old"), declare("b", properties={"k": "v"})).results
    assert catalog.list_tables() == ["b"]
    assert catalog.list_tables("n") == ["a"]
    assert catalog.find_table("b").properties["k"] == "v"
    assert results[0].declare_table.location == services_of(catalog).uri(catalog.find_table("n.a"))
    assert results[1].deregister_table.id == ["old"]
    assert lance.dataset(results[1].deregister_table.location).count_rows() == 1
    # In compatible mode, a table that leaves its V1 directory may first be entered in the manifest.
    assert directory_of(catalog).ledger.view().version - before <= 2


@pytest.mark.parametrize(
    ("operations", "error"),
    [
        ([declare("new"), declare("old")], api_errors.TableAlreadyExistsError),
        ([declare("new"), deregister("missing")], api_errors.TableNotFoundError),
        ([deregister("old"), declare("missing", "t")], api_errors.NamespaceNotFoundError),
        ([declare("new"), declare("new")], api_errors.InvalidInputError),
        ([declare("new", location="d"), declare("other", location="d/e")], api_errors.InvalidInputError),
        ([declare("new"), declare("other", location="../outside")], api_errors.InvalidInputError),
    ],
)
def test_a_batch_with_one_refused_operation_changes_nothing(
    namespace: lancekeep.DirectoryNamespace, tmp_path: Path, operations: list[dict[str, Any]], error: type[Exception]
) -> None:
    namespace.catalog.write("old", ROWS)
    before = sorted(path for path in (tmp_path / "lake").rglob("*") if "__manifest" not in path.parts)
    with pytest.raises(error):
        batch(namespace, *operations)
    assert namespace.catalog.list_tables() == ["old"]
    assert sorted(path for path in (tmp_path / "lake").rglob("*") if "__manifest" not in path.parts) == before


def test_a_batch_that_loses_a_race_releases_its_directories(
    namespace: lancekeep.DirectoryNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = namespace.catalog
    catalog.write("old", ROWS)
    reserve = directory_of(catalog).tables.reserve

    def reserve_late(table: lancekeep.Table, *more: Any) -> lancekeep.Table:
        reserved = reserve(table, *more)
        if str(table.id) == "b":
            catalog.deregister_table("old")
        return reserved

    monkeypatch.setattr(directory_of(catalog).tables, "reserve", reserve_late)
    with pytest.raises(api_errors.TableNotFoundError):
        batch(namespace, declare("a"), declare("b"), deregister("old"))
    assert catalog.list_tables() == []
    reserved = [path.parent.name for path in (tmp_path / "lake").rglob(".lance-reserved")]
    assert [name for name in reserved if name != "old.lance"] == []


def test_a_v1_directory_changes_one_table_at_a_time(tmp_path: Path) -> None:
    namespace = lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"), manifest_enabled="false")
    batch(namespace, declare("a"))
    with pytest.raises(api_errors.UnsupportedOperationError, match="one table at a time"):
        batch(namespace, declare("b"), deregister("a"))
    assert namespace.catalog.list_tables() == ["a"]


# -- transactions of tables ---------------------------------------------------------------------------------------


def describe(namespace: lancekeep.DirectoryNamespace, *names: str) -> Any:
    return namespace.describe_transaction(api.DescribeTransactionRequest(id=list(names)))


def alter(namespace: lancekeep.DirectoryNamespace, names: list[str], *actions: dict[str, Any]) -> Any:
    request = {"id": names, "actions": list(actions)}
    return namespace.alter_transaction(request)  # type: ignore[arg-type]  # a dict


def status(value: str) -> dict[str, Any]:
    return {"setStatusAction": {"status": value}}


def test_a_transaction_of_a_table_is_described_by_uuid_and_by_version(namespace: lancekeep.DirectoryNamespace) -> None:
    namespace.catalog.write("t", ROWS)
    namespace.catalog.write("t", ROWS, "append")
    namespace.create_table_scalar_index(api.CreateTableIndexRequest(id=["t"], column="a", index_type="BTREE"))
    transaction = namespace.catalog.open("t").read_transaction(2)
    expected = {"uuid": transaction.uuid, "read_version": "1", "version": "2", "operation": "Append"}
    for name in (transaction.uuid, "2"):
        found = describe(namespace, "t", name)
        assert (found.status, found.properties) == ("SUCCEEDED", expected)


def test_a_transaction_on_a_branch_is_described(namespace: lancekeep.DirectoryNamespace) -> None:
    namespace.catalog.write("t", ROWS)
    namespace.create_table_branch(api.CreateTableBranchRequest(id=["t"], name="b"))
    added = namespace.update_table_schema_metadata(
        api.UpdateTableSchemaMetadataRequest(id=["t"], branch="b", metadata={"k": "v"})
    )
    found = describe(namespace, "t", str(added.transaction_id))
    assert found.properties["branch"] == "b"
    assert found.properties["operation"] == "UpdateConfig"


@pytest.mark.parametrize("names", [["t", str(uuid4())], ["t", "9"], ["t", "no-uuid"], ["no token"], []])
def test_a_missing_transaction_is_not_found(namespace: lancekeep.DirectoryNamespace, names: list[str]) -> None:
    namespace.catalog.write("t", ROWS)
    with pytest.raises(api_errors.TransactionNotFoundError):
        describe(namespace, *names)
    with pytest.raises(api_errors.TransactionNotFoundError):
        alter(namespace, names, status("Succeeded"))


def test_a_transaction_of_a_missing_table_is_not_found(namespace: lancekeep.DirectoryNamespace) -> None:
    with pytest.raises(api_errors.TableNotFoundError):
        describe(namespace, "missing", str(uuid4()))


def test_a_committed_transaction_is_final(namespace: lancekeep.DirectoryNamespace) -> None:
    namespace.catalog.write("t", ROWS)
    assert alter(namespace, ["t", "1"], status("succeeded")).status == "SUCCEEDED"
    for action in (status("Canceled"), {"setPropertyAction": {"key": "k", "value": "v"}}):
        with pytest.raises(api_errors.UnsupportedOperationError, match="Nothing was changed"):
            alter(namespace, ["t", "1"], action)
    with pytest.raises(api_errors.InvalidInputError):
        alter(namespace, ["t", "1"], status("perhaps"))


# -- commits of unknown outcome -----------------------------------------------------------------------------------


def staged_token(namespace: lancekeep.DirectoryNamespace) -> CommitToken:
    """Return the token of a staged manifest that no writer has committed."""
    catalog = namespace.catalog
    plan = catalog.begin_write("t", ROWS.schema, "append")
    staged = directory_of(catalog).engine.stage(
        plan, directory_of(catalog).engine.write_fragments(plan, ROWS.to_reader())
    )
    root = directory_of(catalog).places.dataset_root(catalog.find_table("t"))
    digest = sha256(directory_of(catalog).places.objects.get(staged.path)).hexdigest()
    return CommitToken(StagedManifest(root.base_uri, staged.version, staged.path, staged.size, digest=digest))


def test_a_commit_of_unknown_outcome_is_described_and_settled(namespace: lancekeep.DirectoryNamespace) -> None:
    namespace.catalog.write("t", ROWS)
    token = str(staged_token(namespace))
    assert describe(namespace, token).status == "RUNNING"
    assert namespace.catalog.describe_table("t").version == 1, "describing it must not commit it"
    with pytest.raises(api_errors.UnsupportedOperationError):
        alter(namespace, [token], status("Canceled"))
    assert alter(namespace, [token], status("Succeeded")).status == "SUCCEEDED"
    assert namespace.catalog.open("t").count_rows() == 2
    assert describe(namespace, token).status == "SUCCEEDED"
    assert alter(namespace, [token], status("Succeeded")).status == "SUCCEEDED"
    assert namespace.catalog.describe_table("t").version == 2


def test_a_commit_that_lost_its_version_has_failed(namespace: lancekeep.DirectoryNamespace) -> None:
    namespace.catalog.write("t", ROWS)
    token = str(staged_token(namespace))
    namespace.catalog.write("t", ROWS, "append")
    assert describe(namespace, token).status == "FAILED"
    with pytest.raises(api_errors.UnsupportedOperationError):
        alter(namespace, [token], status("Succeeded"))


def test_a_token_of_another_catalog_is_refused(namespace: lancekeep.DirectoryNamespace) -> None:
    namespace.catalog.write("t", ROWS)
    staged = staged_token(namespace).staged
    path = staged.path.rpartition("/_versions/")[2]
    foreign = StagedManifest("file:///elsewhere/x", staged.version, f"elsewhere/x/_versions/{path}", staged.size)
    with pytest.raises(api_errors.InvalidInputError):
        describe(namespace, str(CommitToken(foreign)))
